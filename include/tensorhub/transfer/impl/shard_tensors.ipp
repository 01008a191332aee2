#pragma once
/// \file shard_tensors.ipp
/// Definitions of shard_tensors.hpp.

#include <algorithm>
#include <utility>

#include "tensorhub/detail/cpu_access.hpp"
#include "tensorhub/transfer/shard_tensors.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL shard_tensors::shard_tensors(bool copies_in_batches) : copies_in_batches_{copies_in_batches} {}
TENSORHUB_DECL shard_tensors::~shard_tensors() = default;

TENSORHUB_DECL std::uint64_t shard_tensors::check_new(const tensor_spec& tensor, const void* data) const {
  const std::uint64_t bytes = layout::checked_bytes(tensor);
  if (bytes > 0 && data == nullptr)
    throw error(errc::invalid_argument, "tensor '" + tensor.name + "' has no memory (null)");
  if (names_.contains(tensor.name))
    throw error(errc::invalid_argument, "tensor '" + tensor.name + "' was added twice");
  return bytes;
}

TENSORHUB_DECL void shard_tensors::append(tensor_spec tensor, const memory_range& range,
                                          const memory_range& allocation) {
  ranges_.push_back(range);
  allocations_.push_back(allocation);
  names_.insert(tensor.name);
  specs_.push_back(std::move(tensor));
}

TENSORHUB_DECL layout shard_tensors::build_layout(std::uint64_t chunk_bytes,
                                                  const error_context& context) const {
  if (specs_.empty())
    throw error(errc::invalid_argument, "no tensor was added: add all tensors first", context);
  if (const auto found = find_overlap(ranges_)) {
    throw error(errc::invalid_argument,
                overlap_sentence(specs_[found->first].name, specs_[found->second].name), context);
  }
  return layout{specs_, chunk_bytes};
}

// ---- registration

TENSORHUB_DECL registration_plan shard_tensors::plan(const layout& shape, std::uint64_t max_region_bytes) {
  layout_ = &shape;
  std::vector<registration_item> items;
  items.reserve(shape.segments().size());
  for (const layout_segment& segment : shape.segments()) {
    if (segment.tensor)
      items.push_back(
          {specs_[*segment.tensor].name, ranges_[*segment.tensor], allocations_[*segment.tensor]});
  }
  return plan_registration(items, {.max_region_bytes = max_region_bytes});
}

TENSORHUB_DECL void shard_tensors::add_packed(registration_plan& to, const memory_range& packed) {
  to.regions.push_back(packed);
  to.places.insert(to.places.begin(), {to.regions.size() - 1, 0});
}

TENSORHUB_DECL void shard_tensors::note_registered(const registration_plan& made, clock::time_point started) {
  places_.clear();
  for (const auto [region, offset] : made.places) {
    const memory_range& range = made.regions[region];
    places_.push_back(
        {region, offset, range.data + offset, range.host_accessible() ? nullptr : range.device});
  }
  find_small();
  const std::size_t large = made.places.size() - (layout_->packed_bytes() > 0 ? 1 : 0);
  const std::lock_guard lock{cost_mutex_};
  cost_ = {.regions = made.regions.size(),
           .tensors = specs_.size(),
           .bytes = layout_->bytes(),
           .padding_bytes = made.padding_bytes,
           .seconds = std::chrono::duration<double>(clock::now() - started).count(),
           .packed_tensors = specs_.size() - large,
           .packed_bytes = layout_->packed_bytes()};
}

TENSORHUB_DECL void shard_tensors::find_small() {
  small_.clear();
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const auto offset = layout_->packed_offset(i);
    if (offset && ranges_[i].bytes > 0)
      small_.push_back({i, ranges_[i].data, places_.front().data + *offset, ranges_[i].bytes});
  }
}

