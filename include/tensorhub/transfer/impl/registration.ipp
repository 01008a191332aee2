#pragma once
/// \file registration.ipp
/// The search for overlaps, and the grouping of tensors into regions: definitions of registration.hpp.

#include <algorithm>
#include <numeric>
#include <string>

#include "tensorhub/error.hpp"
#include "tensorhub/transfer/registration.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::string overlap_sentence(std::string_view one, std::string_view other) {
  return "the memory of tensors '" + std::string{one} + "' and '" + std::string{other} +
         "' overlaps: each needs memory of its own; if they are tied, add the memory once, "
         "under one name, in every worker alike";
}

TENSORHUB_DECL std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    std::span<const memory_range> ranges) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].bytes > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return ranges[a].data < ranges[b].data; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const memory_range& before = ranges[order[i - 1]];
    if (before.data + before.bytes > ranges[order[i]].data) return std::pair{order[i - 1], order[i]};
  }
  return std::nullopt;
}

}  // namespace tensorhub::inline TENSORHUB_MODE

namespace tensorhub::inline TENSORHUB_MODE::registration_detail {

TENSORHUB_DECL bool joins(const registration_item& before, const registration_item& after,
                          std::uint64_t max_gap_bytes) noexcept {
  const auto gap = static_cast<std::uint64_t>(after.range.data - (before.range.data + before.range.bytes));
  if (before.range.kind != after.range.kind || before.range.device != after.range.device ||
      before.range.backing_fd != after.range.backing_fd)
    return false;
  const bool has_file = before.range.backing_fd >= 0;
  if (has_file && before.range.backing_offset + before.range.bytes + gap != after.range.backing_offset)
    return false;
  const bool one_allocation =
      before.allocation.data == after.allocation.data && before.allocation.bytes == after.allocation.bytes;
  if (one_allocation) return gap <= max_gap_bytes;
  const auto is_unknown = [](const registration_item& item) {
    return item.range.kind == memory_kind::host && item.allocation.bytes == item.range.bytes;
  };
  return gap == 0 && is_unknown(before) && is_unknown(after);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::registration_detail

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL registration_plan plan_registration(std::span<const registration_item> items,
                                                   const registration_limits& limits) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return items[a].range.data < items[b].range.data; });

  registration_plan plan;
  plan.places.resize(items.size());
  const registration_item* before = nullptr;
  for (const std::size_t i : order) {
    const registration_item& item = items[i];
    if (item.range.bytes > limits.max_region_bytes)
      throw error(errc::limit_exceeded,
                  "tensor '" + std::string{item.name} + "' has " + std::to_string(item.range.bytes) +
                      " bytes; the transport registers at most " + std::to_string(limits.max_region_bytes) +
                      " at once: split the tensor");
    std::uint64_t gap = 0;
    bool joined = false;
    if (before != nullptr) {
      if (before->range.data + before->range.bytes > item.range.data)
        throw error(errc::invalid_argument, overlap_sentence(before->name, item.name));
      gap = static_cast<std::uint64_t>(item.range.data - (before->range.data + before->range.bytes));
      joined = registration_detail::joins(*before, item, limits.max_gap_bytes) &&
               plan.regions.back().bytes + gap + item.range.bytes <= limits.max_region_bytes;
    }
    if (joined) {
      plan.regions.back().bytes += gap;
      plan.padding_bytes += gap;
    } else {
      plan.regions.push_back(item.range);
      plan.regions.back().bytes = 0;
    }
    plan.places[i] = {plan.regions.size() - 1, plan.regions.back().bytes};
    plan.regions.back().bytes += item.range.bytes;
    before = &item;
  }
  return plan;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
