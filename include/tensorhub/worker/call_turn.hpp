#pragma once
/// \file call_turn.hpp
/// One call at a time: a second one is refused at once, and a call that must have the turn can wait for it.
///
/// Thread safety: every member may be called from any thread.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class call_turn {
 public:
  /// False: another call has the turn.
  [[nodiscard]] bool try_begin() {
    const std::lock_guard lock{mutex_};
    return !std::exchange(taken_, true);
  }
  /// False: another call has it still at `until`.
  [[nodiscard]] bool begin_by(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock{mutex_};
    if (!ended_.wait_until(lock, until, [this] { return !taken_; })) return false;
    return taken_ = true;
  }
  void end() noexcept {
    const std::lock_guard lock{mutex_};
    taken_ = false;
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool taken_ = false;
};

/// The turn of one call, until this object ends. Not there: another call has it.
class held_turn {
 public:
  explicit held_turn(call_turn& turn) : turn_{turn.try_begin() ? &turn : nullptr} {}
  /// Waits for the turn. Not there: another call has it still at `until`.
  held_turn(call_turn& turn, std::chrono::steady_clock::time_point until)
      : turn_{turn.begin_by(until) ? &turn : nullptr} {}
  [[nodiscard]] explicit operator bool() const noexcept { return turn_ != nullptr; }

 private:
  struct end_turn {
    void operator()(call_turn* turn) const noexcept { turn->end(); }
  };
  std::unique_ptr<call_turn, end_turn> turn_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