TENSORHUB_DECL const memory_range* shard_tensors::packed_on_device() const noexcept {
  for (std::size_t i = 0; i < ranges_.size(); ++i)
    if (layout_->packed_offset(i) && !ranges_[i].host_accessible()) return &ranges_[i];
  return nullptr;
}

TENSORHUB_DECL std::vector<copy_run> shard_tensors::runs_from(const shard_tensors& from) const {
  std::vector<copy_run> runs;
  for (std::size_t i = 0; i < places_.size(); ++i)
    runs.push_back({places_[i].data, from.places_[i].data, layout_->segments()[i].bytes});
  return runs;
}

TENSORHUB_DECL registration_cost shard_tensors::cost() const noexcept {
  const std::lock_guard lock{cost_mutex_};
  return cost_;
}

TENSORHUB_DECL void shard_tensors::note(double registration_cost::*what, clock::time_point started) noexcept {
  const double seconds = std::chrono::duration<double>(clock::now() - started).count();
  const std::lock_guard lock{cost_mutex_};
  cost_.*what = seconds;
}

// ---- small tensors

TENSORHUB_DECL shard_tensors::small_tensor* shard_tensors::small_at(std::size_t position) noexcept {
  const auto found =
      std::lower_bound(small_.begin(), small_.end(), position,
                       [](const small_tensor& each, std::size_t wanted) { return each.position < wanted; });
  return found != small_.end() && found->position == position ? &*found : nullptr;
}

TENSORHUB_DECL void shard_tensors::pack() {
  const auto started = clock::now();
  std::vector<copy_run> runs;
  for (const small_tensor& each : small_) runs.push_back({each.packed, each.own, each.bytes});
  if (!runs.empty()) copy_small(runs);
  note(&registration_cost::pack_seconds, started);
}

TENSORHUB_DECL void shard_tensors::pack(std::size_t tensor) {
  const small_tensor* const found = small_at(tensor);
  if (found == nullptr) return;
  const copy_run run{found->packed, found->own, found->bytes};
  copy_small(std::span{&run, 1});
}

TENSORHUB_DECL void shard_tensors::check_writable() const {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const memory_range& range = ranges_[i];
    const bool is_plain = range.kind == memory_kind::host && range.device == nullptr;
    if (is_plain && range.bytes > 0 && !detail::cpu_can_write(range.data, range.bytes))
      throw error(errc::invalid_argument, "tensor '" + specs_[i].name +
                                              "' lies in memory that this process cannot write: add memory "
                                              "of your own, not a file that is mapped read-only");
  }
}

TENSORHUB_DECL void shard_tensors::expect() {
  const std::lock_guard lock{unpack_mutex_};
  if (transfers_ == 0) check_writable();
  ++transfers_;
  for (small_tensor& each : small_) each.unpacked = false;
}

TENSORHUB_DECL std::uint64_t shard_tensors::transfers() const noexcept {
  const std::lock_guard lock{unpack_mutex_};
  return transfers_;
}

TENSORHUB_DECL void shard_tensors::unpack() {
  const auto started = clock::now();
  const std::lock_guard lock{unpack_mutex_};
  std::vector<copy_run> runs;
  for (const small_tensor& each : small_) {
    if (each.unpacked) continue;
    const copy_run run{each.own, each.packed, each.bytes};
    if (copies_in_batches_)
      runs.push_back(run);
    else
      copy_small(std::span{&run, 1});
  }
  if (!runs.empty()) copy_small(runs);
  for (small_tensor& each : small_) each.unpacked = true;
  note(&registration_cost::unpack_seconds, started);
}

TENSORHUB_DECL bool shard_tensors::unpack(std::size_t tensor, std::uint64_t transfer) {
  const std::lock_guard lock{unpack_mutex_};
  if (transfer != transfers_) return false;
  small_tensor* const found = small_at(tensor);
  if (found == nullptr || found->unpacked) return true;
  const copy_run run{found->own, found->packed, found->bytes};
  copy_small(std::span{&run, 1});
  return found->unpacked = true;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
