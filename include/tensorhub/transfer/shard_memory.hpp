#pragma once
/// \file shard_memory.hpp
/// A worker's tensors as segments of registered memory.
///
/// Tensors that lie next to each other are registered as one region (thousands of tensors are usually slices
/// of a few allocations). Small tensors have a packed copy, made by `pack` and written back by `unpack`;
/// large ones are read and written where they are.
///
/// Thread safety: none; the worker serialises.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub {

/// What registration cost, once per worker.
struct registration_cost {
  std::size_t regions = 0;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

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
    // The memory is the user's; whether it may be written is decided by which door is used.
    auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
    ranges_.push_back(*bytes > 0 ? space_.describe(first, *bytes) : memory_range{first, 0});
    names_.insert(tensor.name);
    specs_.push_back(std::move(tensor));
  }

  [[nodiscard]] layout build_layout(std::uint64_t chunk_bytes, const error_context& context) const {
    if (specs_.empty()) throw error(errc::invalid_argument, "no tensor was added: call add() first", context);
    check_overlap(context);
    return layout{specs_, chunk_bytes};
  }

  /// Registers every segment: the packed buffer, and the large tensors merged where they are contiguous.
  void register_all(const layout& shape) {
    const auto started = std::chrono::steady_clock::now();
    shape_ = &shape;
    std::vector<memory_range> wanted;
    std::vector<std::size_t> order;  // large tensors' segments, by address
    const auto segments = shape.segments();
    if (shape.packed_bytes() > 0) {
      packed_.emplace(space_.allocate(shape.packed_bytes()));
      wanted.push_back(packed_->range());
      wanted.back().bytes = shape.packed_bytes();
    }
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].tensor) order.push_back(i);
    }
    std::ranges::sort(order, {}, [&](std::size_t i) { return ranges_[*segments[i].tensor].data; });
    std::vector<std::pair<std::size_t, std::uint64_t>> position(segments.size());  // region, offset
    for (const std::size_t i : order) {
      const memory_range& range = ranges_[*segments[i].tensor];
      const bool has_region = wanted.size() > (packed_ ? 1u : 0u);
      if (has_region && continues(wanted.back(), range)) {
        position[i] = {wanted.size() - 1, wanted.back().bytes};
        wanted.back().bytes += range.bytes;
      } else {
        position[i] = {wanted.size(), 0};
        wanted.push_back(range);
      }
    }
    regions_ = transport_->register_memory(wanted, region_access::both);
    places_.clear();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto [region, offset] = position[i];
      places_.push_back({&regions_[region], offset, wanted[region].data + offset});
    }
    cost_ = {regions_.size(), specs_.size(), shape.bytes(),
             std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count()};
  }

  /// Copies the small tensors into the packed segment.
  void pack() noexcept {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (const auto offset = shape_->packed_offset(i); offset && ranges_[i].bytes > 0) {
        space_.copy(places_.front().data + *offset, ranges_[i].data, ranges_[i].bytes);
      }
    }
  }
  /// Copies the packed segment into the small tensors.
  void unpack() noexcept {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (const auto offset = shape_->packed_offset(i); offset && ranges_[i].bytes > 0) {
        space_.copy(ranges_[i].data, places_.front().data + *offset, ranges_[i].bytes);
      }
    }
  }

  /// One per layout segment; valid from `register_all` on.
  [[nodiscard]] std::span<const segment_place<region_type>> places() const noexcept { return places_; }

  /// What a peer needs to read a segment.
  [[nodiscard]] remote_region remote(std::size_t segment) const {
    remote_region region = transport_->describe(*places_[segment].region);
    region.base += places_[segment].offset;
    region.bytes = shape_->segments()[segment].bytes;
    return region;
  }

  /// Keys given out so far stop working.
  void revoke_all() noexcept {
    for (region_type& region : regions_) transport_->revoke(region);
  }

  [[nodiscard]] const registration_cost& cost() const noexcept { return cost_; }

 private:
  [[nodiscard]] static bool continues(const memory_range& before, const memory_range& after) noexcept {
    const bool same_file =
        before.backing_fd == after.backing_fd &&
        (before.backing_fd < 0 || before.backing_offset + before.bytes == after.backing_offset);
    return before.data + before.bytes == after.data && before.kind == after.kind && same_file &&
           before.bytes + after.bytes <= Transport::capabilities.max_region_bytes;
  }

  void check_overlap(const error_context& context) const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].bytes > 0) order.push_back(i);
    }
    std::ranges::sort(order, {}, [&](std::size_t i) { return ranges_[i].data; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const memory_range& a = ranges_[order[i - 1]];
      const memory_range& b = ranges_[order[i]];
      if (a.data + a.bytes > b.data) {
        throw error(errc::invalid_argument,
                    "the memory of tensors '" + specs_[order[i - 1]].name + "' and '" +
                        specs_[order[i]].name + "' overlaps",
                    context);
      }
    }
  }

  Transport* transport_;
  Memory space_;
  const layout* shape_ = nullptr;
  std::vector<tensor_spec> specs_;
  std::unordered_set<std::string> names_;
  std::vector<memory_range> ranges_;
  std::optional<typename Memory::allocation> packed_;
  std::vector<region_type> regions_;
  std::vector<segment_place<region_type>> places_;
  registration_cost cost_{};
};

}  // namespace tensorhub
