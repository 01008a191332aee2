/// \file catalog.cpp
/// The catalog, message by message: joining, idempotence, publishing, questions, silence. Updates and leases:
/// catalog_updates.cpp.

#include "catalog_driver.hpp"

using namespace catalog_test;

namespace {

// ---- joining

TEST_CASE("catalog: a layout that differs is refused with the first tensor that differs") {
  driver server;
  server.join(1, "trainer");
  auto join = server.join_message("rollout");
  server.set_layout(
      join, layout{{{"wq", dtype::f32, {8, 8}}, {"wk", dtype::f32, {8, 9}}, {"norm", dtype::u8, {1}}}, 64});
  const auto reply = server.ask<messages::join_reply>({2}, join);
  CHECK(reply.result.code == errc::layout_mismatch);
  CHECK(reply.result.sentence ==
        "the layout differs from that of model 'policy', shard 0/1, which its first worker has set, at "
        "tensor 1: 'wk' f32 [8, 9] in this worker, 'wk' f32 [8, 8] in the model");
  CHECK_FALSE(server.core.knows({2}));
}

TEST_CASE("catalog: a wrong shard count is refused with both counts") {
  driver server;
  server.join(1, "trainer", {0, 2});
  const auto reply = server.ask<messages::join_reply>({2}, server.join_message("rollout", {0, 3}));
  CHECK(reply.result.code == errc::layout_mismatch);
  CHECK(reply.result.sentence == "model 'policy' has the shard count 2, this worker says 3");
}

TEST_CASE("catalog: a shard beyond the count, and a worker without names, are refused") {
  driver server;
  CHECK(server.ask<messages::join_reply>({1}, server.join_message("r", {2, 2})).result.sentence ==
        "shard 2/2 does not exist: the index must be below the count");
  CHECK(server.ask<messages::join_reply>({1}, server.join_message("r", {0, 0})).result.code ==
        errc::invalid_argument);
  CHECK(server.ask<messages::join_reply>({1}, server.join_message("")).result.code == errc::invalid_argument);
  CHECK(server.core.worker_count() == 0);
}

TEST_CASE("catalog: another consistency policy is refused by name") {
  driver server;
  auto join = server.join_message("rollout");
  join.form.consistency = "independent";
  const auto reply = server.ask<messages::join_reply>({1}, join);
  CHECK(reply.result.code == errc::policy_mismatch);
  CHECK(
      reply.result.sentence ==
      "this worker uses the consistency policy 'independent', the server uses 'group_consistent': build both "
      "with the same hub type");
}

TEST_CASE(
    "catalog: transport and integrity must be those that the server asks for, and those of the others") {
  SUBCASE("the server's transport") {
    catalog_options options;
    options.transport = "verbs";
    driver server{options};
    const auto reply = server.ask<messages::join_reply>({1}, server.join_message("rollout"));
    CHECK(reply.result.code == errc::policy_mismatch);
    CHECK(reply.result.sentence == "this worker uses the transport 'tcp', the server asks for 'verbs'");
  }
  SUBCASE("the server's integrity policy") {
    catalog_options options;
    options.integrity = "blake3_128";
    driver server{options};
    const auto reply = server.ask<messages::join_reply>({1}, server.join_message("rollout"));
    CHECK(reply.result.code == errc::policy_mismatch);
    CHECK(reply.result.sentence.find("integrity policy 'xxh3_128', the server asks for 'blake3_128'") !=
          std::string::npos);
    CHECK(server.core.worker_count() == 0);
    auto join = server.join_message("rollout");
    join.form.integrity = "blake3_128";
    CHECK(server.ask<messages::join_reply>({2}, join).result.ok());
    CHECK(server.core.worker_count() == 1);
  }
  SUBCASE("the others'") {
    driver server;
    server.join(1, "trainer");
    auto join = server.join_message("rollout");
    join.form.integrity = "none";
    const auto reply = server.ask<messages::join_reply>({2}, join);
    CHECK(reply.result.code == errc::policy_mismatch);
    CHECK(reply.result.sentence.find("use 'tcp' and 'xxh3_128', this one 'tcp' and 'none'") !=
          std::string::npos);
  }
}

TEST_CASE("catalog: a layout travels once per shard") {
  driver server;
  auto bare = server.join_message("trainer", {0, 2});
  bare.form.tensors.clear();
  CHECK(server.ask<messages::join_reply>({1}, bare).wants_layout);
  CHECK(server.core.worker_count() == 0);  // asking joins nobody
  server.join(1, "trainer", {0, 2});
  bare.replica = "rollout";
  const auto second = server.ask<messages::join_reply>({2}, bare);
  CHECK(second.result.ok());
  CHECK_FALSE(second.wants_layout);
  CHECK(server.core.knows({2}));
  bare.shard = {1, 2};
  CHECK(server.ask<messages::join_reply>({3}, bare).wants_layout);  // another shard has a layout of its own
}

namespace {

/// Rollouts of one shard that join a server which does not know their layout.
struct newcomers {
  driver<> server{};
  std::map<std::uint64_t, std::uint64_t> sequences{};

