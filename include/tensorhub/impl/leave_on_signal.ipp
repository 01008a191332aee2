#pragma once
/// \file leave_on_signal.ipp
/// What leave_on_signal.hpp declares.

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/error.hpp"
#include "tensorhub/leave_on_signal.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL leave_on_signal::leave_on_signal(std::chrono::milliseconds grace,
                                                std::initializer_list<int> signals,
                                                std::function<void(const log_line&)> log)
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

TENSORHUB_DECL leave_on_signal::~leave_on_signal() {
  thread_ = {};
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

TENSORHUB_DECL void leave_on_signal::watch(const void* worker, leaving leave) {
  const std::lock_guard lock{mutex_};
  watched_.emplace_back(worker, std::move(leave));
}

TENSORHUB_DECL void leave_on_signal::forget(const void* worker) {
  const std::lock_guard lock{mutex_};
  std::erase_if(watched_, [&](const auto& each) { return each.first == worker; });
}

TENSORHUB_DECL void leave_on_signal::run(const std::stop_token& stop) {
  while (!stop.stop_requested() && !requested_) {
    pollfd waiting{signals_.get(), POLLIN, 0};
    if (poll(&waiting, 1, 50) <= 0) continue;
    signalfd_siginfo what{};
    if (read(signals_.get(), &what, sizeof what) == static_cast<ssize_t>(sizeof what)) leave_all();
  }
}

TENSORHUB_DECL void leave_on_signal::leave_all() {
  requested_ = true;
  const std::lock_guard lock{mutex_};
  std::vector<std::jthread> threads;
  for (const auto& [worker, leave] : watched_) {
    threads.emplace_back([this, &leave = leave] {
      try {
        leave(grace_);
      } catch (const std::exception& e) {
        if (log_)
          log_({log_level::warning, std::string{"could not leave within the grace: "} + e.what(), {}});
      }
    });
  }
  threads.clear();  // waits for them
  done_ = true;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
