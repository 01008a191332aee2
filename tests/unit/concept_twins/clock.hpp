#pragma once
/// \file clock.hpp
/// Broken twins of `clock`.

#include <cstdint>

#include "tensorhub/concepts/clock.hpp"
#include "twin.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::twins {

enum class clock_flaw {
  none,
  no_tag,
  wrong_tag,
  no_now,
  now_is_a_number,
  now_may_throw,
  now_is_not_const,
  count,
};

template <clock_flaw F>
struct clock_twin : unless<F == clock_flaw::no_tag,
                           with_tag<unless<F == clock_flaw::wrong_tag, clock_tag, some_tag>>, nothing<>> {
  using result = unless<F == clock_flaw::now_is_a_number, time_point, std::int64_t>;
  result now() const noexcept(F != clock_flaw::now_may_throw) requires(F != clock_flaw::no_now &&
                                                                       F != clock_flaw::now_is_not_const);
  result now() noexcept requires(F == clock_flaw::now_is_not_const);
};

struct clock_refused {
  template <clock_flaw F>
  static consteval bool check() {
    static_assert(!clock<clock_twin<F>>, "a broken clock was accepted");
    return true;
  }
};
static_assert(clock<clock_twin<clock_flaw::none>>);
static_assert(every_flaw_is_refused<clock_flaw, clock_refused>());

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::twins
