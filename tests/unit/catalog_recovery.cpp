/// \file catalog_recovery.cpp
/// A server that follows another one: what it decides before everybody has had time to come back.

#include <utility>

#include "catalog_driver.hpp"
#include "support/catalog_of.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"

using namespace catalog_test;

namespace {

/// A worker of the server before: its calls, what it holds, and what it had heard.
template <typename Server>
incarnation come_back(Server& server, std::uint64_t id, const std::string& replica, version_number held,
                      version_number latest_heard, std::uint32_t workers_counted) {
  const incarnation worker{id};
  auto join = server.join_message(replica);
  if (held) join.before.held = server.reference(held);
  join.before.latest = latest_heard;
  join.before.peers = workers_counted;
  REQUIRE(server.template ask<messages::join_reply>(worker, std::move(join)).result.ok());
  return worker;
}

}  // namespace

TEST_CASE("recovery: latest waits for who holds it, also if the count says that everybody is back") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  // Three workers there were, but the one who joined last has been counted by no heartbeat.
  come_back(server, 11, "rollout-0", 1, 2, 2);
  const incarnation reader = come_back(server, 12, "rollout-1", {}, 2, 0);
  const auto asked = server.update(reader, latest, 30000ms);
  CHECK_FALSE(server.answer<messages::update_reply>(reader, asked).has_value());  // not 1
  SUBCASE("who comes") {
    come_back(server, 13, "trainer", 2, 2, 2);
    CHECK(server.sources_of(reader, asked).front().version == version_number{2});
  }
  SUBCASE("whose time is over before that hears why") {
    const incarnation other = come_back(server, 13, "rollout-2", {}, 2, 0);
    const auto hasty = server.update(other, exactly(2), 300ms);
    server.pass_alive(400ms, {incarnation{11}, reader, other});
    const auto reply = server.answer<messages::update_reply>(other, hasty);
    REQUIRE(reply.has_value());
    CHECK(
        reply->result.sentence.find("this server has just begun, and not all workers have told it what they "
                                    "hold") != std::string::npos);
  }
  SUBCASE("who has gone: then it is what there is, after the grace") {
    server.pass_alive(4900ms, {incarnation{11}, reader});
    CHECK_FALSE(server.answer<messages::update_reply>(reader, asked).has_value());
    server.pass_alive(200ms, {incarnation{11}, reader});
    CHECK(server.sources_of(reader, asked).front().version == version_number{1});
  }
  SUBCASE("or somebody publishes a newer one") {
    const incarnation trainer = come_back(server, 13, "trainer", {}, 2, 2);
    CHECK_FALSE(server.answer<messages::update_reply>(reader, asked).has_value());
    REQUIRE(server.publish(trainer, 3).ok());
    CHECK(server.sources_of(reader, asked).front().version == version_number{3});
  }
}

TEST_CASE("recovery: who was never here before is not counted as back") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  come_back(server, 13, "trainer", 2, 2, 3);
  come_back(server, 12, "rollout-1", {}, 2, 3);
  const incarnation fresh = server.join(14, "rollout-2");
  const auto asked = server.update(fresh, exactly(1), 30000ms);
  CHECK_FALSE(server.answer<messages::update_reply>(fresh, asked).has_value());  // not "no longer held"
  come_back(server, 11, "rollout-0", 1, 2, 3);
  CHECK(server.sources_of(fresh, asked).front().version == version_number{1});
}

TEST_CASE("recovery: with the latest there and everybody counted it is over at once") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  come_back(server, 13, "trainer", 2, 2, 2);
  const incarnation reader = come_back(server, 12, "rollout-1", {}, 2, 2);
  CHECK(server.start_update(reader).version == version_number{2});
}

TEST_CASE("recovery: a shard that is back lets nothing go that the other shard may hold too") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto shard_back = [&](std::uint64_t id, const std::string& replica, std::uint32_t shard,
                              version_number held) {
    auto join = server.join_message(replica, {shard, 2});
    join.before.held = server.reference(held);
    join.before.latest = version_number{2};
    join.before.peers = 3;  // there were four, but one of them was counted by no heartbeat
    join.before.keeps = {1, 0, {version_number{1}}};
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  shard_back(1, "trainer", 0, 2);
  shard_back(2, "trainer", 1, 2);
  const incarnation back = shard_back(3, "rollout", 0, 1);  // of the pinned version 1
  const auto asked = server.update(back, exactly(2), 30000ms);
  CHECK_FALSE(server.answer<messages::update_reply>(back, asked).has_value());
  CHECK_FALSE(server.core.record_of(back)->is_overwritten());
  SUBCASE("the other comes: the version is handed over first") {
    const incarnation other = shard_back(4, "rollout", 1, 1);
    CHECK_FALSE(server.answer<messages::update_reply>(back, asked).has_value());
    CHECK(server.push<messages::offload_push>(other).has_value());
    CHECK(server.available() == versions{1, 2});
  }
  SUBCASE("it does not: what is left is of no use after the grace") {
    server.pass_alive(5100ms, {{1}, {2}, back});
    CHECK(server.sources_of(back, asked).front().version == version_number{2});
  }
}

TEST_CASE(
    "recovery: a shard that waits to let go, as the other may hold its version too, goes on when it does "
    "not") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto shard_back = [&](std::uint64_t id, const std::string& replica, std::uint32_t shard,
                              version_number held) {
    auto join = server.join_message(replica, {shard, 2});
    join.before.held = server.reference(held);
    join.before.latest = version_number{2};
    join.before.peers = 3;
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  shard_back(1, "trainer", 0, 2);
  shard_back(2, "trainer", 1, 2);
  const incarnation back = shard_back(3, "rollout", 0, 1);
  const auto unpublish = server.unpublish(back, 1);
  CHECK_FALSE(server.answer<messages::drained_reply>(back, unpublish).has_value());
  server.join(4, "rollout", {1, 2});  // a new process in the place of the other one
  CHECK(server.answer<messages::drained_reply>(back, unpublish).has_value());
}

