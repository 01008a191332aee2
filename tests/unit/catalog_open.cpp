/// \file catalog_open.cpp
/// The catalog, message by message: versions that are read while their publisher still fills them.

#include "catalog_driver.hpp"

using namespace catalog_test;

namespace {

/// A trainer whose version 2 is open (version 1 was never published), and rollouts that hold nothing.
struct open_scene {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  incarnation a = server.join(2, "rollout-a");
  incarnation b = server.join(3, "rollout-b");

  messages::status open(incarnation worker, version_number version) {
    messages::publish_request request{{}, server.reference(version)};
    request.held.open = true;
    return server.ask<messages::status_reply>(worker, request).result;
  }
  /// An update that may read open versions.
  std::uint64_t update(incarnation worker, version_selector selector = at_least(1),
                       std::chrono::milliseconds timeout = 1000ms) {
    auto message = server.update_message(worker, selector, timeout);
    message.shows = server.shows();
    message.ahead = true;
    return server.send(worker, std::move(message));
  }
  [[nodiscard]] messages::update_reply begun(incarnation worker, std::uint64_t sequence) {
    const auto reply = server.answer<messages::update_reply>(worker, sequence);
    REQUIRE(reply.has_value());
    REQUIRE_MESSAGE(reply->result.ok(), reply->result.sentence);
    return *reply;
  }
};

}  // namespace

TEST_CASE("catalog: an open version is read by those that would wait, and by nobody else") {
  open_scene s;
  const auto waits = s.update(s.a);
  const auto patient = s.server.update(s.b, at_least(1));
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.a, waits).has_value());
  REQUIRE(s.open(s.trainer, 2).ok());
  const auto reply = s.begun(s.a, waits);
  CHECK(reply.open);
  CHECK(reply.version == version_number{2});
  CHECK(reply.root == digest128{});
  REQUIRE(!reply.sources.empty());
  CHECK(reply.sources.front().source == s.trainer);
  CHECK(reply.sources.front().receiving);
  CHECK(reply.sources.front().root == digest128{});
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.b, patient).has_value());
  CHECK(s.server.available().empty());
  CHECK(s.server.entry().latest == version_number{});
  CHECK_FALSE(s.server.push<messages::version_push>(s.b).has_value());
}

TEST_CASE("catalog: who reads an open version is told its root, and then it is a version like any other") {
  open_scene s;
  REQUIRE(s.open(s.trainer, 2).ok());
  const auto source = s.begun(s.a, s.update(s.a)).sources.front();
  const auto told = s.server.stall(s.a);
  CHECK(told.result.ok());
  CHECK(told.open);
  const auto patient = s.server.update(s.b, at_least(1));
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  const auto committed = s.server.push<messages::committed_push>(s.a);
  REQUIRE(committed.has_value());
  CHECK(committed->version == version_number{2});
  CHECK(committed->root == root_of(2));
  const auto late = s.server.stall(s.a);  // the push may have been lost
  CHECK_FALSE(late.open);
  CHECK(late.root == root_of(2));
  CHECK(s.server.leases_on(s.trainer) > 0);  // the reader goes on
  const auto whole = s.begun(s.b, patient);
  CHECK_FALSE(whole.open);
  CHECK(whole.root == root_of(2));
  CHECK(s.server.available() == std::vector{version_number{2}});
  const auto done = s.server.answer<messages::status_reply>(s.a, s.server.finish(s.a, source));
  REQUIRE(done.has_value());
  CHECK(done->result.ok());
  CHECK(s.server.entry("rollout-a").version == version_number{2});
}

TEST_CASE("catalog: readers of an open version read from each other") {
  open_scene s;
  REQUIRE(s.open(s.trainer, 2).ok());
  static_cast<void>(s.begun(s.a, s.update(s.a)));
  const auto second = s.begun(s.b, s.update(s.b));
  CHECK(second.sources.size() == 2);
}

TEST_CASE("catalog: nobody holds an open version before its publisher says what it is") {
  open_scene s;
  REQUIRE(s.open(s.trainer, 2).ok());
  const auto source = s.begun(s.a, s.update(s.a)).sources.front();
  s.server.finish(s.a, source);  // with a root of its own
  CHECK(s.server.available().empty());
  auto other = s.server.reference(2);
  other.root = root_of(7);
  CHECK(s.server.publish(s.trainer, other).ok());
  CHECK(s.server.entry("rollout-a").version == version_number{});
}

