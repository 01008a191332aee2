// What one version costs the reference server's thread when thousands of workers take it at once: their
// requests, reports and heartbeats over the simulated network of tests/support/simulation/fleet.hpp, in CPU
// time of the catalog alone (no codec, no sockets).

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <ctime>
#include <string>

#include "support/simulation/fleet.hpp"

namespace {

using namespace tensorhub;
using namespace tensorhub::testing;

/// CPU time of this thread.
[[nodiscard]] double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// The time of an iteration is the catalog's, from the first update to the end of the last one.
void one_version(benchmark::State& state) {
  const auto readers = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    fleet_options options;
    // Little virtual time: the readers' polling costs the simulation most of its own, and the server nothing.
    options.chunks = 8;
    options.shard_bytes = 100'000'000;
    options.server_time = std::chrono::microseconds{1};
    fleet network{options};
    double spent = 0;
    std::size_t messages = 0;
    network.around_server = [&, begun = 0.0](bool begins) mutable {
      if (begins) {
        ++messages;
        begun = cpu_seconds();
      } else {
        spent += cpu_seconds() - begun;
      }
    };
    auto& trainer = network.add({.replica = "trainer"});
    for (std::size_t i = 0; i < readers; ++i)
      network.add(
          {.replica = "rollout-" + std::to_string(i),
           .location = {.rack = "rack-" + std::to_string(i / 32), .host = "host-" + std::to_string(i / 8)}});
    bool published = false;
    network.publish(trainer, 1, [&] { published = true; });
    network.run([&] { return published && network.server().worker_count() == readers + 1; });
    const double joined = spent;
    spent = 0;
    messages = 0;
    std::size_t left = readers;
    for (std::size_t i = 1; i <= readers; ++i)
      network.update(network.at(i), exactly(1),
                     [&](const fleet_update& end) { left -= end.outcome.ok() ? 1 : 0; });
    if (!network.run([&] { return left == 0; }, std::chrono::hours{1}))
      state.SkipWithError("an update failed");
    state.SetIterationTime(spent);
    state.counters["joining"] = joined;
    state.counters["messages"] = static_cast<double>(messages);
    state.counters["us_per_update"] = spent * 1e6 / static_cast<double>(readers);
  }
}
BENCHMARK(one_version)
    ->Arg(100)
    ->Arg(1000)
    ->Arg(10000)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
