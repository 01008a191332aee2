// Some rounds of tests/chaos (the long run: chaos --rounds 100): one process of a running exchange of
// weights is killed or stopped. No bytes may be mixed, no retained version be lost, nothing hang; no process,
// thread, descriptor, memory or shared memory may be left behind; errors must have names.

#include <doctest/doctest.h>

#include <iostream>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "chaos/report.hpp"

namespace {

using over_tcp = tensorhub::hub<tensorhub::transports::tcp>;
using over_same_host = tensorhub::hub<tensorhub::transports::same_host>;

/// Under a sanitizer a round takes many times as long: fewer of them, and none of twenty processes.
#ifdef TENSORHUB_FEWER_ROUNDS
constexpr bool fewer = true;
#else
constexpr bool fewer = false;
#endif

/// Of ten seeds the first five kill (reader, source, shard, trainer, server), the others stop.
template <typename Hub>
void rounds(std::uint64_t first_seed, std::uint64_t count, const chaos::setting& how) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    const chaos::round_result seen = chaos::round<Hub>{seed, how}.run();
    if (!seen.problems.empty()) chaos::print_round(seen, true);
    for (const auto& problem : seen.problems) {
      const std::string text = "seed " + std::to_string(seed) + ", " + seen.what.name() + ": " + problem;
      FAIL_CHECK(text);
    }
    CHECK(seen.outcomes.contains("whole"));
    if (how.retention) CHECK(seen.outcomes.at("kept_whole") == chaos::shards);
  }
}

}  // namespace

TEST_CASE("chaos over TCP: some rounds") {
  rounds<over_tcp>(20, fewer ? 5 : 10, {.bytes = 8u << 20, .calm = false});
}

TEST_CASE("chaos over the same host: some rounds") {
  rounds<over_same_host>(fewer ? 35 : 30, fewer ? 5 : 10, {.bytes = 8u << 20, .calm = false});
}

TEST_CASE("chaos with retained versions: some rounds") {
  rounds<over_tcp>(40, fewer ? 3 : 10, {.bytes = 4u << 20, .retention = true, .calm = false});
}

TEST_CASE("chaos with sixteen rollouts: a source and a server are killed") {
  if (fewer) {
    std::cout << "SKIPPED: system.chaos: sixteen rollouts: sanitizers take too much memory and time\n";
    return;
  }
  for (const std::uint64_t seed : {51u, 54u})
    rounds<over_tcp>(seed, 1, {.bytes = 2u << 20, .rollouts = 16, .calm = false});
}
