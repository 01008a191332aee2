#pragma once
/// \file log_limiter.ipp
/// Definitions of service/log_limiter.hpp.

#include "tensorhub/service/log_limiter.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::optional<log_line> log_limiter::pass(log_line line, clock::time_point now) {
  if (last_ != clock::time_point{})
    credit_ = std::min(burst_, credit_ + per_second_ * std::chrono::duration<double>(now - last_).count());
  last_ = now;
  if (credit_ < 1) {
    ++left_out_;
    return std::nullopt;
  }
  credit_ -= 1;
  if (left_out_ > 0) line.text += " (and " + std::to_string(left_out_) + " more lines were left out)";
  left_out_ = 0;
  return line;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
