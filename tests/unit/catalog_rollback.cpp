/// \file catalog_rollback.cpp
/// A trainer goes back to a checkpoint: what the catalog withdraws, and what may be published again.

#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "catalog_driver.hpp"

using namespace catalog_test;
using namespace tensorhub;

namespace {

/// Version 5 is held by a rollout, version 3 by another; the trainer has taken its own back.
struct rolled {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  incarnation old = server.join(2, "rollout-old");
  incarnation fresh = server.join(3, "rollout-new");

  rolled() {
    REQUIRE(server.publish(trainer, 3).ok());
    server.finish(old, server.start_update(old));
    take_back(3);
    REQUIRE(server.publish(trainer, 5).ok());
    server.finish(fresh, server.start_update(fresh));
    take_back(5);
    server.clear();
  }
  void take_back(version_number version) {
    const auto sequence = server.unpublish(trainer, version);
    REQUIRE(server.answer<messages::drained_reply>(trainer, sequence).has_value());
  }
  messages::status roll_back(version_number to) { return roll_back(trainer, to); }
  messages::status roll_back(incarnation worker, version_number to) {
    return server.ask<messages::status_reply>(worker, messages::retain_request{{}, {}, {}, to}).result;
  }
  /// Other bytes than version 5 had before.
  [[nodiscard]] messages::reference again(std::uint32_t line, std::uint64_t number) const {
    auto out = server.reference(of_line(line, number));
    out.root = {number, 100 + line};
    return out;
  }
  [[nodiscard]] const catalog_detail::model_state& model() const {
    return *server.core.record_of_model("policy");
  }
};

}  // namespace

TEST_CASE("roll back: later versions are withdrawn, and their numbers can be published again") {
  rolled s;
  REQUIRE(s.server.available() == versions{3, 5});
  REQUIRE(s.roll_back(3).ok());
  CHECK(s.server.available() == versions{3});
  CHECK(s.server.entry().latest == 3);
  const auto told = s.server.push<messages::retention_push>(s.fresh);
  REQUIRE(told.has_value());
  CHECK(told->keeps.rollbacks == std::vector<messages::rollback>{{1, 3}});
  SUBCASE("a late reader gets what is left") {
    const auto reader = s.server.join(4, "rollout-late");
    CHECK(s.server.start_update(reader).version == 3);
  }
  SUBCASE("the number is waited for, and published with other bytes") {
    const auto waiting = s.server.update(s.old, exactly(5));
    CHECK_FALSE(s.server.answer<messages::update_reply>(s.old, waiting).has_value());
    REQUIRE(s.server.publish(s.trainer, s.again(1, 5)).ok());
    const auto source = s.server.sources_of(s.old, waiting).front();
    CHECK(source.version == of_line(1, 5));
    CHECK(source.root == digest128{5, 101});
    CHECK(source.source == s.trainer);
    CHECK(s.server.available() == versions{5});  // its own 3 is about to be overwritten
  }
  SUBCASE("the number is published again and taken back: who still has the old bytes has none of it") {
    REQUIRE(s.server.publish(s.trainer, s.again(1, 5)).ok());
    s.take_back(of_line(1, 5));
    REQUIRE(s.server.core.record_of(s.fresh)->held->version == 5);
    for (const incarnation reader : {s.old, s.fresh}) {
      const auto asked = s.server.answer<messages::update_reply>(reader, s.server.update(reader, exactly(5)));
      REQUIRE(asked.has_value());
      CHECK(asked->result.code == errc::unavailable);
    }
  }
  SUBCASE("the holder of the old bytes does not keep them") {
    REQUIRE(s.server.publish(s.trainer, s.again(1, 5)).ok());
    CHECK(s.server.start_update(s.fresh).version == of_line(1, 5));
  }
}

