#pragma once
/// \file region.ipp
/// Definitions of region.hpp.

#include <algorithm>
#include <cerrno>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/verbs/protocol.hpp"
#include "tensorhub/transports/verbs/region.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL std::string registration_advice(int number, std::uint64_t registered_bytes) {
  if (number == EFAULT)
    return "the memory is not mapped, or not writable, as a target of reads and memory under windows must be";
  if (number != ENOMEM && number != EAGAIN && number != EPERM) return reason(number);
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return reason(number) +
           ", although locked memory is not limited: the device supports no more registrations, "
           "or the machine has no memory";
  return reason(number) + ". This process may lock " + std::to_string(limit.rlim_cur) +
         " bytes (RLIMIT_MEMLOCK; `ulimit -l` says " + std::to_string(limit.rlim_cur / 1024) +
         "), of which " + std::to_string(registered_bytes) +
         " bytes of regions are in use, twice where a region is also a target and has no memory windows. "
         "Raise the limit: "
         "`ulimit -l unlimited` in the shell, LimitMEMLOCK=infinity in a systemd unit, "
         "--ulimit memlock=-1 for a container, or memlock in /etc/security/limits.conf";
}

TENSORHUB_DECL bool has_peer_memory() noexcept {
  return ::access("/sys/module/nvidia_peermem", F_OK) == 0 ||
         ::access("/sys/module/nv_peer_mem", F_OK) == 0 || ::access("/sys/kernel/mm/memory_peers", F_OK) == 0;
}

TENSORHUB_DECL region::region(source& owner, const memory_range& range, region_access access,
                              const verbs_options& options, const std::string& which)
    : owner_{owner},
      range_{range},
      access_{access},
      optional_flags_{options.relaxed_ordering ? relaxed : 0u},
      needs_windows_{options.revocation == revocation_mode::memory_windows &&
                     access != region_access::local_write} {
  std::uint64_t largest = UINT64_MAX;
  for (const rail& each : owner.rails()) largest = std::min(largest, each.limits.registration_bytes);
  pieces_ = pieces_for(range.bytes, largest);
  piece_bytes_ = piece_bytes_of(range.bytes, pieces_);
  const std::uint64_t rails = owner.rails().size();
  if (access != region_access::local_write && pieces_ * rails > most_rkeys) {
    throw error(errc::limit_exceeded,
                "verbs: " + which + " has " + std::to_string(range.bytes) + " bytes, which are " +
                    std::to_string(pieces_) + " registrations on each of " + std::to_string(rails) +
                    " rails; a key holds " + std::to_string(most_rkeys) +
                    ". Register it as several ranges, use fewer rails, or raise largest_registration_bytes");
  }
  if (range.host_accessible()) {
    if (const int trouble = register_for_all(); trouble != 0) {
      throw error(errc::transport_failed, "verbs: " + which + " (" + std::to_string(range_.bytes) +
                                              " bytes) cannot be registered with " + devices() + ": " +
                                              cause(trouble));
    }
  } else {
    register_device_memory(which);
  }
  if (access != region_access::remote_read)
    for (const ibv_mr* each : local_.registrations) local_keys_.push_back(each->lkey);
  owner_.registered_bytes().fetch_add(range.bytes, std::memory_order_relaxed);
}

TENSORHUB_DECL region::~region() {
  if (!remote_.close() || !local_.close()) owner_.refuse_everybody();
  owner_.registered_bytes().fetch_sub(range_.bytes, std::memory_order_relaxed);
}

TENSORHUB_DECL std::string region::how_read() const {
  std::string text = std::to_string(range_.bytes) + " bytes of ";
  if (way_ == memory_way::host) {
    text += "host memory";
  } else {
    text += range_.device->description() +
            (way_ == memory_way::dmabuf
                 ? ": by its dmabuf"
                 : ": by its address (peer memory), since there is no dmabuf: " + no_dmabuf_);
  }
  if (access_ == region_access::local_write) return text;
  return text + "; peers' keys are " +
         (no_windows_.empty() ? "memory windows" : "registrations: " + no_windows_);
}