TEST_CASE("recovery: shards that come back with different versions of one update do not both succeed") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto finish_for = [](driver<>& with, incarnation worker, version_number version) {
    return with.send(worker, messages::finish_request{{1}, version, {}, false, with.reference(version), {}});
  };
  const auto in_the_middle = [&](std::uint64_t id, std::uint32_t shard, version_number version) {
    auto join = server.join_message("rollout", {shard, 2});
    join.before.latest = version_number{2};
    join.before.held = server.reference(version);
    join.before.decided = version;
    join.before.peers = 5;  // the grace is not over: nothing new is decided
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  const incarnation first = in_the_middle(3, 0, 1);
  const incarnation second = in_the_middle(4, 1, 2);  // of a server that was deposed
  const auto one = finish_for(server, first, 1);
  const auto two = finish_for(server, second, 2);
  const auto of_two = server.answer<messages::status_reply>(second, two);
  REQUIRE(of_two.has_value());
  CHECK_FALSE(of_two->result.ok());
  const auto of_one = server.answer<messages::status_reply>(first, one);
  REQUIRE(of_one.has_value());
  CHECK_FALSE(of_one->result.ok());
  CHECK(server.entry("rollout").torn);
}

TEST_CASE("recovery: a call that an earlier server has answered is not made again by a late copy of it") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  come_back(server, 13, "trainer", 2, 2, 2);
  const incarnation reader{12};
  auto join = server.join_message("rollout");
  join.before.operation = {2};
  join.before.held = server.reference(1);
  join.before.latest = version_number{2};
  join.before.peers = 2;
  server.send_as(reader, 9, std::move(join), 8);  // up to request 8 everything was answered
  messages::update_request call;
  call.operation = {2};
  call.selector = latest;
  call.timeout_ms = 1000;
  server.send_as(reader, 7, call);
  CHECK_FALSE(server.answer<messages::update_reply>(reader, 7).has_value());
  call.operation = {3};
  server.send_as(reader, 10, call, 9);
  CHECK(server.sources_of(reader, 10).front().version == version_number{2});
}

TEST_CASE("recovery: a late copy of a worker's first join does not hide what it says when it comes back") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const incarnation worker{12};
  auto back = server.join_message("rollout");
  back.before.server = server_epoch{76};
  back.before.operation = {4};
  back.before.held = server.reference(1);
  back.before.latest = version_number{1};
  back.before.peers = 1;
  const auto tensors = std::exchange(back.form.tensors, {});
  server.send_as(worker, 9, back, 8);
  const auto asked = server.answer<messages::join_reply>(worker, 9);
  REQUIRE(asked.has_value());
  CHECK(asked->wants_layout);
  // An earlier server has answered this one.
  server.send_as(worker, 1, server.join_message("rollout"));
  CHECK(server.core.knows(worker));
  back.form.tensors = tensors;
  server.send_as(worker, 10, back, 9);
  REQUIRE(server.core.record_of(worker)->held.has_value());
  CHECK(server.core.record_of(worker)->held->version == version_number{1});
  CHECK(server.available() == versions{1});
  messages::update_request call;
  call.operation = {5};
  call.selector = exactly(1);
  call.timeout_ms = 1000;
  server.send_as(worker, 11, call, 10);
  const auto kept = server.answer<messages::update_reply>(worker, 11);
  REQUIRE(kept.has_value());
  CHECK(kept->keep);
  SUBCASE("only once: the same join, still later, brings back nothing") {
    server.send_as(worker, 12, messages::unpublish_request{1, 1, {}}, 11);
    CHECK_FALSE(server.core.record_of(worker)->held.has_value());
    server.send_as(worker, 10, back, 9);
    CHECK_FALSE(server.core.record_of(worker)->held.has_value());
  }
}

TEST_CASE("recovery: an update that has failed overwrites nothing any more") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto join_as = [&](std::uint64_t id, const std::string& replica, std::uint32_t shard,
                           version_number held, bool in_an_update) {
    auto join = server.join_message(replica, {shard, 2});
    join.before.held = server.reference(held);
    join.before.operation = {7};
    join.before.latest = version_number{2};
    join.before.peers = 4;
    if (in_an_update) join.before.decided = version_number{2};
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  join_as(1, "trainer", 0, 2, false);
  join_as(2, "trainer", 1, 2, false);
  const incarnation first{3};
  const messages::status cancelled{errc::cancelled, "no"};
  incarnation second{4};
  SUBCASE("of who gives up before it has heard of it here") {
    join_as(3, "rollout", 0, 1, false);
    second = join_as(4, "rollout", 1, 1, false);
    auto call = server.update_message(first);
    call.operation = {8};
    server.send(first, call);
    CHECK(server.core.record_of(second)->is_overwritten());
    server.send(second, messages::finish_request{{8}, 2, cancelled, true, {}, {}});
    CHECK_FALSE(server.core.record_of(second)->is_overwritten());
    server.send(first, messages::finish_request{{8}, 2, cancelled, true, {}, {}});
  }
  SUBCASE("of who asks for its readers' end when the other has given up") {
    join_as(3, "rollout", 0, 1, true);
    server.send(first, messages::finish_request{{8}, 2, cancelled, true, {}, {}});
    second = join_as(4, "rollout", 1, 1, true);
    const auto drained =
        server.ask<messages::drained_reply>(second, messages::unpublish_request{1, 1, {8}, false});
    CHECK_FALSE(drained.result.ok());
  }
  server.send(second, messages::finish_request{{8}, 2, cancelled, true, {}, {}});
  CHECK_FALSE(server.core.record_of(first)->is_overwritten());
  CHECK_FALSE(server.core.record_of(second)->is_overwritten());
  CHECK(server.entry("rollout").version == 1);
}

TEST_CASE(
    "recovery: a call that has failed at an earlier server is no success here with what its shard has kept") {
  for (const bool ended_well : {true, false}) {
    CAPTURE(ended_well);
    driver<> server{};
    const auto back = [&](std::uint64_t id, std::uint32_t shard, std::uint64_t calls) {
      auto join = server.join_message("rollout", {shard, 2});
      join.before.server = server_epoch{76};
      join.before.operation = {calls};
      join.before.ended_well = ended_well;
      join.before.held = server.reference(1);
      join.before.latest = version_number{1};
      REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
      return incarnation{id};
    };
    back(3, 0, 4);
    const incarnation other = back(4, 1, 3);
    auto call = server.update_message(other);
    call.operation = {4};
    const auto reply = server.ask<messages::update_reply>(other, call);
    CHECK(reply.keep == ended_well);
    CHECK(reply.result.code == (ended_well ? errc{} : errc::group_failed));
  }
}

