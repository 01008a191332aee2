/// \file session_open.cpp
/// The session, message by message: versions that are published before they are whole, and read meanwhile.

#include "session_driver.hpp"

using namespace session_test;

namespace {

/// A worker whose version is open.
struct publisher_scene {
  driver worker{};
  publisher_scene() {
    worker.join();
    const auto ticket = worker.core.open(worker.now, 2, driver::control(), worker.in(1s));
    const auto request = worker.sent_body<messages::publish_request>();
    CHECK(request.held.open);
    CHECK(request.operation == operation_counter{});
    CHECK(request.held.root == digest128{});
    worker.answer(messages::status_reply{});
    REQUIRE(worker.result(ticket).value().outcome.ok());
  }
};

/// A worker that reads an open version.
struct reader_scene {
  driver worker{};
  session_ticket ticket = 0;
  reader_scene() {
    worker.join();
    ticket = worker.core.update(worker.now, at_least(2), worker.in(60s), std::nullopt,
                                messages::update_reach::anywhere, true);
    CHECK(worker.sent_body<messages::update_request>().ahead);
    auto reply = driver::assign(source());
    reply.open = true;
    worker.answer(std::move(reply));
    CHECK(worker.begin_reading(2).open);
  }
  [[nodiscard]] static messages::assignment source(std::uint64_t lease = 5) {
    auto out = driver::source(2, lease);
    out.root = {};
    return out;
  }
};

}  // namespace

TEST_CASE("session: an open version is held, but not whole, until it is published") {
  publisher_scene s;
  CHECK(s.worker.core.is_open());
  CHECK(s.worker.core.held()->version == version_number{2});
  CHECK(s.worker.core.latest() == version_number{});
  const auto other = s.worker.core.publish(s.worker.now, 3, {1, 2}, driver::control(), s.worker.in(1s));
  CHECK(s.worker.result(other).value().outcome.code == errc::still_published);
  const auto update = s.worker.core.update(s.worker.now, latest, s.worker.in(1s));
  CHECK(s.worker.result(update).value().outcome.code == errc::still_published);
  const auto ticket = s.worker.core.publish(s.worker.now, 2, {1, 2}, driver::control(), s.worker.in(1s));
  const auto request = s.worker.sent_body<messages::publish_request>();
  CHECK_FALSE(request.held.open);
  CHECK(request.held.root == digest128{1, 2});
  CHECK(request.held.epoch == s.worker.core.epoch());
  s.worker.answer(messages::status_reply{{}, {1}});
  CHECK(s.worker.result(ticket).value().outcome.ok());
  CHECK_FALSE(s.worker.core.is_open());
  CHECK(s.worker.core.held()->root == digest128{1, 2});
}

TEST_CASE("session: a version that cannot be made whole stays open until it is taken back") {
  publisher_scene s;
  const auto epoch = s.worker.core.epoch();
  const auto ticket = s.worker.core.publish(s.worker.now, 2, {1, 2}, driver::control(), s.worker.in(1s));
  static_cast<void>(s.worker.sent_body<messages::publish_request>());
  s.worker.answer(messages::status_reply{{errc::version_conflict, "other bytes"}, {1}});
  CHECK(s.worker.result(ticket).value().outcome.code == errc::version_conflict);
  CHECK(s.worker.core.is_open());
  CHECK(s.worker.core.epoch() == epoch);
  const auto back = s.worker.core.unpublish(s.worker.now, s.worker.in(1s));
  CHECK(s.worker.sent_body<messages::unpublish_request>().version == version_number{2});
  s.worker.answer(messages::drained_reply{});
  CHECK(s.worker.result(back).value().outcome.ok());
  CHECK_FALSE(s.worker.core.is_open());
  CHECK_FALSE(s.worker.core.held().has_value());
}

TEST_CASE("session: a reader of an open version learns the root by a push, and ends as of any version") {
  reader_scene s;
  s.worker.push(messages::committed_push{3, {8, 8}});  // another one
  s.worker.push(messages::committed_push{2, {7, 7}});
  CHECK(s.worker.action<session_actions::commit_pull>().root == digest128{7, 7});
  s.worker.push(messages::committed_push{2, {7, 7}});  // once more
  s.worker.core.pull_finished(s.worker.now, driver::control());
  const auto finish = s.worker.sent_body<messages::finish_request>();
  CHECK(finish.result.ok());
  CHECK(finish.held->root == digest128{7, 7});
  s.worker.answer(messages::status_reply{});
  CHECK(s.worker.result(s.ticket).value().outcome.ok());
}

TEST_CASE("session: it learns the root by the answer to a stall, where the push was lost") {
  reader_scene s;
  s.worker.core.pull_stalled(s.worker.now, "nothing new");
  static_cast<void>(s.worker.sent_body<messages::sources_request>());
  messages::update_reply still_open;
  still_open.open = true;
  s.worker.answer(std::move(still_open));
  s.worker.core.pull_stalled(s.worker.now, "nothing new");
  static_cast<void>(s.worker.sent_body<messages::sources_request>());
  messages::update_reply whole;
  whole.root = {7, 7};
  s.worker.answer(std::move(whole));
  CHECK(s.worker.action<session_actions::commit_pull>().root == digest128{7, 7});
}

TEST_CASE("session: it learns the root with a source that knows it") {
  reader_scene s;
  auto source = driver::source(2, 6);
  source.root = {7, 7};
  s.worker.push(messages::reassign_push{{}, source});
  CHECK(s.worker.action<session_actions::commit_pull>().root == digest128{7, 7});
  CHECK(s.worker.action<session_actions::add_source>().source.root == digest128{7, 7});
}

TEST_CASE("session: what is open is announced to a new server as what it is") {
  publisher_scene s;
  s.worker.push(messages::goodbye_push{server_epoch{78}, true, {}, {}});
  const auto join = s.worker.sent_body<messages::join_request>();
  CHECK(join.before.held->open);
  CHECK(join.before.held->root == digest128{});
}
