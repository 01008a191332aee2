#pragma once
/// \file link.ipp
/// Definitions of link.hpp.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/copy.hpp"
#include "tensorhub/transports/same_host/link.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL link::link(const transport_address& where, const same_host_options& options,
                          const machine_identity& machine, incarnation self, incarnation peer,
                          std::shared_ptr<import_table> imports, clock::time_point until)
    : text_{where.text},
      ends_{self, peer},
      maps_files_{options.files == backing_files::map},
      maps_devices_{options.device == device_memory::map},
      imports_{std::move(imports)} {
  const auto address = host_address::parse(text_);
  if (!address) refuse("is not an address of this transport");
  require_this_machine(*address, machine, text_);
  socket_ = connect_to(address->socket, text_, until);
  const peer_credentials source = credentials_of(socket_.get());
  if (!may_talk(source.user, options.allowed_uids))
    refuse(other_user_text(source.user) + ": run both as one user, or name it in the option allowed_uids");
  process_.peer = source.process;
  hello greeting;
  greeting.reader = self.value;
  greeting.source = peer.value;
  if (where.capability.size() == greeting.capability.size())
    std::memcpy(greeting.capability.data(), where.capability.data(), greeting.capability.size());
  // A source that turns a reader away does not wait for the hello; its welcome says why.
  if (!send_packet(socket_.get(), greeting) && errno != EPIPE) refuse("closed the connection at once");
  take_welcome(until);
  hold_process();
  if (options.attach == memory_attach::automatic && probe_address_ != 0) probe(source.user);
}

TENSORHUB_DECL std::shared_ptr<const region_view> link::region(const region_key& key) {
  if (const auto found = regions_.find(key); found != regions_.end()) return found->second;
  if (regions_.size() >= sweep_at_) {
    sweep();
    sweep_at_ = std::max<std::size_t>(64, 2 * regions_.size());
  }
  auto fresh = std::make_shared<region_view>();
  fresh->key = key;
  to_ask_.push_back({fresh, false});
  try {
    regions_.emplace(key, fresh);
  } catch (...) {
    to_ask_.pop_back();
    throw;
  }
  if (!is_waiting_) last_answer_ = clock::now();
  is_waiting_ = true;
  return fresh;
}

TENSORHUB_DECL void link::ask() noexcept {
  while (!to_ask_.empty() && asked_.size() < requests_in_flight) {
    try {
      region_request request;
      request.number = last_number_ + 1;
      if (to_ask_.front().brings_file) request.wants = request_kind::region_and_file;
      request.key = to_ask_.front().region->key;
      const auto entry = asked_.emplace(request.number, to_ask_.front()).first;
      if (!send_packet(socket(), request)) {
        asked_.erase(entry);
        return;  // full, or broken, which the next receive detects
      }
      ++last_number_;
      to_ask_.pop_front();
    } catch (...) {  // no memory now: the next call tries again
      return;
    }
  }
}

TENSORHUB_DECL answer_outcome link::take_answers() noexcept {
  ask();
  for (bool any = false;; any = true) {
    region_answer answer;
    detail::unique_fd descriptor;
    switch (receive_packet(socket(), answer, descriptor)) {
      case packet_outcome::taken:
        break;
      case packet_outcome::nothing:
        is_waiting_ = !asked_.empty() || !to_ask_.empty() || staging_ > 0;
        return any ? answer_outcome::some : answer_outcome::none;
      case packet_outcome::ended:
      case packet_outcome::strange:
        return answer_outcome::lost;
    }
    last_answer_ = clock::now();
    const auto found = asked_.find(answer.number);
    if (found == asked_.end()) {
      if (!take_staged(answer, descriptor)) return answer_outcome::lost;
      continue;
    }
    const question asked = found->second;
    const auto& region = asked.region;
    asked_.erase(found);
    try {
      if (!take_in(asked, answer, std::move(descriptor))) return answer_outcome::lost;
    } catch (...) {  // no memory: treated as denied
      region->state = region_state::denied;
    }
    if (region->state == region_state::denied) regions_.erase(region->key);
    ask();
  }
}

