// Some rounds of tests/chaos over verbs. A run of its own: the processes are forked, and the libraries under
// verbs must not have been used before that.

#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>
#include <tensorhub/transports/verbs.hpp>

#include "chaos/report.hpp"
#include "rdma_addresses.hpp"

using tensorhub::transports::verbs;
using namespace std::chrono_literals;

// TENSORHUB_CHAOS_SEEDS: first, last and step ("100 105 1"; the long run: "100 199 1"). Seeds 5k to 5k+4
// are one per kind of victim, killed (k even) or stopped.
TEST_CASE("chaos over verbs: every kind of victim is killed once, and one is stopped") {
  chaos::adjust<verbs::options> = [](verbs::options& options) {
    options.listen_addresses = {softroce_tests::rdma_addresses().front()};
  };
  chaos::library_descriptors = 2;
  // The emulated machine is slow.
  chaos::heartbeat_interval = 500ms;
  chaos::worker_timeout = 4000ms;
  chaos::peer_timeout = 2000ms;
  chaos::recovery_grace = 4000ms;
  chaos::call_timeout = 30'000ms;
  chaos::patience_s = 150;
  std::uint64_t first = 100, last = 105, step = 1;
  if (const char* const given = std::getenv("TENSORHUB_CHAOS_SEEDS")) {
    std::istringstream in{given};
    in >> first >> last >> step;
  }
  const chaos::setting how{1u << 20, 2, false, false};
  std::vector<chaos::round_result> all;
  for (std::uint64_t seed = first; seed <= last; seed += step) {
    all.push_back(chaos::round<tensorhub::hub<verbs>>{seed, how}.run());
    chaos::round_result& seen = all.back();
    chaos::print_round(seen, !seen.problems.empty());
    seen.events.clear();
    for (const auto& problem : seen.problems) {
      const std::string text = "seed " + std::to_string(seed) + ", " + seen.what.name() + ": " + problem;
      FAIL_CHECK(text);
    }
    CHECK(seen.outcomes.contains("whole"));
  }
  chaos::print_tables(all);
}
