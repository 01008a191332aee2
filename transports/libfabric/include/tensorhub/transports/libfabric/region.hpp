#pragma once
/// \file region.hpp
/// Registered memory: in parts where the provider or an option limits a registration, under random keys where
/// they are ours to choose.
///
/// A region that is both a target of own reads and readable by peers is registered for each on its own where
/// the provider wants local registrations: its key can then be revoked without disturbing own reads.
///
/// Device memory is registered as CUDA memory (FI_HMEM_CUDA), also as a target, where the provider takes it.
///
/// Thread safety: none; the source locks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

/// One region, registered for one purpose in parts of `part_bytes` (the last may be shorter).
struct registration {
  std::vector<unique_fid<::fid_mr>> parts{};
  std::uint64_t part_bytes = 0;
  region_key key{};  ///< meaningful for peers' reads
};

/// The heap part of a memory_region.
struct region_core {
  memory_range range{};
  region_access access = region_access::both;
  registration local{};   ///< empty where the provider needs none
  registration remote{};  ///< empty if it is not for peers, or a revoke could not register it again

  /// Local descriptor for bytes at this offset.
  [[nodiscard]] void* descriptor_at(std::uint64_t offset) const noexcept {
    return local.parts.empty() ? nullptr : ::fi_mr_desc(local.parts[offset / local.part_bytes].get());
  }
  /// How many bytes from this offset on it is good for.
  [[nodiscard]] std::uint64_t descriptor_reach(std::uint64_t offset) const noexcept {
    return local.parts.empty() ? UINT64_MAX : local.part_bytes - offset % local.part_bytes;
  }
};

class registrar {
 public:
  registrar(const provider& through, const libfabric_options& options, std::uint64_t nonce)
      : through_{through}, nonce_{nonce}, part_bytes_{part_bytes_of(options)} {
    if (through.chooses_keys()) probe_for_cache();
  }

  /// Throws `transport_failed` with a sentence that says which memory and what to do.
  [[nodiscard]] registration for_peers(const memory_range& range) const {
    require_reachable(range);
    constexpr int attempts = 8;  // a random key that is taken already
    for (int attempt = 1;; ++attempt) {
      const std::uint64_t first = random_word() & key_mask();
      try {
        registration made = parts_of(range, FI_REMOTE_READ, first);
        seal(made, range, first);
        return made;
      } catch (const key_taken&) {
        if (attempt == attempts) fail(through_.description() + ": no free key for a region");
      }
    }
  }
  [[nodiscard]] registration for_own_reads(const memory_range& range) const {
    require_reachable(range);
    if (range.host_accessible() && !through_.needs_local_registration()) return {};
    return parts_of(range, FI_READ, random_word() & key_mask());
  }

 private:
  struct key_taken {};
  static constexpr std::uint64_t page_bytes = 4096;
  static constexpr std::uint64_t smallest_part_bytes = 16u << 20;

  [[nodiscard]] static std::uint64_t part_bytes_of(const libfabric_options& options) noexcept {
    if (options.largest_registration_bytes == 0) return limits::shard_bytes;
    return std::max(options.largest_registration_bytes / page_bytes * page_bytes, page_bytes);
  }
  [[nodiscard]] static constexpr std::uint64_t round_up(std::uint64_t bytes) noexcept {
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
  }
  [[nodiscard]] std::uint64_t key_mask() const noexcept {
    // The upper bit stays free, so that consecutive keys do not overflow.
    const std::size_t bits = std::min<std::size_t>(through_.key_bytes(), 8) * 8;
    return bits == 0 ? 0 : (~std::uint64_t{0} >> (64 - bits)) >> 1;
  }

