#pragma once
/// \file fleet_rules.hpp
/// Watches a fleet (fleet.hpp) while it runs. Every few virtual milliseconds it checks the promises of the
/// catalog from outside; at the end it checks that every update has ended.
///
///     fleet fleet{options};
///     fleet_rules rules{fleet};
///     rules.update(reader, latest, [](const fleet_update& done) { ... });
///     fleet.run(...);
///     for (const std::string& sentence : rules.violations()) ...;  // empty: all rules were kept
///
/// Checks: no source has more readers than the scheduler's credits; at most one lease per version and shard
/// crosses into each datacenter; upstreams form no cycle. As in the catalog, leases do not count if their
/// reader has been told to release them or is being cut off. At the end: every chunk was read from a source
/// that had it, and no update of a living member is left.
///
/// Thread safety: none. The fleet must outlive it and must not run after its end.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "support/simulation/fleet.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class fleet_rules {
 public:
  using member = fleet::member;

  explicit fleet_rules(fleet& watched, duration interval = std::chrono::milliseconds{10})
      : fleet_{watched}, interval_{interval} {
    watch();
  }
  fleet_rules(const fleet_rules&) = delete;
  fleet_rules& operator=(const fleet_rules&) = delete;

  /// Like the fleet's `update`, and counted.
  void update(member& worker, const version_selector& selector, std::function<void(const fleet_update&)> done,
              messages::update_reach reach = messages::update_reach::anywhere) {
    ++begun_;
    ++running_[worker.number()];
    fleet_.update(
        worker, selector,
        [this, number = worker.number(), done = std::move(done)](const fleet_update& end) {
          --running_[number];
          ++(end.outcome.ok() ? succeeded_ : failed_);
          if (done) done(end);
        },
        reach);
  }

  [[nodiscard]] std::uint64_t begun() const noexcept { return begun_; }
  [[nodiscard]] std::uint64_t succeeded() const noexcept { return succeeded_; }
  [[nodiscard]] std::uint64_t failed() const noexcept { return failed_; }
  [[nodiscard]] std::uint64_t looks() const noexcept { return looks_; }
  [[nodiscard]] std::uint32_t max_readers() const noexcept { return max_readers_; }
  [[nodiscard]] std::uint32_t max_seeds() const noexcept { return max_seeds_; }
  /// The number of updates of living members that have not ended.
  [[nodiscard]] std::uint64_t unended() {
    std::uint64_t count = 0;
    for (const auto& [number, running] : running_) count += fleet_.at(number).alive() ? running : 0;
    return count;
  }

  /// One sentence per violation, for the first few; call it when all updates should have ended.
  [[nodiscard]] std::vector<std::string> violations() {
    look();
    std::vector<std::string> out = seen_;
    if (fleet_.broken_reads() != 0)
      out.push_back(std::to_string(fleet_.broken_reads()) +
                    " chunks were read that their source did not have");
    if (unended() != 0) out.push_back(std::to_string(unended()) + " updates have not ended");
    return out;
  }

 private:
  static constexpr std::size_t remembered = 8;

  void watch() {
    look();
    fleet_.after(interval_, [this] { watch(); });
  }

  void violated(std::string sentence) {
    if (seen_.size() < remembered) seen_.push_back(std::move(sentence));
  }

  void look() {
    ++looks_;
    load_.clear();
    seeds_.clear();
    checked_.clear();
    fleet_.server().for_each_lease([&](const auto& lease) {
      if (!lease.lasts()) return;
      const std::uint32_t load = ++load_[lease.source.value];
      max_readers_ = std::max(max_readers_, load);
      if (load > fleet_.server().limits().credits)
        violated("worker " + to_hex(lease.source) + " has " + std::to_string(load) + " readers");
      if (lease.crossing) {
        const std::uint32_t seeds = ++seeds_[{lease.datacenter, lease.version.value, lease.shard}];
        max_seeds_ = std::max(max_seeds_, seeds);
        if (seeds > 1)
          violated("datacenter '" + lease.datacenter + "' has " + std::to_string(seeds) +
                   " seeds of version " + to_string(lease.version));
      }
      if (lease.upstream) follow(lease.reader);
    });
  }

  /// Follows upstreams as far as they have not been checked.
  void follow(incarnation reader) {
    way_.clear();
    const auto* at = fleet_.server().record_of(reader);
    while (at != nullptr && at->as_reader.upstream != nullptr && checked_.insert(at->id.value).second) {
      way_.insert(at->id.value);
      at = at->as_reader.upstream;
    }
    if (at != nullptr && at->as_reader.upstream != nullptr && way_.contains(at->id.value))
      violated("the upstreams of worker " + to_hex(reader) + " form a cycle");
  }

  fleet& fleet_;
  duration interval_;
  std::uint64_t begun_ = 0;
  std::uint64_t succeeded_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t looks_ = 0;
  std::uint32_t max_readers_ = 0;
  std::uint32_t max_seeds_ = 0;
  std::map<std::uint32_t, std::uint64_t> running_{};
  std::vector<std::string> seen_{};
  std::unordered_map<std::uint64_t, std::uint32_t> load_{};  ///< scratch of look
  std::map<std::tuple<std::string, std::uint64_t, std::uint32_t>, std::uint32_t> seeds_{};
  std::unordered_set<std::uint64_t> checked_{};
  std::unordered_set<std::uint64_t> way_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
