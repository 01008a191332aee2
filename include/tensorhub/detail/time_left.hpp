#pragma once
/// \file time_left.hpp
/// The rest of a call's time, for the shells of calls that have one deadline for several steps.
///
/// Thread safety: a pure function of the present time.

#include <algorithm>
#include <chrono>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Zero if `until` has passed.
[[nodiscard]] inline std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point until) {
  using std::chrono::milliseconds;
  return std::max(std::chrono::floor<milliseconds>(until - std::chrono::steady_clock::now()),
                  milliseconds{0});
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
