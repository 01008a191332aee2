/// Histories of the real cores in virtual time. A failing seed is printed; replay it with
/// TENSORHUB_SIMULATION_SEED=<seed> (one history, with the server's log). TENSORHUB_SIMULATION_HISTORIES sets
/// how many of each kind.

#include <doctest/doctest.h>

#include <chrono>
#include <iostream>
#include <string>

#include "histories.hpp"
#include "tensorhub/policy/consistency/bounded_staleness.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/round_robin.hpp"
#include "tensorhub/testing/simulation/world.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

/// Runs histories and requires that none breaks the contract.
template <typename Simulation>
void run_histories(const char* title, std::uint64_t count, double careless) {
  const std::uint64_t replay = number_from_environment("TENSORHUB_SIMULATION_SEED", 0);
  count = replay != 0 ? 1 : number_from_environment("TENSORHUB_SIMULATION_HISTORIES", scaled(count));
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
            << " chunks, " << total.kills << " kills, " << total.exits << " trainers gone, "
            << total.cancelled << " cancelled, " << total.lost_connections << " lost connections, "
            << total.stale_messages << " stale messages, " << total.double_joins << " double joins, "
            << total.beliefs << " beliefs compared\n";
  // Histories in which nothing happens would prove nothing.
  CHECK(total.updates > count);
  if (replay != 0 || count < 20) return;
  for (const std::uint64_t seen : {total.kept, total.exits, total.cancelled, total.stale_messages,
                                   total.double_joins, total.beliefs, total.forced_drains}) {
    CHECK(seen > count);
  }
}

}  // namespace

TEST_CASE("contract: the default policies") {
  run_histories<simulation<>>("default policies", 2500, 0.0);
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
