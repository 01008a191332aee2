#pragma once
/// \file kept_lane.ipp
/// Definitions of kept_lane.hpp.

#include <algorithm>
#include <iterator>
#include <utility>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transfer/kept_lane.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL kept_lane::kept_lane(std::size_t scratch_words) : scratch_(scratch_words) {
  kept_.reserve(most_kept);
}
TENSORHUB_DECL kept_lane::~kept_lane() = default;

TENSORHUB_DECL memory_range kept_lane::scratch_range() noexcept {
  return {std::as_writable_bytes(std::span{scratch_}).data(), scratch_.size() * 8};
}

TENSORHUB_DECL bool kept_lane::has_idle(clock::time_point now) const noexcept {
  return !kept_.empty() && kept_.front().since < now - kept_for;
}

TENSORHUB_DECL void kept_lane::close_idle(clock::time_point now) {
  for (; has_idle(now); kept_.erase(kept_.begin())) close(kept_.front().place);
}

TENSORHUB_DECL std::optional<std::size_t> kept_lane::take_place(const connection_ends& ends) {
  const auto found = detail::find(kept_, ends, &kept_connection::ends);
  if (found == kept_.end()) return std::nullopt;
  const std::size_t place = found->place;
  kept_.erase(found);
  return place;
}

TENSORHUB_DECL std::size_t kept_lane::new_place(connection_ends ends) {
  std::size_t place = 0;
  if (kept_.size() == most_kept) {
    place = kept_.front().place;
    kept_.erase(kept_.begin());
  } else {
    while (detail::any_of(kept_, [place](const kept_connection& each) { return each.place == place; }))
      ++place;
  }
  kept_.push_back({std::move(ends), clock::now(), place});
  return place;
}

TENSORHUB_DECL idle_lanes::idle_lanes() = default;
TENSORHUB_DECL idle_lanes::~idle_lanes() = default;

TENSORHUB_DECL std::unique_ptr<kept_lane> idle_lanes::take(std::size_t number, std::size_t scratch_words,
                                                           kept_lane::clock::time_point now) {
  std::unique_ptr<kept_lane> out;
  // To close a connection may take long, and uses its lane's queue: meanwhile nobody else has the lane.
  std::vector<idle_lane> stale;
  {
    const std::lock_guard lock{mutex_};
    if (!idle_.empty()) {
      const auto same = detail::find(idle_, number, &idle_lane::number);
      const auto taken = same == idle_.end() ? std::prev(idle_.end()) : same;
      out = std::move(taken->lane);
      idle_.erase(taken);
    }
    const auto first = std::partition(idle_.begin(), idle_.end(),
                                      [now](const idle_lane& each) { return !each.lane->has_idle(now); });
    stale.assign(std::make_move_iterator(first), std::make_move_iterator(idle_.end()));
    idle_.erase(first, idle_.end());
  }
  if (out) out->close_idle(now);
  for (idle_lane& each : stale) {
    each.lane->close_idle(now);
    give_back(each.number, std::move(each.lane));
  }
  if (out && out->scratch().size() < scratch_words * 8) out.reset();
  return out;
}

TENSORHUB_DECL void idle_lanes::give_back(std::size_t number, std::unique_ptr<kept_lane> lane) {
  if (lane->outstanding() > 0) return;
  const std::lock_guard lock{mutex_};
  idle_.push_back({number, std::move(lane)});
}

}  // namespace tensorhub::inline TENSORHUB_MODE
