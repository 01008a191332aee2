/// How fast a version spreads, in virtual time: exact bounds over the real catalog, session and pull.
/// bench/replication has the large runs.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "baselines/chain.hpp"
#include "baselines/one_to_many.hpp"
#include "support/simulation/fleet.hpp"
#include "support/simulation/fleet_rules.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

constexpr std::size_t readers = 16;

/// 50 GB over links of 25 GB/s: 2 s at least.
constexpr double least_seconds = 2;

fleet_options small(std::uint64_t seed = 1) {
  fleet_options options;
  options.chunks = 256;
  options.seed = seed;
  return options;
}

/// What is compared between runs: to the nanosecond, to the byte.
struct history {
  std::vector<std::int64_t> ends{};
  std::uint64_t events = 0;
  std::uint64_t trainer_bytes = 0;
  std::uint64_t message_bytes = 0;
  bool operator==(const history&) const = default;
};

/// A trainer, and `readers` that ask at once.
class spread {
 public:
  using member = fleet::member;

  explicit spread(const fleet_options& options, std::vector<location> places = {{}},
                  any_scheduler scheduler = nearest_source{})
      : network{options, std::move(scheduler)}, rules{network}, trainer{network.add({.replica = "trainer"})} {
    places.resize(readers, places.back());
    for (std::size_t i = 0; i < readers; ++i)
      rollouts.push_back(&network.add({.replica = "rollout-" + std::to_string(i), .location = places[i]}));
    publish(trainer);
  }

  void publish(member& who) {
    bool published = false;
    network.publish(who, 1, [&] { published = true; });
    REQUIRE(network.run([&] { return published; }, std::chrono::seconds{5}));
  }
  void update_all() {
    for (member* each : rollouts) {
      rules.update(*each, exactly(1), [this](const fleet_update& done) {
        CHECK_MESSAGE(done.outcome.ok(), done.outcome.sentence);
        ends.push_back(done.ended.nanoseconds);
        last_seconds = std::max(last_seconds, done.seconds());
      });
    }
  }
  void finish() {
    CHECK(network.run([&] { return rules.unended() == 0; }, std::chrono::seconds{200}));
    for (const std::string& sentence : rules.violations()) FAIL_CHECK(sentence);
  }
  [[nodiscard]] double trainer_models() {
    return static_cast<double>(network.network().sent_bytes(trainer.host())) /
           static_cast<double>(network.shard_layout().bytes());
  }
  [[nodiscard]] history seen() {
    return {ends, network.events().executed(), network.network().sent_bytes(trainer.host()),
            network.network().message_bytes()};
  }

  fleet network;
  fleet_rules rules;
  member& trainer;
  std::vector<member*> rollouts{};
  std::vector<std::int64_t> ends{};
  double last_seconds = 0;
};

}  // namespace

TEST_CASE(
    "16 readers of one source: little more than one reader's time, and than one model from the trainer") {
  spread run{small()};
  run.update_all();
  run.finish();
  CHECK(run.ends.size() == readers);
  CHECK(run.rules.succeeded() == readers);
  CHECK(run.last_seconds >= least_seconds);
  CHECK(run.last_seconds <= 1.4 * least_seconds);  // 256 chunks are few: 8192 give 1.02
  CHECK(run.trainer_models() >= 1);
  CHECK(run.trainer_models() <= 1.5);
  CHECK(run.rules.looks() > 100);
  CHECK(run.rules.max_readers() > 1);
  CHECK(run.rules.max_readers() <= run.network.server().limits().credits);
  CHECK(run.rules.max_seeds() == 0);
}

TEST_CASE("readers with slow links that ask first do not keep the others waiting") {
  fleet_options options = small();
  options.chunks = 1024;
  fleet network{options};
  fleet_rules rules{network};
  fleet::member& trainer = network.add({.replica = "trainer"});
  constexpr std::size_t slow = 8;  // as many as the trainer has credits
  std::vector<fleet::member*> rollouts;
  for (std::size_t i = 0; i < slow + readers; ++i) {
    fleet_member_options like{.replica = "rollout-" + std::to_string(i)};
    if (i < slow) like.sending_bytes_per_second = like.receiving_bytes_per_second /= 8;
    rollouts.push_back(&network.add(like));
  }
  bool published = false;
  network.publish(trainer, 1, [&] { published = true; });
  REQUIRE(network.run([&] { return published; }, std::chrono::seconds{5}));
  double others_seconds = 0;
  for (fleet::member* each : rollouts) {
    rules.update(*each, exactly(1), [&, is_slow = each->number() <= slow](const fleet_update& done) {
      if (!is_slow) others_seconds = std::max(others_seconds, done.seconds());
    });
  }
  CHECK(network.run([&] { return rules.unended() == 0; }, std::chrono::seconds{200}));
  for (const std::string& sentence : rules.violations()) FAIL_CHECK(sentence);
  CHECK(rules.succeeded() == rollouts.size());
  CHECK(others_seconds >= least_seconds);
  CHECK(others_seconds <= 2 * least_seconds);  // without exchanges it is 16 s
}

