#pragma once
/// \file histories.hpp
/// Which histories are run: the options of a seed, and how many there are.

#include <chrono>
#include <cstdint>
#include <cstdlib>

#include "tensorhub/testing/simulation/options.hpp"

namespace tensorhub::testing {

/// Sanitizers cost a factor of ten.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif
#else
inline constexpr bool is_sanitized = false;
#endif

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
/// How many histories are run by default where a plain build runs `count`.
constexpr std::uint64_t scaled(std::uint64_t count) {
  return is_sanitized ? count / 10 : count;
}

/// Of a seed: two histories in five are calm (lost connections and deaths only), the others also have callers
/// that change their minds and messages that are late, lost alone, or arrive twice.
inline simulation_options options_for(std::uint64_t seed) {
  simulation_options options;
  options.seed = seed;
  options.shards = static_cast<std::uint32_t>(1 + seed % 3);
  options.rollouts = 2 + seed % 4;
  options.kills_per_second = seed % 4 == 0 ? 0 : 0.8;
  options.connection_losses_per_second = seed % 7 == 0 ? 8.0 : 1.0;
  options.unpublish_timeout = std::chrono::milliseconds{seed % 2 == 0 ? 100 : 3};
  if (seed % 5 < 2) return options;
  options.late_starters = 0.2;
  options.trainer_exits = 0.05;
  options.cancels = 0.15;
  options.short_deadlines = 0.1;
  options.late_shards = seed % 2 == 0 ? 0.1 : 0;
  options.fickle_callers = seed % 11 == 0 ? 0.05 : 0;
  options.old_versions = 0.15;
  options.lost_reports = 0.05;
  options.stalled_reports = 0.03;
  options.stale_messages = 0.01;
  options.double_joins_per_second = 2.0;
  return options;
}

}  // namespace tensorhub::testing