TEST_CASE("catalog: a version that somebody has received is not open") {
  open_scene s;
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  const auto source = s.begun(s.a, s.update(s.a)).sources.front();
  auto held = s.server.reference(2);
  held.open = true;
  s.server.send(s.a, messages::finish_request{source.operation, 2, {}, false, held, source.lease});
  CHECK(s.server.entry("rollout-a").version == version_number{});
  CHECK_FALSE(s.server.ask<messages::status_reply>(s.a, messages::holding_request{held}).result.ok());
}

TEST_CASE("catalog: nobody has all of a version that is open, also where versions have no digests") {
  open_scene s;
  REQUIRE(s.open(s.trainer, 2).ok());
  const auto source = s.begun(s.a, s.update(s.a)).sources.front();
  auto held = s.server.reference(2);
  held.root = {};
  s.server.send(s.a, messages::finish_request{source.operation, 2, {}, false, held, source.lease});
  CHECK(s.server.entry("rollout-a").version == version_number{});
  CHECK(s.server.available().empty());
}

TEST_CASE("catalog: nobody tells the publisher of an open version that its bytes have changed") {
  open_scene s;
  for (const bool commits : {false, true}) {
    CAPTURE(commits);
    const version_number version{commits ? 3u : 2u};
    REQUIRE(s.open(s.trainer, version).ok());
    const auto source = s.begun(s.a, s.update(s.a, at_least(version.value))).sources.front();
    static_cast<void>(s.server.ask<messages::update_reply>(
        s.a, messages::sources_request{source.operation, messages::sources_wanted::one_failed, source.lease,
                                       errc::corrupt, "x", std::uint64_t{0}}));
    if (commits) REQUIRE(s.server.publish(s.trainer, version).ok());
    s.server.fail(s.a, source, {errc::unavailable, "x"}, false);
    const auto drain = s.server.unpublish(s.trainer, version);
    CHECK(s.server.answer<messages::drained_reply>(s.trainer, drain).value().refused.has_value() == commits);
  }
}

TEST_CASE("catalog: an open version that is taken back fails its readers, and its number stays free") {
  open_scene s;
  REQUIRE(s.open(s.trainer, 2).ok());
  const auto source = s.begun(s.a, s.update(s.a)).sources.front();
  const auto drained = s.server.unpublish(s.trainer, 2);
  const auto abort = s.server.push<messages::abort_push>(s.a);
  REQUIRE(abort.has_value());
  CHECK(abort->reason.code == errc::unavailable);
  CHECK(abort->reason.sentence.find("never whole") != std::string::npos);
  CHECK_FALSE(s.server.answer<messages::drained_reply>(s.trainer, drained).has_value());
  s.server.fail(s.a, source, abort->reason, false);
  CHECK(s.server.answer<messages::drained_reply>(s.trainer, drained).has_value());
  CHECK(s.server.publish(s.trainer, 2).ok());
  CHECK(s.server.available() == std::vector{version_number{2}});
}

TEST_CASE("catalog: a publisher that leaves in the middle fails the readers of its open version") {
  open_scene s;
  REQUIRE(s.open(s.trainer, 2).ok());
  static_cast<void>(s.begun(s.a, s.update(s.a)));
  s.server.send(s.trainer, messages::leave_request{});
  const auto abort = s.server.push<messages::abort_push>(s.a);
  REQUIRE(abort.has_value());
  CHECK(abort->reason.code == errc::unavailable);
}

TEST_CASE("catalog: an open version that somebody else has completely does not fail with its publisher") {
  open_scene s;
  const incarnation other = s.server.join(4, "trainer-b");
  REQUIRE(s.open(s.trainer, 2).ok());
  static_cast<void>(s.begun(s.a, s.update(s.a)));
  REQUIRE(s.server.publish(other, 2).ok());
  CHECK(s.server.push<messages::committed_push>(s.a).has_value());
  s.server.unpublish(s.trainer, 2);
  CHECK_FALSE(s.server.push<messages::abort_push>(s.a).has_value());
}