TENSORHUB_DECL bool link::stage(const region_view& region, const void* owner, std::uint64_t offset,
                                std::uint64_t at, std::uint64_t bytes) noexcept {
  for (std::uint32_t i = 0; i < stage_slots; ++i) {
    stage_slot& slot = slots_[i];
    if (slot.state != stage_slot::state_type::free) continue;
    region_request request{last_number_ + 1, request_kind::staged_piece, i, offset + at, bytes, region.key};
    if (!send_packet(socket(), request)) return false;
    slot = {stage_slot::state_type::asked, owner, ++last_number_, at, bytes};
    if (!is_waiting_) last_answer_ = clock::now();
    is_waiting_ = true;
    ++staging_;
    return true;
  }
  errno = EAGAIN;
  return false;
}

TENSORHUB_DECL const std::byte* link::staged(const stage_slot& slot) const noexcept {
  return stage_.view.data() + static_cast<std::uint64_t>(&slot - slots_.data()) * stage_piece_bytes;
}

TENSORHUB_DECL void link::pin_staged(device_access& by) noexcept {
  stage_.pages.pin(by, stage_.view.data(), stage_slots * stage_piece_bytes, true);
}

TENSORHUB_DECL void link::forget(const void* owner) noexcept {
  for (stage_slot& slot : slots_) {
    if (slot.owner != owner) continue;
    slot.owner = nullptr;
    if (slot.state != stage_slot::state_type::asked) slot.state = stage_slot::state_type::free;
  }
}

TENSORHUB_DECL const std::byte* link::map(const region_view& region, device_access& by) {
  if (!maps_devices_) return nullptr;
  if (is_own_process() && region.address != 0) return reinterpret_cast<const std::byte*>(region.address);
  if (region.memory != region_memory::mappable_device) return nullptr;
  for (const mapped_region& each : region.mapped)
    if (each.by == &by) return each.memory ? each.memory->data() + region.exported.offset : nullptr;
  region.mapped.reserve(region.mapped.size() + 1);
  sweep();  // releases mappings of revoked regions
  mapped_region fresh{&by, {}, {}};
  foreign_allocation what{text_, region.export_number, region.exported};
  what.words.offset = 0;
  try {
    fresh.memory = imports_->get(what, by);
    if (!fresh.memory) {
      note("an older mapping of the same handle or address is still in use");
      return nullptr;
    }
  } catch (const error& e) {
    fresh.why = by.description() + " cannot map it: " + e.sentence();
  }
  region.mapped.push_back(fresh);
  return fresh.memory ? fresh.memory->data() + region.exported.offset : nullptr;
}

TENSORHUB_DECL void link::note(const std::string& why) {
  if (why_.empty()) why_ = "memory of the peer is staged: " + why;
}

TENSORHUB_DECL void link::note_unreadable() {
  if (why_.empty())
    why_ =
        "memory of the peer is in no file that it offers, and this process does not attach to others (option "
        "attach): let the source allocate it by host_memory or name its file by file_mapping, or permit "
        "attach here";
}

TENSORHUB_DECL void link::sweep() noexcept {
  std::erase_if(regions_, [this](const auto& entry) {
    const region_view& each = *entry.second;
    return each.state == region_state::granted && !grants_.holds(each.given);
  });
  std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
}

TENSORHUB_DECL completion_status link::state() const noexcept {
  const std::uint64_t now = grants_.value(own_.slot);
  if (now == cut_off_grant) return completion_status::cut_off;
  return now == own_.number && is_alive() ? completion_status::ok : completion_status::peer_lost;
}

TENSORHUB_DECL completion_status link::copy(const region_view& region, std::uint64_t offset,
                                            std::byte* target, std::uint64_t bytes,
                                            bool streaming) const noexcept {
  if (const auto before = permission(region); before != completion_status::ok) return before;
  int failure = 0;
  if (region.file && region.file->data() != nullptr) {
    const detail::peer_read reading;
    const std::byte* const from = region.file->data() + region.file_offset + offset;
    if (streaming) {
      copy_streaming(target, from, bytes);
    } else {
      std::memcpy(target, from, bytes);
    }
  } else if (region.file) {
    failure = copy_from_file(region.file->descriptor(), region.file_offset + offset, target, bytes);
  } else if (!can_attach_) {
    failure = EPERM;
  } else {
    // Never read the memory of an unrelated process, not even to discard the bytes.
    if (!is_alive()) return completion_status::peer_lost;
    const detail::peer_read reading;
    failure = copy_from_process(process_.peer, region.address + offset, target, bytes);
  }
  return verdict(region, failure);
}

