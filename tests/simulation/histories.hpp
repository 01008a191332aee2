#pragma once
/// \file histories.hpp
/// Which histories are run: the options of each seed, and how many seeds.

#include <chrono>
#include <cstdint>
#include <cstdlib>

#include "support/sanitizers.hpp"
#include "support/simulation/options.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Sanitizers cost a factor of ten, and so does a build without optimization.
inline constexpr bool is_sanitized = TENSORHUB_UNDER_ADDRESS_SANITIZER || TENSORHUB_UNDER_THREAD_SANITIZER;

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
/// How many histories are run where a long run (TENSORHUB_SIMULATION_LONG=1, ./tests/run --long) of an
/// optimized build runs `count`: a quarter, which is what every change has to pass.
inline std::uint64_t scaled(std::uint64_t count) {
  if (number_from_environment("TENSORHUB_SIMULATION_LONG", 0) == 0) count /= 4;
#if defined(__OPTIMIZE__)
  return is_sanitized ? count / 10 : count;
#else
  return count / (is_sanitized ? 50 : 10);
#endif
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
  options.datacenters = 1 + seed % 6 / 3;
  options.local_updates = seed % 6 == 5 ? 0.3 : 0;
  if (seed % 5 < 2) return options;
  options.late_starters = 0.2;
  options.trainer.exits = 0.05;
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

/// The same with servers that die or are replaced, workers that stand still, and bits that flip.
inline simulation_options hard_options_for(std::uint64_t seed) {
  simulation_options options = options_for(seed);
  options.server_kills_per_second = seed % 3 == 0 ? 0.0 : 0.7;
  options.takeovers_per_second = seed % 3 == 1 ? 0.0 : 0.7;
  options.pauses_per_second = seed % 4 == 0 ? 0.0 : 1.0;
  options.reads.flipped_bits = seed % 2 == 0 ? 0.0 : 0.001;
  return options;
}

/// Versions are retained: what a trainer takes back must be somewhere else first.
inline simulation_options retaining_options_for(std::uint64_t seed) {
  simulation_options options = options_for(seed);
  options.keep_latest = static_cast<std::uint32_t>(seed % 3);
  options.pins = options.keep_latest == 0 ? 0.3 : 0.1;
  options.polite_leavers_per_second = 0.5;
  options.no_room = seed % 5 == 0 ? 0.1 : 0.0;
  options.unpublish_timeout = std::chrono::milliseconds{seed % 4 == 0 ? 20 : 400};
  return options;
}
/// The trainer goes back to earlier versions; a part of them is retained.
inline simulation_options rollback_options_for(std::uint64_t seed) {
  simulation_options options = seed % 2 == 0 ? options_for(seed) : retaining_options_for(seed);
  options.trainer.rollbacks = 0.2;
  return options;
}
/// Both.
inline simulation_options hard_retaining_options_for(std::uint64_t seed) {
  const simulation_options hard = hard_options_for(seed);
  simulation_options options = retaining_options_for(seed);
  options.server_kills_per_second = hard.server_kills_per_second;
  options.takeovers_per_second = hard.takeovers_per_second;
  options.pauses_per_second = hard.pauses_per_second;
  return options;
}

/// An operator drains replicas and evicts some; in every other history servers die, too.
inline simulation_options ordered_options_for(std::uint64_t seed) {
  simulation_options options = seed % 2 == 0 ? retaining_options_for(seed) : hard_retaining_options_for(seed);
  if (seed % 3 == 0) options.keep_latest = 0;
  options.orders_per_second = 3;
  return options;
}

/// Holders that wait long for their readers, readers that stand still in the middle of a transfer until they
/// are declared dead and then go on, and processes that are restarted at once at the address of the one
/// before.
inline simulation_options patient_options_for(std::uint64_t seed) {
  simulation_options options = hard_options_for(seed);
  options.shards = static_cast<std::uint32_t>(1 + seed % 2);
  options.length = std::chrono::milliseconds{1500};
  options.unpublish_timeout = std::chrono::milliseconds{1500};
  options.paused_readers = 0.1;
  options.instant_restarts = 0.5;
  options.kills_per_second *= 3;
  options.reads.flipped_bits = 0.0;
  return options;
}

/// Half of the processes send slowly, and holders wait long enough for their readers: with few credits, some
/// readers run short of sources.
inline simulation_options slow_options_for(std::uint64_t seed) {
  simulation_options options = options_for(seed);
  options.shards = 1;
  options.rollouts = 6 + seed % 4;
  options.datacenters = 1;
  options.local_updates = options.short_deadlines = 0;
  options.cancels /= 8;
  options.unpublish_timeout = std::chrono::milliseconds{seed % 4 == 0 ? 100 : 1500};
  options.reads.slow_links = 0.5;
  return options;
}

/// Short ones, with all faults at once: what goes wrong between a few calls.
inline simulation_options short_options_for(std::uint64_t seed) {
  simulation_options options = seed % 2 == 0 ? hard_options_for(seed) : hard_retaining_options_for(seed);
  options.shards = static_cast<std::uint32_t>(1 + seed / 7 % 2);
  options.rollouts = 2;
  options.length = std::chrono::milliseconds{120};
  options.reads.flipped_bits = seed % 3 == 0 ? 0.005 : 0.0;
  options.paused_readers = seed % 5 == 0 ? 0.1 : 0.0;
  options.instant_restarts = seed % 7 == 0 ? 0.5 : 0.0;
  for (double* rate :
       {&options.kills_per_second, &options.connection_losses_per_second, &options.server_kills_per_second,
        &options.takeovers_per_second, &options.pauses_per_second, &options.polite_leavers_per_second,
        &options.double_joins_per_second})
    *rate *= 6;
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