TEST_CASE("roll back: the old version cannot be published any more, and its publisher hears why") {
  rolled s;
  REQUIRE(s.roll_back(3).ok());
  s.server.clear();
  CHECK(s.server.publish(s.trainer, 5).code == errc::version_conflict);
  CHECK(s.server.push<messages::retention_push>(s.trainer).has_value());
  CHECK(s.server.publish(s.trainer, 4).code == errc::version_conflict);
  CHECK(s.server.publish(s.trainer, s.again(1, 3)).code == errc::version_conflict);  // 3 is of line 0
  CHECK(s.server.publish(s.trainer, s.again(1, 4)).ok());
}

TEST_CASE("roll back: updates that read what is withdrawn fail, and say so") {
  rolled s;
  const auto reader = s.server.join(4, "rollout-late");
  const auto source = s.server.start_update(reader);
  REQUIRE(source.version == 5);
  REQUIRE(s.roll_back(3).ok());
  const auto abort = s.server.push<messages::abort_push>(reader);
  REQUIRE(abort.has_value());
  CHECK(abort->reason.code == errc::unavailable);
  CHECK(abort->reason.sentence.find("has rolled the model back") != std::string::npos);
  SUBCASE("it had every chunk when it heard of it") {
    const auto finish = s.server.finish(reader, source);
    const auto told = s.server.answer<messages::status_reply>(reader, finish);
    REQUIRE(told.has_value());
    CHECK(told->result.code == errc::unavailable);
    CHECK(s.server.available() == versions{3});
  }
  SUBCASE("its next call gets what is left") {
    s.server.fail(reader, source, abort->reason, false);
    CHECK(s.server.start_update(reader).version == 3);
  }
  s.server.check_rules();
}

TEST_CASE(
    "roll back: the end of an update that an earlier server decided to a withdrawn version is a failure") {
  rolled s;
  REQUIRE(s.roll_back(3).ok());
  auto join = s.server.join_message("rollout-late");
  join.before.server = {76};
  const incarnation reader{4};
  REQUIRE(s.server.ask<messages::join_reply>(reader, std::move(join)).result.ok());
  const auto told = s.server.ask<messages::status_reply>(
      reader, messages::finish_request{{1}, 5, {}, false, s.server.reference(5), {}});
  CHECK(told.result.code == errc::unavailable);
  CHECK(told.result.sentence.find("has rolled the model back") != std::string::npos);
  CHECK(s.server.available() == versions{3});
}

TEST_CASE("roll back: nothing is withdrawn twice, and a later roll back goes further back") {
  rolled s;
  REQUIRE(s.roll_back(3).ok());
  REQUIRE(s.roll_back(3).ok());
  CHECK(s.model().keeps.rollbacks == std::vector<messages::rollback>{{1, 3}});
  REQUIRE(s.server.publish(s.trainer, s.again(1, 6)).ok());
  CHECK(s.roll_back(3).code == errc::still_published);  // it has published 6 itself
  s.server.finish(s.old, s.server.start_update(s.old));
  s.take_back(of_line(1, 6));
  REQUIRE(s.roll_back(3).ok());
  CHECK(s.model().keeps.rollbacks == std::vector<messages::rollback>{{2, 3}});
  CHECK(s.server.available().empty());
  REQUIRE(s.roll_back(0).ok());  // 3 was there once
  CHECK(s.server.publish(s.trainer, s.again(2, 4)).code == errc::version_conflict);
  CHECK(s.model().keeps.rollbacks == std::vector<messages::rollback>{{3, 0}});
  REQUIRE(s.server.publish(s.trainer, s.again(s.model().keeps.rollbacks.back().line, 1)).ok());
  CHECK(s.server.available() == versions{1});
}

