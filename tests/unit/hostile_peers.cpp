/// \file hostile_peers.cpp
/// What fuzzing and reading found that a peer could do to a server or a session, and cannot any more
/// (tests/fuzz looks for the next one).

#include "catalog_driver.hpp"
#include "session_driver.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;

TEST_CASE("an answer of another kind than the question's does not end it; the deadline does") {
  session_test::driver session;
  session.join();
  const auto ticket = session.core.list(session.now, "policy", session.in(3s));
  static_cast<void>(session.sent_body<messages::list_request>());
  session.answer(messages::status_reply{});
  session.answer(messages::version_reply{{}, {3}});
  CHECK_FALSE(session.result(ticket).has_value());
  session.pass(4s);
  CHECK(session.result(ticket).has_value());
}

TEST_CASE("an update that is stopped at its deadline ends, although the server has gone meanwhile") {
  session_test::driver session;
  session.join();
  const auto ticket = session.core.update(session.now, latest, session.in(5s));
  static_cast<void>(session.sent_body<messages::update_request>());
  messages::update_reply reply;
  reply.operation = {1};
  reply.version = {3};
  reply.sources.resize(1);
  reply.sources.front().lease = {7};
  reply.sources.front().version = {3};
  reply.sources.front().operation = {1};
  session.answer(reply);
  session.pass(6s);  // the shell is told to stop
  session.pass(1s);  // and takes its time
  session.core.pull_failed(session.now, {errc::source_lost, "x"}, {});
  for (int i = 0; i < 10; ++i) session.pass(10s);
  CHECK(session.result(ticket).has_value());
}

TEST_CASE("a call's number at the end of all numbers: answered, and later calls too") {
  catalog_test::driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  messages::publish_request publish;
  publish.operation = {UINT64_MAX};
  publish.held = server.reference({1});
  CHECK(server.answer<messages::status_reply>(trainer, server.send(trainer, publish)).has_value());
  const incarnation reader = server.join(2, "reader");
  CHECK(server.start_update(reader).source == trainer);
}

TEST_CASE("what a join says it reads: nothing from nobody, nothing twice") {
  catalog_test::driver<> server{{.recovery_grace = 1s}};
  server.join(1, "trainer");
  auto join = server.join_message("liar");
  for (std::uint64_t round = 0; round < 10; ++round) {
    join.before.reading.clear();
    for (std::uint64_t i = 0; i < limits::sources + 4; ++i) {
      messages::assignment& old = join.before.reading.emplace_back();
      old.lease = {i + 1};
      old.source = {round * 100 + i / 2 * 2};  // each twice; the first is nobody, the next itself
      old.version = {9};
    }
    static_cast<void>(server.ask<messages::join_reply>(incarnation{2}, join));
  }
  std::size_t leases = 0;
  server.core.for_each_lease([&](const auto& lease) {
    ++leases;
    CHECK(lease.source);
  });
  CHECK(leases == limits::sources / 2);  // of the first join: a later one says nothing new
}

TEST_CASE("what a join says it reads: no more than there may be") {
  catalog_test::driver<> server{{.recovery_grace = 1s}};
  auto join = server.join_message("liar");
  for (std::uint64_t i = 0; i < limits::sources + 4; ++i) {
    messages::assignment& old = join.before.reading.emplace_back();
    old.lease = {i + 1};
    old.source = {i + 100};
    old.version = {9};
  }
  REQUIRE(server.ask<messages::join_reply>(incarnation{2}, join).result.ok());
  std::size_t leases = 0;
  server.core.for_each_lease([&](const auto&) { ++leases; });
  CHECK(leases == limits::sources);
}

TEST_CASE("what a join says it reads: from the same shard of the same model, or not at all") {
  catalog_test::driver<> server{{.recovery_grace = 1s}};
  auto source = server.join_message("trainer");
  source.before.held = server.reference({1});
  source.location.datacenter = "x";
  auto reader = server.join_message("liar", {7, 8});
  reader.location.datacenter = "y";
  messages::assignment& old = reader.before.reading.emplace_back();
  old.source = {1};
  old.lease = {5};
  old.operation = {1};
  old.version = {1};
  SUBCASE("another model, after its source") {
    reader.model = "other";
    REQUIRE(server.ask<messages::join_reply>(incarnation{1}, source).result.ok());
    REQUIRE(server.ask<messages::join_reply>(incarnation{2}, reader).result.ok());
  }
  SUBCASE("another model, before its source") {
    reader.model = "other";
    REQUIRE(server.ask<messages::join_reply>(incarnation{2}, reader).result.ok());
    REQUIRE(server.ask<messages::join_reply>(incarnation{1}, source).result.ok());
  }
  SUBCASE("another shard") {
    source.shard = {0, 8};
    REQUIRE(server.ask<messages::join_reply>(incarnation{1}, source).result.ok());
    REQUIRE(server.ask<messages::join_reply>(incarnation{2}, reader).result.ok());
  }
  CHECK(server.leases_on(incarnation{1}) == 0);
  CHECK(server.core.record_of(incarnation{1})->as_source.load == 0);
  server.send(incarnation{1}, messages::leave_request{});
}