TEST_CASE("recovery: whose question waits hears that the server lives, or would turn to another one") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const incarnation stranger{90};
  const auto hears = [&](messages::message question) {
    const auto sequence = server.send(stranger, std::move(question));
    CHECK_FALSE(server.result_of(stranger, sequence).has_value());
    const auto word = server.push<messages::version_push>(stranger);
    return word.has_value() && !word->version;
  };
  CHECK(hears(messages::list_request{"unknown"}));
  CHECK(hears(messages::describe_request{"unknown", 0}));
  CHECK(hears(messages::why_request{"unknown", "rollout-0", 0}));
  CHECK(hears(messages::stuck_request{"unknown", 0}));
  CHECK(hears(messages::manage_request{messages::manage_kind::evict, "unknown", "rollout-0", {}}));
}

TEST_CASE("recovery: who asks for a model by its name is not told of less than there is") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  client_identity reader;
  reader.key = "r";
  reader.rules = std::make_shared<client_rules>(client_rules_of("rollouts may=read,serve"));
  const auto back = [&](std::uint64_t id, std::uint32_t shard) {
    server.clients[{id}] = reader;
    auto join = server.join_message("rollout", {shard, 2});
    join.before.held = server.reference(7);
    join.before.latest = version_number{7};
    join.before.peers = 2;
    join.before.server = {55};
    REQUIRE(server.ask<messages::join_reply>({id}, std::move(join)).result.ok());
  };
  const incarnation asker{90};
  const auto list = server.send(asker, messages::list_request{"policy"});
  back(11, 0);
  CHECK_FALSE(server.answer<messages::list_reply>(asker, list).has_value());
  SUBCASE("when the version is there again") {
    back(12, 1);
    const auto told = server.answer<messages::list_reply>(asker, list);
    REQUIRE(told.has_value());
    CHECK(told->models.front().latest == 7);
  }
  SUBCASE("when nobody else is awaited any more") {
    server.pass_alive(5001ms, {incarnation{11}});
    const auto told = server.answer<messages::list_reply>(asker, list);
    REQUIRE(told.has_value());
    CHECK(told->models.front().available.empty());
  }
}

TEST_CASE("recovery: a join that waits for what another worker is asked hears that the server lives") {
  driver<> server;
  const auto join = [&](std::uint64_t id, const std::string& replica) {
    auto message = server.join_message(replica);
    message.form.tensors.clear();
    server.send({id}, std::move(message));
    return server.waiting_messages({id});
  };
  for (std::uint64_t id = 1; id <= 20; ++id) CHECK(join(id, "rollout-" + std::to_string(id)) == 1);
}

TEST_CASE("recovery: a copy is not dropped for a replica that waits to let go of the same version") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const auto back = [&](std::uint64_t id, const std::string& replica, bool is_copy) {
    auto join = server.join_message(replica);
    join.before.held = server.reference(1);
    join.before.latest = version_number{1};
    join.before.keeps = {1, 1, {}};
    join.temporary = is_copy;
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  const incarnation copy = back(1, "rollout-1~1", true);
  const incarnation holder = back(2, "rollout-2", false);
  const auto unpublish = server.unpublish(holder, 1);
  CHECK_FALSE(server.answer<messages::drained_reply>(holder, unpublish).has_value());
  server.pass_alive(1500ms, {copy, holder});
  CHECK(server.answer<messages::drained_reply>(holder, unpublish).has_value());
  CHECK_FALSE(server.push<messages::drop_push>(copy).has_value());
  CHECK(server.available() == versions{1});
}

TEST_CASE("recovery: a shard may publish the version that another one has published to an earlier server") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  come_back(server, 11, "rollout-0", {}, 5, 2);
  const incarnation trainer = come_back(server, 13, "trainer", {}, 4, 2);
  CHECK(server.publish(trainer, 4).code == errc::version_conflict);
  CHECK(server.publish(trainer, 5).ok());
}

TEST_CASE("recovery: before an earlier server has been heard of, nothing is said to be gone") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const incarnation trainer = server.join(13, "trainer");
  const incarnation fresh = server.join(14, "rollout-1");
  REQUIRE(server.publish(trainer, 5).ok());
  const auto asked = server.update(fresh, exactly(3), 30000ms);
  CHECK_FALSE(server.answer<messages::update_reply>(fresh, asked).has_value());
  SUBCASE("it is not") {
    come_back(server, 11, "rollout-0", 3, 3, 1);
    CHECK(server.sources_of(fresh, asked).front().version == version_number{3});
  }
  SUBCASE("it is, after the grace") {
    server.pass_alive(1100ms, {trainer, fresh});
    const auto reply = server.answer<messages::update_reply>(fresh, asked);
    REQUIRE(reply.has_value());
    CHECK(reply->result.code == errc::unavailable);
  }
}

TEST_CASE(
    "recovery: what an earlier server may have let others read is revoked, also of a publish in flight") {
  for (const std::uint64_t calls_before : {0ull, 3ull}) {
    CAPTURE(calls_before);
    driver<> server{catalog_options{.recovery_grace = 1000ms}};
    const incarnation trainer{13};
    auto join = server.join_message("trainer");
    join.before.operation = {calls_before};
    REQUIRE(server.ask<messages::join_reply>(trainer, std::move(join)).result.ok());
    const auto reply = server.ask<messages::status_reply>(
        trainer, messages::publish_request{{calls_before + 1}, server.reference(4)});
    REQUIRE(reply.result.ok());
    const auto unpublish = server.unpublish(trainer, 4);
    server.pass_alive(1100ms, {trainer});
    const auto drained = server.answer<messages::drained_reply>(trainer, unpublish);
    REQUIRE(drained.has_value());
    CHECK(drained->revoke);
  }
}

