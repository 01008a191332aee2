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

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class leave_on_signal {
 public:
  /// Throws `system_failed` if the signals cannot be taken.
  explicit leave_on_signal(std::chrono::milliseconds grace, std::initializer_list<int> signals = {SIGTERM},
                           std::function<void(const log_line&)> log = {})
      : grace_{grace}, log_{std::move(log)} {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int each : signals) sigaddset(&taken, each);
    const int blocked = pthread_sigmask(SIG_BLOCK, &taken, &before_);
    signals_ = detail::unique_fd{signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK)};
    if (blocked != 0 || signals_.get() < 0)
      throw error(errc::system_failed, "signals cannot be taken by signalfd: check the numbers");
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }
  /// In the thread that has constructed it the signals are as before.
  ~leave_on_signal() {
    thread_ = {};
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  leave_on_signal(const leave_on_signal&) = delete;
  leave_on_signal& operator=(const leave_on_signal&) = delete;

  /// A publisher or subscriber, or anything with `leave(grace)`.
  template <typename Worker>
  void watch(Worker& worker) {
    const std::lock_guard lock{mutex_};
    watched_.push_back({&worker, [&worker](std::chrono::milliseconds grace) { worker.leave(grace); }});
  }
  template <typename Worker>
  void forget(Worker& worker) {
    const std::lock_guard lock{mutex_};
    std::erase_if(watched_, [&](const auto& each) { return each.first == &worker; });
  }

  /// A signal has come; the workers are leaving, or have left.
  [[nodiscard]] bool requested() const noexcept { return requested_; }
  /// They have left, or their grace is over.
  [[nodiscard]] bool done() const noexcept { return done_; }

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested() && !requested_) {
      pollfd waiting{signals_.get(), POLLIN, 0};
      if (poll(&waiting, 1, 50) <= 0) continue;
      signalfd_siginfo what{};
      if (read(signals_.get(), &what, sizeof what) == static_cast<ssize_t>(sizeof what)) leave_all();
    }
  }
  void leave_all() {
    requested_ = true;
    const std::lock_guard lock{mutex_};
    std::vector<std::jthread> leaving;
    for (const auto& [worker, leave] : watched_) {
      leaving.emplace_back([this, &leave = leave] {
        try {
          leave(grace_);
        } catch (const std::exception& e) {
          if (log_)
            log_({log_level::warning, std::string{"could not leave within the grace: "} + e.what(), {}});
        }
      });
    }
    leaving.clear();  // waits for them
    done_ = true;
  }

  sigset_t before_{};
  std::chrono::milliseconds grace_;
  std::function<void(const log_line&)> log_;
  detail::unique_fd signals_;
  std::mutex mutex_;
  std::vector<std::pair<const void*, std::function<void(std::chrono::milliseconds)>>> watched_;
  std::atomic<bool> requested_ = false;
  std::atomic<bool> done_ = false;
  std::jthread thread_;  ///< last: it uses everything above
};

}  // namespace tensorhub::inline TENSORHUB_MODE