TEST_CASE("catalog: an open version that somebody else fills too does not fail with one of them") {
  open_scene s;
  const incarnation other = s.server.join(4, "trainer-b");
  REQUIRE(s.open(s.trainer, 2).ok());
  REQUIRE(s.open(other, 2).ok());
  static_cast<void>(s.begun(s.a, s.update(s.a)));
  s.server.unpublish(s.trainer, 2);
  CHECK_FALSE(s.server.push<messages::abort_push>(s.a).has_value());
  s.server.unpublish(other, 2);
  CHECK(s.server.push<messages::abort_push>(s.a).has_value());
}

TEST_CASE("catalog: what may be opened") {
  open_scene s;
  CHECK(s.open(s.trainer, 0).code == errc::invalid_argument);
  REQUIRE(s.server.publish(s.trainer, 5).ok());
  const incarnation other = s.server.join(4, "trainer-b");
  CHECK(s.open(other, 4).code == errc::version_conflict);
  CHECK(s.open(other, 5).code == errc::version_conflict);
  CHECK(s.open(other, 6).ok());
  auto wrong = s.server.reference(6);
  wrong.root = root_of(9);
  CHECK(s.server.publish(other, wrong).ok());
}

TEST_CASE("catalog: an open version that one shard takes back fails the updates that are to read it there") {
  driver<> server;
  const incarnation trainer0 = server.join(1, "trainer", {0, 2});
  const incarnation trainer1 = server.join(2, "trainer", {1, 2});
  const incarnation rollout0 = server.join(3, "rollout", {0, 2});
  server.join(4, "rollout", {1, 2});  // it has not called
  for (const incarnation trainer : {trainer0, trainer1}) {
    messages::publish_request request{{}, server.reference(2)};
    request.held.open = true;
    REQUIRE(server.ask<messages::status_reply>(trainer, request).result.ok());
  }
  auto update = server.update_message(rollout0, at_least(1));
  update.ahead = true;
  const auto sequence = server.send(rollout0, std::move(update));
  REQUIRE(server.answer<messages::update_reply>(rollout0, sequence)->open);
  server.unpublish(trainer1, 2);
  const auto abort = server.push<messages::abort_push>(rollout0);
  REQUIRE(abort.has_value());
  CHECK(abort->reason.code == errc::unavailable);
  CHECK(abort->reason.sentence.find("never whole") != std::string::npos);
}

TEST_CASE("catalog: all shards of an open version must be there, and it is whole with the last of them") {
  driver<> server;
  const incarnation trainer0 = server.join(1, "trainer", {0, 2});
  const incarnation trainer1 = server.join(2, "trainer", {1, 2});
  const incarnation rollout0 = server.join(3, "rollout", {0, 2});
  const incarnation rollout1 = server.join(4, "rollout", {1, 2});
  const auto open = [&](incarnation worker) {
    messages::publish_request request{{}, server.reference(2)};
    request.held.open = true;
    return server.ask<messages::status_reply>(worker, request).result.ok();
  };
  const auto update = [&](incarnation worker) {
    auto message = server.update_message(worker, at_least(1));
    message.ahead = true;
    return server.send(worker, std::move(message));
  };
  const auto first = update(rollout0);
  const auto second = update(rollout1);
  REQUIRE(open(trainer0));
  CHECK_FALSE(server.answer<messages::update_reply>(rollout0, first).has_value());
  REQUIRE(open(trainer1));
  CHECK(server.answer<messages::update_reply>(rollout0, first)->open);
  CHECK(server.answer<messages::update_reply>(rollout1, second)->open);
  REQUIRE(server.publish(trainer0, 2).ok());
  CHECK(server.push<messages::committed_push>(rollout0).has_value());
  CHECK_FALSE(server.push<messages::committed_push>(rollout1).has_value());
  CHECK(server.available().empty());
  REQUIRE(server.publish(trainer1, 2).ok());
  CHECK(server.push<messages::committed_push>(rollout1).has_value());
  CHECK(server.available() == std::vector{version_number{2}});
}

TEST_CASE("catalog: an open version that was announced to a new server is open there") {
  open_scene s;
  auto join = s.server.join_message("trainer-b");
  join.before.held = s.server.reference(2);
  join.before.held->root = {};
  join.before.held->open = true;
  REQUIRE(s.server.ask<messages::join_reply>(incarnation{7}, std::move(join)).result.ok());
  CHECK(s.server.available().empty());
  CHECK(s.begun(s.a, s.update(s.a)).open);
}