TENSORHUB_DECL completion_status link::permission(const region_view& region) const noexcept {
  const std::uint64_t now = grants_.value(own_.slot);
  if (now == cut_off_grant) return completion_status::cut_off;
  if (now != own_.number) return completion_status::peer_lost;
  return grants_.holds(region.given) ? completion_status::ok : completion_status::access_denied;
}

TENSORHUB_DECL completion_status link::verdict(const region_view& region, int failure,
                                               bool seen_alive) const noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the bytes before the words: see grants.hpp
  if (const auto after = permission(region); after != completion_status::ok) return after;
  if (failure == ESRCH || !(seen_alive || is_alive())) return completion_status::peer_lost;
  if (failure == 0) return completion_status::ok;
  return failure == EFAULT ? completion_status::access_denied : completion_status::local_error;
}

TENSORHUB_DECL void link::refuse(const std::string& why) const {
  throw error(errc::transport_failed, "same_host: " + text_ + " " + why);
}

TENSORHUB_DECL void link::take_welcome(clock::time_point until) {
  welcome answer;
  detail::unique_fd page;
  for (;;) {
    pollfd entry{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, detail::milliseconds_left(until));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0)
      throw error(errc::timed_out, "same_host: " + text_ + " accepted the connection and sent no welcome");
    const packet_outcome outcome = receive_packet(socket_.get(), answer, page);
    if (outcome == packet_outcome::nothing) continue;
    if (outcome == packet_outcome::ended) refuse("closed the connection instead of greeting");
    if (outcome == packet_outcome::strange || answer.magic != welcome_magic)
      refuse("is not a TensorHub process");
    break;
  }
  if (answer.status == welcome_status::other_user) {
    refuse(
        "does not let user " + std::to_string(::geteuid()) +
        " in: run both processes as one user, which has a number in both user namespaces, or name it in the "
        "source's option allowed_uids");
  }
  if (answer.status == welcome_status::full)
    refuse("has no connection left: raise its option max_connections");
  if (answer.status == welcome_status::crowded)
    refuse("takes no more connections of this worker: raise its option max_connections_per_reader");
  if (const std::string why = detail::why_refused(answer, protocol_number, ends_.peer); !why.empty())
    refuse(why);
  if (!page && !detail::has_free_descriptor())
    throw error(errc::system_failed, "same_host: this process has no descriptor left for the grant page of " +
                                         text_ + ": raise the limit of open files (ulimit -n)");
  if (page) grants_ = grant_view{page.get()};
  own_ = {answer.grant_slot, answer.grant};
  if (!grants_ || !grants_.has(own_.slot) || own_.number < first_grant)
    refuse("sent no usable grant page (or this process has no memory left for it)");
  probe_address_ = answer.probe_address;
  probe_value_ = answer.probe_value;
}

TENSORHUB_DECL void link::hold_process() noexcept {
#ifdef SYS_pidfd_open
  if (process_.peer > 0) process_file_.reset(static_cast<int>(::syscall(SYS_pidfd_open, process_.peer, 0)));
#endif
}

TENSORHUB_DECL void link::probe(uid_t its_user) {
  std::uint64_t value = 0;
  const int failure = process_.peer > 0
                          ? copy_from_process(process_.peer, probe_address_,
                                              reinterpret_cast<std::byte*>(&value), sizeof value)
                          : EPERM;
  if (failure != 0) {
    refuse("is reachable, but " + why_attach_fails(failure, process_.peer, its_user) +
           ". Without that (option attach = never) only memory in files can be read, and what a source with "
           "attach = never copies");
  }
  if (value != probe_value_)
    refuse("is not process " + std::to_string(process_.peer) + ", which opened its socket");
  can_attach_ = true;
}

