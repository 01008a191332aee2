#pragma once
/// \file shard_memory.hpp
/// A worker's tensors as segments of registered memory.
///
/// Large tensors are registered once, by allocation (registration.hpp), and their regions are kept for all
/// versions; so is the packed copy of the small ones (shard_tensors.hpp). A registration names the memory
/// that was behind the addresses at that time: what is mapped anew (a sleeping engine's weights, expandable
/// segments) is registered anew before it is used.
///
/// Thread safety: as shard_tensors.hpp says.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/parallel_copy.hpp"
#include "tensorhub/transfer/registration.hpp"
#include "tensorhub/transfer/shard_tensors.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <transport Transport, memory_space Memory>
class shard_memory final : public shard_tensors {
 public:
  using region_type = typename Transport::memory_region;

  explicit shard_memory(Transport& through, Memory space = {})
      : shard_tensors{device_memory_space<Memory>}, transport_{&through}, space_{std::move(space)} {}

  /// Throws `invalid_argument` (null, overlapping or foreign memory, duplicate name) or `limit_exceeded`.
  void add(tensor_spec tensor, const void* data) {
    const std::uint64_t bytes = check_new(tensor, data);
    // The memory is the user's. The door that is used decides whether the library writes to it.
    auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
    const memory_range range = bytes > 0 ? space_.describe(first, bytes) : memory_range{first, 0};
    append(std::move(tensor), range, allocation_around(range));
  }

  /// Registers every segment: the packed buffer, and the large tensors by allocation. Throws
  /// `limit_exceeded` if a tensor is larger than the transport's largest region.
  void register_all(const layout& shape) {
    const auto started = clock::now();
    registration_plan made = plan(shape, Transport::capabilities.max_region_bytes);
    if (shape.packed_bytes() > 0) {
      packed_ = allocate_packed();
      memory_range range = packed_->range;
      range.bytes = shape.packed_bytes();
      add_packed(made, range);
    }
    regions_ = transport_->register_memory(made.regions, region_access::both);
    note_registered(made, started);
    identities_.clear();
    for (const region_type& each : regions_) identities_.push_back(identity_of(each));
  }

  /// Registers anew what has other memory behind its addresses. Nothing may be shown, or be on its way.
  /// Throws `invalid_argument` for addresses that have no memory now, and what the transport throws.
  void register_again() {
    std::vector<std::size_t> changed;
    std::vector<memory_range> ranges;
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      if (identity_of(regions_[i]) == identities_[i]) continue;
      const memory_range range = regions_[i].range();
      changed.push_back(i);
      ranges.push_back(space_.describe(range.data, range.bytes));
    }
    if (changed.empty()) return;
    std::vector<region_type> made = transport_->register_memory(ranges, region_access::both);
    const std::lock_guard lock{revocation_};
    for (std::size_t i = 0; i < changed.size(); ++i) {
      identities_[changed[i]] = identity_of(made[i]);
      std::swap(regions_[changed[i]], made[i]);  // the old ones end without the lock
    }
  }

  /// Copies all segments of `from`, which has the same layout, over the segments of this object, with `lanes`
  /// threads. It does not unpack the small tensors. Both objects must be registered.
  void copy_segments(const shard_memory& from, std::size_t lanes) {
    expect();
    parallel_copy<Memory>(runs_from(from), lanes);
  }

  /// The registered regions; `segment_place::region` is a position in this list.
  [[nodiscard]] std::span<const region_type> regions() const noexcept { return regions_; }

  /// The description that a peer needs to read a segment.
  [[nodiscard]] remote_region remote(std::size_t segment) const {
    const segment_place& place = places()[segment];
    remote_region region = transport_->describe(regions_[place.region]);
    region.base += place.offset;
    region.bytes = shard_layout().segments()[segment].bytes;
    return region;
  }

  /// Invalidates all keys described so far. Any thread.
  void revoke_all() noexcept {
    const std::lock_guard lock{revocation_};
    for (region_type& region : regions_) transport_->revoke(region);
  }

  [[nodiscard]] Memory& space() noexcept { return space_; }

 private:
  struct packed_memory {
    std::shared_ptr<const void> owner;
    memory_range range;
  };
  template <typename Allocation>
  [[nodiscard]] static packed_memory kept(Allocation made) {
    auto owner = std::make_shared<const Allocation>(std::move(made));
    return {owner, owner->range()};
  }
  /// On the device of a tensor that is packed; in host memory if none of them lies on one, as copies that the
  /// library makes for others do not: they cost a device nothing.
  [[nodiscard]] packed_memory allocate_packed() {
    const std::uint64_t bytes = shard_layout().packed_bytes();
    if constexpr (requires { space_.allocate_beside(ranges().front(), bytes); }) {
      if (const memory_range* const beside = packed_on_device())
        return kept(space_.allocate_beside(*beside, bytes));
    }
    if constexpr (requires { typename Memory::offload_space; })
      return kept(typename Memory::offload_space{}.allocate(bytes));
    else
      return kept(space_.allocate(bytes));
  }

  /// A device copies thousands of small tensors in one call.
  void copy_small(std::span<const copy_run> runs) override {
    if constexpr (device_memory_space<Memory>) {
      if (!space_.copy_all(runs)) {
        const device_access* const device = places().front().device;
        detail::copy_failed(space_, "the small tensors, which " +
                                        (device != nullptr ? device->description() : "host memory") +
                                        " keeps together");
      }
    } else {
      for (const copy_run& run : runs) space_.copy(run.to, run.from, run.bytes);
    }
  }

  [[nodiscard]] std::uint64_t identity_of([[maybe_unused]] const region_type& region) const {
    if constexpr (requires { space_.identity(region.range()); }) return space_.identity(region.range());
    return 0;
  }

  [[nodiscard]] memory_range allocation_around(const memory_range& range) {
    if constexpr (requires { space_.allocation_around(range); }) return space_.allocation_around(range);
    return range;
  }

  Transport* transport_;
  Memory space_;
  std::optional<packed_memory> packed_;
  std::mutex revocation_;  ///< of the regions, which may run while they are registered anew
  std::vector<region_type> regions_;
  std::vector<std::uint64_t> identities_;  ///< of the regions' memory, when they were registered
};

}  // namespace tensorhub::inline TENSORHUB_MODE
