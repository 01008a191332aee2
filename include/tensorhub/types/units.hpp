#pragma once
/// \file units.hpp
/// Time in the form that the state machines use, and byte literals.
///
/// The state machines never read a clock: every event carries a `time_point`, in nanoseconds since an origin
/// that only the shell knows (steady clock in a process, zero in the simulator).

#include <chrono>
#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Monotonic time, passed to the state machines.
struct time_point {
  std::int64_t nanoseconds = 0;
  constexpr auto operator<=>(const time_point&) const = default;
  [[nodiscard]] static constexpr time_point never() noexcept { return {INT64_MAX}; }
};

using duration = std::chrono::nanoseconds;

/// Saturates at `never`, so that "now + for ever" does not overflow.
[[nodiscard]] constexpr time_point operator+(time_point at, duration delta) noexcept {
  if (delta.count() > 0 && at.nanoseconds > INT64_MAX - delta.count()) return time_point::never();
  return {at.nanoseconds + delta.count()};
}
[[nodiscard]] constexpr duration operator-(time_point later, time_point earlier) noexcept {
  return duration{later.nanoseconds - earlier.nanoseconds};
}

[[nodiscard]] constexpr double to_seconds(duration delta) noexcept {
  return static_cast<double>(delta.count()) * 1e-9;
}

inline namespace literals {
[[nodiscard]] constexpr std::uint64_t operator""_KiB(unsigned long long n) noexcept {
  return n << 10;
}
[[nodiscard]] constexpr std::uint64_t operator""_MiB(unsigned long long n) noexcept {
  return n << 20;
}
[[nodiscard]] constexpr std::uint64_t operator""_GiB(unsigned long long n) noexcept {
  return n << 30;
}
}  // namespace literals

}  // namespace tensorhub::inline TENSORHUB_MODE