TENSORHUB_DECL bool link::is_alive() const noexcept {
  std::array<pollfd, 2> entries{pollfd{socket_.get(), 0, 0}, pollfd{process_file_.get(), POLLIN, 0}};
  const nfds_t count = process_file_ ? 2 : 1;
  for (;;) {
    const int ready = ::poll(entries.data(), count, 0);
    if (ready >= 0 || errno != EINTR) return ready == 0;
  }
}

TENSORHUB_DECL bool link::take_in(const question& asked, const region_answer& answer,
                                  detail::unique_fd descriptor) {
  region_view& region = *asked.region;
  if (answer.status != answer_status::granted) {
    region.state = region_state::denied;
    return true;
  }
  if (!grants_.has(answer.grant_slot) || answer.grant < first_grant) return false;
  if (answer.address > UINT64_MAX - answer.bytes || answer.file_offset > UINT64_MAX - answer.bytes)
    return false;
  if (answer.memory > region_memory::staged) return false;
  if (answer.memory == region_memory::mappable_device &&
      (answer.exported.offset > answer.exported.allocation_bytes ||
       answer.bytes > answer.exported.allocation_bytes - answer.exported.offset))
    return false;
  std::shared_ptr<const remote_file> file;
  if (answer.file != 0) {
    if (descriptor) {
      // Reads of anything else (a pipe, a device) may wait for ever; no honest source sends it.
      struct stat about {};
      if (::fstat(descriptor.get(), &about) != 0 || !S_ISREG(about.st_mode)) return false;
      files_[answer.file] = file = imports_->adopt(std::move(descriptor), maps_files_);
    } else {
      file = files_[answer.file].lock();
    }
    if (!file && answer.brings_file == 0) {
      // The link has released the file since the source sent it, or the source repeats that for ever.
      if (asked.brings_file) return false;
      to_ask_.push_back({regions_.at(region.key), true});
      return true;
    }
    // The file was sent but not received: no descriptor is free here. The memory is read like memory without
    // a file; where it cannot be, the link is of no use.
    if (!file && (!can_attach_ || answer.address == 0)) return false;
    if (file && (answer.file_offset > file->bytes() || answer.bytes > file->bytes() - answer.file_offset))
      file.reset();
  }
  region.bytes = answer.bytes;
  region.address = answer.address;
  region.given = {answer.grant_slot, answer.grant};
  region.file = std::move(file);
  region.file_offset = answer.file_offset;
  region.memory = answer.memory;
  region.export_number = answer.export_number;
  region.exported = answer.exported;
  for (const char each : answer.why) {
    if (each == 0) break;
    region.why += each >= ' ' && each <= '~' ? each : '?';
  }
  if (region.memory == region_memory::host && !region.file && !can_attach_) note_unreadable();
  region.state = region_state::granted;
  return true;
}

TENSORHUB_DECL bool link::take_staged(const region_answer& answer,
                                      const detail::unique_fd& descriptor) noexcept {
  const auto slot = detail::find_if(slots_, [&](const stage_slot& each) {
    return each.state == stage_slot::state_type::asked && each.number == answer.number;
  });
  if (slot == slots_.end()) return false;
  --staging_;
  if (descriptor) {
    const std::uint64_t bytes = file_bytes(descriptor.get());
    if (stage_.view || bytes != stage_slots * stage_piece_bytes ||
        !is_sealed_against_shrinking(descriptor.get()))
      return false;
    stage_.view = file_mapping_view{descriptor.get(), bytes, PROT_READ};
  }
  switch (answer.status) {
    case answer_status::granted:
      slot->state = stage_slot::state_type::ready;
      break;
    case answer_status::denied:
      slot->state = stage_slot::state_type::denied;
      break;
    default:
      slot->state = stage_slot::state_type::failed;
  }
  if (slot->state == stage_slot::state_type::ready && !stage_.view) return false;
  if (slot->owner == nullptr) slot->state = stage_slot::state_type::free;
  return true;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
