// Versions that are published as a copy, while the trainer goes on changing its weights.

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <optional>
#include <stop_token>
#include <thread>

#include "hub.hpp"

using namespace system_tests;
using tensorhub::snapshot;

namespace {

constexpr std::size_t large_words = 1u << 20;
constexpr std::uint64_t begun_bytes = 3u << 20;

}  // namespace

TEST_CASE(
    "a trainer overwrites its weights as soon as a snapshot is published; readers get the published bytes") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  rollout reader{who(server.address(), "rollout-0"), large_words};
  for (std::uint64_t version = 1; version <= 5; ++version) {
    source.memory.fill(version);
    const auto done = source.worker.publish(version, snapshot);
    source.memory.fill(version + 1'000'000);
    CHECK(done.version == version);
    CHECK(done.bytes >= large_words * 8);
    CHECK(done.copy_seconds > 0);
    CHECK(done.seconds >= done.copy_seconds + done.digest_seconds + done.drain_seconds);
    CHECK(source.worker.held_version() == version);
    CHECK(reader.worker.update().version == version);
    CHECK(reader.memory.holds(version));
  }
  CHECK(reader.worker.list().front().replicas.size() == 3);  // two snapshots, the reader; no trainer in place
  CHECK(!source.worker.unpublish().forced);
  CHECK(source.worker.held_version() == 0);
  CHECK(code_of([&] { source.worker.publish(0, snapshot); }) == errc::invalid_argument);
  const auto seen = source.worker.statistics();
  CHECK(seen.publishes.of(errc::ok) == 5);
  CHECK(seen.publishes.of(errc::invalid_argument) == 1);
  CHECK(seen.publish.count() == 5);
  CHECK(seen.unpublishes.of(errc::ok) == 1);
  reader.worker.unpublish();
  CHECK(code_of([&] { reader.worker.update(exactly(5), 2s); }) == errc::unavailable);
}

TEST_CASE("held_version() of a publisher may be asked beside its snapshots") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  std::atomic<int> refused = 0;
  std::jthread looks{[&](const std::stop_token& stop) {
    while (!stop.stop_requested())
      if (code_of([&] { static_cast<void>(source.worker.held_version()); }) != errc::ok) ++refused;
  }};
  for (std::uint64_t version = 1; version <= 20; ++version)
    CHECK(code_of([&] { source.worker.publish(version, snapshot); }) == errc::ok);
  looks = {};
  CHECK(refused == 0);
}

TEST_CASE("a second snapshot disturbs no reader of the first, a third one waits for them") {
  hub::reference_server server;
  auto options = who(server.address(), "trainer-0");
  trainer source{options, large_words};
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
  gated_rollout slow{who(server.address(), "rollout-0"), large_words, {.gate = gate}};
  rollout quick{who(server.address(), "rollout-1"), large_words};
  source.publish(1, snapshot);
  auto reading = slow.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  source.publish(2, snapshot);
  source.memory.fill(1'000'000);
  CHECK(quick.worker.update().version == 2);
  CHECK(quick.memory.holds(2));
  SUBCASE("the reader ends by itself") {
    source.memory.fill(3);
    auto third = std::async(std::launch::async, [&] { source.worker.publish(3, snapshot, 60s); });
    CHECK(third.wait_for(100ms) == std::future_status::timeout);
    gate->open();
    CHECK(reading.wait(30s).version == 1);
    CHECK(slow.memory.holds(1));
    third.get();
    CHECK(quick.worker.update(exactly(3), 30s).version == 3);
    CHECK(quick.memory.holds(3));
  }
  SUBCASE("the reader is cut off: an error, or version 1 whole, never a mixture") {
    source.memory.fill(3);
    source.worker.publish(3, snapshot, 1s);  // half of it for the reader
    source.memory.fill(1'000'000);
    gate->open();
    CHECK(code_of([&] { reading.wait(60s); }) == errc::unavailable);
    CHECK(slow.worker.held_version() == 0);
    CHECK(quick.worker.update().version == 3);
    CHECK(quick.memory.holds(3));
  }
}

TEST_CASE("a snapshot that is refused takes nothing back") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(4, snapshot);
  source.publish(5, snapshot);
  source.memory.fill(6);
  CHECK(code_of([&] { source.worker.publish(3, snapshot); }) == errc::version_conflict);
  CHECK(code_of([&] { source.worker.publish(5, snapshot); }) == errc::version_conflict);
  CHECK(code_of([&] { source.worker.publish(0, snapshot); }) == errc::invalid_argument);
  CHECK(source.worker.held_version() == 5);
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update(exactly(4), 2s).version == 4);
  CHECK(reader.worker.update(exactly(5), 2s).version == 5);
  CHECK(reader.memory.holds(5));
  source.worker.roll_back_to(4);
  source.worker.publish(5, snapshot);  // a version that was rolled back does not count
  CHECK(reader.worker.update(at_least(5), 10s).version == 5);
  CHECK(reader.memory.holds(6));
}

TEST_CASE("a snapshot older than the other memory's is refused, and takes nothing back either") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(4, snapshot);
  source.publish(7, snapshot);
  REQUIRE(snapshot.slot_of(4) == snapshot.slot_of(6));
  CHECK(code_of([&] { source.worker.publish(6, snapshot); }) == errc::version_conflict);
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update(exactly(4), 2s).version == 4);
  CHECK(reader.memory.holds(4));
}

TEST_CASE(
    "the shards of a trainer choose the same memory for a version, whatever each has published before") {
  CHECK(snapshot.slot_of(1) != snapshot.slot_of(2));
  CHECK(snapshot.every(10).slot_of(10) != snapshot.every(10).slot_of(20));
  CHECK(snapshot.every(0).stride == 1);
  hub::reference_server server;
  trainer first{who(server.address(), "trainer-0", {0, 2})};
  std::optional<trainer> second;
  second.emplace(who(server.address(), "trainer-0", tensorhub::shard_of{1, 2}));
  rollout reader{who(server.address(), "rollout-0", {0, 2})};
  const auto publish = [&](std::uint64_t version) {
    first.memory.fill(version, 0);
    first.worker.publish(version, snapshot);
    second->memory.fill(version, 1);
    second->worker.publish(version, snapshot);
  };
  publish(1);
  second.emplace(who(server.address(), "trainer-0", tensorhub::shard_of{1, 2}));  // as after a crash
  publish(2);
  CHECK(reader.worker.wait(exactly(2), 10s) == 2);
  publish(3);
  CHECK(reader.worker.wait(exactly(3), 10s) == 3);
}

TEST_CASE("in place and as a snapshot: not both at once") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  std::string sentence;
  CHECK(code_of([&] { source.worker.publish(2, snapshot); }, &sentence) == errc::still_published);
  CHECK_MESSAGE(contains(sentence, "replica trainer-0"), sentence);
  source.worker.unpublish();
  source.publish(2, snapshot);
  CHECK(code_of([&] { source.memory.add_to(source.worker); }, &sentence) == errc::invalid_argument);
  CHECK_MESSAGE(contains(sentence, "replica trainer-0"), sentence);
  CHECK(code_of([&] { source.worker.publish(1, snapshot); }, &sentence) == errc::version_conflict);
  CHECK(source.worker.held_version() == 2);
  source.publish(3);
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update().version == 3);
  CHECK(reader.memory.holds(3));
  source.worker.leave();
  hub::publisher nothing{who(server.address(), "trainer-1")};
  CHECK(code_of([&] { nothing.publish(4, snapshot); }) == errc::invalid_argument);
}