TEST_CASE("a joiner changes nothing of others when the server does not recover") {
  catalog_test::driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  auto join = server.join_message("liar");
  join.before.server = {9};
  SUBCASE("not the numbers that may be published") {
    join.before.latest = {UINT64_MAX};
    REQUIRE(server.ask<messages::join_reply>(incarnation{2}, join).result.ok());
    static_cast<void>(server.unpublish(trainer, 1));
    CHECK(server.publish(trainer, 2).ok());
  }
  SUBCASE("not what is retained") {
    REQUIRE(server.ask<messages::status_reply>(trainer, messages::retain_request{1, {}, {}}).result.ok());
    join.before.keeps = {.revision = 1000, .keep_latest = 64};
    REQUIRE(server.ask<messages::join_reply>(incarnation{2}, join).result.ok());
    CHECK(server.core.record_of(trainer)->model->keeps.keep_latest == 1);
  }
}

TEST_CASE("what is retained, by the word of a joiner: within the limits, or not at all") {
  catalog_test::driver<> server{{.recovery_grace = 1s}};
  auto join = server.join_message("liar");
  join.before.server = {9};
  SUBCASE("more versions than may be kept") {
    join.before.keeps = {.revision = 5, .keep_latest = UINT32_MAX};
  }
  SUBCASE("a revision that cannot be followed") {
    join.before.keeps = {.revision = UINT64_MAX, .keep_latest = 1};
  }
  REQUIRE(server.ask<messages::join_reply>(incarnation{2}, join).result.ok());
  CHECK(server.core.record_of(incarnation{2})->model->keeps.revision == 0);
}

TEST_CASE("a version's root is its publisher's: a report of its arrival sets none") {
  catalog_test::driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation liar = server.join(2, "liar");
  REQUIRE(server.publish(trainer, 1).ok());
  messages::reference invented = server.reference(2);
  SUBCASE("of a version that is still to come") {}
  SUBCASE("of the version that is there, with no root or another one") {
    invented = server.reference(1);
    invented.root = {};
  }
  SUBCASE("another one") {
    invented = server.reference(1);
    invented.root.low ^= 1;
  }
  server.send(liar, messages::finish_request{{1}, invented.version, {}, false, invented, {}});
  CHECK_FALSE(server.core.record_of(liar)->held.has_value());
  static_cast<void>(server.unpublish(trainer, 1));
  CHECK(server.publish(trainer, 2).ok());
  CHECK(server.available() == catalog_test::versions{2});
}

