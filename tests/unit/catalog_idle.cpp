/// \file catalog_idle.cpp
/// Readers that do not come on: what they hold is given to those who wait for it.

#include "catalog_driver.hpp"
#include "support/catalog_of.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"

using namespace catalog_test;

namespace {

/// One source with one credit, which a reader takes that shows nothing of what it gets.
struct scene {
  driver<testing::catalog_of<least_loaded>> server{{}, least_loaded{{.most = {1, 1}}}};
  incarnation trainer = server.join(1, "trainer");
  incarnation idle = server.join(2, "idle");
  incarnation other = server.join(3, "other");
  messages::assignment given{};
  std::uint64_t asked = 0;

  scene() {
    REQUIRE(server.publish(trainer, 1).ok());
    given = server.start_update(idle);
    asked = server.update(other, latest, 600'000ms);
    server.clear_answered();
  }
  /// Everybody's heart beats, and `idle` tells of `chunks` with each beat.
  void pass(std::chrono::milliseconds time, const std::function<std::uint64_t()>& chunks) {
    for (auto left = time; left > 0ms; left -= 500ms) {
      messages::heartbeat_request beat;
      beat.chunks = chunks();
      server.send_as(idle, 0, beat);
      server.send_as(trainer, 0, messages::heartbeat_request{});
      server.send_as(other, 0, messages::heartbeat_request{});
      server.pass(500ms);
    }
  }
  [[nodiscard]] bool is_served() { return server.answer<messages::update_reply>(other, asked).has_value(); }
};

constexpr auto for_long = defaults::progress_timeout + 600ms;

}  // namespace

TEST_CASE("catalog: a reader that receives nothing for long loses its source to one that has none") {
  scene s;
  s.pass(defaults::progress_timeout - 600ms, [] { return 0; });
  CHECK_FALSE(s.is_served());
  s.pass(1200ms, [] { return 0; });
  CHECK(s.is_served());
  const auto push = s.server.push<messages::reassign_push>(s.idle);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == s.given.lease);
  CHECK_FALSE(push->source.lease);
  // It may be reading still: the lease ends when it says so, and is no load meanwhile.
  CHECK(s.server.leases_on(s.trainer) == 2);
  CHECK(s.server.core.record_of(s.trainer)->as_source.load == 1);
  CHECK(s.server.core.statistics().sources_taken_back == 1);
  s.server.check_rules();
  s.server.send(s.idle, messages::lease_released_request{s.given.lease});
  CHECK(s.server.leases_on(s.trainer) == 1);
}

TEST_CASE(
    "catalog: who receives something now and then keeps its source, who only says other numbers does not") {
  scene s;
  std::uint64_t told = 0;
  SUBCASE("one chunk more each time") {
    s.pass(3 * for_long, [&] { return ++told; });
    CHECK_FALSE(s.is_served());
  }
  SUBCASE("the same two numbers in turn") {
    s.pass(for_long, [&] { return ++told % 2; });
    CHECK(s.is_served());
  }
  SUBCASE("all that there could be, at once") {
    s.pass(for_long, [] { return UINT64_MAX; });
    CHECK(s.is_served());
  }
}

TEST_CASE(
    "catalog: a reader keeps its source though it tells of less than it had received in its update before") {
  scene s;
  std::uint64_t told = 1000;
  s.pass(500ms, [&] { return ++told; });
  s.server.fail(s.idle, s.given, {errc::cancelled, "cancelled"}, false);
  s.server.finish(s.other, s.server.sources_of(s.other, s.asked).front());
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  s.given = s.server.start_update(s.idle, exactly(2));
  s.asked = s.server.update(s.other, exactly(2), 600'000ms);
  told = 0;
  s.pass(3 * for_long, [&] { return ++told; });
  CHECK_FALSE(s.is_served());
}

TEST_CASE("catalog: a reader that receives nothing keeps its source while nobody waits for it") {
  scene s;
  s.server.send(s.other, messages::finish_request{
                             s.server.operation_of(s.other), {}, {errc::cancelled, "x"}, true, {}, {}});
  s.pass(3 * for_long, [] { return 0; });
  CHECK_FALSE(s.server.push<messages::reassign_push>(s.idle).has_value());
  CHECK(s.server.core.record_of(s.trainer)->as_source.load == 1);
}

TEST_CASE("catalog: a reader that lost its source so may have another one when there is one") {
  scene s;
  s.pass(for_long, [] { return 0; });
  const auto sources = s.server.sources_of(s.other, s.asked);
  s.server.send(s.idle, messages::lease_released_request{s.given.lease});
  const auto busy = s.server.stall(s.idle);
  CHECK_MESSAGE(busy.result.ok(), busy.result.sentence);
  CHECK(busy.sources.empty());
  s.server.finish(s.other, sources.front());
  CHECK(s.server.core.record_of(s.idle)->as_reader.upstream != nullptr);
}

TEST_CASE("catalog: who never releases what was taken back is not given the same source again") {
  scene s;
  for (int i = 0; i < 20; ++i) {
    s.pass(for_long, [] { return 0; });
    REQUIRE(s.is_served());
    s.server.send(s.other, messages::finish_request{
                               s.server.operation_of(s.other), 1, {errc::cancelled, "x"}, false, {}, {}});
    CHECK(s.server.stall(s.idle).sources.empty());
    s.asked = s.server.update(s.other, latest, 600'000ms);
    CHECK(s.server.core.record_of(s.idle)->as_reader.leases.size() == 1);
    s.server.acknowledge(s.idle, s.server.last_sequence(s.idle));
  }
}

TEST_CASE("catalog: a seed that receives nothing for long is the seed no more") {
  driver<> server{};
  const location there{.datacenter = "there"};
  const auto trainer = server.join(1, "trainer");
  const auto seed = server.join_at(2, "seed", there);
  const auto other = server.join_at(3, "other", there);
  REQUIRE(server.publish(trainer, 1).ok());
  server.start_update(seed);
  const auto asked = server.update(other, latest, 600'000ms);
  server.pass_alive(defaults::progress_timeout - 1000ms, {trainer, seed, other});
  CHECK_FALSE(server.answer<messages::update_reply>(other, asked).has_value());
  server.pass_alive(2000ms, {trainer, seed, other});
  CHECK(server.sources_of(other, asked).front().source == trainer);
  CHECK(server.push<messages::reassign_push>(seed).has_value());
  server.check_rules();
}

TEST_CASE("catalog: who reads from idle readers alone is given a source that one of them keeps") {
  driver<testing::catalog_of<least_loaded>> server{{}, least_loaded{{.most = {2, 1}}}};
  const auto trainer = server.join(1, "trainer");
  const auto idle = server.join(2, "idle");
  REQUIRE(server.publish(trainer, 1).ok());
  server.start_shown(idle);
  server.pass_alive(for_long, {trainer, idle});
  const auto other = server.join(3, "other");
  const auto sources = server.sources_of(other, server.update(other));
  REQUIRE(sources.size() == 1);
  CHECK(sources.front().source == idle);  // the only one that has a credit left
  const auto stall = server.stall(other);
  REQUIRE(stall.result.ok());
  REQUIRE(stall.sources.size() == 1);
  CHECK(stall.sources.front().source == trainer);
  server.check_rules();
}

TEST_CASE("catalog: nothing is taken from an idle reader for one that may have no more sources") {
  driver<> server{{}, nearest_source{{.most = {2, 2}}}};
  const auto trainer = server.join(1, "trainer");
  const std::array idle{server.join(2, "idle"), server.join(3, "idle too")};
  const auto other = server.join(4, "other");
  REQUIRE(server.publish(trainer, 1).ok());
  for (const incarnation each : idle) server.start_shown(each);
  server.pass_alive(for_long, {trainer, idle[0], idle[1], other});
  const auto sources = server.start_shown(other);
  REQUIRE(sources.size() == 2);
  REQUIRE(server.leases_on(trainer) == 2);
  for (const messages::assignment& source : sources) REQUIRE(source.source != trainer);
  server.clear();
  CHECK(server.stall(other).sources.empty());
  for (const incarnation each : idle) CHECK_FALSE(server.push<messages::reassign_push>(each).has_value());
  CHECK(server.core.record_of(trainer)->as_source.load == 2);
  server.check_rules();
}

// ---- drains that had to be forced

namespace {

/// A trainer that publishes version after version, and one reader that never says that it has ended.
struct forced_drains {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  incarnation reader = server.join(2, "reader");

  /// The trainer waits so long for its memory, and then takes it.
  void publish_and_force(version_number version, std::chrono::milliseconds waits) {
    REQUIRE(server.publish(trainer, version).ok());
    const auto from = server.start_update(reader);
    const auto asked = server.unpublish(trainer, version);
    server.pass_alive(waits, {trainer, reader});
    REQUIRE_FALSE(server.answer<messages::drained_reply>(trainer, asked).has_value());
    server.send(trainer, messages::cut_off_done_request{});
    CHECK(server.leases_on(trainer) == 0);
    if (server.core.knows(reader)) server.fail(reader, from, {errc::source_lost, "x"}, false);
  }
};

}  // namespace

TEST_CASE("catalog: a reader that is left at the deadline of a drain for the second time is declared dead") {
  forced_drains s;
  s.publish_and_force(1, 6000ms);
  CHECK(s.server.core.knows(s.reader));
  CHECK(s.server.core.statistics().workers_unruly == 0);
  CHECK(s.server.core.statistics().drains_forced == 1);
  s.publish_and_force(3, 6000ms);
  CHECK_FALSE(s.server.core.knows(s.reader));
  CHECK(s.server.core.statistics().workers_unruly == 1);
  const auto goodbye = s.server.push<messages::goodbye_push>(s.reader);
  REQUIRE(goodbye.has_value());
  CHECK_FALSE(goodbye->rejoin);
  CHECK(goodbye->reason.code == errc::disconnected);  // its process may return, as another incarnation
}

TEST_CASE("catalog: a holder without readers that takes its memory has forced no drain") {
  forced_drains s;
  REQUIRE(s.server.publish(s.trainer, 1).ok());
  s.server.finish(s.reader, s.server.start_update(s.reader));
  s.server.send(s.trainer, messages::cut_off_done_request{});
  CHECK(s.server.core.statistics().drains_forced == 0);
}

TEST_CASE("catalog: a whole update between two forced drains counts for the reader") {
  forced_drains s;
  for (const std::uint64_t version : {1u, 3u, 5u}) {
    s.publish_and_force(version, 6000ms);
    REQUIRE(s.server.core.knows(s.reader));
    REQUIRE(s.server.publish(s.trainer, version + 1).ok());
    s.server.finish(s.reader, s.server.start_update(s.reader));
    s.server.unpublish(s.trainer, version + 1);
  }
  CHECK(s.server.core.statistics().workers_unruly == 0);
}

TEST_CASE("catalog: readers have time to leave before the end of a drain counts against them") {
  forced_drains s;
  for (std::uint64_t version = 1; version < 5; ++version) s.publish_and_force(version, 4000ms);
  CHECK(s.server.core.knows(s.reader));
  CHECK(s.server.core.statistics().workers_unruly == 0);
}

// ---- readers that wait for further sources

namespace {

/// A trainer with version 1, and readers that have begun to read it and are gone.
struct crowd {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  std::uint64_t joined = 100;

  crowd() { REQUIRE(server.publish(trainer, 1).ok()); }
  /// The reader leaves, or stays joined and has given its update up.
  void read(bool leaves) {
    ++joined;
    const incarnation reader = server.join(joined, leaves ? "rollout" : std::to_string(joined));
    const auto source = server.start_update(reader);
    if (leaves)
      server.send(reader, messages::leave_request{});
    else
      server.fail(reader, source, {errc::cancelled, "no"}, true);
  }
  [[nodiscard]] std::size_t hungry() const {
    return server.core.record_of(trainer)->model->versions.at(1).hungry.front().size();
  }
};

}  // namespace

TEST_CASE("catalog: readers that are gone do not keep others from further sources") {
  crowd c;
  const incarnation second = c.server.join(2, "second trainer");
  const incarnation reader = c.server.join(3, "reader");
  bool leaves = false;
  SUBCASE("they have left") {
    leaves = true;
  }
  SUBCASE("they have given up") {
    leaves = false;
  }
  for (int i = 0; i < 5; ++i) c.read(leaves);
  CHECK(c.server.start_update(reader).source == c.trainer);
  REQUIRE(c.server.publish(second, 1).ok());
  const auto more = c.server.push<messages::reassign_push>(reader);
  REQUIRE(more.has_value());
  CHECK(more->source.source == second);
}

TEST_CASE("catalog: readers that are gone are forgotten, also while their version gets no further source") {
  crowd c;
  for (int i = 0; i < 100; ++i) c.read(true);
  CHECK(c.hungry() <= 5);
}
