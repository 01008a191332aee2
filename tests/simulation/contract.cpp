/// Histories of the real cores in virtual time. A failing seed is printed; replay it with
/// TENSORHUB_SIMULATION_SEED=<seed> (one history, with the server's log). TENSORHUB_SIMULATION_HISTORIES sets
/// how many.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "tensorhub/policy/consistency/bounded_staleness.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/round_robin.hpp"
#include "tensorhub/testing/simulation/world.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

simulation_options options_for(std::uint64_t seed) {
  simulation_options options;
  options.seed = seed;
  options.shards = static_cast<std::uint32_t>(1 + seed % 3);
  options.rollouts = 2 + seed % 4;
  options.kills_per_second = seed % 4 == 0 ? 0 : 0.8;
  options.connection_losses_per_second = seed % 7 == 0 ? 8.0 : 1.0;
  options.unpublish_timeout = std::chrono::milliseconds{seed % 2 == 0 ? 100 : 3};
  return options;
}

/// Runs histories and requires that none breaks the contract.
template <typename Simulation>
void run_histories(const char* title, std::uint64_t count, double careless) {
  const std::uint64_t replay = number_from_environment("TENSORHUB_SIMULATION_SEED", 0);
  count = replay != 0 ? 1 : number_from_environment("TENSORHUB_SIMULATION_HISTORIES", count);
  const auto started = std::chrono::steady_clock::now();
  simulation_statistics total;
  for (std::uint64_t i = 0; i < count; ++i) {
    simulation_options options = options_for(replay != 0 ? replay : 1 + i);
    options.careless_trainer = careless;
    Simulation history{options};
    if (replay != 0) history.log = [](const log_line& line) { std::cout << line.text << "\n"; };
    history.run();
    total += history.statistics();
    for (const std::string& violation : history.violations()) FAIL_CHECK(violation);
    REQUIRE_MESSAGE(history.violations().empty(), "replay with TENSORHUB_SIMULATION_SEED=" << options.seed);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::cout << title << ": " << count << " histories, " << static_cast<double>(count) / seconds
            << " per second; " << total.events << " events, " << total.versions << " versions, "
            << total.updates << " updates, " << total.kept << " kept, " << total.failed
            << " ended in a named error, " << total.forced_drains << " forced drains, " << total.chunks
            << " chunks, " << total.kills << " kills, " << total.lost_connections << " lost connections\n";
  CHECK(total.updates > count);  // histories in which nothing moves would prove nothing
}

/// Runs histories with a planted fault until one is caught; returns the violation (empty: it was not seen).
template <typename Simulation, typename Plant>
std::string first_violation(std::uint64_t limit, double careless, duration unpublish_timeout, Plant&& plant) {
  for (std::uint64_t seed = 1; seed <= limit; ++seed) {
    simulation_options options = options_for(seed);
    options.careless_trainer = careless;
    options.unpublish_timeout = unpublish_timeout;
    Simulation history{options};
    plant(history);
    history.run();
    if (!history.violations().empty()) return history.violations().front();
  }
  return {};
}

using default_simulation = simulation<>;

template <typename Change>
auto plant_in_workers(Change change) {
  return [change](default_simulation& history) {
    history.for_each_worker(change);
    history.on_spawn = change;
  };
}

void check_caught(const char* bug, const std::string& violation, const char* rule) {
  std::cout << "planted: " << bug << " -> " << (violation.empty() ? "NOT CAUGHT" : violation) << "\n";
  CHECK_MESSAGE(violation.find(rule) != std::string::npos, bug);
}

}  // namespace

TEST_CASE("contract: the default policies") {
  run_histories<simulation<>>("default policies", 1500, 0.0);
}

TEST_CASE("contract: trainers that overwrite before unpublish are noticed by their readers") {
  run_histories<simulation<>>("careless trainers", 400, 0.3);
}

TEST_CASE("contract: other schedulers") {
  run_histories<simulation<least_loaded>>("least_loaded", 200, 0.0);
  run_histories<simulation<round_robin>>("round_robin", 200, 0.0);
}

TEST_CASE("contract: other consistency policies") {
  run_histories<simulation<nearest_source, bounded_staleness>>("bounded_staleness", 200, 0.0);
  run_histories<simulation<nearest_source, independent>>("independent", 200, 0.0);
}

TEST_CASE("contract: without digests the control block alone keeps versions apart") {
  run_histories<simulation<nearest_source, group_consistent, no_integrity>>("no_integrity", 400, 0.0);
}

TEST_CASE("equal seeds give equal histories") {
  simulation_statistics first;
  for (int run = 0; run < 2; ++run) {
    simulation<> history{options_for(11)};
    history.run();
    if (run == 0) first = history.statistics();
    CHECK(history.statistics().events == first.events);
    CHECK(history.statistics().updates == first.updates);
    CHECK(history.statistics().chunks == first.chunks);
  }
}

TEST_CASE("planted: a careless trainer and readers that skip the digests") {
  check_caught("digests skipped, trainer overwrites early",
               first_violation<default_simulation>(
                   200, 0.5, std::chrono::milliseconds{100},
                   plant_in_workers([](auto& worker) { worker.faults.skip_digests = true; })),
               "wrong bytes");
}

TEST_CASE("planted: a source that does not cut off, and readers that skip both checks") {
  check_caught("no cut-off, no header check, no digests",
               first_violation<default_simulation>(400, 0.0, std::chrono::milliseconds{1},
                                                   plant_in_workers([](auto& worker) {
                                                     worker.faults.no_cut_off = true;
                                                     worker.faults.skip_header_check = true;
                                                     worker.faults.skip_digests = true;
                                                   })),
               "wrong bytes");
}

TEST_CASE("planted: the epoch is not raised and digests are skipped") {
  check_caught("no cut-off, epoch not raised, no digests",
               first_violation<default_simulation>(400, 0.0, std::chrono::milliseconds{1},
                                                   plant_in_workers([](auto& worker) {
                                                     worker.faults.no_cut_off = true;
                                                     worker.faults.no_epoch = true;
                                                     worker.faults.skip_digests = true;
                                                   })),
               "wrong bytes");
}

TEST_CASE("without cut-off the header check alone still keeps the bytes apart") {
  CHECK(first_violation<default_simulation>(100, 0.0, std::chrono::milliseconds{1},
                                            plant_in_workers([](auto& worker) {
                                              worker.faults.no_cut_off = true;
                                              worker.faults.skip_digests = true;
                                            }))
            .empty());
}

TEST_CASE("planted: latest is resolved per shard") {
  check_caught(
      "each shard decides for itself",
      first_violation<simulation<nearest_source, independent>>(
          200, 0.0, std::chrono::milliseconds{100}, [](auto& history) { history.expect_groups = true; }),
      "got versions");
}
