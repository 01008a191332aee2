#pragma once
/// \file time_left.hpp
/// A call's time as its caller gives it, its end, and the rest of it, for the shells of calls that have one
/// deadline for several steps.
///
/// Thread safety: pure functions of the present time.

#include <algorithm>
#include <chrono>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// As clocks can add it: `milliseconds::max()`, for ever, is a year; what is negative is no time.
[[nodiscard]] constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds given) noexcept {
  constexpr std::chrono::milliseconds longest = std::chrono::hours{24 * 365};
  return std::clamp(given, std::chrono::milliseconds{0}, longest);
}

/// The intervals of a client's options, after each of which something is done again: not at once.
template <typename Options>
constexpr void bound_intervals(Options& options) noexcept {
  for (auto* each : {&options.request_retry, &options.server_timeout})
    *each = std::max(bounded(*each), std::chrono::milliseconds{1});
}

/// The end of such a time that begins now.
[[nodiscard]] inline std::chrono::steady_clock::time_point end_of(std::chrono::milliseconds given) {
  return std::chrono::steady_clock::now() + bounded(given);
}

/// Zero if `until` has passed.
[[nodiscard]] inline std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point until) {
  using std::chrono::milliseconds;
  return std::max(std::chrono::floor<milliseconds>(until - std::chrono::steady_clock::now()),
                  milliseconds{0});
}
/// The same, rounded up, for poll(2) and its like. At most 1,000 s: the caller looks at the time again.
[[nodiscard]] inline int milliseconds_left(std::chrono::steady_clock::time_point until) noexcept {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp(left, milliseconds{0}, milliseconds{1'000'000}).count());
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