TEST_CASE("all schedulers bring every reader the version, the baselines at their price") {
  const auto run_with = [](auto& run) {
    run.update_all();
    run.finish();
    CHECK(run.rules.succeeded() == readers);
  };
  spread funnel{small(), {{}}, baselines::one_to_many{{}}};
  run_with(funnel);
  CHECK(funnel.trainer_models() == doctest::Approx(readers));
  CHECK(funnel.last_seconds >= readers * least_seconds);
  spread line{small(), {{}}, baselines::chain{{}}};
  run_with(line);
  CHECK(line.trainer_models() == doctest::Approx(1));
  CHECK(line.rules.max_readers() == 1);
  spread loaded{small(), {{}}, least_loaded{{}}};
  run_with(loaded);
  CHECK(loaded.last_seconds < funnel.last_seconds / 4);
}

TEST_CASE("exactly one model crosses into the second datacenter") {
  spread run{small(), {{}, {}, {}, {}, {.datacenter = "far"}}};
  using namespace std::chrono_literals;
  run.network.network().add_wide_area("", "far", {2'500'000'000, 20ms});
  run.network.network().add_wide_area("far", "", {2'500'000'000, 20ms});
  run.update_all();
  run.finish();
  CHECK(run.rules.succeeded() == readers);
  CHECK(run.network.network().carried_bytes("", "far") == run.network.shard_layout().bytes());
  CHECK(run.network.network().carried_bytes("far", "") == 0);
  CHECK(run.rules.max_seeds() == 1);
  CHECK(run.trainer_models() <= 2.5);  // one for here, one for there
}

TEST_CASE("a killed source costs nobody the version") {
  for (const bool is_holder : {true, false}) {
    CAPTURE(is_holder);
    spread calm{small()};
    spread run{small()};
    for (auto* each : {&calm, &run}) {
      auto& second = each->network.add({.replica = "second"});
      each->publish(second);
      each->update_all();
      if (each == &calm) {
        each->finish();
        continue;
      }
      // A complete source, or a reader that others read from.
      auto& victim = is_holder ? second : *run.rollouts.front();
      run.network.after(std::chrono::seconds{1}, [&] { run.network.kill(victim); });
      run.finish();
    }
    CHECK(run.rules.succeeded() == readers - (is_holder ? 0 : 1));
    CHECK(run.rules.failed() == 0);
    // The chunks in flight and the time until the loss was known; with 256 chunks of 7.8 ms a window is 62
    // ms.
    CHECK(run.last_seconds <= calm.last_seconds + 0.05 + 8 * least_seconds / 256);
  }
}

TEST_CASE("the seed of a second datacenter is killed: another one takes over") {
  spread run{small(), {{}, {.datacenter = "far"}}};
  using namespace std::chrono_literals;
  run.network.network().add_wide_area("", "far", {2'500'000'000, 20ms});
  run.network.network().add_wide_area("far", "", {2'500'000'000, 20ms});
  run.update_all();
  run.network.after(5s, [&] {
    incarnation seed{};
    run.network.server().for_each_lease([&](const auto& lease) {
      if (lease.crossing && lease.lasts()) seed = lease.reader;
    });
    for (auto* each : run.rollouts) {
      if (each->core().self() == seed) run.network.kill(*each);
    }
  });
  run.finish();
  CHECK(run.rules.succeeded() == readers - 1);
  CHECK(run.rules.max_seeds() == 1);
  // What the dead one had and nobody else crosses again: the other readers had nearly all of it.
  const double crossed = static_cast<double>(run.network.network().carried_bytes("", "far")) /
                         static_cast<double>(run.network.shard_layout().bytes());
  CHECK(crossed >= 1);
  CHECK(crossed <= 1.2);
}

TEST_CASE("equal seeds give equal histories") {
  for (const std::uint64_t seed : {1ull, 2ull}) {
    history seen[2];
    for (history& each : seen) {
      spread run{small(seed)};
      run.network.after(std::chrono::seconds{1}, [&] { run.network.kill(*run.rollouts.front()); });
      run.update_all();
      run.finish();
      each = run.seen();
    }
    CHECK(seen[0].ends.size() == readers - 1);
    CHECK(seen[0] == seen[1]);
  }
}
