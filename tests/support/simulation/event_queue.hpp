#pragma once
/// \file event_queue.hpp
/// Virtual time: a queue of events that run in order in one thread, without a clock. Equal seeds give equal
/// histories.
///
/// A heap with four children per node and 24 bytes per event. The actions of the events lie beside the heap
/// and do not move while the heap is sorted.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "support/simulation/action.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class event_queue {
 public:
  explicit event_queue(std::uint64_t seed) : random_{seed} {}

  [[nodiscard]] time_point now() const noexcept { return now_; }

  /// Events at the same time run in the order of their scheduling. `what`: any callable.
  void schedule(time_point at, action what) {
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(actions_.size());
      actions_.push_back(std::move(what));
    } else {
      slot = free_.back();
      free_.pop_back();
      actions_[slot] = std::move(what);
    }
    heap_.emplace_back();
    rise(heap_.size() - 1, {std::max(at, now_).nanoseconds, ++count_, slot});
  }
  void after(duration delay, action what) { schedule(now_ + delay, std::move(what)); }

  /// Returns false if no event is left before `end`.
  bool step(time_point end) {
    if (heap_.empty() || heap_.front().at > end.nanoseconds) return false;
    const event next = heap_.front();
    const event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    action what = std::move(actions_[next.slot]);
    free_.push_back(next.slot);
    now_ = {next.at};
    ++executed_;
    what();
    return true;
  }

  [[nodiscard]] std::uint64_t executed() const noexcept { return executed_; }

  // ---- seeded randomness (not std::uniform_*_distribution: their results differ between libraries) ----
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  [[nodiscard]] bool chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }
  [[nodiscard]] duration between(duration low, duration high) {
    return low +
           duration{static_cast<std::int64_t>(below(static_cast<std::uint64_t>((high - low).count()) + 1))};
  }
  [[nodiscard]] std::uint64_t bits() { return random_(); }

 private:
  struct event {
    std::int64_t at = 0;  ///< nanoseconds
    std::uint64_t order = 0;
    std::uint32_t slot = 0;  ///< of actions_
    [[nodiscard]] bool before(const event& other) const noexcept {
      return at != other.at ? at < other.at : order < other.order;
    }
  };
  static constexpr std::size_t children = 4;

  /// Puts `moved` at `place`, or nearer to the front.
  void rise(std::size_t place, const event& moved) {
    while (place > 0) {
      const std::size_t parent = (place - 1) / children;
      if (!moved.before(heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = moved;
  }
  /// Puts `moved` at the front, or at its sorted position behind it.
  void sink(const event& moved) {
    const std::size_t size = heap_.size();
    std::size_t place = 0;
    while (true) {
      const std::size_t first = place * children + 1;
      if (first >= size) break;
      std::size_t least = first;
      const std::size_t end = std::min(first + children, size);
      for (std::size_t child = first + 1; child < end; ++child) {
        if (heap_[child].before(heap_[least])) least = child;
      }
      if (!heap_[least].before(moved)) break;
      heap_[place] = heap_[least];
      place = least;
    }
    heap_[place] = moved;
  }

  std::vector<event> heap_;
  std::vector<action> actions_;
  std::vector<std::uint32_t> free_;  ///< slots of actions_
  std::mt19937_64 random_;
  time_point now_{1};
  std::uint64_t count_ = 0;
  std::uint64_t executed_ = 0;
};

/// What a step over a worker's memory costs: little, and sometimes as much as the server's patience.
[[nodiscard]] inline duration time_per_byte(event_queue& events) {
  const duration most = events.chance(0.9) ? std::chrono::microseconds{2} : std::chrono::microseconds{100};
  return events.between(duration{0}, most);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
