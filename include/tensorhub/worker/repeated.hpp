#pragma once
/// \file repeated.hpp
/// A call that is repeated while it fails for reasons that may pass.
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

/// `call(time left)` until it succeeds, fails with an error that is not `retryable()`, or `timeout` has
/// passed: then its last error is thrown. Throws `invalid_argument` for one of several shards, which repeat a
/// failed call together or not at all (worker/worker.hpp, `update`).
template <typename Call>
auto repeated(const worker_options& who, std::chrono::milliseconds timeout, Call&& call) {
  using std::chrono::milliseconds;
  constexpr milliseconds first_pause{20};
  constexpr milliseconds longest_pause{1000};
  if (who.shard.count > 1) {
    throw error(
        errc::invalid_argument,
        "`retry` repeats a call in this process alone, and the shards of a replica repeat it together: "
        "call without `retry`, and again in all shards when it has failed in one",
        {who.model, who.replica, who.shard.index, std::nullopt, {}, std::nullopt});
  }
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (milliseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    try {
      return call(time_left(until));
    } catch (const error& e) {
      if (!e.retryable() || time_left(until) <= pause) throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