TEST_CASE("recovery: what an earlier server may have let others read is revoked before it is overwritten") {
  driver<> server{};
  const incarnation reader = come_back(server, 12, "rollout", 1, 1, 2);
  const incarnation trainer = come_back(server, 13, "trainer", {}, 1, 2);
  REQUIRE(server.publish(trainer, 2).ok());
  const auto source = server.start_update(reader);
  CHECK_FALSE(source.drained);
  const auto drain = server.send(reader, messages::unpublish_request{1, 1, source.operation});
  const auto drained = server.answer<messages::drained_reply>(reader, drain);
  REQUIRE(drained.has_value());
  CHECK(drained->revoke);
  server.finish(reader, source);
  server.unpublish(trainer, 2);
  REQUIRE(server.publish(trainer, 3).ok());
  CHECK(server.start_update(reader).drained);
}

TEST_CASE(
    "recovery: shards that count differently after a fail-over are brought in step by what they publish") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const auto publish = [&](incarnation worker, std::uint64_t counted, version_number version) {
    return server.ask<messages::status_reply>(
        worker, messages::publish_request{{counted}, server.reference(version)});
  };
  const incarnation fresh = server.join(1, "trainer", {0, 2});  // in the place of one that has gone
  CHECK(publish(fresh, 0, 2).result.ok());
  auto join = server.join_message("trainer", {1, 2});
  join.before.operation = {1};  // of version 1
  const incarnation old{2};
  REQUIRE(server.ask<messages::join_reply>(old, std::move(join)).result.ok());
  CHECK(publish(old, 2, 2).result.ok());
  CHECK(server.available() == versions{2});
  const auto third = publish(fresh, 2, 3);
  CHECK_MESSAGE(third.result.ok(), third.result.sentence);
  CHECK(publish(old, 3, 3).operation == third.operation);
  CHECK(server.available() == versions{3});
}

TEST_CASE("recovery: the number of a call that failed with an earlier server is not given again") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const incarnation fresh = server.join(1, "rollout", {0, 2});
  auto join = server.join_message("rollout", {1, 2});
  const incarnation old{2};
  REQUIRE(server.ask<messages::join_reply>(old, std::move(join)).result.ok());
  const messages::status cancelled{errc::cancelled, "no"};
  server.send(old, messages::finish_request{{1}, 2, cancelled, true, {}, {}});
  auto call = server.update_message(fresh);
  call.operation = {};  // it has heard of no number yet
  static_cast<void>(server.send(fresh, call));
  const auto* record = server.core.record_of(fresh);
  REQUIRE(record->replica->operations.size() == 1);
  CHECK(record->replica->operations.begin()->second.counter == operation_counter{2});
}

TEST_CASE("recovery: a shard's version is not lost because the other shards are late, also after the grace") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const auto come_back_as = [&](std::uint64_t id, std::uint32_t shard, std::uint64_t ended) {
    auto join = server.join_message("rollout", {shard, 2});
    join.before.held = server.reference(1);
    join.before.operation = {ended};
    join.before.server = {76};
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  const auto ask_as = [&](incarnation worker, version_number version) {
    messages::update_request call;
    call.operation = {8};
    call.selector = exactly(version);
    call.timeout_ms = 10'000;
    return server.send(worker, call);
  };
  const incarnation early = come_back_as(3, 0, 7);
  SUBCASE("of the version that it holds") {
    const auto asked = ask_as(early, 1);
    server.pass_alive(1200ms, {early});
    CHECK_FALSE(server.answer<messages::update_reply>(early, asked).has_value());
    come_back_as(4, 1, 8);  // was told to keep it
    const auto reply = server.answer<messages::update_reply>(early, asked);
    REQUIRE(reply.has_value());
    CHECK(reply->result.ok());
    CHECK(reply->keep);
  }
  SUBCASE("of another one it is said") {
    const auto asked = ask_as(early, 2);
    REQUIRE(server.publish(server.join(5, "trainer", {0, 2}), 3).ok());
    REQUIRE(server.publish(server.join(6, "trainer", {1, 2}), 3).ok());
    server.pass_alive(1200ms, {early, {5}, {6}});
    const auto reply = server.answer<messages::update_reply>(early, asked);
    REQUIRE(reply.has_value());
    CHECK(reply->result.code == errc::unavailable);
  }
}

// ---- verdicts of an earlier server that their workers have not heard of

TEST_CASE("recovery: who was declared dead by an earlier server, and was not told, joins anew") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const incarnation reader{12};
  const incarnation source{13};
  const auto join_source = [&](std::vector<incarnation> barred) {
    auto join = server.join_message("trainer");
    join.before.held = server.reference(2);
    join.before.latest = version_number{2};
    join.before.server = {76};
    join.before.peers = 1;
    join.before.barred = std::move(barred);
    REQUIRE(server.ask<messages::join_reply>(source, std::move(join)).result.ok());
  };
  const auto join_reader = [&](server_epoch before) {
    auto join = server.join_message("rollout");
    join.before.server = before;
    REQUIRE(server.ask<messages::join_reply>(reader, std::move(join)).result.ok());
  };
  const auto expect_verdict = [&](const messages::assignment& from) {
    const auto reply = server.lose_source(reader, from);
    CHECK(reply.result.code == errc::replaced);
    CHECK_FALSE(server.core.knows(reader));
    const auto goodbye = server.push<messages::goodbye_push>(reader);
    REQUIRE(goodbye.has_value());
    CHECK_FALSE(goodbye->rejoin);
    CHECK(goodbye->reason.code == errc::disconnected);
    CHECK(server.leases_on(source) == 0);
  };
  SUBCASE("the source's join tells of it") {
    SUBCASE("after the reader's") {
      join_reader(server_epoch{76});
      join_source({{99}, reader});
    }
    SUBCASE("before the reader's") {
      join_source({{99}, reader});
      join_reader(server_epoch{76});
    }
    const auto from = server.start_update(reader);
    CHECK(server.core.knows(reader));  // the source's word alone condemns nobody
    expect_verdict(from);
  }
  SUBCASE("the source's late report tells of it") {
    join_source({});
    join_reader(server_epoch{76});
    server.send(source, messages::cut_off_done_request{reader});
    expect_verdict(server.start_update(reader));
  }
  SUBCASE("a source that lies: of who has joined this server first that cannot be true") {
    join_source({reader});
    join_reader({});
    const auto from = server.start_update(reader);
    CHECK(server.lose_source(reader, from).result.ok());
    CHECK(server.core.knows(reader));
  }
  SUBCASE("the last few of many are remembered") {
    std::vector<incarnation> many{reader};
    for (std::uint64_t id = 0; id < limits::barred_readers; ++id) many.push_back({1000 + id});
    join_source(many);
    join_reader(server_epoch{76});
    CHECK(server.core.record_of(source)->past.barred.size() == limits::barred_readers);
    CHECK(server.lose_source(reader, server.start_update(reader)).result.ok());
  }
}

