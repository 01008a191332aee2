#pragma once
/// \file watchdog.hpp
/// Ends the process where a rule of the transport conformance suite hangs.
///
/// The rules end their waits at the rule's deadline, but they wait inside of the transport: a `wait` that
/// ignores its time-out, a `connect` that does, or a destructor that waits for a peer never come back, and
/// nothing else can end them. The watchdog says on standard error which rule it was, and aborts; the core
/// file, or a debugger, shows the call that each thread is in.
///
/// Thread safety: one object for each rule that runs; its thread touches nothing of the transport.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class rule_watchdog {
 public:
  using clock = std::chrono::steady_clock;

  /// `patience`: from now to the abort, unless the object is destroyed before.
  rule_watchdog(std::string_view transport, std::string_view rule, std::chrono::milliseconds patience)
      : sentence_{"tensorhub: transport '" + std::string{transport} + "': the rule '" + std::string{rule} +
                  "' of the conformance suite has not ended in " + std::to_string(patience.count()) +
                  " ms, long after its deadline, so a call of the transport does not return. Look at where "
                  "the threads are: queue::wait and connect must end at their time-outs, poll and post_read "
                  "never block, and destructors, revoke and cut_off must not wait for ever for a peer. The "
                  "process is aborted now.\n"},
        until_{clock::now() + patience},
        thread_{[this] { watch(); }} {}
  ~rule_watchdog() {
    {
      const std::lock_guard lock{mutex_};
      has_ended_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }
  rule_watchdog(const rule_watchdog&) = delete;
  rule_watchdog& operator=(const rule_watchdog&) = delete;

 private:
  void watch() noexcept {
    std::unique_lock lock{mutex_};
    if (ended_.wait_until(lock, until_, [this] { return has_ended_; })) return;
    std::fputs(sentence_.c_str(), stderr);
    std::fflush(stderr);
    std::abort();
  }

  std::string sentence_;
  clock::time_point until_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