TEST_CASE("roll back: each shard of a trainer may call it, before it publishes again") {
  driver<> server;
  const incarnation first = server.join(1, "trainer", {0, 2});
  const incarnation second = server.join(2, "trainer", {1, 2});
  for (const incarnation shard : {first, second}) REQUIRE(server.publish(shard, 5).ok());
  for (const incarnation shard : {first, second}) server.unpublish(shard, 5);
  const auto roll_back = [&](incarnation shard) {
    return server.ask<messages::status_reply>(shard, messages::retain_request{{}, {}, {}, {3}}).result;
  };
  REQUIRE(roll_back(first).ok());
  REQUIRE(server.publish(first, server.reference(of_line(1, 4))).ok());
  SUBCASE("the second one calls later") {
    REQUIRE(roll_back(second).ok());
    REQUIRE(server.publish(second, server.reference(of_line(1, 4))).ok());
    CHECK(server.available() == versions{4});
  }
  SUBCASE("the first one was restarted after it had published") {
    const incarnation restarted = server.join(3, "trainer", {0, 2});
    REQUIRE(roll_back(restarted).ok());
    auto other = server.reference(of_line(2, 4));
    other.root = {4, 99};
    CHECK(server.publish(restarted, other).ok());
  }
}

TEST_CASE(
    "roll back: a shard that calls late is told what its group was told before, and no more than that") {
  driver<> server;
  const std::vector<incarnation> trainer{server.join(1, "trainer", {0, 2}),
                                         server.join(2, "trainer", {1, 2})};
  const std::vector<incarnation> group{server.join(3, "rollout", {0, 2}), server.join(4, "rollout", {1, 2})};
  for (const incarnation shard : trainer) REQUIRE(server.publish(shard, 5).ok());
  std::vector<messages::assignment> sources;
  for (const incarnation shard : group) sources.push_back(server.start_update(shard));
  for (std::size_t i = 0; i < group.size(); ++i) server.finish(group[i], sources[i]);
  for (const incarnation shard : trainer) server.unpublish(shard, 5);
  const auto kept = [&](incarnation shard) {
    const auto reply = server.answer<messages::update_reply>(shard, server.update(shard));
    return reply.has_value() && reply->result.ok() && reply->keep && reply->version == 5;
  };
  REQUIRE(kept(group[0]));
  const messages::retain_request back{{}, {}, {}, {3}};
  REQUIRE(server.ask<messages::status_reply>(trainer[0], back).result.ok());
  CHECK(kept(group[1]));  // the same call
  CHECK_FALSE(kept(group[0]));
  CHECK_FALSE(kept(group[1]));
}

TEST_CASE("roll back: a retained version that is withdrawn is not kept for anybody") {
  rolled s;
  REQUIRE(
      s.server.ask<messages::status_reply>(s.trainer, messages::retain_request{2, 5, {}, {}}).result.ok());
  REQUIRE(s.server.core.retains("policy", 5));
  SUBCASE("its last holder may let go") {
    REQUIRE(s.roll_back(3).ok());
    CHECK_FALSE(s.server.core.retains("policy", 5));
    CHECK(s.server.core.retains("policy", 3));
    CHECK(s.model().keeps.pinned.empty());
    const auto leaving = s.server.send(s.fresh, messages::unpublish_request{5, 1, {}, true});
    CHECK(s.server.answer<messages::drained_reply>(s.fresh, leaving).has_value());
  }
  SUBCASE("one that waits for a handover goes on") {
    const auto leaving = s.server.send(s.fresh, messages::unpublish_request{5, 1, {}, true});
    REQUIRE_FALSE(s.server.answer<messages::drained_reply>(s.fresh, leaving).has_value());
    REQUIRE(s.roll_back(3).ok());
    const auto drained = s.server.answer<messages::drained_reply>(s.fresh, leaving);
    REQUIRE(drained.has_value());
    CHECK_FALSE(drained->lost);
  }
}

namespace {

/// A server that recovers, and a trainer that has lost its memory, and reads a checkpoint.
struct new_server {
  driver<> after{catalog_options{.recovery_grace = 5000ms}};
  incarnation trainer = after.join(1, "trainer");

  /// From the earlier server.
  void come(std::uint64_t id, version_number held, const messages::retention& keeps) {
    auto join = after.join_message("rollout-" + std::to_string(id));
    join.before.held = after.reference(held);
    join.before.latest = held;
    join.before.keeps = keeps;
    join.before.server = {77};
    REQUIRE(after.ask<messages::join_reply>({id}, join).result.ok());
  }
  [[nodiscard]] messages::status retain(const messages::retain_request& what) {
    return after.ask<messages::status_reply>(trainer, what).result;
  }
  [[nodiscard]] const messages::retention& keeps() const {
    return after.core.record_of_model("policy")->keeps;
  }
};

}  // namespace

