#pragma once
/// \file region.ipp
/// Definitions of region.hpp.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/libfabric/region.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL void* region_core::descriptor_at(std::uint64_t offset) const noexcept {
  return local.parts.empty() ? nullptr : ::fi_mr_desc(local.parts[offset / local.part_bytes].get());
}

TENSORHUB_DECL std::uint64_t region_core::descriptor_reach(std::uint64_t offset) const noexcept {
  return local.parts.empty() ? UINT64_MAX : local.part_bytes - offset % local.part_bytes;
}

TENSORHUB_DECL registrar::registrar(const provider& chosen, const libfabric_options& options,
                                    std::uint64_t nonce)
    : provider_{chosen}, nonce_{nonce}, part_bytes_{part_bytes_of(options)} {
  if (chosen.chooses_keys()) probe_for_cache();
}

TENSORHUB_DECL registration registrar::for_peers(const memory_range& range) const {
  require_reachable(range);
  constexpr int attempts = 8;  // of random keys, which may be in use already
  for (int attempt = 1;; ++attempt) {
    const std::uint64_t first = detail::random_number() & key_mask();
    try {
      registration made = parts_of(range, FI_REMOTE_READ, first);
      seal(made, range, first);
      return made;
    } catch (const key_taken&) {
      if (attempt == attempts) fail(provider_.description() + ": no free key for a region");
    }
  }
}

TENSORHUB_DECL registration registrar::for_own_reads(const memory_range& range) const {
  require_reachable(range);
  if (range.host_accessible() && !provider_.needs_local_registration()) return {};
  return parts_of(range, FI_READ, detail::random_number() & key_mask());
}

TENSORHUB_DECL std::uint64_t registrar::part_bytes_of(const libfabric_options& options) noexcept {
  if (options.largest_registration_bytes == 0) return limits::shard_bytes;
  return std::max(options.largest_registration_bytes / page_bytes * page_bytes, page_bytes);
}

TENSORHUB_DECL std::uint64_t registrar::key_mask() const noexcept {
  // The upper bit stays free, so that consecutive keys do not overflow.
  const std::size_t bits = std::min<std::size_t>(provider_.key_bytes(), 8) * 8;
  return bits == 0 ? 0 : (~std::uint64_t{0} >> (64 - bits)) >> 1;
}

TENSORHUB_DECL registration registrar::parts_of(const memory_range& range, std::uint64_t access,
                                                std::uint64_t first_key) const {
  std::uint64_t part_bytes = std::min(part_bytes_, round_up(range.bytes));
  for (;;) {
    try {
      return parts_of(range, access, first_key, part_bytes);
    } catch (const error&) {
      if (part_bytes <= smallest_part_bytes ||
          (provider_.chooses_keys() && 2 * (range.bytes / part_bytes) >= region_key::most_keys))
        throw;
      part_bytes = round_up(part_bytes / 2);
    }
  }
}

TENSORHUB_DECL registration registrar::parts_of(const memory_range& range, std::uint64_t access,
                                                std::uint64_t first_key, std::uint64_t part_bytes) const {
  registration made;
  made.part_bytes = part_bytes;
  for (std::uint64_t offset = 0; offset < range.bytes; offset += part_bytes) {
    const std::uint64_t bytes = std::min(part_bytes, range.bytes - offset);
    ::fid_mr* part = nullptr;
    const iovec place{range.data + offset, bytes};
    ::fi_mr_attr wanted{};
    wanted.mr_iov = &place;
    wanted.iov_count = 1;
    wanted.access = access;
    wanted.requested_key = first_key + offset / part_bytes;
    if (!range.host_accessible()) {
      // Also registered as a target: if a NIC may only read an address that the CPU cannot access, kernels
      // before 6.2 pin pages of zeros instead of refusing.
      wanted.access |= FI_READ;
      wanted.iface = FI_HMEM_CUDA;
      wanted.device.cuda = range.device->ordinal();
    }
    int result = 0;
    if (range.host_accessible()) {
      result = ::fi_mr_reg(provider_.domain(), place.iov_base, bytes, access, 0, wanted.requested_key, 0,
                           &part, nullptr);
    } else {
      // libfabric asks the driver for a dmabuf, which the driver gives in the memory's own context only.
      range.device->in_context([&] { result = ::fi_mr_regattr(provider_.domain(), &wanted, 0, &part); });
      if (result == 0) provider_.note(*range.device);
    }
    if (result == -FI_ENOKEY && !provider_.chooses_keys()) throw key_taken{};
    if (result != 0) refuse(range, offset, bytes, result);
    made.parts.emplace_back(part);
  }
  return made;
}

TENSORHUB_DECL void registrar::require_reachable(const memory_range& range) const {
  if (range.host_accessible()) return;
  const std::string what = provider_.description() + ": " + std::to_string(range.bytes) + " bytes of " +
                           range.device->description() + " are device memory, ";
  const std::string otherwise = ", or put another transport behind this one: first_of<libfabric, tcp>";
  if (range.device->ordinal() < 0)
    fail(what + "but not of a CUDA device, the only kind that this transport registers: use host memory" +
         otherwise);
  if (provider_.takes_device_memory()) return;
  const std::string having = available_providers(true);
  fail(what + "which was not requested of this provider, or which it does not offer (FI_HMEM): set " +
       "the option device_memory and use a provider that has it (here: " + having + ")" + otherwise);
}

TENSORHUB_DECL void registrar::refuse(const memory_range& range, std::uint64_t offset, std::uint64_t bytes,
                                      int result) const {
  if (!range.host_accessible())
    fail(provider_.description() + ": " + std::to_string(range.bytes) + " bytes of " +
         range.device->description() +
         " are device memory, which the provider claims to support (FI_HMEM) but does not register: " +
         reason(result) +
         ". Check that its library is built with CUDA and that nvidia_peermem is loaded, or add "
         "another transport: first_of<libfabric, tcp>");
  std::string sentence = provider_.description() + ": " + std::to_string(bytes) + " bytes at offset " +
                         std::to_string(offset) + " of a region of " + std::to_string(range.bytes) +
                         " cannot be registered: " + reason(result);
  if (result == -FI_ENOMEM || result == -FI_EAGAIN)
    sentence +=
        "; the limit may be that of locked memory (RLIMIT_MEMLOCK): raise it with `ulimit -l`, "
        "systemd's LimitMEMLOCK= or docker's --ulimit memlock";
  else
    sentence +=
        "; if the device does not support regions of this size, set "
        "the option largest_registration_bytes to what it supports";
  fail(sentence);
}

TENSORHUB_DECL void registrar::seal(registration& made, const memory_range& range,
                                    std::uint64_t first) const {
  region_key& key = made.key;
  key.nonce = nonce_;
  key.start = provider_.has_virtual_addresses() ? reinterpret_cast<std::uintptr_t>(range.data) : 0;
  key.bytes = range.bytes;
  key.part_bytes = made.part_bytes;
  if (provider_.chooses_keys()) {
    if (made.parts.size() > region_key::most_keys)
      throw error(errc::limit_exceeded, "libfabric: a region of " + std::to_string(range.bytes) +
                                            " bytes has " + std::to_string(made.parts.size()) + " parts of " +
                                            std::to_string(made.part_bytes) + "; a description holds " +
                                            std::to_string(region_key::most_keys) +
                                            " keys: raise the option largest_registration_bytes");
    for (const auto& part : made.parts) key.keys[key.key_count++] = ::fi_mr_key(part.get());
  } else {
    key.keys[0] = first;
  }
  for (const auto& part : made.parts) {
    if (::fi_mr_key(part.get()) == FI_KEY_NOTAVAIL)
      fail(provider_.description() +
           ": its keys are longer than 64 bits (FI_MR_RAW), which is not supported");
  }
  key.seal = key.compute_seal();
}

TENSORHUB_DECL void registrar::probe_for_cache() const {
  // A whole page, of whatever size: what is registered may not be there in a fork.
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::unique_ptr<void, void (*)(void*)> page{std::aligned_alloc(bytes, bytes), &std::free};
  if (!page) throw std::bad_alloc{};
  const memory_range range{static_cast<std::byte*>(page.get()), bytes};
  std::uint64_t keys[2] = {0, 0};
  for (std::uint64_t& key : keys) {
    const registration once = parts_of(range, FI_REMOTE_READ, 0);
    key = ::fi_mr_key(once.parts.front().get());
  }
  if (keys[0] == keys[1])
    fail(provider_.description() +
         " keeps closed registrations in a cache, so that memory would stay readable after a revoke: set "
         "FI_MR_CACHE_MAX_COUNT=0 in the environment before the process's first use of libfabric");
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
