#pragma once
/// \file statistics.hpp
/// Statistics as plain values: histograms, outcomes by error code, and the counters of the catalog.
///
/// A core adds to such values directly. A shell whose statistics other threads read keeps them in
/// `detail::counter` and similar types (service/recorders.hpp) and returns copies. This header needs no
/// library;
/// the optional component `prometheus` (<tensorhub/prometheus.hpp>) is one reader among others.
///
/// Counters start at the construction of their object and only grow; values that go up and down are marked
/// "now". Times are in seconds.
///
/// Thread safety: values, no shared state.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A histogram of durations. All histograms have the same bounds, from the round trip of a message to a slow
/// update over a wide-area link.
struct seconds_histogram {
  /// Upper bounds of the buckets, inclusive; one more bucket has no bound.
  static constexpr std::array<double, 18> bounds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                                 0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                                 1.0,    2.5,     5.0,    10.0,  30.0,   120.0};
  std::array<std::uint64_t, bounds.size() + 1> counts{};  ///< per bucket, not cumulative
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
  constexpr seconds_histogram& operator+=(const seconds_histogram& other) noexcept {
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum_nanoseconds += other.sum_nanoseconds;
    return *this;
  }
};

/// Outcomes of calls: one counter per error code; `errc::ok` counts successes.
struct outcome_counts {
  /// More than the number of codes, so that a code can be appended.
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
  constexpr outcome_counts& operator+=(const outcome_counts& other) noexcept {
    for (std::size_t i = 0; i < codes; ++i) by_code[i] += other.by_code[i];
    return *this;
  }
};

/// Readers whose sources are all receiving, and do not keep up with them.
struct shortage_counts {
  std::uint64_t reported = 0;
  std::uint64_t exchanged = 0;  ///< those after which a source was exchanged for one that has every chunk
};

/// What a server knows of one model's versions.
struct model_versions {
  std::string model{};
  std::uint64_t latest = 0;     ///< the number of the latest that was ever complete; zero: none
  std::uint64_t available = 0;  ///< how many a replica holds completely
};

/// The statistics of the catalog (service/catalog.hpp). An update counts once per shard.
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
  std::uint64_t workers_dead = 0;      ///< declared dead because of silence
  std::uint64_t workers_replaced = 0;  ///< replaced by a newer process for the same shard
  std::uint64_t workers_unruly = 0;    ///< declared dead because they broke the protocol, or lingered
  outcome_counts joins_refused{};
  std::uint64_t requests_refused = 0;  ///< joins and other requests for which the key lacks the right
  outcome_counts publishes{};
  outcome_counts updates{};         ///< `ok`: finished or kept, with all shards of the replica
  std::uint64_t updates_kept = 0;   ///< those of them that already held the version
  outcome_counts sources_failed{};  ///< readers' reports of failed sources, by reason
  std::uint64_t stalls = 0;         ///< readers' reports that no source had new chunks for a while
  shortage_counts shortages{};
  std::uint64_t assignments = 0;         ///< sources that were assigned to readers
  std::uint64_t crossings = 0;           ///< those of them in another datacenter
  std::uint64_t sources_taken_back = 0;  ///< from readers without progress, for readers without a source
  std::uint64_t drains_forced = 0;       ///< drains in which a worker cut off its remaining readers
  std::uint64_t cut_offs_begun = 0;      ///< leases of readers that were declared dead
  seconds_histogram update_wait{};       ///< update_request until its answer: sources, kept, or failed
  seconds_histogram drain{};             ///< unpublish_request, also before an update, until its answer
};

}  // namespace tensorhub::inline TENSORHUB_MODE
