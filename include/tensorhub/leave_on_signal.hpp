#pragma once
/// \file leave_on_signal.hpp
/// For processes that are told to end, as spot machines are: on SIGTERM all workers leave with some grace.
///
///     tensorhub::leave_on_signal on_notice{20s};             // before other threads are started
///     on_notice.watch(rollout);
///     while (!on_notice.requested()) { ... }                 // then end the process as usual
///
/// Each worker drains, hands over what is retained and nobody else has, and leaves (`worker::leave`), all
/// within the grace; what fails is told to `log`. The signals are taken by a thread of this object
/// (signalfd(2)): they are blocked in the thread that constructs it and in all that are started later, and
/// nothing runs in a handler.
///
/// Thread safety: all members may be called from any thread. A worker must outlive this object, or be
/// forgotten.

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class leave_on_signal {
 public:
  /// Throws `system_failed` if the signals cannot be taken.
  TENSORHUB_DECL explicit leave_on_signal(std::chrono::milliseconds grace,
                                          std::initializer_list<int> signals = {SIGTERM},
                                          std::function<void(const log_line&)> log = {});
  /// In the thread that has constructed it the signals are as before.
  TENSORHUB_DECL ~leave_on_signal();
  leave_on_signal(const leave_on_signal&) = delete;
  leave_on_signal& operator=(const leave_on_signal&) = delete;

  /// A publisher or subscriber, or anything with `leave(grace)`.
  template <typename Worker>
  void watch(Worker& worker) {
    watch(&worker, [&worker](std::chrono::milliseconds grace) { worker.leave(grace); });
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
  using leaving = std::function<void(std::chrono::milliseconds)>;

  TENSORHUB_DECL void watch(const void* worker, leaving leave);
  TENSORHUB_DECL void forget(const void* worker);
  TENSORHUB_DECL void run(const std::stop_token& stop);
  TENSORHUB_DECL void leave_all();

  sigset_t before_{};
  std::chrono::milliseconds grace_;
  std::function<void(const log_line&)> log_;
  detail::unique_fd signals_;
  std::mutex mutex_;
  std::vector<std::pair<const void*, leaving>> watched_;
  std::atomic<bool> requested_ = false;
  std::atomic<bool> done_ = false;
  std::jthread thread_;  ///< last: it uses everything above
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/leave_on_signal.ipp"
#endif
