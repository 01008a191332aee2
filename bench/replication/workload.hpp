#pragma once
// What the scenarios share: replicas of several shards, and how long their generations take.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../baselines/chain.hpp"
#include "../baselines/one_to_many.hpp"
#include "support/simulation/fleet.hpp"
#include "support/simulation/fleet_rules.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"

namespace replication_bench {

using baselines::chain;
using baselines::one_to_many;
using namespace tensorhub;
using namespace tensorhub::testing;

inline constexpr double gigabyte = 1e9;
inline constexpr std::uint64_t link_bytes_per_second = 25'000'000'000;

[[nodiscard]] inline duration seconds_of(double seconds) {
  return duration{static_cast<std::int64_t>(seconds * 1e9)};
}

/// Seeded draws, the same with every standard library (not std::lognormal_distribution).
class draws {
 public:
  explicit draws(std::uint64_t seed) : bits_{seed} {}
  /// In (0, 1).
  [[nodiscard]] double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  [[nodiscard]] double exponential(double mean) { return -mean * std::log(uniform()); }
  /// A long tail: the median times e^(sigma z).
  [[nodiscard]] double lognormal(double median, double sigma) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return median * std::exp(sigma * radius * std::cos(2 * std::numbers::pi * uniform()));
  }

 private:
  std::mt19937_64 bits_;
};

/// A fleet with its rules, replica by replica.
class field {
 public:
  using member = fleet::member;
  using replica = std::vector<member*>;  ///< by shard

  explicit field(const fleet_options& options, any_scheduler scheduler = nearest_source{})
      : shards_{options.shards}, fleet_{options, std::move(scheduler)}, rules_{fleet_} {}

  [[nodiscard]] fleet& network() noexcept { return fleet_; }
  [[nodiscard]] fleet_rules& rules() noexcept { return rules_; }
  [[nodiscard]] double now() { return to_seconds(fleet_.events().now() - time_point{}); }

  replica add(const std::string& name, const location& place = {}, bool spot = false) {
    return add(fleet_member_options{.replica = name, .location = place, .spot = spot});
  }
  /// One worker like this for each shard.
  replica add(fleet_member_options like) {
    replica out;
    for (like.shard = 0; like.shard < shards_; ++like.shard) out.push_back(&fleet_.add(like));
    return out;
  }

  void publish(const replica& who, version_number version, std::function<void()> done = {}) {
    const auto left = std::make_shared<std::size_t>(who.size());
    for (member* each : who) {
      fleet_.publish(*each, version, [left, done] {
        if (--*left == 0 && done) done();
      });
    }
  }
  void unpublish(const replica& who, std::function<void()> done) {
    const auto left = std::make_shared<std::size_t>(who.size());
    for (member* each : who) {
      fleet_.unpublish(*each, [left, done] {
        if (--*left == 0) done();
      });
    }
  }
  /// `done` gets the last shard's end, or a failed one's. Not called if a shard is killed before.
  void update(const replica& who, const version_selector& selector,
              std::function<void(const fleet_update&)> done,
              messages::update_reach reach = messages::update_reach::anywhere) {
    struct state {
      std::size_t left;
      fleet_update worst{};
    };
    const auto shared = std::make_shared<state>(state{who.size(), {}});
    for (member* each : who) {
      rules_.update(
          *each, selector,
          [shared, done](const fleet_update& end) {
            if (shared->worst.outcome.ok() || !end.outcome.ok()) shared->worst = end;
            if (--shared->left == 0 && done) done(shared->worst);
          },
          reach);
    }
  }
  void kill(const replica& who) {
    for (member* each : who) fleet_.kill(*each);
  }

  /// Publishes and waits; at the beginning.
  void publish_now(const replica& who, version_number version) {
    bool published = false;
    publish(who, version, [&] { published = true; });
    fleet_.run([&] { return published; });
  }
  [[nodiscard]] double sent_models(const replica& who) {
    double sent = 0;
    for (const member* each : who) sent += static_cast<double>(fleet_.network().sent_bytes(each->host()));
    return sent / (static_cast<double>(fleet_.shard_layout().bytes()) * static_cast<double>(who.size()));
  }

 private:
  std::uint32_t shards_;
  fleet fleet_;
  fleet_rules rules_;
};

}  // namespace replication_bench
