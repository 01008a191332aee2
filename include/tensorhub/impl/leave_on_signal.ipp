#pragma once
/// \file leave_on_signal.ipp
/// What leave_on_signal.hpp declares.

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/leave_on_signal.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace leave_on_signal_detail {

/// A signal that a `leave_on_signal` has taken.
struct taken_signal {
  std::atomic<bool> taken = false;
  std::atomic<bool> came = false;
  struct sigaction before {};
};
struct taken_signals {
  std::atomic<pid_t> process = 0;
  std::array<taken_signal, 65> of{};  ///< by number
};
[[nodiscard]] TENSORHUB_DECL taken_signals& taken() noexcept {
  static taken_signals all;
  return all;
}

/// Makes them this process's. What a child has inherited by a fork is handled as before it was taken.
TENSORHUB_DECL void adopt(taken_signals& all) noexcept {
  if (all.process.exchange(getpid()) == getpid()) return;
  for (std::size_t number = 0; number < all.of.size(); ++number) {
    taken_signal& one = all.of[number];
    if (!one.taken) continue;
    sigaction(static_cast<int>(number), &one.before, nullptr);
    one.taken = false;
  }
}

/// In a child that was forked the signal is handled as before it was taken.
TENSORHUB_DECL void note_signal_for_leaving(int number) {
  const int error_before = errno;
  taken_signals& all = taken();
  taken_signal& one = all.of[static_cast<std::size_t>(number)];
  if (all.process == getpid()) {
    one.came = true;
  } else {
    sigaction(number, &one.before, nullptr);
    raise(number);  // it comes when this handler has returned
  }
  errno = error_before;
}

}  // namespace leave_on_signal_detail

TENSORHUB_DECL leave_on_signal::leave_on_signal(std::chrono::milliseconds grace,
                                                std::initializer_list<int> signals,
                                                std::function<void(const log_line&)> log)
    : grace_{grace}, log_{never_throwing(std::move(log))} {
  auto& all = leave_on_signal_detail::taken();
  leave_on_signal_detail::adopt(all);
  struct sigaction noted {};
  noted.sa_handler = leave_on_signal_detail::note_signal_for_leaving;
  noted.sa_flags = SA_RESTART;
  sigemptyset(&noted.sa_mask);
  for (const int each : signals) {
    const bool known = each > 0 && static_cast<std::size_t>(each) < all.of.size();
    const bool is_free = known && !all.of[static_cast<std::size_t>(each)].taken.exchange(true);
    if (is_free) {
      auto& one = all.of[static_cast<std::size_t>(each)];
      one.came = false;
      if (sigaction(each, &noted, &one.before) == 0) {
        signals_.push_back(each);
        continue;
      }
      one.taken = false;
    }
    give_back();
    if (known && !is_free)
      throw error(errc::busy, "signal " + std::to_string(each) + " is taken by another leave_on_signal");
    throw error(errc::system_failed,
                "signal " + std::to_string(each) + " cannot be taken by sigaction: check the number");
  }
  try {
    thread_ = detail::started_thread("leave_on_signal", [this](const std::stop_token& stop) { run(stop); });
  } catch (...) {
    give_back();
    throw;
  }
}

TENSORHUB_DECL leave_on_signal::~leave_on_signal() {
  thread_ = {};
  give_back();
}

TENSORHUB_DECL void leave_on_signal::give_back() noexcept {
  for (const int each : signals_) {
    auto& one = leave_on_signal_detail::taken().of[static_cast<std::size_t>(each)];
    sigaction(each, &one.before, nullptr);
    one.taken = false;
  }
  signals_.clear();
}

TENSORHUB_DECL void leave_on_signal::watch(const void* worker, leaving leave) {
  const std::lock_guard lock{mutex_};
  watched_.push_back({worker, std::move(leave)});
}

TENSORHUB_DECL void leave_on_signal::forget(const void* worker) {
  const std::lock_guard lock{mutex_};
  std::erase_if(watched_, [&](const watched& each) { return each.worker == worker; });
}

TENSORHUB_DECL void leave_on_signal::run(const std::stop_token& stop) {
  static constexpr std::chrono::milliseconds between{20};
  while (!stop.stop_requested() && !requested_) {
    for (const int each : signals_) {
      if (leave_on_signal_detail::taken().of[static_cast<std::size_t>(each)].came) return leave_all();
    }
    std::this_thread::sleep_for(between);
  }
}

TENSORHUB_DECL void leave_on_signal::leave_all() {
  requested_ = true;
  const auto until = detail::end_of(grace_);
  std::vector<watched> left;
  {
    const std::lock_guard lock{mutex_};
    {
      std::vector<std::jthread> threads;
      for (watched& each : watched_) {
        try {
          threads.emplace_back([&each, until] { leave_one(each, until); });
        } catch (const std::exception&) {  // no thread can be started: one after the other
          leave_one(each, until);
        }
      }
    }  // waits for them
    left.swap(watched_);
  }
  for (watched& each : left)
    if (!each.trouble.empty() && log_) log_({log_level::warning, std::move(each.trouble), {}});
  done_ = true;
}

TENSORHUB_DECL void leave_on_signal::leave_one(watched& which,
                                               std::chrono::steady_clock::time_point until) noexcept {
  try {
    try {
      if (which.leave(detail::time_left(until)))
        which.trouble = "a retained version is lost: nobody could take it within the grace";
    } catch (const std::exception& e) {
      which.trouble = std::string{"could not leave within the grace: "} + e.what();
    }
  } catch (...) {  // no memory even for the words
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE
