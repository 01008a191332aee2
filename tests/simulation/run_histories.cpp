#include "run_histories.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <thread>
#include <vector>

#include "support/simulation/violation.hpp"
#include "support/simulation/world.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

namespace {

/// What one thread has seen: of the histories with every `threads`-th seed.
struct histories_seen {
  simulation_statistics total{};
  std::vector<violation> violations{};  ///< of the first history that has some
};

histories_seen run_some_histories(const simulated_policies& policies, std::uint64_t first, std::uint64_t last,
                                  std::uint64_t step, double careless,
                                  simulation_options (*options_of)(std::uint64_t), bool with_log) {
  histories_seen seen;
  for (std::uint64_t seed = first; seed <= last && seen.violations.empty(); seed += step) {
    simulation_options options = options_of(seed);
    options.trainer.careless = careless;
    simulation history{options, policies};
    if (with_log) history.log = [](const log_line& line) { std::cout << line.text << "\n"; };
    history.run();
    seen.total += history.statistics();
    seen.violations = history.violations();
  }
  return seen;
}

/// What the options of some seed ask for has happened in some history.
void check_that_faults_happened(const simulation_statistics& total, std::uint64_t first, std::uint64_t last,
                                simulation_options (*options_of)(std::uint64_t), bool has_digests) {
  const auto some = [&](auto&& asks) {
    for (std::uint64_t seed = first; seed <= last; ++seed)
      if (asks(options_of(seed))) return true;
    return false;
  };
  using options = simulation_options;
  if (some([](const options& of) { return of.server_kills_per_second > 0; })) CHECK(total.server_kills > 0);
  if (some([](const options& of) { return of.takeovers_per_second > 0; })) CHECK(total.takeovers > 0);
  if (some([](const options& of) { return of.pauses_per_second > 0; })) CHECK(total.pauses > 0);
  if (some([](const options& of) { return of.reads.flipped_bits > 0; })) CHECK(total.flipped_bits > 0);
  if (some([](const options& of) { return of.reads.slow_links > 0; })) CHECK(total.sources.exchanged > 0);
  if (some([](const options& of) { return of.polite_leavers_per_second > 0; })) CHECK(total.retired > 0);
  if (some([](const options& of) { return of.keep_latest > 0 || of.pins > 0; })) {
    CHECK(total.offloads > 0);
    CHECK(total.handed_over > 0);
  }
  if (last - first >= 100) {
    CHECK(total.waits > 0);
    if (has_digests) CHECK(total.origins.here > 0);
  }
  if (some([](const options& of) { return of.orders_per_second > 0; }))
    CHECK(std::min(total.processes.drained, total.processes.evicted) * 2 > last - first + 1);
  if (some([](const options& of) { return of.trainer.rollbacks > 0; }))
    CHECK(total.trainers.rollbacks * 2 > last - first + 1);
}

}  // namespace

simulation_statistics run_histories(const char* title, const simulated_policies& policies,
                                    std::uint64_t count, double careless,
                                    simulation_options (*options_of)(std::uint64_t), std::uint64_t per) {
  const std::uint64_t replay = number_from_environment("TENSORHUB_SIMULATION_SEED", 0);
  count = replay != 0 ? 1 : number_from_environment("TENSORHUB_SIMULATION_HISTORIES", scaled(count));
  const auto started = std::chrono::steady_clock::now();
  const std::uint64_t first = replay != 0 ? replay : 1;
  const std::uint64_t last = first + count - 1;
  const std::uint64_t threads = std::clamp<std::uint64_t>(std::thread::hardware_concurrency(), 1, count);
  std::vector<histories_seen> seen(threads);
  std::vector<std::thread> running;
  for (std::uint64_t i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      seen[i] = run_some_histories(policies, first + i, last, threads, careless, options_of, replay != 0);
    });
  }
  for (std::thread& each : running) each.join();
  simulation_statistics total;
  for (const histories_seen& each : seen) {
    total += each.total;
    for (const violation& found : each.violations) FAIL_CHECK(found.sentence);
    CHECK_MESSAGE(each.violations.empty(), "replay with TENSORHUB_SIMULATION_SEED=<that seed>");
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::cout << title << ": " << count << " histories, " << static_cast<double>(count) / seconds
            << " per second; " << total.events << " events, " << total.versions << " versions, "
            << total.updates << " updates, " << total.kept << " kept, " << total.failed
            << " ended in a named error, " << total.waits << " waits satisfied, " << total.forced_drains
            << " forced drains, " << total.chunks << " chunks (" << total.origins.relayed << " relayed, "
            << total.origins.ahead << " of open versions, " << total.origins.here << " there already), "
            << total.origins.trades << " trades, " << total.seeds << " seeds, " << total.sources.taken_back
            << " sources taken back, " << total.sources.shortages << " shortages, " << total.sources.exchanged
            << " sources exchanged, " << total.processes.kills << " kills, " << total.processes.returns
            << " returns, " << total.trainers.exits << " trainers gone, " << total.cancelled << " cancelled, "
            << total.lost_connections << " lost connections, " << total.stale_messages << " stale messages, "
            << total.double_joins << " double joins, " << total.beliefs << " beliefs compared, "
            << total.server_kills << " servers killed, " << total.takeovers << " deposed, " << total.pauses
            << " pauses, " << total.flipped_bits << " flipped bits, " << total.offloads << " offloads, "
            << total.handed_over << " shards handed over, " << total.retired << " left with grace ("
            << total.processes.busy_leavers << " of them busy), " << total.processes.drained << " drained, "
            << total.processes.evicted << " evicted, " << total.lost << " retained versions lost\n";
  // Histories in which nothing happens would prove nothing: of all this, something in one of `per` histories.
  CHECK(total.updates * per > count);
  if (replay != 0 || count < 20 || count < per) return total;
  for (const std::uint64_t often : {total.kept, total.trainers.exits, total.cancelled, total.stale_messages,
                                    total.double_joins, total.beliefs, total.forced_drains}) {
    CHECK(often * per > count);
  }
  check_that_faults_happened(total, first, last, options_of, policies.integrity.enabled);
  return total;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