TEST_CASE("recovery: a shard that waits for its group is answered when the last one says that it has ended") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto back = [&](incarnation worker, std::uint32_t shard, operation_counter ended) {
    auto join = server.join_message("rollout", {shard, 2});
    join.before.server = {76};
    join.before.operation = ended;
    join.before.held = server.reference(1);
    if (!ended.value) join.before.decided = 1;
    REQUIRE(server.ask<messages::join_reply>(worker, std::move(join)).result.ok());
  };
  const incarnation waits{12};
  back(waits, 0, {});
  const auto finish =
      server.send(waits, messages::finish_request{{1}, 1, {}, false, server.reference(1), {}});
  CHECK_FALSE(server.answer<messages::status_reply>(waits, finish).has_value());
  back({13}, 1, {1});
  const auto reply = server.answer<messages::status_reply>(waits, finish);
  REQUIRE(reply.has_value());
  CHECK(reply->result.ok());
  CHECK(server.available() == versions{1});
}

TEST_CASE("recovery: a report that ends an update is answered as one, also where its shard was to keep") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto back = [&](std::uint64_t id, std::uint32_t shard) {
    auto join = server.join_message("rollout", {shard, 2});
    join.before.held = server.reference(1);  // all has been received, and the end not been reported yet
    join.before.latest = version_number{1};
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  const auto finish = [&](incarnation worker) {
    return server.send(worker, messages::finish_request{{1}, 1, {}, false, server.reference(1), {}});
  };
  const incarnation first = back(3, 0);
  const auto report_of_first = finish(first);
  const incarnation second = back(4, 1);  // holds what the first one's report says was decided
  const auto report_of_second = finish(second);
  for (const auto& [worker, report] : {std::pair{first, report_of_first}, {second, report_of_second}}) {
    CHECK_FALSE(server.answer<messages::update_reply>(worker, report).has_value());
    const auto reply = server.answer<messages::status_reply>(worker, report);
    REQUIRE(reply.has_value());
    CHECK(reply->result.ok());
  }
}

TEST_CASE("recovery: of what was reserved for a shard that an earlier server had answered nothing is left") {
  driver<> server{};
  for (const std::uint32_t shard : {0u, 1u}) {
    const incarnation trainer = server.join(1 + shard, "trainer", {shard, 2});
    REQUIRE(server.publish(trainer, 1).ok());
  }
  const incarnation first = server.join(3, "rollout", {0, 2});
  const auto source = server.start_update(first);
  CHECK(server.leases_on({2}) == 1);
  bool holds = false;
  SUBCASE("it reports the end") {}
  SUBCASE("it holds the version, and says so when it joins") {
    holds = true;
  }
  auto join = server.join_message("rollout", {1, 2});
  join.before.server = {76};
  if (holds) join.before.held = server.reference(1);
  REQUIRE(server.ask<messages::join_reply>({4}, std::move(join)).result.ok());
  CHECK(server.leases_on({2}) == (holds ? 0 : 1));
  if (holds)
    server.update({4});
  else
    server.send({4}, messages::finish_request{source.operation, 1, {}, false, server.reference(1), {}});
  server.finish(first, source);
  CHECK(server.available() == versions{1});
  CHECK(server.leases_on({2}) == 0);
}

TEST_CASE("recovery: leases of an earlier server are believed in the grace only") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const incarnation trainer{1};
  const incarnation reader{2};
  const auto join_trainer = [&] {
    auto join = server.join_message("trainer");
    join.before.held = server.reference(7);
    join.before.server = {76};
    REQUIRE(server.ask<messages::join_reply>(trainer, std::move(join)).result.ok());
  };
  const auto join_reader = [&] {
    auto join = server.join_message("rollout");
    join.before.server = {76};
    join.before.operation = {2};
    join.before.decided = 7;
    messages::assignment before;
    before.operation = {3};
    before.lease = {41};
    before.version = 7;
    before.source = trainer;
    join.before.reading = {before};
    REQUIRE(server.ask<messages::join_reply>(reader, std::move(join)).result.ok());
    return before;
  };
  join_trainer();
  SUBCASE("in the grace: a drain waits for them") {
    const auto reading = join_reader();
    server.pass_alive(1100ms, {trainer, reader});
    const auto asked = server.unpublish(trainer, 7);
    CHECK_FALSE(server.answer<messages::drained_reply>(trainer, asked).has_value());
    server.finish(reader, reading);
    CHECK(server.answer<messages::drained_reply>(trainer, asked).has_value());
  }
  SUBCASE("afterwards: whoever reads all the same is stopped by the end of the old keys") {
    server.pass_alive(1100ms, {trainer});
    const auto reading = join_reader();
    CHECK(server.leases_on(trainer) == 0);
    CHECK(server.core.record_of(reader)->is_overwritten());
    const auto asked = server.unpublish(trainer, 7);
    const auto drained = server.answer<messages::drained_reply>(trainer, asked);
    REQUIRE(drained.has_value());
    CHECK(drained->revoke);
    server.finish(reader, reading);
    REQUIRE(server.core.record_of(reader)->held.has_value());
  }
}