TEST_CASE("roll back: a new server hears first of what is to be withdrawn, and of earlier roll backs") {
  rolled s;
  new_server now;
  SUBCASE("what it rolls back is not there yet") {
    const messages::message order = messages::retain_request{{}, {}, {}, version_number{3}};
    const auto sequence = now.after.send(now.trainer, order);
    CHECK_FALSE(now.after.answer<messages::status_reply>(now.trainer, sequence).has_value());
    SUBCASE("and comes") {
      now.come(3, 5, {});
    }
    SUBCASE("and does not come") {
      now.after.pass_alive(5100ms, {now.trainer});
    }
    now.after.send_as(now.trainer, sequence, order);
    REQUIRE(now.after.answer<messages::status_reply>(now.trainer, sequence).has_value());
    CHECK(now.after.available().empty());
  }
  SUBCASE("it retains something before the roll back is known") {
    REQUIRE(s.roll_back(3).ok());
    const messages::retention known = s.model().keeps;
    REQUIRE(now.retain({.keep_latest = 2}).ok());
    now.come(3, 3, known);
    CHECK(now.keeps().rollbacks == known.rollbacks);
    CHECK(now.keeps().keep_latest == 2);
    CHECK(now.after.push<messages::retention_push>(now.trainer).has_value());
  }
}

TEST_CASE("roll back: what a new server is told stays, though a worker knows of later changes than its own") {
  new_server now;
  REQUIRE(now.retain({.keep_latest = 2}).ok());
  now.come(3, 5, {.revision = 7, .keep_latest = 3, .pinned = {4}});
  CHECK(now.keeps().keep_latest == 2);
  CHECK(now.keeps().pinned == std::vector<version_number>{4});
  CHECK(now.keeps().revision > 7);
  REQUIRE(now.retain({{}, {}, {}, version_number{3}}).ok());
  const auto rollbacks = now.keeps().rollbacks;
  CHECK(rollbacks.size() == 1);
  CHECK(now.after.available().empty());
  messages::reference again = now.after.reference(4);
  again.version.line = rollbacks.back().line;
  REQUIRE(now.after.publish(now.trainer, again).ok());
  now.come(4, 5, {.revision = 99, .keep_latest = 3});
  CHECK(now.keeps().rollbacks == rollbacks);
  CHECK(now.keeps().revision > 99);
  CHECK(now.after.available() == versions{4});
}

TEST_CASE(
    "roll back: a new server that has repeated a roll back begins no further line when it hears of the "
    "first") {
  new_server now;
  now.come(3, 5, {});
  REQUIRE(now.retain({{}, {}, {}, version_number{3}}).ok());
  const auto rollbacks = now.keeps().rollbacks;
  messages::reference again = now.after.reference(4);
  again.version.line = rollbacks.back().line;
  REQUIRE(now.after.publish(now.trainer, again).ok());
  now.come(4, 3, {.revision = 2, .rollbacks = rollbacks});
  CHECK(now.keeps().rollbacks == rollbacks);
  CHECK(now.after.available() == versions{3, 4});
}

TEST_CASE("roll back: of what two workers tell a new server, the later change counts, beneath its own") {
  new_server now;
  REQUIRE(now.retain({.keep_latest = 2}).ok());
  now.come(3, 5, {.revision = 7, .pinned = {4}});
  now.come(4, 5, {.revision = 8, .pinned = {4, 5}});
  CHECK(now.keeps().pinned.size() == 2);
  CHECK(now.keeps().keep_latest == 2);
  CHECK(now.keeps().revision > 8);
}

TEST_CASE("roll back: the other shards of a trainer that recovers with the server say it, too") {
  new_server now;
  now.come(3, 5, {});
  const messages::retain_request order{{}, {}, {}, version_number{3}};
  REQUIRE(now.retain(order).ok());
  const incarnation other = now.after.join(9, "trainer-of-the-next-shard");
  CHECK(now.after.ask<messages::status_reply>(other, order).result.ok());
}

