#pragma once
/// \file registration.hpp
/// Chooses the regions to register for a shard's tensors: one region per allocation, not one per tensor.
///
/// A model has thousands of tensors in a few allocations. Each region costs a system call, a key and, on a
/// network adapter, an entry in a table of limited size. A region is therefore a run of memory from the first
/// tensor of an allocation to the last:
///
///     allocation   |    [ wq ][ norm ]  [ wk ]        [ wv ]           |   (norm is small: packed elsewhere)
///     region            <------------------------------------>
///    padding                 <------>        <------>                       bytes of no tensor
///
/// Two allocations are never joined, not even where one begins at the end of the other, as allocations of a
/// device often do: such a region could neither be exported to another process nor be registered with a
/// network adapter. If the allocation of a tensor of host memory is unknown (malloc), the tensor is joined
/// with another such tensor only where it begins at the end of that other tensor.
///
/// Network adapters pin padding like the rest of a region, and any reader that has the region's key can read
/// it. Therefore only gaps of up to `max_gap_bytes` are bridged: a shard that uses two tensors at the two
/// ends of a file gets two regions.
///
/// A chunk is read from one region into one region, so no tensor lies in two regions: a run that is too long
/// for the transport is cut between tensors. A single tensor of more than `max_region_bytes` is refused. No
/// transport of this library has such a limit: if a device has one, its transport cuts the region internally
/// (verbs, libfabric).
///
/// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The cost of registration, paid once per worker, and the cost of packing, paid for every version.
struct registration_cost {
  std::size_t regions = 0;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;          ///< of the shard's segments
  std::uint64_t padding_bytes = 0;  ///< registered in addition: gaps between the tensors of an allocation
  double seconds = 0;
  std::size_t packed_tensors = 0;  ///< small tensors, which are copied to the packed buffer
  std::uint64_t packed_bytes = 0;  ///< of that buffer
  double pack_seconds = 0;         ///< of the last publish
  double unpack_seconds = 0;       ///< of the last update

  /// Another one beside it.
  void add(const registration_cost& other) noexcept {
    regions += other.regions;
    tensors += other.tensors;
    bytes += other.bytes;
    padding_bytes += other.padding_bytes;
    seconds += other.seconds;
    packed_tensors += other.packed_tensors;
    packed_bytes += other.packed_bytes;
    pack_seconds += other.pack_seconds;
    unpack_seconds += other.unpack_seconds;
  }
};

/// One tensor to register. Its memory has at least one byte.
struct registration_item {
  std::string_view name{};  ///< for error messages
  memory_range range{};
  /// The allocation or mapping that contains the range, if it is known; otherwise the range itself. For
  /// memory of another kind than `host`, the range itself is taken for an allocation.
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

/// What is said of two tensors that share a byte: which they are, and what to do.
[[nodiscard]] std::string overlap_sentence(std::string_view one, std::string_view other);

/// The positions of two ranges that share a byte, if there are any. Empty ranges overlap nothing.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    std::span<const memory_range> ranges);

namespace registration_detail {

/// The memory of `before` and the memory of `after` may be registered as one region.
[[nodiscard]] bool joins(const registration_item& before, const registration_item& after,
                         std::uint64_t max_gap_bytes) noexcept;

}  // namespace registration_detail

/// Throws `invalid_argument` if two items overlap, and `limit_exceeded` if an item is larger than a region
/// may be; the error names the tensors.
[[nodiscard]] registration_plan plan_registration(std::span<const registration_item> items,
                                                  const registration_limits& limits = {});

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/registration.ipp"
#endif