TENSORHUB_DECL remote_region region::describe() const {
  if (access_ == region_access::local_write)
    throw error(errc::invalid_argument, "verbs: this region was not registered for remote reads");
  const std::lock_guard lock{mutex_};
  const std::vector<std::uint32_t> keys = remote_.remote_keys();
  if (keys.empty()) {
    throw error(errc::transport_failed,
                "verbs: this region cannot be read any more: it was revoked, and no other keys could be had "
                "for its " +
                    std::to_string(range_.bytes) + " bytes: " +
                    (no_windows_.empty() ? window_trouble(revoke_trouble_)
                                         : registration_advice(revoke_trouble_, owner_.registered_bytes())));
  }
  region_key key;
  key.head.rails = static_cast<std::uint8_t>(owner_.rails().size());
  key.head.pieces = static_cast<std::uint8_t>(pieces_);
  key.head.base = reinterpret_cast<std::uintptr_t>(range_.data);
  key.head.bytes = range_.bytes;
  std::copy(keys.begin(), keys.end(), key.rkeys.begin());
  return {key.head.base, range_.bytes, encode_key(key, owner_.key_maker())};
}

TENSORHUB_DECL void region::revoke() noexcept {
  if (access_ == region_access::local_write) return;
  const std::lock_guard lock{mutex_};
  try {
    const std::vector<std::uint32_t> old = remote_.remote_keys();
    if (!remote_.close()) owner_.refuse_everybody();
    // A device may return the same number again: such objects are kept until other numbers are found.
    std::vector<device_objects> same;
    for (int i = 0; i < most_attempts; ++i) {
      revoke_trouble_ = open_to_peers();
      if (revoke_trouble_ != 0) break;
      const bool is_new = detail::none_of(remote_.remote_keys(),
                                          [&](std::uint32_t each) { return detail::contains(old, each); });
      if (is_new) return;
      same.push_back(std::move(remote_));
    }
  } catch (...) {
    revoke_trouble_ = ENOMEM;
  }
  if (!remote_.close()) owner_.refuse_everybody();
}

TENSORHUB_DECL bool region::device_objects::close() noexcept {
  bool all = true;
  for (ibv_mw* each : windows) all = ::ibv_dealloc_mw(each) == 0 && all;
  for (ibv_mr* each : registrations) all = ::ibv_dereg_mr(each) == 0 && all;
  windows.clear();
  registrations.clear();
  return all;
}

TENSORHUB_DECL std::vector<std::uint32_t> region::device_objects::remote_keys() const {
  std::vector<std::uint32_t> keys;
  for (const ibv_mw* each : windows) keys.push_back(each->rkey);
  for (const ibv_mr* each : registrations) keys.push_back(each->rkey);
  return keys;
}

TENSORHUB_DECL int region::make_windows(device_objects& into) const {
  into.windows.reserve(local_.registrations.size());
  for (std::size_t i = 0; i < local_.registrations.size(); ++i) {
    ibv_mw* made = nullptr;
    const int trouble = owner_.rails()[i / pieces_].windows->make(*local_.registrations[i], made);
    if (trouble != 0) {
      static_cast<void>(into.close());
      return trouble;
    }
    into.windows.push_back(made);
  }
  return 0;
}

TENSORHUB_DECL int region::register_all(device_objects& into, unsigned access) const {
  into.registrations.reserve(owner_.rails().size() * pieces_);
  for (const rail& each : owner_.rails()) {
    // iWARP delivers the answer of a read as a remote write; no peer learns the key for it.
    const bool answers_write = each.is_iwarp && (access & IBV_ACCESS_LOCAL_WRITE) != 0;
    const unsigned flags = access | (answers_write ? unsigned{IBV_ACCESS_REMOTE_WRITE} : 0u);
    for (std::uint64_t at = 0; at < range_.bytes; at += piece_bytes_) {
      const std::uint64_t bytes = std::min(piece_bytes_, range_.bytes - at);
      ibv_mr* const made = register_piece(each, at, bytes, flags);
      if (made == nullptr) {
        const int trouble = errno == 0 ? EIO : errno;
        static_cast<void>(into.close());
        return trouble;
      }
      into.registrations.push_back(made);
    }
  }
  return 0;
}