TEST_CASE("roll back: a new server hears of it, in whatever order its workers come back") {
  rolled s;
  REQUIRE(s.roll_back(3).ok());
  const messages::retention known = s.model().keeps;
  driver<> after{catalog_options{.recovery_grace = 5000ms}};
  const auto come = [&](std::uint64_t id, const std::string& replica, const messages::reference& held,
                        const messages::retention& keeps) {
    auto join = after.join_message(replica);
    join.before.held = held;
    join.before.latest = held.version;
    join.before.keeps = keeps;
    join.before.server = {77};
    REQUIRE(after.ask<messages::join_reply>({id}, join).result.ok());
    return incarnation{id};
  };
  SUBCASE("the one that does not know it first") {
    const auto stale = come(3, "rollout-new", after.reference(5), {});
    CHECK(after.available() == versions{5});
    come(2, "rollout-old", after.reference(3), known);
    CHECK(after.push<messages::retention_push>(stale).has_value());
  }
  SUBCASE("the one that knows it first") {
    come(2, "rollout-old", after.reference(3), known);
    const auto stale = come(3, "rollout-new", after.reference(5), {});
    CHECK(after.push<messages::retention_push>(stale).has_value());
  }
  SUBCASE("a holder of the new line") {
    come(3, "rollout-new", s.again(1, 5), known);
    come(2, "rollout-old", after.reference(3), {});
    CHECK(after.available() == versions{3, 5});
    return;
  }
  CHECK(after.available() == versions{3});
  CHECK(after.entry().latest == 3);
}

TEST_CASE("roll back: a server that was not told of a line begins one after it") {
  driver<> after{catalog_options{.recovery_grace = 5000ms}};
  auto join = after.join_message("trainer");
  join.before.latest = of_line(4, 7);
  join.before.server = {77};
  REQUIRE(after.ask<messages::join_reply>({1}, join).result.ok());
  const incarnation trainer{1};
  after.pass_alive(5100ms, {trainer});
  after.clear();
  const auto roll_back = messages::retain_request{{}, {}, {}, {7}};
  REQUIRE(after.ask<messages::status_reply>(trainer, roll_back).result.ok());
  const auto told = after.push<messages::retention_push>(trainer);
  REQUIRE(told.has_value());
  CHECK(told->keeps.rollbacks.front().line > 0);
  CHECK(after.publish(trainer, after.reference(of_line(told->keeps.rollbacks.front().line, 8))).ok());
}

TEST_CASE("roll back: a late joiner withdraws nothing from a server that has workers") {
  rolled s;
  s.server.pass_alive(60s, {s.trainer, s.old, s.fresh});
  auto join = s.server.join_message("rollout-liar");
  join.before.keeps = {9, 0, {}, {{1, 0}}};
  REQUIRE(s.server.ask<messages::join_reply>({9}, join).result.ok());
  CHECK(s.server.available() == versions{3, 5});
}

TEST_CASE("roll back: how often a model is rolled back to ever later versions is bounded") {
  rolled s;
  std::uint32_t line = 0;
  for (; line < limits::rollbacks; ++line) {
    REQUIRE(s.roll_back(5 + 2 * line).ok());
    REQUIRE(s.server.publish(s.trainer, s.again(line, 6 + 2 * line)).ok());
    s.take_back(of_line(line, 6 + 2 * line));
    s.server.acknowledge(s.trainer, s.server.last_sequence(s.trainer));
    REQUIRE(s.roll_back(5 + 2 * line).ok());
  }
  CHECK(s.model().keeps.rollbacks.size() == limits::rollbacks);
  REQUIRE(s.server.publish(s.trainer, s.again(line, 2000)).ok());
  s.take_back(of_line(line, 2000));
  CHECK(s.roll_back(1999).code == errc::limit_exceeded);
  CHECK(s.roll_back(3).ok());
}
