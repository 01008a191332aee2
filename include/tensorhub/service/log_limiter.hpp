#pragma once
/// \file log_limiter.hpp
/// Bounds how many log lines others can make a process write: whoever can repeat a message at will must not
/// fill a disk with it.
///
/// Thread safety: one thread at a time.

#include <chrono>
#include <cstdint>
#include <optional>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Passes at most `burst` lines at once and `per_second` in the long run. The next passed line states how
/// many lines were suppressed.
class log_limiter {
 public:
  using clock = std::chrono::steady_clock;

  log_limiter(double burst, double per_second) noexcept
      : burst_{burst}, per_second_{per_second}, credit_{burst} {}

  /// Returns the line to be logged now; empty: the line is suppressed.
  [[nodiscard]] std::optional<log_line> pass(log_line line, clock::time_point now);

 private:
  double burst_;
  double per_second_;
  double credit_;
  clock::time_point last_{};
  std::uint64_t left_out_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/log_limiter.ipp"
#endif
