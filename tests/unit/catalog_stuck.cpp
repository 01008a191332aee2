/// \file catalog_stuck.cpp
/// `stuck` names every kind of waiting, with model, replica, shard, version, peer and age; and nothing that
/// moves.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "catalog_driver.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"

using namespace catalog_test;

namespace {

using kind = messages::stuck_kind;
using entries = std::vector<messages::stuck_entry>;

template <typename Driver>
entries stuck(Driver& server, std::chrono::milliseconds older_than = 0ms) {
  const auto reply = server.template ask<messages::stuck_reply>(
      incarnation{9999}, messages::stuck_request{"policy", static_cast<std::uint32_t>(older_than.count())});
  REQUIRE(reply.result.ok());
  CHECK(reply.left_out == 0);
  return reply.entries;
}

/// The only entry.
messages::stuck_entry only(const entries& seen, kind wanted, const std::string& replica) {
  REQUIRE(seen.size() == 1);
  CHECK(seen.front().kind == wanted);
  CHECK(seen.front().model == "policy");
  CHECK(seen.front().replica == replica);
  CHECK_FALSE(seen.front().advice.empty());
  return seen.front();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("stuck: nothing is, among workers that hold and read") {
  driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  CHECK(stuck(server).empty());
  REQUIRE(server.publish(trainer, 1).ok());
  const auto source = server.start_update(reader);
  for (std::uint64_t chunks = 1; chunks <= 30; ++chunks) {  // every heartbeat tells of more
    server.send_as(trainer, 0, messages::heartbeat_request{});
    server.send_as(reader, 0, messages::heartbeat_request{chunks});
    server.pass(400ms);
    CHECK(stuck(server).empty());
  }
  server.finish(reader, source);
  server.pass_alive(3000ms, {trainer, reader});
  CHECK(stuck(server).empty());
}

TEST_CASE("stuck: who waits for a version is named, and how long") {
  driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(trainer, 1).ok());
  SUBCASE("an update") {
    server.update(reader, exactly(7), 60'000ms);
    server.pass_alive(2500ms, {trainer, reader});
    const auto entry = only(stuck(server), kind::no_version, "rollout");
    CHECK(entry.worker == reader);
    CHECK(entry.shard == 0);
    CHECK(entry.version == 7);
    CHECK(entry.operation == server.operation_of(reader));
    CHECK(entry.waited_ms == 2500);
    CHECK(has(entry.advice, "update()"));
    CHECK(has(entry.advice, "exactly 7"));
    CHECK(has(entry.advice, "the latest was 1"));
    CHECK(stuck(server, 2500ms).empty());  // not older than that
    CHECK(stuck(server, 2499ms).size() == 1);
  }
  SUBCASE("a wait") {
    server.send(reader, messages::wait_request{at_least(3), 60'000});
    server.pass_alive(1000ms, {trainer, reader});
    const auto entry = only(stuck(server), kind::no_version, "rollout");
    CHECK(entry.version == 3);
    CHECK(entry.waited_ms == 1000);
    CHECK(has(entry.advice, "wait()"));
  }
  REQUIRE(server.publish(trainer, 7).ok());
  CHECK(stuck(server).empty());
}

TEST_CASE("stuck: of several, the oldest comes first, and other models are left out") {
  driver<> server;
  const incarnation a = server.join(1, "a");
  const incarnation b = server.join(2, "b");
  server.update(b, latest, 60'000ms);
  server.pass_alive(500ms, {a, b});
  server.update(a, latest, 60'000ms);
  server.pass_alive(500ms, {a, b});
  const entries seen = stuck(server);
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].replica == "b");
  CHECK(seen[0].waited_ms == 1000);
  CHECK(seen[1].replica == "a");
  CHECK(seen[1].waited_ms == 500);
  const auto other = server.ask<messages::stuck_reply>({50}, messages::stuck_request{"nobody", 0});
  CHECK(other.result.code == errc::not_found);
  CHECK(server.ask<messages::stuck_reply>({50}, messages::stuck_request{"", 0}).entries.size() == 2);
}

TEST_CASE("stuck: a version that is there, but all its holders are taken") {
  driver<> server{{}, nearest_source{{.most = {.sources = 1, .credits = 1}}}};
  const incarnation trainer = server.join(1, "trainer");
  const incarnation first = server.join(2, "first");
  const incarnation second = server.join(3, "second");
  REQUIRE(server.publish(trainer, 4).ok());
  server.start_update(first);
  server.update(second, latest, 60'000ms);
  server.send_as(first, 0, messages::heartbeat_request{1});
  server.pass_alive(700ms, {trainer, second});
  const entries seen = stuck(server);
  const auto entry = std::ranges::find(seen, kind::no_credit, &messages::stuck_entry::kind);
  REQUIRE(entry != seen.end());
  CHECK(entry->replica == "second");
  CHECK(entry->version == 4);
  CHECK(entry->waited_ms == 700);
  CHECK(entry->peers == "trainer/0 (" + to_hex(trainer) + ")");
}

TEST_CASE("stuck: shards that have not called are named") {
  driver<> server;
  const incarnation trainer_0 = server.join(1, "trainer", {0, 2});
  const incarnation trainer_1 = server.join(2, "trainer", {1, 2});
  const incarnation reader_0 = server.join(3, "rollout", {0, 2});
  const incarnation reader_1 = server.join(4, "rollout", {1, 2});
  const std::vector<incarnation> all{trainer_0, trainer_1, reader_0, reader_1};
  REQUIRE(server.publish(trainer_0, 1).ok());
  server.pass_alive(600ms, all);
  SUBCASE("a publish") {
    const auto entry = only(stuck(server), kind::absent_shards, "trainer");
    CHECK(entry.worker == trainer_0);
    CHECK(entry.version == 1);
    CHECK(entry.waited_ms == 600);
    CHECK(entry.peers == "trainer/1 (" + to_hex(trainer_1) + ")");
    CHECK(has(entry.advice, "published"));
    server.update(reader_0, latest, 60'000ms);
    server.pass_alive(100ms, all);
    const entries seen = stuck(server);
    const auto waits = std::ranges::find(seen, kind::no_version, &messages::stuck_entry::kind);
    REQUIRE(waits != seen.end());
    CHECK(has(waits->advice, "only some shards"));
  }
  SUBCASE("an update") {
    REQUIRE(server.publish(trainer_1, 1).ok());
    CHECK(stuck(server).empty());
    const auto source = server.start_update(reader_0);
    server.pass_alive(800ms, all);
    const auto absent = only(stuck(server), kind::absent_shards, "rollout");
    CHECK(absent.worker == reader_0);
    CHECK(absent.version == 1);
    CHECK(absent.waited_ms == 800);
    CHECK(absent.peers == "rollout/1 (" + to_hex(reader_1) + ")");
    CHECK(has(absent.advice, "update()"));
    // The other one calls, and is slow: now the first waits for its bytes.
    server.start_update(reader_1);
    server.finish(reader_0, source);
    server.pass_alive(300ms, all);
    const auto pending = only(stuck(server), kind::unfinished_group, "rollout");
    CHECK(pending.worker == reader_0);
    CHECK(pending.waited_ms == 300);
    CHECK(pending.peers == "rollout/1 (" + to_hex(reader_1) + ")");
  }
}

TEST_CASE("stuck: a transfer without progress, with its sources") {
  driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(trainer, 5).ok());
  server.start_update(reader);
  server.send_as(reader, 0, messages::heartbeat_request{1});
  for (int i = 0; i < 12; ++i) {  // it lives, and says the same again
    server.send_as(reader, 0, messages::heartbeat_request{1});
    server.send_as(trainer, 0, messages::heartbeat_request{});
    server.pass(100ms);
  }
  const auto entry = only(stuck(server), kind::no_progress, "rollout");
  CHECK(entry.worker == reader);
  CHECK(entry.version == 5);
  CHECK(entry.chunks == 1);
  CHECK(entry.waited_ms == 1200);
  CHECK(entry.peers == "trainer/0 (" + to_hex(trainer) + ")");
  CHECK(has(entry.advice, "received 1 of " + std::to_string(small_layout().chunk_count())));
  server.send_as(reader, 0, messages::heartbeat_request{2});
  CHECK(stuck(server).empty());
}

TEST_CASE("stuck: a drain, with the readers that it waits for") {
  driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(trainer, 1).ok());
  const auto source = server.start_update(reader);
  server.unpublish(trainer, 1);
  server.send_as(reader, 0, messages::heartbeat_request{1});
  server.pass_alive(900ms, {trainer});
  server.send_as(reader, 0, messages::heartbeat_request{2});
  const auto entry = only(stuck(server), kind::draining, "trainer");
  CHECK(entry.worker == trainer);
  CHECK(entry.version == 1);
  CHECK(entry.waited_ms == 900);
  CHECK(entry.peers == "rollout/0 (" + to_hex(reader) + ")");
  CHECK(has(entry.advice, "unpublish()"));
  server.finish(reader, source);
  CHECK(stuck(server).empty());
}

TEST_CASE("stuck: a silent worker, and then a cut-off that its source has not confirmed") {
  driver<> server{{.heartbeat_interval = 200ms, .worker_timeout = 2000ms}};
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(trainer, 1).ok());
  server.start_update(reader);
  server.pass_alive(500ms, {trainer});
  const entries quiet = stuck(server);
  const auto silent = std::ranges::find(quiet, kind::silent_worker, &messages::stuck_entry::kind);
  REQUIRE(silent != quiet.end());
  CHECK(silent->worker == reader);
  CHECK(silent->waited_ms == 500);
  CHECK(has(silent->advice, "2000 ms"));
  server.pass_alive(2500ms, {trainer});  // declared dead
  REQUIRE(server.core.record_of(reader) == nullptr);
  const auto entry = only(stuck(server), kind::cut_off, "trainer");
  CHECK(entry.worker == trainer);
  CHECK(entry.version == 1);
  CHECK(entry.waited_ms > 0);
  CHECK(entry.peers == "rollout/0 (" + to_hex(reader) + ")");
  server.send(trainer, messages::cut_off_done_request{reader});
  CHECK(stuck(server).empty());
}

TEST_CASE("stuck: a reply is bounded, and says what it leaves out") {
  driver<> server;
  std::vector<incarnation> workers;
  for (std::uint64_t i = 1; i <= 300; ++i) workers.push_back(server.join(i, "r" + std::to_string(i)));
  for (const incarnation worker : workers) server.update(worker, latest, 60'000ms);
  server.pass_alive(100ms, workers);
  const auto reply = server.ask<messages::stuck_reply>({9999}, messages::stuck_request{"policy", 0});
  CHECK(reply.entries.size() == 256);
  CHECK(reply.left_out == 44);
}