TENSORHUB_DECL ibv_mr* region::register_piece(const rail& on, std::uint64_t at, std::uint64_t bytes,
                                              unsigned access) const noexcept {
  if (way_ != memory_way::dmabuf) {
    // For memory that is only read, kernels before 6.2 pin pages of zeros at an address that the CPU cannot
    // access, instead of refusing. They do refuse if the memory is also to be written.
    if (way_ == memory_way::peer_memory) access |= IBV_ACCESS_LOCAL_WRITE;
    return ::ibv_reg_mr(on.domain.get(), range_.data + at, bytes, access | optional_flags_);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(range_.data) + at;
  const auto with = [&](unsigned flags) {
    return ::ibv_reg_dmabuf_mr(on.domain.get(), dmabuf_offset_ + at, bytes, address, dmabuf_.get(),
                               static_cast<int>(flags));
  };
  // Some devices do not ignore optional flags in this call.
  ibv_mr* const made = with(access | optional_flags_);
  return made != nullptr || optional_flags_ == 0 ? made : with(access);
}

TENSORHUB_DECL int region::open_to_peers() {
  return no_windows_.empty() ? make_windows(remote_) : register_all(remote_, IBV_ACCESS_REMOTE_READ);
}

TENSORHUB_DECL bool region::register_with_windows() {
  no_windows_.clear();
  for (const rail& each : owner_.rails())
    if (!each.windows) no_windows_ = each.no_windows;
  if (way_ == memory_way::dmabuf) no_windows_ = "a dmabuf has no memory windows";
  if (!no_windows_.empty()) return false;
  unsigned access = IBV_ACCESS_MW_BIND;
  if (access_ == region_access::both) access |= IBV_ACCESS_LOCAL_WRITE;
  int trouble = register_all(local_, access);
  if (trouble != 0) {
    no_windows_ = registration_advice(trouble, owner_.registered_bytes());
    return false;
  }
  trouble = make_windows(remote_);
  if (trouble == 0) return true;
  static_cast<void>(local_.close());
  no_windows_ = window_trouble(trouble);
  return false;
}

TENSORHUB_DECL int region::register_for_all() {
  const bool has_readers = access_ != region_access::local_write;
  if (has_readers && register_with_windows()) return 0;
  if (needs_windows_) return EOPNOTSUPP;
  int trouble = access_ == region_access::remote_read ? 0 : register_all(local_, IBV_ACCESS_LOCAL_WRITE);
  if (trouble == 0 && has_readers) trouble = open_to_peers();
  if (trouble != 0) static_cast<void>(local_.close());
  return trouble;
}

TENSORHUB_DECL std::string region::cause(int number) const {
  if (needs_windows_) return "revocation_mode::memory_windows: " + no_windows_;
  return way_ == memory_way::host ? registration_advice(number, owner_.registered_bytes()) : reason(number);
}

TENSORHUB_DECL void region::register_device_memory(const std::string& which) {
  dmabuf_.reset(range_.device->export_dmabuf(range_, dmabuf_offset_, no_dmabuf_));
  if (dmabuf_) {
    way_ = memory_way::dmabuf;
    const int trouble = register_for_all();
    if (trouble == 0) return;
    no_dmabuf_ = "the RDMA device does not accept it: " + cause(trouble);
    dmabuf_.reset();
  }
  if (no_dmabuf_.empty()) no_dmabuf_ = "its device provides none";
  way_ = memory_way::peer_memory;
  const int trouble = register_for_all();
  if (trouble == 0) return;
  throw error(errc::transport_failed,
              "verbs: " + which + " (" + std::to_string(range_.bytes) + " bytes of " +
                  range_.device->description() + ") is device memory that " + devices() +
                  " cannot reach. By dmabuf: " + no_dmabuf_ + ". By its address: " + cause(trouble) +
                  (has_peer_memory() ? "" : " (nvidia_peermem is not loaded)") +
                  ". Load the kernel module nvidia_peermem, or use a driver that exports dmabufs, or put "
                  "another transport behind this one: first_of<verbs, tcp>");
}

TENSORHUB_DECL std::string region::devices() const {
  std::string text;
  for (const rail& each : owner_.rails()) text += (text.empty() ? "" : " and ") + each.device;
  return text;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
