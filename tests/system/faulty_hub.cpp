// A whole hub whose readers' transport fails now and then: an update brings one whole version or an error.

#include <doctest/doctest.h>

#include <map>
#include <tensorhub/server.hpp>

#include "faulty_hub.hpp"

using namespace system_tests;
using tensorhub::testing::fault_counts;
using tensorhub::testing::fault_rates;
using faulty_rollout = member<faulty_hub::subscriber>;

namespace {

struct outcome {
  std::size_t whole = 0, mixed = 0;
  std::map<errc, std::size_t> refused;
  std::string last_sentence{};
};

/// A trainer publishes version after version; one rollout with these faults updates to each, until some ended
/// well and `enough` badly, or `versions` were made.
outcome updates_with(const fault_rates& faults, std::size_t versions, std::size_t enough,
                     const std::shared_ptr<fault_counts>& counts) {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  faulty_rollout reader{
      who(server.address(), "rollout-0"), 300'001, {.seed = 42, .faults = faults, .counts = counts}};
  outcome seen;
  std::size_t refused = 0;
  for (std::uint64_t version = 1; version <= versions && (seen.whole < 10 || refused < enough); ++version) {
    source.publish(version);
    const errc code = code_of(
        [&] {
          const auto done = reader.worker.update(exactly(version), 10s);
          done.version == version&& reader.memory.holds(version) ? ++seen.whole : ++seen.mixed;
        },
        &seen.last_sentence);
    if (code != errc::ok) {
      ++refused;
      ++seen.refused[code];
      const auto held = reader.worker.held_version().value;  // torn: none; nothing came yet: the one before
      CHECK((held == 0 || reader.memory.holds(held)));
    }
    source.worker.unpublish(10s);
  }
  return seen;
}

}  // namespace

TEST_CASE("delays and full queues: every update is whole") {
  const auto counts = std::make_shared<fault_counts>();
  const outcome seen = updates_with({.delays = 0.2, .max_delay = 3ms, .queue_full = 0.2}, 20, 20, counts);
  CHECK(seen.whole == 20);
  CHECK(counts->delays > 0);
  CHECK(counts->queue_full > 0);
}

TEST_CASE("lost peers and failed connections: whole or an error by name, and the next update repairs") {
  const auto counts = std::make_shared<fault_counts>();
  const outcome seen = updates_with({.lost_peers = 0.05, .failed_connections = 0.2}, 1000, 5, counts);
  MESSAGE(seen.whole << " whole, " << counts->lost_peers.load() << " lost peers, "
                     << counts->failed_connections.load() << " failed connections");
  CHECK(seen.mixed == 0);
  CHECK(seen.whole > 0);
  CHECK(counts->lost_peers > 0);
  CHECK(counts->failed_connections > 0);
  REQUIRE(!seen.refused.empty());
  for (const auto& refusal : seen.refused) {
    const errc code = refusal.first;
    CHECK_MESSAGE((code == errc::source_lost || code == errc::unavailable), to_string(code), ": ",
                  seen.last_sentence);
  }
  CHECK_MESSAGE(contains(seen.last_sentence, "replica rollout-0"), seen.last_sentence);
  CHECK_MESSAGE(contains(seen.last_sentence, "trainer-0"), seen.last_sentence);
}

TEST_CASE("torn bytes are found by the digests, each time") {
  const auto counts = std::make_shared<fault_counts>();
  const outcome seen = updates_with({.torn_bytes = 0.03}, 1000, 5, counts);
  MESSAGE(seen.whole << " whole, " << counts->torn_bytes.load() << " torn reads");
  CHECK(seen.mixed == 0);
  CHECK(seen.whole > 0);
  CHECK(counts->torn_bytes > 0);
  CHECK(!seen.refused.empty());
}
