#pragma once
/// \file event_queue.hpp
/// Virtual time: a queue of things that happen, in order, one thread, no clock. Equal seeds give equal
/// histories.

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "tensorhub/types/units.hpp"

namespace tensorhub::testing {

class event_queue {
 public:
  explicit event_queue(std::uint64_t seed) : random_{seed} {}

  [[nodiscard]] time_point now() const noexcept { return now_; }

  /// Events at the same time happen in the order of their scheduling.
  void schedule(time_point at, std::function<void()> what) {
    events_.push({std::max(at, now_), ++count_, std::move(what)});
  }
  void after(duration delay, std::function<void()> what) { schedule(now_ + delay, std::move(what)); }

  /// False: nothing is left before `end`.
  bool step(time_point end) {
    if (events_.empty() || events_.top().at > end) return false;
    event next = std::move(const_cast<event&>(events_.top()));  // popped at once
    events_.pop();
    now_ = next.at;
    ++executed_;
    next.what();
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
    time_point at{};
    std::uint64_t order = 0;
    std::function<void()> what{};
    bool operator<(const event& other) const noexcept {
      return std::pair{at.nanoseconds, order} > std::pair{other.at.nanoseconds, other.order};
    }
  };
  std::priority_queue<event> events_;
  std::mt19937_64 random_;
  time_point now_{1};
  std::uint64_t count_ = 0;
  std::uint64_t executed_ = 0;
};

}  // namespace tensorhub::testing
