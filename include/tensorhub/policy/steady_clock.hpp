#pragma once
/// \file steady_clock.hpp
/// The monotonic clock of the process, as a model of `clock`.

#include <chrono>

#include "tensorhub/concepts/clock.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct steady_clock {
  using concept_tag = clock_tag;
  [[nodiscard]] time_point now() const noexcept {
    return {std::chrono::duration_cast<std::chrono::nanoseconds>(
                std::chrono::steady_clock::now().time_since_epoch())
                .count()};
  }
};
static_assert(clock<steady_clock>);

}  // namespace tensorhub::inline TENSORHUB_MODE
