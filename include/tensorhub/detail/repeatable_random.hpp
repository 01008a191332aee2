#pragma once
/// \file repeatable_random.hpp
/// Numbers that look random, and are the same in every run: the state machines choose with them.
///
/// Thread safety: as a value.

#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// xorshift64* (S. Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016).
class repeatable_random {
 public:
  explicit constexpr repeatable_random(std::uint64_t seed) noexcept
      : state_{(seed + 1) * 0x9e3779b97f4a7c15ull | 1} {}

  /// 56 bits.
  constexpr std::uint64_t operator()() noexcept {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dull >> 8;
  }

 private:
  std::uint64_t state_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
