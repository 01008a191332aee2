#pragma once
/// \file repeated.hpp
/// A call that is repeated while it fails for reasons that may pass, and the pause between two calls.
///
/// Thread safety: as the call.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Sleeps until then; ends soon after `is_interrupted()` has become true.
template <typename Interrupted>
void sleep_until(std::chrono::steady_clock::time_point wake, const Interrupted& is_interrupted) {
  constexpr std::chrono::milliseconds longest_sleep{50};
  while (std::chrono::steady_clock::now() < wake && !is_interrupted())
    std::this_thread::sleep_until(std::min(wake, std::chrono::steady_clock::now() + longest_sleep));
}

/// `call(time left)` until it succeeds, fails with an error that is not `retryable()`, or `timeout` has
/// passed: then its last error is thrown. `cancelled`: `caller`, a worker or subscriber, was interrupted
/// meanwhile. Throws `invalid_argument` for one of several shards, which repeat a
/// failed call together or not at all (worker/worker.hpp, `update`).
template <typename Caller, typename Call>
auto repeated(const worker_options& who, std::chrono::milliseconds timeout, const Caller& caller,
              Call&& call) {
  using std::chrono::milliseconds;
  constexpr milliseconds first_pause{20};
  constexpr milliseconds longest_pause{1000};
  if (who.shard.count > 1) {
    throw error(
        errc::invalid_argument,
        "`retry` repeats a call in this process alone, and the shards of a replica repeat it together: "
        "call without `retry`, and again in all shards when it has failed in one",
        context_of(who));
  }
  const auto until = end_of(timeout);
  const std::uint64_t interrupts = caller.interrupts();
  for (milliseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    try {
      return call(time_left(until));
    } catch (const error& e) {
      if (!e.retryable() || time_left(until) <= pause) throw;
    }
    sleep_until(std::chrono::steady_clock::now() + pause, [&] { return caller.interrupts() != interrupts; });
    if (caller.interrupts() != interrupts)
      throw error(errc::cancelled, "the call was interrupted", context_of(who));
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