TEST_CASE("recovery: workers are not told a count while some may be on their way") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto counted_by = [&](incarnation worker) {
    server.clear();
    server.send_as(worker, 0, messages::heartbeat_request{});
    const auto beat = server.push<messages::heartbeat_reply>(worker);
    REQUIRE(beat.has_value());
    return beat->workers;
  };
  const incarnation trainer = come_back(server, 13, "trainer", 2, 2, 3);
  const incarnation first = come_back(server, 11, "rollout-0", 1, 2, 0);
  CHECK(counted_by(trainer) == 0);
  SUBCASE("until all are back") {
    come_back(server, 12, "rollout-1", 1, 2, 3);
    CHECK(counted_by(trainer) == 3);
  }
  SUBCASE("or the grace is over") {
    server.pass_alive(5100ms, {trainer, first});
    CHECK(counted_by(trainer) == 2);
  }
}

TEST_CASE("recovery: the count of an older server does not end it: the last one had other workers") {
  const auto of_term = [](std::uint64_t term) { return server_epoch{term << server_term_shift | 5}; };
  driver<> server{catalog_options{.recovery_grace = 5000ms}, of_term(3)};
  const auto back = [&](std::uint64_t id, const std::string& replica, version_number version,
                        std::uint64_t term, std::uint32_t counted) {
    auto join = server.join_message(replica);
    join.before.held = server.reference(version);
    join.before.latest = version;
    join.before.peers = counted;
    join.before.server = of_term(term);
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  };
  back(11, "rollout-0", 1, 1, 2);  // of the server before the last one: that one knew both
  const incarnation reader = back(12, "rollout-1", 1, 1, 2);
  const auto asked = server.update(reader, latest, 30000ms);
  CHECK_FALSE(server.answer<messages::update_reply>(reader, asked).has_value());  // not "keep 1"
  SUBCASE("they come") {
    back(13, "trainer", 5, 2, 2);
    CHECK_FALSE(server.answer<messages::update_reply>(reader, asked).has_value());
    back(14, "rollout-2", 5, 2, 2);
    CHECK(server.sources_of(reader, asked).front().version == version_number{5});
  }
  SUBCASE("they do not") {
    server.pass_alive(5100ms, {incarnation{11}, reader});
    const auto reply = server.answer<messages::update_reply>(reader, asked);
    REQUIRE(reply.has_value());
    CHECK(reply->keep);
  }
}

TEST_CASE("recovery: who had joined an earlier server is counted, also if nothing had happened there yet") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  come_back(server, 13, "trainer", 2, 2, 2);
  const incarnation reader{12};
  auto join = server.join_message("rollout");
  join.before.server = {76};
  REQUIRE(server.ask<messages::join_reply>(reader, std::move(join)).result.ok());
  CHECK(server.start_update(reader).version == version_number{2});
}

TEST_CASE(
    "recovery: a reader whose source may come back is not told that nobody is left, before the grace ends") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  messages::assignment before;
  before.operation = {3};
  before.lease = {41};
  before.version = 7;
  before.source = {1};
  auto join = server.join_message("rollout");
  join.before.operation = {2};
  join.before.decided = 7;
  join.before.reading = {before};
  const incarnation reader{2};
  REQUIRE(server.ask<messages::join_reply>(reader, std::move(join)).result.ok());
  const auto stall = [&] {
    return server.ask<messages::update_reply>(
        reader, messages::sources_request{
                    before.operation, messages::sources_wanted::all_stalled, {}, {}, "no news"});
  };
  const auto early = stall();
  CHECK_MESSAGE(early.result.ok(), early.result.sentence);
  server.pass_alive(1100ms, {reader});
  CHECK(stall().result.code == errc::unavailable);
}

/// The default with one source for each reader, and one reader for each source.
struct one_credit : nearest_source {
  struct options {};
  explicit one_credit(options) : nearest_source{{.most = {1, 1}}} {}
};

TEST_CASE("recovery: what an earlier server granted above the credits is not exchanged for new leases") {
  driver<testing::catalog_of<one_credit>> server{catalog_options{.recovery_grace = 1000ms}};
  std::vector<incarnation> all{come_back(server, 1, "trainer", 7, 7, 20)};
  const incarnation trainer = all[0];
  const auto come_back_reading = [&](incarnation source) {
    messages::assignment before;
    before.operation = {3};
    before.lease = {40 + all.size()};
    before.version = 7;
    before.source = source;
    auto join = server.join_message("rollout-" + std::to_string(all.size()));
    join.before.operation = {2};
    join.before.decided = join.before.latest = 7;
    join.before.reading = {before};
    join.before.receiving = server.reference(7);
    all.push_back({1 + all.size()});
    REQUIRE(server.ask<messages::join_reply>(all.back(), std::move(join)).result.ok());
    return all.back();
  };
  const incarnation first = come_back_reading(trainer);
  come_back_reading(trainer);  // it was being given the place of the first one
  const incarnation last = come_back_reading(first);
  REQUIRE(server.core.record_of(trainer)->as_source.load == 2);
  server.pass_alive(1200ms, all);
  server.clear();
  const auto reply = server.ask<messages::update_reply>(
      last, messages::sources_request{{3}, messages::sources_wanted::short_of_chunks});
  CHECK_MESSAGE(reply.result.ok(), reply.result.sentence);
  CHECK_FALSE(server.push<messages::reassign_push>(last).has_value());
  CHECK(server.core.record_of(trainer)->as_source.load == 2);
}

TEST_CASE("recovery: who gives up a call gives up that one, not another that it was taken to have ended") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const incarnation fresh = server.join(20, "rollout", {1, 2});
  const auto asked = server.update(fresh, latest, 30000ms);  // is counted as call 1
  auto join = server.join_message("rollout", {0, 2});
  join.before.operation = {2};
  join.before.held = server.reference(1);
  join.before.latest = version_number{1};
  join.before.peers = 4;
  const incarnation back{21};
  REQUIRE(server.ask<messages::join_reply>(back, std::move(join)).result.ok());
  messages::update_request call;
  call.operation = {3};
  call.selector = latest;
  call.timeout_ms = 30000;
  server.send(back, call);
  messages::finish_request over;
  over.operation = {3};
  over.result = {errc::cancelled, "the caller cancelled the update"};
  over.intact = true;
  server.send(back, over);
  CHECK_FALSE(server.answer<messages::update_reply>(fresh, asked).has_value());
  CHECK(server.core.statistics().operations == 1);
  call.operation = {4};
  server.send(back, call);
  CHECK(server.core.knows(back));
}

