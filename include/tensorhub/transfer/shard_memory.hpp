#pragma once
/// \file shard_memory.hpp
/// A worker's tensors as segments of registered memory.
///
/// Large tensors are read and written in place. They are registered once, by allocation (registration.hpp),
/// and their regions are kept for all versions. Small tensors have a packed copy: `pack` makes it, and
/// `unpack` writes it back.
///
/// Thread safety: any thread may call `cost`, `transfers` and `unpack`; the worker serialises all other
/// calls.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/parallel_copy.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/transfer/registration.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <transport Transport, memory_space Memory>
class shard_memory {
 public:
  using region_type = typename Transport::memory_region;

  explicit shard_memory(Transport& through, Memory space = {})
      : transport_{&through}, space_{std::move(space)} {}

  /// Throws `invalid_argument` (null, overlapping or foreign memory, duplicate name) or `limit_exceeded`.
  void add(tensor_spec tensor, const void* data) {
    const auto bytes = tensor.bytes();
    if (tensor.name.empty()) throw error(errc::invalid_argument, "a tensor has no name");
    if (!bytes || *bytes > limits::shard_bytes) {
      throw error(errc::limit_exceeded, "tensor '" + tensor.name + "' is too large: " + describe(tensor));
    }
    if (*bytes > 0 && data == nullptr)
      throw error(errc::invalid_argument, "tensor '" + tensor.name + "' has no memory (null)");
    if (names_.contains(tensor.name))
      throw error(errc::invalid_argument, "tensor '" + tensor.name + "' was added twice");
    // The memory is the user's. The door that is used decides whether the library writes to it.
    auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
    ranges_.push_back(*bytes > 0 ? space_.describe(first, *bytes) : memory_range{first, 0});
    allocations_.push_back(allocation_around(ranges_.back()));
    names_.insert(tensor.name);
    specs_.push_back(std::move(tensor));
  }

  [[nodiscard]] layout build_layout(std::uint64_t chunk_bytes, const error_context& context) const {
    if (specs_.empty()) throw error(errc::invalid_argument, "no tensor was added: call add() first", context);
    check_overlap(context);
    return layout{specs_, chunk_bytes};
  }

  /// Registers every segment: the packed buffer, and the large tensors by allocation. Throws
  /// `limit_exceeded` if a tensor is larger than the transport's largest region.
  void register_all(const layout& shape) {
    const auto started = clock::now();
    shape_ = &shape;
    const auto segments = shape.segments();
    std::vector<registration_item> items;  // of the segments after the packed one, in their order
    items.reserve(segments.size());
    for (const layout_segment& segment : segments) {
      if (segment.tensor)
        items.push_back(
            {specs_[*segment.tensor].name, ranges_[*segment.tensor], allocations_[*segment.tensor]});
    }
    registration_plan plan =
        plan_registration(items, {.max_region_bytes = Transport::capabilities.max_region_bytes});
    if (shape.packed_bytes() > 0) {
      packed_ = allocate_packed();
      plan.regions.push_back(packed_->range);
      plan.regions.back().bytes = shape.packed_bytes();
      plan.places.insert(plan.places.begin(), {plan.regions.size() - 1, 0});
    }
    regions_ = transport_->register_memory(plan.regions, region_access::both);
    places_.clear();
    for (const auto [region, offset] : plan.places)
      places_.push_back({&regions_[region], offset, plan.regions[region].data + offset,
                         plan.regions[region].host_accessible() ? nullptr : plan.regions[region].device});
    find_small();
    const std::lock_guard lock{cost_mutex_};
    cost_ = {.regions = regions_.size(),
             .tensors = specs_.size(),
             .bytes = shape.bytes(),
             .padding_bytes = plan.padding_bytes,
             .seconds = seconds_since(started),
             .packed_tensors = specs_.size() - items.size(),
             .packed_bytes = shape.packed_bytes()};
  }

  /// Copies the small tensors into the packed segment. Throws `system_failed` if a device fails to copy.
  void pack() {
    const auto started = clock::now();
    std::vector<copy_run> runs;
    for (const small_tensor& each : small_) runs.push_back({each.packed, each.own, each.bytes});
    copy_small(runs);
    note(&registration_cost::pack_seconds, started);
  }

  /// One tensor into the packed segment, from any thread. A large one is where it belongs already.
  void pack(std::size_t tensor) {
    const small_tensor* const found = small_at(tensor);
    if (found == nullptr) return;
    const copy_run run{found->packed, found->own, found->bytes};
    copy_small(std::span{&run, 1});
  }

  /// Other bytes are about to arrive: another transfer begins.
  void expect() {
    const std::lock_guard lock{unpack_mutex_};
    ++transfers_;
    for (small_tensor& each : small_) each.unpacked = false;
  }
  /// How many have begun.
  [[nodiscard]] std::uint64_t transfers() const noexcept {
    const std::lock_guard lock{unpack_mutex_};
    return transfers_;
  }
  /// Copies the packed segment into those small tensors into which it was not copied yet. Throws like `pack`.
  void unpack() {
    const auto started = clock::now();
    const std::lock_guard lock{unpack_mutex_};
    if constexpr (device_memory_space<Memory>) {
      std::vector<copy_run> runs;
      for (const small_tensor& each : small_) {
        if (!each.unpacked) runs.push_back({each.own, each.packed, each.bytes});
      }
      copy_small(runs);
    } else {  // it cannot fail, not even for want of memory
      for (const small_tensor& each : small_) {
        if (!each.unpacked) space_.copy(each.own, each.packed, each.bytes);
      }
    }
    for (small_tensor& each : small_) each.unpacked = true;
    note(&registration_cost::unpack_seconds, started);
  }
  /// The same for one tensor, from any thread, while no other transfer has begun than the `transfer`-th;
  /// false: one has, and what was received before is gone. A large one is where it belongs already.
  [[nodiscard]] bool unpack(std::size_t tensor, std::uint64_t transfer) {
    const std::lock_guard lock{unpack_mutex_};
    if (transfer != transfers_) return false;
    small_tensor* const found = small_at(tensor);
    if (found == nullptr || found->unpacked) return true;
    const copy_run run{found->own, found->packed, found->bytes};
    copy_small(std::span{&run, 1});
    return found->unpacked = true;
  }

