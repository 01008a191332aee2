// What is tested alone elsewhere, together: first_of, a scheduler that is not the default, two memories,
// seeds, snapshots, retention.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <tensorhub/policy/consistency/bounded_staleness.hpp>
#include <tensorhub/server.hpp>
#include <vector>

#include "near_hub.hpp"

using namespace system_tests;

namespace {

using near_or_tcp = tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>;
using combined = tensorhub::hub<near_or_tcp, tensorhub::least_loaded>;
using combined_trainer = member<combined::publisher>;
using combined_rollout = member<combined::subscriber>;
constexpr std::size_t some_words = 200'000;

tensorhub::worker_options at_host(std::string host, const std::string& server, std::string replica) {
  auto out = who(server, std::move(replica));
  out.location.host = std::move(host);
  return out;
}

}  // namespace

TEST_CASE("combinations: the hub's scheduler decides at its server") {
  combined::reference_server server;
  combined_trainer source{at_host("a", server.address(), "trainer-0"), some_words};
  source.publish(1);
  combined_rollout elsewhere{at_host("b", server.address(), "rollout-0"), some_words};
  CHECK(elsewhere.worker.update().version == 1);
  combined_rollout reader{at_host("a", server.address(), "rollout-1"), some_words};
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.memory.holds(1));
  // The default would have chosen the trainer, which is nearer.
  const std::string why = reader.worker.why();
  CHECK_MESSAGE(contains(why, "upstream: rollout-0/0"), why);
}

TEST_CASE("combinations: a seed and two memories over first_of") {
  combined::reference_server server;
  combined_trainer source{who(server.address(), "trainer-0"), some_words};
  combined::seeder seed{who(server.address(), "seed")};
  double_buffered_of<combined::subscriber> reader{who(server.address(), "rollout-0")};
  reader.add("mapped", {source.memory.words()}, tensorhub::dtype::u64);
  reader.add("bias", {source.memory.bias.size()}, tensorhub::dtype::u16);
  reader.add("plain", {source.memory.plain.size(), 1}, tensorhub::dtype::u64);
  reader.add("norm", {source.memory.norm.size()}, tensorhub::dtype::u8);
  reader.add("nothing", {0}, tensorhub::dtype::f32);
  for (std::uint64_t version = 1; version <= 3; ++version) {
    CAPTURE(version);
    source.publish(version);
    CHECK(seed.wait(version, 20s) == version);
    source.worker.unpublish();
    source.memory.fill(1000 + version);
    const auto staged = reader.stage(exactly(version), 20s);
    CHECK(staged.paths == std::vector<std::string>(staged.sources.size(), "same_host"));
    CHECK(reader.install().version == version);
    source.memory.fill(version);
    CHECK(std::memcmp(reader.tensor("mapped"), source.memory.mapped.data(), source.memory.words() * 8) == 0);
    CHECK(std::memcmp(reader.tensor("norm"), source.memory.norm.data(), source.memory.norm.size()) == 0);
  }
}

TEST_CASE("combinations: retained snapshots over first_of outlive their memory and their trainer's weights") {
  combined::reference_server server;
  combined_trainer source{who(server.address(), "trainer-0"), some_words};
  combined_rollout reader{who(server.address(), "rollout-0"), some_words};
  source.worker.retain(3);
  for (std::uint64_t version = 1; version <= 4; ++version) {  // two memories: 3 takes that of 1
    source.memory.fill(version);
    CHECK_FALSE(source.worker.publish(version, tensorhub::snapshot).lost);
  }
  source.memory.fill(1000);
  CHECK_FALSE(source.worker.unpublish().lost);
  CHECK(source.worker.held_version() == 0);
  for (std::uint64_t version = 2; version <= 4; ++version) {
    CAPTURE(version);
    CHECK(reader.worker.update(exactly(version), 20s).version == version);
    CHECK(reader.memory.holds(version));
  }
  CHECK(code_of([&] { reader.worker.update(exactly(1), 5s); }) == errc::unavailable);
}

TEST_CASE("combinations: a hub of bounded staleness keeps what is held up to the server's bound") {
  using stale_hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::bounded_staleness>;
  stale_hub::reference_server server{{}, {}, tensorhub::bounded_staleness{{.max_behind = 2}}};
  member<stale_hub::publisher> source{who(server.address(), "trainer-0"), 1000};
  member<stale_hub::subscriber> reader{who(server.address(), "rollout-0"), 1000};
  for (std::uint64_t version = 1; version <= 4; ++version) {
    CAPTURE(version);
    source.publish(version);
    const std::uint64_t expected = version < 4 ? 1 : 4;
    const auto done = reader.worker.update(latest, 20s);
    CHECK(done.version == expected);
    CHECK(done.kept == (version == 2 || version == 3));
    CHECK(reader.memory.holds(expected));
    source.worker.unpublish();
  }
}