TEST_CASE("waits: so many for each worker, and none for one that has gone") {
  catalog_test::driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation waiter = server.join(2, "waiter");
  messages::wait_request wait;
  wait.selector = at_least(1'000'000);
  wait.timeout_ms = UINT32_MAX;
  for (std::uint64_t i = 1; i <= 1'000; ++i) server.send_as(waiter, i, wait, i - 1);
  const auto& waiters = server.core.record_of(trainer)->model->waiters;
  CHECK(waiters.size() == limits::worker_requests_in_flight);
  const auto refused = server.answer<messages::version_reply>(waiter, 1'000);
  REQUIRE(refused.has_value());
  CHECK(refused->result.code == errc::limit_exceeded);
  server.send_as(waiter, 1'001, messages::leave_request{}, 1'000);
  CHECK(waiters.empty());
}

TEST_CASE("versions that a worker invents are forgotten like others that nobody holds") {
  catalog_test::driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation liar = server.join(2, "liar");
  for (std::uint64_t i = 1; i <= 1'000; ++i) {
    messages::finish_request finish;
    finish.operation = {i};
    finish.version = {i};
    finish.held = server.reference({i});
    server.send_as(liar, i, finish, i - 1);
  }
  CHECK(server.core.record_of(trainer)->model->versions.size() < 64);
}

TEST_CASE("calls of an earlier server that a worker invents: no more than it may have open") {
  catalog_test::driver<> server;
  const incarnation liar = server.join(2, "liar", {0, 512});
  for (std::uint64_t i = 1; i <= 1'000; ++i) {
    messages::finish_request finish;
    finish.operation = {i};
    finish.version = {1};
    finish.held = server.reference({1});
    server.send_as(liar, i, finish, i - 1);
  }
  CHECK(server.core.statistics().operations <= limits::open_calls);
  const auto refused = server.answer<messages::status_reply>(liar, 1'000);
  REQUIRE(refused.has_value());
  CHECK(refused->result.code == errc::limit_exceeded);
  CHECK(refused->result.sentence.starts_with("worker policy/liar/0/512 ("));
}

TEST_CASE("so are versions that a worker invents in one join after the other") {
  catalog_test::driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  for (std::uint64_t i = 1; i <= 1'000; ++i) {
    auto join = server.join_message("liar");
    join.before.held = server.reference({i});
    REQUIRE(server.ask<messages::join_reply>({100 + i}, std::move(join)).result.ok());
  }
  CHECK(server.core.record_of(trainer)->model->versions.size() < 64);
}

TEST_CASE("a source that confirms no cut-off is declared dead, before its readers' leases fill the memory") {
  catalog_test::driver<> server;
  const incarnation source = server.join(1, "trainer");
  REQUIRE(server.publish(source, 1).ok());
  for (std::uint64_t i = 0; i < 64; ++i) server.join(10 + i, "idle-" + std::to_string(i));
  for (std::uint64_t i = 0; i < 2'000; ++i) {
    const incarnation reader = server.join(100 + i, "rollout");
    static_cast<void>(server.update(reader));
    server.clear();
  }
  CHECK(server.core.statistics().cut_offs <= 1'024);
  CHECK_FALSE(server.core.knows(source));
  server.check_rules();
}

TEST_CASE("a reader waits once for further sources of a version, however often it asks") {
  catalog_test::driver<> server;
  const incarnation one = server.join(1, "trainer-1");
  const incarnation two = server.join(2, "trainer-2");
  REQUIRE(server.publish(one, 1).ok());
  REQUIRE(server.publish(two, 2).ok());
  const incarnation reader = server.join(3, "rollout");
  for (int i = 0; i < 100; ++i) {
    for (const std::uint64_t version : {1u, 2u}) {
      const auto source = server.start_update(reader, exactly(version_number{version}));
      server.acknowledge(reader, server.fail(reader, source, {errc::cancelled, "no"}, true));
    }
  }
  for (const auto& [version, state] : server.core.record_of(reader)->model->versions)
    CHECK(state.hungry.front().size() <= 1);
}

TEST_CASE("a full server says so, and which option would help") {
  catalog_options how;
  how.most = {.workers = 3, .models = 1, .replicas = 2};
  catalog_test::driver<> server{how};
  server.join(1, "trainer");
  const auto refused = [&](std::uint64_t id, messages::join_request join) {
    const auto reply = server.ask<messages::join_reply>(incarnation{id}, std::move(join));
    CHECK(reply.result.code == errc::limit_exceeded);
    return reply.result.sentence;
  };
  auto other_model = server.join_message("trainer");
  other_model.model = "other";
  CHECK(refused(2, other_model).find("most.models") != std::string::npos);
  server.join(3, "rollout-0");
  CHECK(refused(4, server.join_message("rollout-1")).find("most.replicas") != std::string::npos);
  server.join(1, "trainer");  // again, as after a lost answer: it is there already
  CHECK(server.core.worker_count() == 2);
  catalog_test::driver<> small{catalog_options{.most = {.workers = 1}}};
  small.join(1, "trainer");
  const auto reply = small.ask<messages::join_reply>(incarnation{2}, small.join_message("rollout"));
  CHECK(reply.result.code == errc::limit_exceeded);
  CHECK(reply.result.sentence.find("most.workers") != std::string::npos);
}

TEST_CASE("the layouts of all models together are bounded") {
  for (std::size_t bytes = 8; bytes < 4096; bytes += 8) {
    catalog_test::driver<> server{catalog_options{.most = {.layout_bytes = bytes}}};
    const auto join = [&](std::uint64_t id, const std::string& model) {
      auto message = server.join_message("trainer");
      message.model = model;
      return server.ask<messages::join_reply>(incarnation{id}, std::move(message)).result;
    };
    if (!join(1, "policy").ok()) continue;
    const auto second = join(2, "other");  // there is room for one
    CHECK(second.code == errc::limit_exceeded);
    CHECK(second.sentence.find("most.layout_bytes") != std::string::npos);
    return;
  }
  FAIL("no bound admits a model");
}