  /// Copies all segments of `from`, which has the same layout, over the segments of this object, with `lanes`
  /// threads. It does not unpack the small tensors. Both objects must be registered.
  void copy_segments(const shard_memory& from, std::size_t lanes) {
    expect();
    std::vector<copy_run> runs;
    for (std::size_t i = 0; i < places_.size(); ++i)
      runs.push_back({places_[i].data, from.places_[i].data, shape_->segments()[i].bytes});
    parallel_copy<Memory>(runs, lanes);
  }

  /// The tensors and their memory: one range per tensor, in the order of `add`.
  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept { return specs_; }
  [[nodiscard]] std::span<const memory_range> ranges() const noexcept { return ranges_; }

  /// One place per layout segment; valid after `register_all`.
  [[nodiscard]] std::span<const segment_place<region_type>> places() const noexcept { return places_; }

  /// The description that a peer needs to read a segment.
  [[nodiscard]] remote_region remote(std::size_t segment) const {
    remote_region region = transport_->describe(*places_[segment].region);
    region.base += places_[segment].offset;
    region.bytes = shape_->segments()[segment].bytes;
    return region;
  }

  /// Invalidates all keys described so far.
  void revoke_all() noexcept {
    for (region_type& region : regions_) transport_->revoke(region);
  }

  [[nodiscard]] Memory& space() noexcept { return space_; }

  [[nodiscard]] registration_cost cost() const noexcept {
    const std::lock_guard lock{cost_mutex_};
    return cost_;
  }

 private:
  using clock = std::chrono::steady_clock;

  [[nodiscard]] static double seconds_since(clock::time_point started) noexcept {
    return std::chrono::duration<double>(clock::now() - started).count();
  }

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
    const std::uint64_t bytes = shape_->packed_bytes();
    if constexpr (requires { space_.allocate_beside(ranges_.front(), bytes); }) {
      for (std::size_t i = 0; i < ranges_.size(); ++i) {
        if (shape_->packed_offset(i) && !ranges_[i].host_accessible())
          return kept(space_.allocate_beside(ranges_[i], bytes));
      }
    }
    if constexpr (requires { typename Memory::offload_space; })
      return kept(typename Memory::offload_space{}.allocate(bytes));
    else
      return kept(space_.allocate(bytes));
  }

  /// A tensor that lies in the packed segment, too.
  struct small_tensor {
    std::size_t position = 0;  ///< in the order of `add`
    std::byte* own = nullptr;
    std::byte* packed = nullptr;
    std::uint64_t bytes = 0;
    bool unpacked = false;  ///< guarded by unpack_mutex_: what has arrived was copied
  };

  void find_small() {
    small_.clear();
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const auto offset = shape_->packed_offset(i);
      if (offset && ranges_[i].bytes > 0)
        small_.push_back({i, ranges_[i].data, places_.front().data + *offset, ranges_[i].bytes});
    }
  }

  /// Null: it is a large one, or empty.
  [[nodiscard]] small_tensor* small_at(std::size_t position) noexcept {
    const auto found =
        std::lower_bound(small_.begin(), small_.end(), position,
                         [](const small_tensor& each, std::size_t wanted) { return each.position < wanted; });
    return found != small_.end() && found->position == position ? &*found : nullptr;
  }
  /// A device copies thousands of small tensors in one call.
  void copy_small(std::span<const copy_run> runs) {
    if (runs.empty()) return;
    if constexpr (device_memory_space<Memory>) {
      if (!space_.copy_all(runs)) {
        const device_access* const device = places_.front().device;
        detail::copy_failed(space_, "the small tensors, which " +
                                        (device != nullptr ? device->description() : "host memory") +
                                        " keeps together");
      }
    } else {
      for (const copy_run& run : runs) space_.copy(run.to, run.from, run.bytes);
    }
  }

  void note(double registration_cost::*what, clock::time_point started) noexcept {
    const double seconds = seconds_since(started);
    const std::lock_guard lock{cost_mutex_};
    cost_.*what = seconds;
  }

  [[nodiscard]] memory_range allocation_around(const memory_range& range) {
    if constexpr (requires { space_.allocation_around(range); }) return space_.allocation_around(range);
    return range;
  }

  void check_overlap(const error_context& context) const {
    if (const auto found = find_overlap(ranges_)) {
      throw error(errc::invalid_argument,
                  "the memory of tensors '" + specs_[found->first].name + "' and '" +
                      specs_[found->second].name + "' overlaps",
                  context);
    }
  }

  Transport* transport_;
  Memory space_;
  const layout* shape_ = nullptr;
  std::vector<tensor_spec> specs_;
  std::unordered_set<std::string> names_;
  std::vector<memory_range> ranges_;
  std::vector<memory_range> allocations_;  ///< the allocation around each range
  std::optional<packed_memory> packed_;
  std::vector<region_type> regions_;
  std::vector<segment_place<region_type>> places_;
  std::vector<small_tensor> small_;  ///< in the order of `add`
  mutable std::mutex unpack_mutex_;
  std::uint64_t transfers_ = 0;  ///< guarded by unpack_mutex_
  mutable std::mutex cost_mutex_;
  registration_cost cost_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE
