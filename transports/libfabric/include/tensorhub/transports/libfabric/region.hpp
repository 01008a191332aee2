#pragma once
/// \file region.hpp
/// Registered memory: in parts if the provider or an option limits a registration, under random keys if the
/// provider lets the transport choose them.
///
/// If the provider requires local registrations, a region that is both a target of own reads and readable by
/// peers is registered once for each purpose: its key can then be revoked without disturbing own reads.
///
/// Device memory is registered as CUDA memory (FI_HMEM_CUDA), also as a target, if the provider accepts it.
///
/// Thread safety: none; the source locks.

#include <cstdint>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"
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
  registration local{};   ///< empty if the provider needs none
  registration remote{};  ///< empty if peers may not read it, or a revoke could not register it again

  /// Local descriptor for bytes at this offset.
  [[nodiscard]] void* descriptor_at(std::uint64_t offset) const noexcept;
  /// The number of bytes from this offset on that the descriptor covers.
  [[nodiscard]] std::uint64_t descriptor_reach(std::uint64_t offset) const noexcept;
};

class registrar {
 public:
  registrar(const provider& chosen, const libfabric_options& options, std::uint64_t nonce);

  /// Throws `transport_failed` with a sentence that says which memory and what to do.
  [[nodiscard]] registration for_peers(const memory_range& range) const;
  [[nodiscard]] registration for_own_reads(const memory_range& range) const;

 private:
  struct key_taken {};
  static constexpr std::uint64_t page_bytes = 4096;
  static constexpr std::uint64_t smallest_part_bytes = 16u << 20;

  [[nodiscard]] static std::uint64_t part_bytes_of(const libfabric_options& options) noexcept;
  [[nodiscard]] static constexpr std::uint64_t round_up(std::uint64_t bytes) noexcept {
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
  }
  [[nodiscard]] std::uint64_t key_mask() const noexcept;

  /// No provider reports how large a registration may be: a refused registration is repeated in halves.
  [[nodiscard]] registration parts_of(const memory_range& range, std::uint64_t access,
                                      std::uint64_t first_key) const;
  [[nodiscard]] registration parts_of(const memory_range& range, std::uint64_t access,
                                      std::uint64_t first_key, std::uint64_t part_bytes) const;

  /// Throws `transport_failed` with a sentence for device memory that cannot be registered whatever its size.
  void require_reachable(const memory_range& range) const;

  [[noreturn]] void refuse(const memory_range& range, std::uint64_t offset, std::uint64_t bytes,
                           int result) const;

  void seal(registration& made, const memory_range& range, std::uint64_t first) const;

  /// Detects a provider with a cache of registrations, which keeps memory readable after its deregistration.
  void probe_for_cache() const;

  const provider& provider_;
  std::uint64_t nonce_;
  std::uint64_t part_bytes_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/region.ipp"
#endif