// ---- leases of an earlier server

namespace {

/// A lease on `source` of version 7 that an earlier server has granted under this number.
[[nodiscard]] messages::assignment old_lease(std::uint64_t number, incarnation source) {
  messages::assignment out;
  out.operation = {3};
  out.lease = {number};
  out.version = 7;
  out.source = source;
  return out;
}
[[nodiscard]] messages::join_request reader_of(driver<>& server, const std::string& replica,
                                               messages::assignment old) {
  auto join = server.join_message(replica);
  join.before.server = {76};
  join.before.operation = {2};
  join.before.decided = 7;
  join.before.reading.push_back(std::move(old));
  return join;
}
[[nodiscard]] messages::join_request holder_of_7(driver<>& server, const std::string& replica) {
  auto join = server.join_message(replica);
  join.before.server = {76};
  join.before.held = server.reference(7);
  return join;
}

}  // namespace

TEST_CASE("recovery: a reader names a source that it has lost by the number of the earlier server") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const auto old = old_lease(41, {1});
  REQUIRE(server.ask<messages::join_reply>({1}, holder_of_7(server, "trainer")).result.ok());
  REQUIRE(server.ask<messages::join_reply>({2}, reader_of(server, "rollout", old)).result.ok());
  server.pass_alive(1100ms, {{1}, {2}});
  const auto reply = server.lose_source({2}, old);
  REQUIRE(reply.result.ok());
  REQUIRE(reply.sources.size() == 1);
  CHECK(reply.sources.front().source == incarnation{1});
  CHECK(reply.sources.front().lease != old.lease);
  CHECK(server.leases_on({1}) == 1);
}

TEST_CASE("recovery: a reader that has no source any more gets one, and is a source itself") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  REQUIRE(server.ask<messages::join_reply>({1}, holder_of_7(server, "trainer")).result.ok());
  auto join = reader_of(server, "rollout", {});
  join.before.reading.clear();
  REQUIRE(server.ask<messages::join_reply>({2}, std::move(join)).result.ok());
  const auto reply = server.ask<messages::update_reply>(
      {2}, messages::sources_request{{3}, messages::sources_wanted::all_stalled, {}, {}, "no source"});
  REQUIRE(reply.sources.size() == 1);
  server.send({2}, messages::receiving_request{{3}, driver<>::shows()});
  CHECK(server.core.record_of({2})->as_source.offered == catalog_detail::offer::receiving);
}

TEST_CASE("recovery: a number that two readers name, or that would come next, is given to one lease only") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  REQUIRE(server.ask<messages::join_reply>({1}, holder_of_7(server, "trainer")).result.ok());
  const auto old = old_lease((77ull << 32) + 1, {1});
  for (const std::uint64_t id : {2u, 3u})
    REQUIRE(server.ask<messages::join_reply>({id}, reader_of(server, "rollout-" + std::to_string(id), old))
                .result.ok());
  server.pass_alive(1100ms, {{1}, {2}, {3}});
  const incarnation next = server.join(4, "rollout-4");
  const auto lease = server.start_update(next, exactly(7)).lease;
  CHECK(lease != old.lease);
  CHECK(server.leases_on({1}) == 3);
  CHECK(server.lose_source({2}, old).sources.size() == 1);
}

TEST_CASE("recovery: a reader that comes before its source reads on when that one lets go") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const auto old = old_lease(41, {1});
  REQUIRE(server.ask<messages::join_reply>({2}, reader_of(server, "rollout", old)).result.ok());
  REQUIRE(server.ask<messages::join_reply>({1}, holder_of_7(server, "trainer")).result.ok());
  CHECK(server.core.record_of({2})->as_reader.upstream == server.core.record_of({1}));
  server.pass_alive(1100ms, {{1}, {2}});
  const auto asked = server.unpublish({1}, 7);
  CHECK_FALSE(server.push<messages::reassign_push>({2}).has_value());
  CHECK_FALSE(server.answer<messages::drained_reply>({1}, asked).has_value());
  server.finish({2}, old);
  CHECK(server.answer<messages::drained_reply>({1}, asked).has_value());
}

TEST_CASE("recovery: of a reader that has ended before its source comes no lease is left") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const auto old = old_lease(41, {1});
  REQUIRE(server.ask<messages::join_reply>({2}, reader_of(server, "rollout", old)).result.ok());
  server.finish({2}, old);
  REQUIRE(server.ask<messages::join_reply>({1}, holder_of_7(server, "trainer")).result.ok());
  CHECK(server.leases_on({1}) == 0);
  server.pass_alive(1100ms, {{1}, {2}});
  CHECK(server.answer<messages::drained_reply>({1}, server.unpublish({1}, 7)).has_value());
}

TEST_CASE(
    "recovery: a shard that has ended an earlier server's update does not wait for ever for the other") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  auto join = reader_of(server, "rollout", old_lease(41, {1}));  // of version 7, which nobody has any more
  join.shard = {0, 2};
  REQUIRE(server.ask<messages::join_reply>({2}, std::move(join)).result.ok());
  const incarnation other = server.join(3, "rollout", {1, 2});
  const auto report = server.finish({2}, old_lease(41, {1}));
  server.pass_alive(29s, {{2}, other});
  CHECK_FALSE(server.answer<messages::status_reply>({2}, report).has_value());
  server.pass_alive(2s, {{2}, other});
  const auto told = server.answer<messages::status_reply>({2}, report);
  REQUIRE(told.has_value());
  CHECK(told->result.sentence.find("shard 1 of replica 'rollout' did not call update() within") == 0);
}