  [[nodiscard]] messages::join_request bare(std::uint64_t id) {
    auto out = server.join_message("rollout-" + std::to_string(id));
    out.form.tensors.clear();
    return out;
  }
  void join(std::uint64_t id) { sequences[id] = server.send({id}, bare(id)); }
  /// The worker repeats its request.
  void repeat(std::uint64_t id) { server.send_as({id}, sequences[id], bare(id)); }
  [[nodiscard]] bool is_asked(std::uint64_t id) {
    const auto reply = server.answer<messages::join_reply>({id}, sequences[id]);
    return reply && reply->wants_layout;
  }
  [[nodiscard]] std::size_t count_asked() {
    std::size_t count = 0;
    for (const auto& [id, sequence] : sequences) count += is_asked(id) ? 1 : 0;
    return count;
  }
};

}  // namespace

TEST_CASE("catalog: the joins of a large fleet wait for its layout, up to so many bytes of them") {
  newcomers s;
  std::uint64_t id = 1;
  SUBCASE("as workers say them") {
    for (; id <= 5000; ++id) s.join(id);
    s.server.join(1, "rollout-1");
    CHECK(s.server.core.worker_count() >= 4990);
  }
  SUBCASE("as large as they can be") {
    messages::assignment large;
    large.address.text.assign(limits::address_bytes, 'a');
    for (; id <= 2000; ++id) {
      auto join = s.bare(id);
      for (std::uint64_t k = 1; k <= limits::sources; ++k) {
        large.source = incarnation{10'000 + k};
        join.before.reading.push_back(large);
      }
      s.server.send({id}, std::move(join));
    }
    s.server.join(1, "rollout-1");
    CHECK(s.server.core.worker_count() > 500);
    CHECK(s.server.core.worker_count() < 1000);
  }
}

TEST_CASE("catalog: a few of many joining workers are asked for their layout, the others wait for it") {
  newcomers s;
  for (std::uint64_t id = 1; id <= 10; ++id) s.join(id);
  CHECK(s.is_asked(1));
  CHECK(s.count_asked() == 2);
  for (std::uint64_t id = 1; id <= 10; ++id) s.repeat(id);
  CHECK(s.count_asked() == 3);  // the same ones, whose question may have been lost
  CHECK(s.server.core.worker_count() == 0);
  SUBCASE("one of them tells it: all that wait have joined") {
    s.server.join(2, "rollout-2");
    CHECK(s.server.core.worker_count() == 8);
    const auto reply = s.server.answer<messages::join_reply>({10}, s.sequences[10]);
    REQUIRE(reply.has_value());
    CHECK(reply->result.ok());
    CHECK_FALSE(reply->wants_layout);
  }
  SUBCASE("they stay silent: others are asked") {
    s.server.pass(600ms);
    for (std::uint64_t id = 4; id <= 10; ++id) s.repeat(id);
    CHECK(s.count_asked() == 3);
    CHECK(s.server.core.worker_count() == 0);
  }
  SUBCASE("they repeat their joins and do not answer: others are asked all the same") {
    s.server.pass(600ms);
    for (std::uint64_t id = 1; id <= 3; ++id) s.repeat(id);
    CHECK_FALSE(s.is_asked(1));
    CHECK_FALSE(s.is_asked(2));
    CHECK(s.count_asked() >= 2);
  }
  SUBCASE("one of them leaves: another one is asked in its place") {
    s.server.send({1}, messages::leave_request{});
    for (std::uint64_t id = 4; id <= 10; ++id) s.repeat(id);
    CHECK(s.count_asked() == 1);
  }
  SUBCASE("one of them cannot be reached: another one is asked in its place") {
    s.server.core.unreachable(s.server.now, {1});
    for (std::uint64_t id = 4; id <= 10; ++id) s.repeat(id);
    CHECK(s.count_asked() == 1);
  }
  SUBCASE("one that waits leaves: it does not join") {
    s.server.send({10}, messages::leave_request{});
    s.server.join(2, "rollout-2");
    CHECK_FALSE(s.server.core.knows({10}));
    CHECK(s.server.core.worker_count() == 7);
  }
}

TEST_CASE("catalog: a worker that waited for a layout has no request executed a second time") {
  newcomers s;
  for (std::uint64_t id = 1; id <= 3; ++id) s.join(id);
  // The earlier server has answered its requests up to 6.
  s.server.send_as({4}, 7, s.bare(4), 6);
  s.server.join(1, "rollout-1");
  REQUIRE(s.server.core.knows({4}));
  s.server.send_as({4}, 5, messages::publish_request{{1}, s.server.reference(1)});
  CHECK(s.server.available().empty());
}

TEST_CASE("catalog: tensors that do not have the announced digest are refused") {
  driver server;
  auto join = server.join_message("trainer");
  join.form.tensors.pop_back();
  const auto reply = server.ask<messages::join_reply>({1}, join);
  CHECK(reply.result.code == errc::layout_mismatch);
  CHECK(server.core.worker_count() == 0);
}

TEST_CASE("catalog: a join that is repeated joins once") {
  driver server;
  server.join(1, "trainer");
  REQUIRE(server.publish({1}, 1).ok());
  CHECK(server.ask<messages::join_reply>({1}, server.join_message("trainer")).result.ok());
  CHECK(server.core.worker_count() == 1);
  CHECK(server.available() == versions{1});
}

TEST_CASE("catalog: an incarnation has one place") {
  driver server;
  server.join(1, "trainer");
  for (const auto& [replica, shard] : {std::pair{"rollout", shard_of{0, 1}}, {"trainer", shard_of{1, 2}}}) {
    auto join = server.join_message(replica, shard);
    if (shard.count == 2) join.model = "other";
    const auto reply = server.ask<messages::join_reply>({1}, join);
    CHECK(reply.result.code == errc::invalid_argument);
    CHECK(reply.result.sentence.find("has joined already, as worker policy/trainer/0/1") !=
          std::string::npos);
  }
  CHECK(server.core.worker_count() == 1);
  CHECK(server.publish({1}, 1).ok());
}

TEST_CASE("catalog: a newer process takes the place of an older one, which is told so for ever") {
  driver server;
  server.join(1, "trainer");
  REQUIRE(server.publish({1}, 1).ok());
  server.join(2, "trainer");
  const auto goodbye = server.push<messages::goodbye_push>({1});
  REQUIRE(goodbye.has_value());
  CHECK(goodbye->reason.code == errc::replaced);
  CHECK(goodbye->reason.sentence.find("a newer process has taken this worker's place: ") == 0);
  CHECK_FALSE(goodbye->rejoin);
  CHECK(server.available().empty());  // its memory is gone with it
  server.send({1}, messages::publish_request{{2}, server.reference(2)});
  CHECK_FALSE(server.push<messages::goodbye_push>({1}).value().rejoin);
  server.send({1}, server.join_message("trainer"));
  CHECK_FALSE(server.push<messages::goodbye_push>({1}).value().rejoin);
  CHECK(server.core.knows({2}));
}

TEST_CASE("catalog: an unknown incarnation is told to join") {
  driver server;
  server.send({5}, messages::publish_request{{1}, server.reference(1)});
  const auto goodbye = server.push<messages::goodbye_push>({5});
  REQUIRE(goodbye.has_value());
  CHECK(goodbye->rejoin);
  CHECK(goodbye->epoch == server_epoch{77});
}

TEST_CASE("catalog: a new server learns from its workers what is held, and adopts running leases") {
  driver server{catalog_options{.recovery_grace = 1000ms}};
  auto holder = server.join_message("trainer");
  holder.before.peers = 2;
  holder.before.held = server.reference(7);
  holder.before.operation = {12};
  const auto reply = server.ask<messages::join_reply>({1}, holder);
  CHECK(reply.latest == version_number{7});
  CHECK(reply.operation == operation_counter{12});
  CHECK(server.available() == versions{7});

  auto reader = server.join_message("rollout");
  messages::assignment reading;
  reading.operation = {3};
  reading.lease = {41};
  reading.version = 7;
  reading.source = {1};
  reader.before.reading = {reading};
  REQUIRE(server.ask<messages::join_reply>({2}, reader).result.ok());
  const auto sequence = server.unpublish({1}, 7);
  CHECK_FALSE(server.answer<messages::drained_reply>({1}, sequence).has_value());
  server.finish({2}, reading);
  CHECK(server.answer<messages::drained_reply>({1}, sequence).has_value());
}

// ---- requests

TEST_CASE("catalog: a retry gets the stored answer and does nothing again") {
  driver server;
  server.join(1, "trainer");
  const messages::publish_request publish{{1}, server.reference(1)};
  server.send_as({1}, 10, publish);
  REQUIRE(server.answer<messages::status_reply>({1}, 10).value().result.ok());
  server.send_as({1}, 11, messages::unpublish_request{1, 1, {}});
  REQUIRE(server.answer<messages::drained_reply>({1}, 11).has_value());
  server.send_as({1}, 10, publish);
  CHECK(server.answer<messages::status_reply>({1}, 10).value().result.ok());
  CHECK(server.available().empty());
}

TEST_CASE("catalog: a deferred request is answered once, however often it is repeated") {
  driver server;
  server.join(1, "rollout");
  server.join(2, "trainer");
  const messages::wait_request wait{at_least(1), 10'000};
  for (int i = 0; i < 3; ++i) server.send_as({1}, 10, wait);
  REQUIRE(server.publish({2}, 1).ok());
  CHECK(server.answer<messages::version_reply>({1}, 10).value().version == version_number{1});
  CHECK_FALSE(server.answer<messages::version_reply>({1}, 10).has_value());
}

TEST_CASE("catalog: what was acknowledged is never done again") {
  driver server;
  server.join(1, "trainer");
  const messages::publish_request publish{{1}, server.reference(1)};
  server.send_as({1}, 10, publish);
  server.send_as({1}, 11, messages::unpublish_request{1, 1, {}}, 10);
  server.clear();
  server.send_as({1}, 10, publish, 10);  // a late repetition
  CHECK(server.waiting_messages({1}) == 0);
  CHECK(server.available().empty());
}

TEST_CASE("catalog: requests in flight are bounded per worker") {
  driver server;
  server.join(1, "rollout");
  server.join(2, "trainer");
  for (std::size_t i = 0; i < limits::worker_requests_in_flight + 5; ++i) {
    server.send_as({1}, 100 + i, messages::wait_request{at_least(1), 10'000});
  }
  server.clear();
  REQUIRE(server.publish({2}, 1).ok());
  std::size_t answered = 0;
  for (std::size_t i = 0; i < limits::worker_requests_in_flight + 5; ++i) {
    answered += server.answer<messages::version_reply>({1}, 100 + i) ? 1 : 0;
  }
  CHECK(answered == limits::worker_requests_in_flight);
}

TEST_CASE("catalog: a request that its worker has given up does not count against it") {
  driver server;
  server.join(1, "rollout");
  std::uint64_t last = 0;
  const auto send = [&](messages::message body) {
    server.send_as({1}, last + 1, std::move(body), last);
    ++last;
  };
  std::size_t answered = 0;
  for (std::size_t i = 0; i < 2 * limits::worker_requests_in_flight; ++i) {
    send(messages::update_request{{i + 1}, latest, 60'000, {}, {}});  // never answered: no version comes
    send(messages::finish_request{{i + 1}, {}, {errc::cancelled, "cancelled"}, true, std::nullopt, {}});
    answered += server.answer<messages::status_reply>({1}, last) ? 1 : 0;
  }
  CHECK(answered == 2 * limits::worker_requests_in_flight);
}

TEST_CASE("catalog: a request that waits long does not make the others count") {
  driver server;
  server.join(1, "rollout");
  server.join(2, "trainer");
  server.send_as({1}, 10, messages::wait_request{at_least(1), 10'000});
  for (std::uint64_t i = 11; i < 11 + 3 * limits::worker_requests_in_flight; ++i) {
    server.send_as({1}, i, messages::lease_released_request{{i}}, i - 1, {{10}});
    CHECK(server.answer<messages::status_reply>({1}, i).has_value());
  }
  SUBCASE("it is still answered, once") {
    server.send_as({1}, 10, messages::wait_request{at_least(1), 10'000}, 1000, {{10}});  // a repetition
    REQUIRE(server.publish({2}, 1).ok());
    CHECK(server.answer<messages::version_reply>({1}, 10).has_value());
    CHECK_FALSE(server.answer<messages::version_reply>({1}, 10).has_value());
  }
  SUBCASE("what was closed is not opened again by an older message") {
    server.send_as({1}, 0, messages::heartbeat_request{}, 1000);
    server.send_as({1}, 0, messages::heartbeat_request{}, 500, {{12}});
    server.send_as({1}, 12, messages::lease_released_request{{12}}, 500, {{12}});
    CHECK_FALSE(server.answer<messages::status_reply>({1}, 12).has_value());
  }
}

TEST_CASE("catalog: a server's message from a worker is ignored, with a line in the log") {
  driver server;
  server.join(1, "trainer");
  static_cast<void>(server.core.take_log());
  server.send({1}, messages::join_reply{});
  CHECK(server.waiting_messages({1}) == 0);
  const auto lines = server.core.take_log();
  REQUIRE(lines.size() == 1);
  CHECK(lines.front().text.find("only a server sends") != std::string::npos);
}

// ---- publishing

TEST_CASE("catalog: a version is announced to everybody when all shards hold it, not before") {
  driver server;
  server.join(1, "trainer", {0, 2});
  server.join(2, "trainer", {1, 2});
  server.join(3, "rollout", {0, 2});
  REQUIRE(server.publish({1}, 1).ok());
  CHECK(server.available().empty());
  CHECK_FALSE(server.push<messages::version_push>({3}).has_value());
  REQUIRE(server.publish({2}, 1).ok());
  CHECK(server.available() == versions{1});
  CHECK(server.push<messages::version_push>({3}).value().version == version_number{1});
}

TEST_CASE("catalog: versions do not go backwards and do not start at zero") {
  driver server;
  server.join(1, "trainer");
  CHECK(server.publish({1}, 0).code == errc::invalid_argument);
  REQUIRE(server.publish({1}, 5).ok());
  server.unpublish({1}, 5);
  const auto backwards = server.publish({1}, 4);
  CHECK(backwards.code == errc::version_conflict);
  CHECK(
      backwards.sentence ==
      "version 4 goes backwards: version 5 was published already; a trainer that begins again at an earlier "
      "step calls roll_back_to() first");
  CHECK(server.publish({1}, 6).ok());
}

TEST_CASE("catalog: the same version has the same bytes for ever") {
  driver server;
  server.join(1, "trainer");
  REQUIRE(server.publish({1}, 5).ok());
  server.unpublish({1}, 5);
  auto other = server.reference(5);
  other.root = root_of(99);
  const auto conflict = server.publish({1}, other);
  CHECK(conflict.code == errc::version_conflict);
  CHECK(conflict.sentence.find("version 5 was published with other bytes in shard 0/1") != std::string::npos);
  CHECK(server.available().empty());
  CHECK(server.publish({1}, 5).ok());  // with the same root it may come back
  CHECK(server.available() == versions{5});
}

TEST_CASE("catalog: a second replica that publishes is told of in the log, once; a successor is not") {
  driver<> server;
  int told = 0;
  const auto warnings = [&] {
    for (const log_line& line : server.core.take_log())
      told += line.text.find("has published too") != line.text.npos ? 1 : 0;
    return told;
  };
  const incarnation first = server.join(1, "trainer-a"), second = server.join(2, "trainer-b");
  server.join(3, "trainer-a@snapshot");
  REQUIRE(server.publish(first, 1).ok());
  REQUIRE(server.publish({3}, 2).ok());  // the same trainer's
  CHECK(warnings() == 0);
  REQUIRE(server.publish(second, 3).ok());
  REQUIRE(server.publish(second, 4).ok());
  CHECK(warnings() == 1);
  const incarnation young = server.join(4, "trainer-b");
  server.send(first, messages::leave_request{});
  server.send({3}, messages::leave_request{});
  REQUIRE(server.publish(young, 5).ok());
  CHECK(warnings() == 1);
}

TEST_CASE("catalog: publishing the next version without unpublish ends the one before and its leases") {
  driver server;
  server.join(1, "trainer");
  server.join(2, "rollout");
  REQUIRE(server.publish({1}, 1).ok());
  server.start_update({2});
  REQUIRE(server.leases_on({1}) == 1);
  REQUIRE(server.publish({1}, 2).ok());
  CHECK(server.available() == versions{2});
  CHECK(server.leases_on({1}) == 0);
}

TEST_CASE("catalog: the shards of a replica publish one version per call") {
  driver server;
  server.join(1, "trainer", {0, 2});
  server.join(2, "trainer", {1, 2});
  for (const incarnation worker : {incarnation{1}, incarnation{2}}) {
    REQUIRE(server.publish(worker, 1).ok());
    server.unpublish(worker, 1);
  }
  REQUIRE(server.publish({1}, 2).ok());
  const auto other = server.publish({2}, 3);
  CHECK(other.code == errc::group_failed);
  CHECK(other.sentence.find("another shard of replica 'trainer' published version 2 in this operation") !=
        std::string::npos);
  CHECK(server.available().empty());
}

TEST_CASE("catalog: an unpublish that comes late does not hit a later reference") {
  driver server;
  server.join(1, "trainer");
  REQUIRE(server.publish({1}, 1).ok());
  auto again = server.reference(1);
  again.epoch = 2;
  REQUIRE(server.publish({1}, again).ok());
  CHECK(server.answer<messages::drained_reply>({1}, server.unpublish({1}, 1)).has_value());  // of epoch 1
  CHECK(server.available() == versions{1});
}

// ---- questions

TEST_CASE("catalog: wait is answered at once, when the version comes, or at the deadline with a sentence") {
  driver server;
  server.join(1, "trainer");
  server.join(2, "rollout");
  const auto first = server.send({2}, messages::wait_request{latest, 10'000});
  CHECK_FALSE(server.answer<messages::version_reply>({2}, first).has_value());
  REQUIRE(server.publish({1}, 3).ok());
  CHECK(server.answer<messages::version_reply>({2}, first).value().version == version_number{3});
  CHECK(server.ask<messages::version_reply>({2}, messages::wait_request{at_least(2), 0}).version ==
        version_number{3});
  const auto late = server.send({2}, messages::wait_request{at_least(4), 300});
  server.pass(200ms);
  CHECK_FALSE(server.answer<messages::version_reply>({2}, late).has_value());
  server.pass(200ms);
  const auto reply = server.answer<messages::version_reply>({2}, late);
  REQUIRE(reply.has_value());
  CHECK(reply->result.code == errc::timed_out);
  CHECK(reply->result.sentence == "no version (at least 4) of model 'policy' appeared; the latest was 3");
}

TEST_CASE("catalog: a wait that was in vain says that nothing is known, or that shards are missing") {
  driver server;
  server.join(1, "trainer", {0, 2});
  const auto in_vain = [&](const version_selector& wanted) {
    const auto sequence = server.send({1}, messages::wait_request{wanted, 100});
    server.pass(100ms);
    return server.answer<messages::version_reply>({1}, sequence).value().result.sentence;
  };
  CHECK(in_vain(latest) ==
        "no version (latest) of model 'policy' appeared; no worker has told this server of any: is this the "
        "name of the publisher's model, and has it published?");
  REQUIRE(server.publish({1}, 3).ok());
  CHECK(in_vain(latest) ==
        "no version (latest) of model 'policy' appeared; none is known yet, and of 3 only some shards were "
        "published");
  CHECK(in_vain(exactly(4)) == "no version (exactly 4) of model 'policy' appeared; none is known yet");
}

TEST_CASE("catalog: list and describe answer anybody, and name what they do not know") {
  driver server;
  const incarnation stranger{50};
  CHECK(server.ask<messages::list_reply>(stranger, messages::list_request{"policy"}).result.sentence ==
        "no worker of a model 'policy' has joined");
  CHECK(server.ask<messages::describe_reply>(stranger, messages::describe_request{"policy", 0}).result.code ==
        errc::not_found);
  server.join(1, "trainer", {0, 2});
  REQUIRE(server.publish({1}, 1).ok());
  const auto entry = server.entry();
  CHECK(entry.shards == 2);
  CHECK(entry.bytes == small_layout().bytes());
  CHECK(server.entry("trainer").shards_joined == 1);
  CHECK(server.entry("trainer").version == version_number{});
  const auto known = server.ask<messages::describe_reply>(stranger, messages::describe_request{"policy", 0});
  CHECK(known.result.ok());
  CHECK(known.chunk_bytes == small_layout().chunk_bytes());
  REQUIRE(known.tensors.size() == 3);
  CHECK(known.tensors[1].name == "wk");
  CHECK(server.ask<messages::describe_reply>(stranger, messages::describe_request{"policy", 1})
            .result.sentence ==
        "the layout of model 'policy', shard 1, is not known: no worker with it has joined");
}

TEST_CASE("catalog: heartbeats are answered with the latest version") {
  driver server;
  server.join(1, "trainer");
  REQUIRE(server.publish({1}, 4).ok());
  server.send_as({1}, 0, messages::heartbeat_request{});
  const auto reply = server.push<messages::heartbeat_reply>({1});
  REQUIRE(reply.has_value());
  CHECK(reply->latest == version_number{4});
  CHECK(reply->epoch == server_epoch{77});
}

// ---- silence and leaving

TEST_CASE("catalog: nobody is dead for being silent while messages wait to be received") {
  driver server;
  server.join(1, "trainer");
  server.now = server.now + 6000ms;
  server.core.advance(server.now, true);
  CHECK(server.core.knows({1}));
  server.send_as({1}, 0, messages::heartbeat_request{});  // this one waited
  server.pass(1000ms);
  CHECK(server.core.knows({1}));
  server.pass(6000ms);
  CHECK_FALSE(server.core.knows({1}));
}

TEST_CASE("catalog: a silent worker is declared dead however long the interval of heartbeats is said to be") {
  driver server{
      catalog_options{.heartbeat_interval = std::chrono::milliseconds::max(), .recovery_grace = 0ms}};
  server.join(1, "trainer");
  server.pass(6000ms);
  server.pass(limits::heartbeat_interval);
  CHECK_FALSE(server.core.knows({1}));
}

TEST_CASE("catalog: a silent worker is declared dead and told so; one that beats lives") {
  driver server;
  server.join(1, "trainer");
  server.join(2, "rollout");
  server.clear();
  server.pass_alive(6000ms, {{2}});
  CHECK_FALSE(server.core.knows({1}));
  CHECK(server.core.knows({2}));
  const auto goodbye = server.push<messages::goodbye_push>({1});
  REQUIRE(goodbye.has_value());
  CHECK(goodbye->reason.code == errc::disconnected);
  CHECK(goodbye->worker == incarnation{1});
  CHECK_FALSE(goodbye->rejoin);
  server.send_as({1}, 0, messages::heartbeat_request{});
  const auto again = server.push<messages::goodbye_push>({1}).value();
  CHECK_FALSE(again.rejoin);
  CHECK(again.reason.code == errc::disconnected);
}

TEST_CASE("catalog: a process that was declared dead returns with what it holds, as another incarnation") {
  driver server;
  server.join(1, "trainer");
  server.join(2, "rollout");
  REQUIRE(server.publish({1}, 7).ok());
  server.pass_alive(6000ms, {{2}});
  REQUIRE_FALSE(server.core.knows({1}));
  CHECK(server.available().empty());
  auto join = server.join_message("trainer");
  join.before.returns = true;
  join.before.held = server.reference(7);
  join.before.latest = version_number{7};
  join.before.server = {77};
  SUBCASE("its place is free") {
    REQUIRE(server.ask<messages::join_reply>({3}, join).result.ok());
    CHECK(server.ask<messages::join_reply>({3}, join).result.ok());  // repeated
    CHECK(server.available() == std::vector<version_number>{7});
    CHECK(server.start_update({2}).source == incarnation{3});
  }
  SUBCASE("a newer process has its place") {
    server.join(4, "trainer");
    const auto reply = server.ask<messages::join_reply>({3}, join);
    CHECK(reply.result.code == errc::replaced);
    CHECK(reply.result.sentence.find("a newer process has taken this worker's place: ") == 0);
    CHECK(server.core.knows({4}));
    CHECK_FALSE(server.core.knows({3}));
  }
}

TEST_CASE(
    "catalog: a source that was silent does not hear that its readers are done: they may be as silent") {
  driver server;
  server.join(1, "trainer");
  server.join(2, "rollout");
  server.join(3, "observer");
  REQUIRE(server.publish({1}, 1).ok());
  static_cast<void>(server.start_update({2}));
  const auto unpublish = server.unpublish({1}, 1);
  server.pass_alive(6000ms, {{3}});
  CHECK_FALSE(server.core.knows({1}));
  CHECK_FALSE(server.core.knows({2}));
  CHECK_FALSE(server.answer<messages::drained_reply>({1}, unpublish).has_value());
  CHECK_FALSE(server.push<messages::goodbye_push>({1}).value().rejoin);
}

TEST_CASE(
    "catalog: who has left has left: a late repetition of its join does not take its successor's place") {
  driver server;
  server.join(1, "trainer");
  REQUIRE(server.ask<messages::status_reply>({1}, messages::leave_request{}).result.ok());
  server.join(2, "trainer");
  server.send({1}, server.join_message("trainer"));
  CHECK_FALSE(server.push<messages::goodbye_push>({1}).value().rejoin);
  CHECK(server.core.knows({2}));
  CHECK_FALSE(server.core.knows({1}));
}

TEST_CASE("catalog: who leaves holds nothing any more; with the last worker the model is forgotten") {
  driver server;
  server.join(1, "trainer");
  server.join(2, "rollout");
  REQUIRE(server.publish({1}, 1).ok());
  CHECK(server.ask<messages::status_reply>({1}, messages::leave_request{}).result.ok());
  CHECK_FALSE(server.core.knows({1}));
  CHECK(server.available().empty());
  server.ask<messages::status_reply>({2}, messages::leave_request{});
  CHECK(server.ask<messages::list_reply>({3}, messages::list_request{}).models.empty());
  server.join(3, "other-trainer", {0, 4});  // another shard count is another model now
}

TEST_CASE("catalog: the last worker publishes and leaves, and both are answered at once") {
  driver server;
  server.join(1, "trainer");
  server.together([&] {
    messages::publish_request publish;
    publish.operation = {1};
    publish.held = server.reference(1);
    server.send({1}, publish);
    server.send({1}, messages::leave_request{});
  });
  CHECK(server.core.statistics().models == 0);
}

TEST_CASE("catalog: a worker is not dead for a reader's word and a broken connection; its silence counts") {
  driver server;
  const incarnation source = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(source, 1).ok());
  static_cast<void>(server.lose_source(reader, server.start_update(reader)));
  server.core.unreachable(server.now, source);
  server.pass_alive(50ms, {reader});
  CHECK(server.core.knows(source));
  SUBCASE("it is heard again") {
    server.send_as(source, 0, messages::heartbeat_request{});
    server.pass_alive(catalog_options{}.heartbeat_interval + 100ms, {reader});
    CHECK(server.core.knows(source));
  }
  SUBCASE("it is not") {
    server.pass_alive(catalog_options{}.heartbeat_interval + 100ms, {reader});
    CHECK_FALSE(server.core.knows(source));
  }
}

TEST_CASE(
    "catalog: a reader's word and a broken connection count only when all that was sent has been received") {
  driver server;
  const incarnation source = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(source, 1).ok());
  static_cast<void>(server.lose_source(reader, server.start_update(reader)));
  server.core.unreachable(server.now, source);
  server.now = server.now + catalog_options{}.heartbeat_interval + 100ms;
  server.core.advance(server.now, true);
  CHECK(server.core.knows(source));
  server.pass(100ms);
  CHECK_FALSE(server.core.knows(source));
}

TEST_CASE("catalog: a request that is repeated while it waits is carried out, and answered, once") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  const auto call = server.update_message(reader, latest, 10'000ms);
  for (int i = 0; i < 3; ++i) server.send_as(reader, 5, call);
  CHECK_FALSE(server.result_of(reader, 5).has_value());
  REQUIRE(server.publish(trainer, 1).ok());
  const auto source = server.sources_of(reader, 5).front();
  CHECK_FALSE(server.result_of(reader, 5).has_value());
  for (int i = 0; i < 3; ++i) server.send_as(trainer, 50, messages::unpublish_request{1, 1, {}});
  CHECK_FALSE(server.result_of(trainer, 50).has_value());
  server.finish(reader, source);
  CHECK(server.answer<messages::drained_reply>(trainer, 50).value().finished == 1);
  CHECK_FALSE(server.result_of(trainer, 50).has_value());
}

TEST_CASE("catalog: the end of the grace is a timer, too") {
  driver server{catalog_options{.recovery_grace = 200ms}};
  server.join(1, "rollout");
  server.pass(1ms);
  CHECK(server.core.next_deadline() - server.now <= 200ms);
}

TEST_CASE("catalog: timers are due only while somebody waits") {
  driver server;
  server.join(1, "rollout");
  server.pass(1ms);
  const time_point idle = server.core.next_deadline();
  CHECK(idle - server.now >= 400ms);
  server.update({1});
  CHECK(server.core.next_deadline() - server.now <= 20ms);
}

}  // namespace