  /// No provider says how large a registration may be: what is refused is tried again in halves.
  [[nodiscard]] registration parts_of(const memory_range& range, std::uint64_t access,
                                      std::uint64_t first_key) const {
    std::uint64_t part_bytes = std::min(part_bytes_, round_up(range.bytes));
    for (;;) {
      try {
        return parts_of(range, access, first_key, part_bytes);
      } catch (const error&) {
        if (part_bytes <= smallest_part_bytes ||
            (through_.chooses_keys() && 2 * (range.bytes / part_bytes) >= region_key::most_keys))
          throw;
        part_bytes = round_up(part_bytes / 2);
      }
    }
  }
  [[nodiscard]] registration parts_of(const memory_range& range, std::uint64_t access,
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
        // As a target, too: kernels before 6.2 pin pages of zeros for a NIC that is only to read an address
        // which the CPU has no access to, instead of refusing it.
        wanted.access |= FI_READ;
        wanted.iface = FI_HMEM_CUDA;
        wanted.device.cuda = range.device->ordinal();
      }
      const int result = wanted.iface == FI_HMEM_SYSTEM
                             ? ::fi_mr_reg(through_.domain(), place.iov_base, bytes, access, 0,
                                           wanted.requested_key, 0, &part, nullptr)
                             : ::fi_mr_regattr(through_.domain(), &wanted, 0, &part);
      if (result == -FI_ENOKEY && !through_.chooses_keys()) throw key_taken{};
      if (result != 0) refuse(range, offset, bytes, result);
      made.parts.emplace_back(part);
    }
    return made;
  }

  /// Throws `transport_failed` with a sentence for device memory that cannot be registered whatever its size.
  void require_reachable(const memory_range& range) const {
    if (range.host_accessible()) return;
    const std::string what = through_.description() + ": " + std::to_string(range.bytes) + " bytes of " +
                             range.device->description() + " are device memory, ";
    const std::string otherwise = ", or put another transport behind this one: first_of<libfabric, tcp>";
    if (range.device->ordinal() < 0)
      fail(what + "but not of a CUDA device, which is what libfabric is told of: use host memory" +
           otherwise);
    if (through_.takes_device_memory()) return;
    const std::string having = available_providers(true);
    fail(what + "which this provider was not asked for or does not offer (FI_HMEM): set " +
         "libfabric_options::device_memory and use a provider that has it (here: " + having + ")" +
         otherwise);
  }

  [[noreturn]] void refuse(const memory_range& range, std::uint64_t offset, std::uint64_t bytes,
                           int result) const {
    if (!range.host_accessible())
      fail(through_.description() + ": " + std::to_string(range.bytes) + " bytes of " +
           range.device->description() +
           " are device memory that the provider offers to take (FI_HMEM), but "
           "does not: " +
           reason(result) +
           ". Is its library built with CUDA, and nvidia_peermem loaded? If "
           "not, put another transport behind this one: first_of<libfabric, tcp>");
    std::string sentence = through_.description() + ": " + std::to_string(bytes) + " bytes at offset " +
                           std::to_string(offset) + " of a region of " + std::to_string(range.bytes) +
                           " cannot be registered: " + reason(result);
    if (result == -FI_ENOMEM || result == -FI_EAGAIN)
      sentence +=
          "; the limit may be that of locked memory (RLIMIT_MEMLOCK): raise it with `ulimit -l`, "
          "systemd's LimitMEMLOCK= or docker's --ulimit memlock";
    else
      sentence +=
          "; if the device takes no region this large, set libfabric_options::"
          "largest_registration_bytes";
    fail(sentence);
  }

  void seal(registration& made, const memory_range& range, std::uint64_t first) const {
    region_key& key = made.key;
    key.nonce = nonce_;
    key.start = through_.has_virtual_addresses() ? reinterpret_cast<std::uintptr_t>(range.data) : 0;
    key.bytes = range.bytes;
    key.part_bytes = made.part_bytes;
    if (through_.chooses_keys()) {
      if (made.parts.size() > region_key::most_keys)
        throw error(errc::limit_exceeded,
                    "libfabric: a region of " + std::to_string(range.bytes) + " bytes has " +
                        std::to_string(made.parts.size()) + " parts of " + std::to_string(made.part_bytes) +
                        "; a description holds " + std::to_string(region_key::most_keys) +
                        " keys: raise libfabric_options::largest_registration_bytes");
      for (const auto& part : made.parts) key.keys[key.key_count++] = ::fi_mr_key(part.get());
    } else {
      key.keys[0] = first;
    }
    for (const auto& part : made.parts) {
      if (::fi_mr_key(part.get()) == FI_KEY_NOTAVAIL)
        fail(through_.description() +
             ": its keys are longer than 64 bits (FI_MR_RAW), which is not supported");
    }
    key.seal = key.compute_seal();
  }

  /// A provider with a cache of registrations keeps memory readable after it was deregistered.
  void probe_for_cache() const {
    alignas(4096) static std::byte page[4096];
    const memory_range range{page, sizeof page};
    std::uint64_t keys[2] = {0, 0};
    for (std::uint64_t& key : keys) {
      const registration once = parts_of(range, FI_REMOTE_READ, 0);
      key = ::fi_mr_key(once.parts.front().get());
    }
    if (keys[0] == keys[1])
      fail(through_.description() +
           " keeps closed registrations in a cache, so that memory would stay readable after a revoke: set "
           "FI_MR_CACHE_MAX_COUNT=0 in the environment before the process's first use of libfabric");
  }

  const provider& through_;
  std::uint64_t nonce_;
  std::uint64_t part_bytes_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
