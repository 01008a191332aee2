#pragma once
/// \file leave_on_signal.hpp
/// For processes that are told to end, as spot machines are: on SIGTERM all workers leave with some grace.
///
///     hub::subscriber rollout{...};
///     tensorhub::leave_on_signal on_notice{20s};             // after the workers: it ends before them
///     on_notice.watch(rollout);
///     while (!on_notice.requested()) { ... }                 // then end the process as usual
///
/// Each worker drains, hands over what is retained and nobody else has, and leaves (`worker::leave`), all
/// within the grace; what fails, and what is lost, is told to `log` when all have left. A handler notes that
/// the signal has come, and a thread of this object does the rest: it calls `log`, without a lock. No signal
/// is blocked: a program that this process executes begins with the default handling of these signals, and a
/// child that is only forked has that of before.
///
/// Thread safety: all members may be called from any thread. A worker must outlive this object, whose end
/// waits for those that leave, or be forgotten (`forget` waits likewise). A worker that is watched after the
/// signal has come does not leave.

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class leave_on_signal {
 public:
  /// Throws `system_failed` if the signals cannot be taken, `busy` if another object has taken one.
  TENSORHUB_DECL explicit leave_on_signal(std::chrono::milliseconds grace,
                                          std::initializer_list<int> signals = {SIGTERM},
                                          std::function<void(const log_line&)> log = {});
  /// The signals are handled as before.
  TENSORHUB_DECL ~leave_on_signal();
  leave_on_signal(const leave_on_signal&) = delete;
  leave_on_signal& operator=(const leave_on_signal&) = delete;

  /// A publisher or subscriber, or anything with `leave(grace)`.
  template <typename Worker>
  void watch(Worker& worker) {
    watch(&worker, [&worker](std::chrono::milliseconds grace) {
      if constexpr (requires { worker.leave(grace).lost; })
        return worker.leave(grace).lost;
      else
        return worker.leave(grace), false;
    });
  }
  template <typename Worker>
  void forget(Worker& worker) {
    forget(static_cast<const void*>(&worker));
  }

  /// A signal has come; the workers are leaving, or have left.
  [[nodiscard]] bool requested() const noexcept { return requested_; }
  /// They have left, or their grace is over.
  [[nodiscard]] bool done() const noexcept { return done_; }

 private:
  /// True: a retained version is lost.
  using leaving = std::function<bool(std::chrono::milliseconds)>;

  TENSORHUB_DECL void watch(const void* worker, leaving leave);
  TENSORHUB_DECL void forget(const void* worker);
  TENSORHUB_DECL void run(const std::stop_token& stop);
  TENSORHUB_DECL void leave_all();
  struct watched {
    const void* worker = nullptr;
    leaving leave{};
    std::string trouble{};  ///< for `log`; empty: none
  };
  TENSORHUB_DECL static void leave_one(watched& which, std::chrono::steady_clock::time_point until) noexcept;
  TENSORHUB_DECL void give_back() noexcept;

  std::chrono::milliseconds grace_;
  std::function<void(const log_line&)> log_;
  std::vector<int> signals_;
  std::mutex mutex_;
  std::vector<watched> watched_;
  std::atomic<bool> requested_ = false;
  std::atomic<bool> done_ = false;
  std::jthread thread_;  ///< last: it uses everything above
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/leave_on_signal.ipp"
#endif
