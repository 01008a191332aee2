#pragma once
/// \file statistics.hpp
/// What is counted, as plain values: histograms, outcomes by error code, and the counters of the catalog.
///
/// A core adds to such values; a shell that must be asked from other threads keeps them behind
/// `detail::counter` and its like (service/recorders.hpp) and hands out copies. Nothing here needs a library:
/// the optional component `prometheus` (<tensorhub/prometheus.hpp>) is one reader among others.
///
/// Counters only grow, from the construction of the object that they belong to; what goes up and down says
/// "now". Times are in seconds.
///
/// Thread safety: values, no shared state.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// How often something took how long. The bounds are the same for all: from a message's round trip to a slow
/// update over a wide-area link.
struct seconds_histogram {
  /// Upper bounds of the buckets, inclusive; one more bucket has no bound.
  static constexpr std::array<double, 18> bounds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                                 0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                                 1.0,    2.5,     5.0,    10.0,  30.0,   120.0};
  std::array<std::uint64_t, bounds.size() + 1> counts{};  ///< of each bucket alone, not cumulative
  std::uint64_t sum_nanoseconds = 0;

  [[nodiscard]] static constexpr std::size_t bucket_of(duration took) noexcept {
    std::size_t bucket = 0;
    while (bucket < bounds.size() && to_seconds(took) > bounds[bucket]) ++bucket;
    return bucket;
  }
  constexpr void add(duration took) noexcept {
    ++counts[bucket_of(took)];
    if (took.count() > 0) sum_nanoseconds += static_cast<std::uint64_t>(took.count());
  }
  [[nodiscard]] constexpr std::uint64_t count() const noexcept {
    std::uint64_t total = 0;
    for (const std::uint64_t in_bucket : counts) total += in_bucket;
    return total;
  }
  [[nodiscard]] constexpr double sum_seconds() const noexcept {
    return static_cast<double>(sum_nanoseconds) * 1e-9;
  }
};

/// How calls ended: a counter per error code; `errc::ok` counts successes.
struct outcome_counts {
  /// More than there are codes: a code that is appended has its place.
  static constexpr std::size_t codes = 48;
  std::array<std::uint64_t, codes> by_code{};

  [[nodiscard]] static constexpr std::size_t index_of(errc code) noexcept {
    const auto index = static_cast<std::size_t>(code);
    return index < codes ? index : codes - 1;
  }
  constexpr void add(errc code) noexcept { ++by_code[index_of(code)]; }
  [[nodiscard]] constexpr std::uint64_t of(errc code) const noexcept { return by_code[index_of(code)]; }
  [[nodiscard]] constexpr std::uint64_t failed() const noexcept {
    std::uint64_t total = 0;
    for (std::size_t i = 1; i < codes; ++i) total += by_code[i];
    return total;
  }
};

/// What the catalog counts (service/catalog.hpp). An update is counted once per shard.
struct catalog_statistics {
  // Now.
  std::uint64_t workers = 0;
  std::uint64_t replicas = 0;
  std::uint64_t models = 0;
  std::uint64_t leases = 0;      ///< permissions to read that have not ended
  std::uint64_t operations = 0;  ///< group calls that have begun and not ended
  std::uint64_t cut_offs = 0;    ///< leases of dead readers that their sources have not confirmed

  // Since the start.
  std::uint64_t workers_joined = 0;
  std::uint64_t workers_left = 0;
  std::uint64_t workers_dead = 0;      ///< declared dead: silent for too long
  std::uint64_t workers_replaced = 0;  ///< by a newer process for the same shard
  std::uint64_t workers_unruly = 0;    ///< declared dead: broke the protocol
  outcome_counts joins_refused{};
  outcome_counts publishes{};
  outcome_counts updates{};              ///< `ok`: finished or kept, with all shards of the replica
  std::uint64_t updates_kept = 0;        ///< of those: held the version already
  outcome_counts sources_failed{};       ///< readers' reports: why a source was given up
  std::uint64_t stalls = 0;              ///< readers' reports: no source has had anything new for a while
  std::uint64_t assignments = 0;         ///< sources that readers were told to read
  std::uint64_t crossings = 0;           ///< of these: in another datacenter
  std::uint64_t sources_taken_back = 0;  ///< from readers that received nothing, for readers that had none
  std::uint64_t drains = 0;              ///< unpublish and drains before updates that were answered
  std::uint64_t drains_forced = 0;       ///< a worker reported that it has cut off whoever still read
  std::uint64_t cut_offs_begun = 0;      ///< leases of readers that were declared dead
  seconds_histogram update_wait{};       ///< update_request until its answer: sources, kept, or failed
  seconds_histogram drain{};             ///< unpublish_request until its answer
};

}  // namespace tensorhub::inline TENSORHUB_MODE