TEST_CASE("recovery: so does one that reads a reader, and comes before both") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  const auto last = reader_of(server, "rollout-b", old_lease(42, {2}));
  REQUIRE(server.ask<messages::join_reply>({3}, last).result.ok());
  auto middle = reader_of(server, "rollout-a", old_lease(41, {1}));
  middle.before.receiving = server.reference(7);
  REQUIRE(server.ask<messages::join_reply>({2}, middle).result.ok());
  CHECK(server.core.record_of({3})->as_reader.upstream == nullptr);
  REQUIRE(server.ask<messages::join_reply>({1}, holder_of_7(server, "trainer")).result.ok());
  CHECK(server.core.record_of({2})->as_reader.upstream == server.core.record_of({1}));
  CHECK(server.core.record_of({3})->as_reader.upstream == server.core.record_of({2}));
}

TEST_CASE("recovery: a seed that comes before its source is the seed of its datacenter still") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  auto seed = reader_of(server, "rollout-a", old_lease(41, {1}));
  seed.location.datacenter = "west";
  seed.before.receiving = server.reference(7);
  REQUIRE(server.ask<messages::join_reply>({2}, seed).result.ok());
  auto holder = holder_of_7(server, "trainer");
  holder.location.datacenter = "east";
  REQUIRE(server.ask<messages::join_reply>({1}, holder).result.ok());
  server.pass_alive(1100ms, {{1}, {2}});
  const incarnation other = server.join_at(3, "rollout-b", {.datacenter = "west"});
  CHECK(server.start_update(other, exactly(7)).source == incarnation{2});
}

TEST_CASE("recovery: a wait for the latest version is not answered with an older one meanwhile") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  auto early = server.join_message("rollout");
  early.before.server = {76};
  early.before.held = server.reference(4);
  early.before.latest = 5;
  REQUIRE(server.ask<messages::join_reply>({2}, early).result.ok());
  const auto waits = server.send({2}, messages::wait_request{latest, 10'000});
  CHECK_FALSE(server.answer<messages::version_reply>({2}, waits).has_value());
  SUBCASE("its holder comes back") {
    auto late = server.join_message("trainer");
    late.before.server = {76};
    late.before.held = server.reference(5);
    late.before.latest = 5;
    REQUIRE(server.ask<messages::join_reply>({1}, late).result.ok());
    server.pass_alive(6000ms, {{1}, {2}});
    CHECK(server.answer<messages::version_reply>({2}, waits).value().version == version_number{5});
  }
  SUBCASE("nobody does") {
    server.pass_alive(6000ms, {{2}});
    CHECK(server.answer<messages::version_reply>({2}, waits).value().version == version_number{4});
  }
}

// ---- two servers without an election

TEST_CASE("recovery: a server without an election takes over workers only while it is new") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const auto moved = [&](const std::string& replica, server_epoch before) {
    auto join = server.join_message(replica);
    join.before.server = before;
    join.before.moved = true;
    return join;
  };
  CHECK(server.ask<messages::join_reply>({11}, moved("early", {76})).result.ok());
  server.join(12, "its own");
  server.pass_alive(6000ms, {{11}, {12}});
  const auto refused = server.ask<messages::join_reply>({13}, moved("late", {75}));
  CHECK(refused.result.code == errc::unavailable);
  CHECK(refused.result.sentence.find("has no election") != std::string::npos);
  CHECK_FALSE(server.core.knows({13}));
  SUBCASE("it has taken over the workers of that server already") {
    CHECK(server.ask<messages::join_reply>({14}, moved("late", {76})).result.ok());
  }
  SUBCASE("the worker comes from a server at the same address, which was started anew") {
    auto join = moved("late", {75});
    join.before.moved = false;
    CHECK(server.ask<messages::join_reply>({14}, join).result.ok());
  }
  SUBCASE("the worker was joined here, left for the other one, and is back before it was missed") {
    CHECK(server.ask<messages::join_reply>({12}, moved("its own", {75})).result.code == errc::unavailable);
  }
}

TEST_CASE("recovery: a drain before an update that an earlier server has decided ends with the grace") {
  driver<> server{catalog_options{.recovery_grace = 1000ms}};
  auto join = holder_of_7(server, "rollout");
  join.before.decided = 8;
  REQUIRE(server.ask<messages::join_reply>({2}, std::move(join)).result.ok());
  const auto drain = server.send({2}, messages::unpublish_request{7, 1, {1}});
  server.pass_alive(900ms, {{2}});
  CHECK_FALSE(server.answer<messages::drained_reply>({2}, drain).has_value());
  server.pass_alive(300ms, {{2}});
  const auto drained = server.answer<messages::drained_reply>({2}, drain);
  REQUIRE(drained.has_value());
  CHECK(drained->result.ok());
  CHECK(drained->revoke);
}

TEST_CASE("recovery: the drain before an update is over with the update, also if the worker has forced it") {
  driver<> server{catalog_options{.recovery_grace = 5000ms}};
  const incarnation trainer = come_back(server, 13, "trainer", 2, 2, 3);  // the third one is missing
  const incarnation rollout{12};
  auto join = server.join_message("rollout-1");
  join.before.held = server.reference(1);
  join.before.latest = join.before.decided = version_number{2};  // by the server before
  join.before.peers = 3;
  REQUIRE(server.ask<messages::join_reply>(rollout, std::move(join)).result.ok());
  const auto drain = server.send(rollout, messages::unpublish_request{1, 1, {1}});
  CHECK_FALSE(server.answer<messages::drained_reply>(rollout, drain).has_value());  // there may be readers
  CHECK(server.ask<messages::status_reply>(rollout, messages::cut_off_done_request{}).result.ok());
  const auto end = server.send(rollout, messages::finish_request{{1}, 2, {}, false, server.reference(2), {}});
  CHECK(server.result_of(rollout, end).value().ok());
  SUBCASE("it holds what it has received") {
    static_cast<void>(server.update_message(rollout));  // the call that the server before has decided
    const auto again = server.update(rollout, exactly(2));
    const auto reply = server.answer<messages::update_reply>(rollout, again);
    REQUIRE(reply.has_value());
    CHECK(reply->keep);
  }
  SUBCASE("it can withdraw that") {
    const auto withdrawn = server.unpublish(rollout, 2);
    server.pass_alive(5100ms, {trainer, rollout});
    const auto reply = server.answer<messages::drained_reply>(rollout, withdrawn);
    REQUIRE(reply.has_value());
    CHECK(reply->result.ok());
  }
}
