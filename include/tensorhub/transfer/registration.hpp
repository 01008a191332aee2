#pragma once
/// \file registration.hpp
/// Which regions to register for a shard's tensors: one per allocation, not one per tensor.
///
/// A model has thousands of tensors in a few allocations, and each region costs a system call, a key, and on
/// a network adapter an entry in a table of limited size. So what is registered is a run of memory from the
/// first tensor of an allocation to the last:
///
///     allocation   |    [ wq ][ norm ]  [ wk ]        [ wv ]           |   (norm is small: packed elsewhere)
///     region            <------------------------------------>
///     padding                 <------>        <------>                       bytes that are nobody's tensor
///
/// Memory of which no allocation is known (malloc) is joined only where one tensor begins at the end of
/// another.
///
/// Padding is pinned by network adapters like the rest, and who has the region's key can read it. Therefore
/// only gaps up to `max_gap_bytes` are bridged: a file of weights of which a shard uses two tensors at the
/// ends is two regions.
///
/// A chunk is read from one region into one region, so a tensor never lies in two: a run that is too long for
/// the transport is cut between tensors. A single tensor of more than `max_region_bytes` is refused; no
/// transport of this library has such a limit, since those whose devices have one cut a region inside (verbs,
/// libfabric).
///
/// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What registration cost, once per worker, and what packing costs with every version.
struct registration_cost {
  std::size_t regions = 0;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;          ///< of the shard's segments
  std::uint64_t padding_bytes = 0;  ///< registered besides: gaps between the tensors of an allocation
  double seconds = 0;
  std::size_t packed_tensors = 0;  ///< small ones, which go through the packed buffer
  std::uint64_t packed_bytes = 0;  ///< of that buffer
  double pack_seconds = 0;         ///< of the last publish
  double unpack_seconds = 0;       ///< of the last update
};

/// One tensor to register. Its memory has at least one byte.
struct registration_item {
  std::string_view name{};  ///< for errors
  memory_range range{};
  /// The allocation or mapping that the range lies in, as far as it is known; else the range itself.
  memory_range allocation{};
};

struct registration_limits {
  std::uint64_t max_region_bytes = UINT64_MAX;  ///< transport_capabilities::max_region_bytes
  /// Enough for a run of small tensors between two large ones.
  std::uint64_t max_gap_bytes = 16u << 20;
};

struct registration_plan {
  struct place {
    std::size_t region = 0;
    std::uint64_t offset = 0;  ///< in the region
  };
  std::vector<memory_range> regions{};  ///< by address
  std::vector<place> places{};          ///< one per item, in the items' order
  std::uint64_t padding_bytes = 0;
};

/// Two of the ranges that share a byte, if there are any. Ranges without bytes overlap nothing.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    std::span<const memory_range> ranges);

namespace registration_detail {

/// `after` may be registered with what ends at `before`'s end, as far as the memory is concerned.
[[nodiscard]] bool joins(const registration_item& before, const registration_item& after,
                         std::uint64_t max_gap_bytes) noexcept;

}  // namespace registration_detail

/// Throws `invalid_argument` (two items overlap) or `limit_exceeded` (an item is larger than a region may
/// be), by name.
[[nodiscard]] registration_plan plan_registration(std::span<const registration_item> items,
                                                  const registration_limits& limits = {});

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/registration.ipp"
#endif
