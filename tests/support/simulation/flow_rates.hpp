#pragma once
/// \file flow_rates.hpp
/// Computes how fast each of many flows moves over links that they share, and which flow ends first. The
/// model has no packets and no queues; a flow has a rate that changes only when flows begin or end. Pure: no
/// events, no clock (link_network.hpp has those).
///
/// Sharing. A *changed* link is one on which a flow began or ended since the last `share`, if it is full now
/// or was before. `share` gives max-min fair rates (progressive filling: the link with the lowest level
/// first) to all flows on changed links. On unchanged links such a flow may take the rate that it has already
/// and the free capacity. Therefore
///   - no link ever carries more than its capacity,
///   - a changed link has free capacity only if other links limit all its flows,
///   - when all flows begin at once, the rates are those of global max-min fairness.
/// The model omits a second-order effect: a flow that slows down on one link frees capacity on its other
/// links, which is used only when those links change next.
///
/// Reason for this rule: it was measured with 64 and 1,024 hosts of equal links, each reading 8 flows of 12
/// MB at any time from random hosts. The simple rule (least of capacity / flows over the flow's links) uses
/// 0.77 of the links, this rule 0.82, and max-min over all flows at every change 0.82 as well. A flow costs
/// 1.4, 2.2 and (64 hosts only) 55 microseconds of one core. Full links with many flows cost in proportion:
/// 26 microseconds with 32 hosts behind each rack link of half their capacity, about 256 flows per link.
///
/// Exact and repeatable: bytes are counted in integers of 2^-20 byte, times are integer nanoseconds (the
/// nearest one), and rates are doubles. Rates are made by single additions, subtractions and divisions and
/// rounded to integers after each multiplication, so that no compiler may contract them. All orders are those
/// of vectors.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class flow_rates {
 public:
  using link_number = std::uint32_t;
  /// Chosen by the user; numbers should be small, because they index a vector.
  using flow_number = std::uint32_t;
  static constexpr std::size_t links_per_flow = 5;
  /// The largest size of one flow.
  static constexpr std::uint64_t largest_flow_bytes = std::uint64_t{1} << 42;

  link_number add_link(std::uint64_t bytes_per_second) {
    const auto number = static_cast<link_number>(links_.size());
    links_.emplace_back();
    links_.back().capacity = static_cast<double>(bytes_per_second) * units_per_byte / 1e9;
    if (links_.size() > leaves_) grow();
    return number;
  }

  /// The flow moves from the next `share` on. `path`: 1 to links_per_flow different links.
  void begin(flow_number flow, std::span<const link_number> path, std::uint64_t bytes, time_point now) {
    if (flow >= flows_.size()) flows_.resize(flow + 1);
    flow_state& state = flows_[flow];
    state.left = static_cast<std::int64_t>(bytes) * static_cast<std::int64_t>(units_per_byte);
    state.since = now.nanoseconds;
    state.rate = 0;
    state.links = static_cast<std::uint8_t>(path.size());
    state.reserved = unlimited;
    for (const link_number number : path) state.reserved = std::min(state.reserved, links_[number].capacity);
    for (std::size_t i = 0; i < path.size(); ++i) {
      link_state& link = links_[path[i]];
      state.link[i] = path[i];
      state.place[i] = static_cast<std::uint32_t>(link.flows.size());
      link.flows.push_back(flow);
      link.ends.push_back(never);
      link.taken += state.reserved;
      note_change(path[i]);
    }
    begun_.push_back(flow);
  }

  /// Removes a flow, finished or not. Returns the bytes that it has not moved (rounded up).
  std::uint64_t end(flow_number flow, time_point now) {
    flow_state& state = flows_[flow];
    advance(state, now.nanoseconds);
    for (std::size_t i = 0; i < state.links; ++i) {
      link_state& link = links_[state.link[i]];
      const std::uint32_t place = state.place[i];
      const flow_number last = link.flows.back();
      link.flows[place] = last;
      link.flows.pop_back();
      link.ends[place] = link.ends.back();
      link.ends.pop_back();
      flow_state& moved = flows_[last];
      for (std::size_t k = 0; k < moved.links; ++k) {
        if (moved.link[k] == state.link[i]) moved.place[k] = place;
      }
      if (is_full(link)) link.was_full = true;
      link.taken = link.flows.empty() ? 0 : link.taken - state.reserved;
      note_change(state.link[i]);
    }
    if (links_[state.link[0]].first == flow) find_first(state.link[0]);
    state.links = 0;
    const auto unit = static_cast<std::int64_t>(units_per_byte);
    return static_cast<std::uint64_t>((state.left + unit - 1) / unit);
  }

  /// Links have changed: `share` must be called before time advances.
  [[nodiscard]] bool has_changed() const noexcept { return !changed_.empty(); }

  /// The time at which the first flow ends; `time_point::never()`: no flow moves.
  [[nodiscard]] time_point first_end() const noexcept { return {ends_[winners_[1]]}; }
  /// The flow that ends first; of several in the same nanosecond, the one whose first link has the lowest
  /// number.
  [[nodiscard]] flow_number first_flow() const noexcept { return links_[winners_[1]].first; }

  [[nodiscard]] std::span<const flow_number> flows_on(link_number link) const noexcept {
    return links_[link].flows;
  }
  /// The present rate, for observers.
  [[nodiscard]] double bytes_per_second(flow_number flow) const noexcept {
    return flows_[flow].rate / units_per_byte * 1e9;
  }

  /// Gives every flow on a changed link its new rate. Costs O(flows on the changed links).
  void share(time_point now) {
    ++round_;
    touched_.clear();
    std::erase_if(changed_, [this](link_number number) { return !must_share(links_[number]); });
    for (const link_number number : changed_) {
      link_state& link = links_[number];
      link.open = link.flows.size();
      link.assigned = 0;
      for (const flow_number flow : link.flows) touch(flow);
    }
    for (const flow_number flow : begun_) touch(flow);
    begun_.clear();
    for (const flow_number flow : touched_) flows_[flow].bound = bound_elsewhere(flows_[flow]);
    fill();
    for (const link_number number : changed_) {
      links_[number].changed = false;
      links_[number].taken = links_[number].assigned;
    }
    changed_.clear();
    for (const flow_number flow : touched_) apply(flow, now.nanoseconds);
    for (const link_number number : stale_firsts_) find_first(number);
    stale_firsts_.clear();
  }

 private:
  static constexpr double units_per_byte = 1048576.0;  ///< 2^20
  static constexpr std::int64_t never = time_point::never().nanoseconds;
  static constexpr double unlimited = std::numeric_limits<double>::infinity();
  static constexpr double open = -1;  ///< `flow_state::next` of a flow whose rate is undecided

  struct flow_state {
    std::int64_t left = 0;   ///< units, at `since`
    std::int64_t since = 0;  ///< nanoseconds
    double rate = 0;         ///< units per nanosecond
    double reserved = 0;     ///< its rate; before the first share, an upper bound of it
    double next = 0;         ///< in the share that is being computed
    double bound = 0;        ///< the limit that its unchanged links set
    std::uint64_t round = 0;
    std::array<link_number, links_per_flow> link{};
    std::array<std::uint32_t, links_per_flow> place{};  ///< position in the flows of that link
    std::uint8_t links = 0;
  };
  struct link_state {
    double capacity = 0;  ///< units per nanosecond
    double taken = 0;     ///< sum of the reserved rates of its flows
    double assigned = 0;  ///< sum of the rates decided in this share
    std::size_t open = 0;
    bool changed = false;
    bool was_full = false;  ///< when one of its flows ended
    bool stale_level = false;
    bool stale_first = false;
    flow_number first = 0;  ///< of the flows whose first link this is, the one that ends first
    std::vector<flow_number> flows{};
    /// Parallel to `flows`: end times; never if this is not the flow's first link.
    std::vector<std::int64_t> ends{};
  };
  using level_of_link = std::pair<double, link_number>;

  [[nodiscard]] static bool is_full(const link_state& link) noexcept {
    return link.taken > link.capacity * (1 - 1e-9);
  }

  /// False if the link limits none of its flows, before or after; it counts as unchanged then. This keeps
  /// wide links (for example of racks) cheap that have hundreds of flows and capacity for all.
  [[nodiscard]] static bool must_share(link_state& link) noexcept {
    link.changed = (std::exchange(link.was_full, false) || is_full(link)) && !link.flows.empty();
    return link.changed;
  }

  void touch(flow_number number) {
    flow_state& flow = flows_[number];
    if (flow.links == 0 || std::exchange(flow.round, round_) == round_) return;  // 0: the flow has ended
    flow.next = open;
    touched_.push_back(number);
  }

  void note_change(link_number number) {
    if (std::exchange(links_[number].changed, true)) return;
    changed_.push_back(number);
  }

  // ---- sharing ------------------------------------------------------------------------------------------

  [[nodiscard]] double free_for(const flow_state& flow, const link_state& link) const noexcept {
    return flow.reserved + std::max(0.0, link.capacity - link.taken);
  }
  [[nodiscard]] double bound_elsewhere(const flow_state& flow) const noexcept {
    double bound = unlimited;
    for (std::size_t i = 0; i < flow.links; ++i) {
      const link_state& link = links_[flow.link[i]];
      if (!link.changed) bound = std::min(bound, free_for(flow, link));
    }
    return bound;
  }

  /// Progressive filling of the changed links. Levels only rise while flows are decided, so the lowest level
  /// is final if it is up to date.
  void fill() {
    levels_.clear();
    for (const link_number number : changed_) {
      if (links_[number].open > 0) levels_.emplace_back(level_of(links_[number]), number);
    }
    std::make_heap(levels_.begin(), levels_.end(), std::greater<>{});
    while (!levels_.empty()) {
      std::pop_heap(levels_.begin(), levels_.end(), std::greater<>{});
      auto [level, number] = levels_.back();
      levels_.pop_back();
      link_state& link = links_[number];
      if (link.open == 0) continue;
      if (link.stale_level) {
        level = level_of(link);
        if (!levels_.empty() && level > levels_.front().first) {
          levels_.emplace_back(level, number);
          std::push_heap(levels_.begin(), levels_.end(), std::greater<>{});
          continue;
        }
      }
      for (const flow_number flow : link.flows) {
        if (flows_[flow].next == open) decide(flows_[flow], level);
      }
    }
    for (const flow_number flow : touched_) {
      // New flows, on links with capacity for all.
      if (flows_[flow].next == open) decide(flows_[flow], unlimited);
    }
  }

  /// The rate that each open flow of the link gets, unless other links limit it to less.
  [[nodiscard]] double level_of(link_state& link) {
    link.stale_level = false;
    bounds_.clear();
    for (const flow_number flow : link.flows) {
      if (flows_[flow].next == open) bounds_.push_back(flows_[flow].bound);
    }
    const double all = link.capacity - link.assigned;
    double level = all / static_cast<double>(bounds_.size());
    std::size_t bound_before = 0;
    while (true) {
      double rest = all;
      std::size_t bound = 0;
      for (const double most : bounds_) {
        if (most > level) continue;
        rest -= most;
        ++bound;
      }
      if (bound == bounds_.size()) return unlimited;
      if (bound == bound_before) return std::max(level, link.capacity * 1e-9);
      bound_before = bound;
      level = std::max(level, rest / static_cast<double>(bounds_.size() - bound));
    }
  }

  void decide(flow_state& flow, double level) {
    double rate = std::min(level, flow.bound);
    for (std::size_t i = 0; i < flow.links; ++i) {
      const link_state& link = links_[flow.link[i]];
      if (!link.changed) rate = std::min(rate, free_for(flow, link));
    }
    for (std::size_t i = 0; i < flow.links; ++i) {
      link_state& link = links_[flow.link[i]];
      if (link.changed) {
        link.assigned += rate;
        --link.open;
        link.stale_level = true;
      } else {
        link.taken += rate - flow.reserved;
      }
    }
    flow.next = flow.reserved = rate;
  }

  // ---- moving -------------------------------------------------------------------------------------------

  static void advance(flow_state& flow, std::int64_t now) noexcept {
    const auto moved = static_cast<std::int64_t>(flow.rate * static_cast<double>(now - flow.since));
    flow.left = std::max<std::int64_t>(0, flow.left - moved);
    flow.since = now;
  }

  void apply(flow_number number, std::int64_t now) {
    flow_state& flow = flows_[number];
    if (flow.next == flow.rate) return;
    advance(flow, now);
    flow.rate = flow.next;
    const double takes = static_cast<double>(flow.left) / flow.rate;
    const std::int64_t end =
        takes < 9e18 - static_cast<double>(now) ? now + static_cast<std::int64_t>(takes + 0.5) : never - 1;
    const link_number first_link = flow.link[0];
    link_state& link = links_[first_link];
    link.ends[flow.place[0]] = end;
    if (link.stale_first || (end >= ends_[first_link] && link.first != number)) return;
    link.stale_first = true;
    stale_firsts_.push_back(first_link);
  }

  // ---- which flow ends first: a search per first link, and a tree of winners among the links ------------

  void find_first(link_number number) {
    link_state& link = links_[number];
    link.stale_first = false;
    std::int64_t least = never;
    std::size_t place = 0;
    for (std::size_t i = 0; i < link.ends.size(); ++i) {
      if (link.ends[i] >= least) continue;
      least = link.ends[i];
      place = i;
    }
    ends_[number] = least;
    link.first = least == never ? no_flow : link.flows[place];
    for (std::size_t node = (leaves_ + number) / 2; node > 0; node /= 2) {
      const link_number winner = winner_of(node);
      if (winners_[node] == winner && winner != number) break;
      winners_[node] = winner;
    }
  }
  [[nodiscard]] link_number winner_of(std::size_t node) const noexcept {
    const link_number left = winners_[2 * node];
    const link_number right = winners_[2 * node + 1];
    return ends_[left] <= ends_[right] ? left : right;
  }
  void grow() {
    leaves_ *= 2;
    ends_.resize(leaves_, never);
    winners_.resize(2 * leaves_);
    for (std::size_t leaf = 0; leaf < leaves_; ++leaf)
      winners_[leaves_ + leaf] = static_cast<link_number>(leaf);
    for (std::size_t node = leaves_ - 1; node > 0; --node) winners_[node] = winner_of(node);
  }

  static constexpr flow_number no_flow = std::numeric_limits<flow_number>::max();

  std::vector<link_state> links_;
  std::vector<flow_state> flows_;
  std::uint64_t round_ = 0;
  std::vector<link_number> changed_;
  std::vector<flow_number> begun_;  ///< since the last share
  std::vector<flow_number> touched_;
  std::vector<link_number> stale_firsts_;
  std::vector<level_of_link> levels_;
  std::vector<double> bounds_;
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> ends_{never};  ///< per link; the leaves of the tree
  std::vector<link_number> winners_{0, 0};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
