/// \file session_sources.cpp
/// The session while its update reads: sources that the server adds, replaces and takes back, what is told of
/// being read itself, and a server that is restarted meanwhile.

#include <algorithm>
#include <vector>

#include "session_driver.hpp"

using namespace session_test;

namespace {

[[nodiscard]] messages::reassign_push more(const messages::assignment& source, std::uint64_t old = 0) {
  return {lease_id{old}, source};
}
/// Go on without this lease.
[[nodiscard]] messages::reassign_push without(std::uint64_t old, version_number version = 3) {
  messages::reassign_push push{lease_id{old}, {}};
  push.source.operation = {1};
  push.source.version = version;
  return push;
}
/// An update of somebody who holds a version that is being read: it is draining now.
session_ticket start_draining(driver& worker, version_number version,
                              const std::optional<remote_region>& control = std::nullopt) {
  worker.hold(1);
  const auto ticket = worker.core.update(worker.now, latest, worker.in(60s), control);
  static_cast<void>(worker.sent_body<messages::update_request>());
  auto source = driver::source(version, 5, false);
  source.operation = {2};  // publishing was the first
  auto reply = driver::assign(source);
  reply.operation = {2};
  worker.answer(std::move(reply));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  REQUIRE(worker.no_action());
  return ticket;
}
[[nodiscard]] messages::assignment second_call(messages::assignment source) {
  source.operation = {2};
  return source;
}

// ---- what the update starts with

TEST_CASE("session: all sources of the answer are read from, beginning at this reader's place") {
  driver worker;
  worker.join();
  worker.core.update(worker.now, latest, worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  auto reply = driver::assign({driver::source(3, 5), driver::source(3, 6), driver::source(3, 7)}, 11);
  reply.sources[1].receiving = true;
  worker.answer(std::move(reply));
  const auto order = worker.begin_reading(3);
  CHECK(order.ordinal == 11);
  REQUIRE(order.sources.size() == 3);
  CHECK(order.sources[0].lease == lease_id{5});
  CHECK(order.sources[1].receiving);
  CHECK(order.sources[2].lease == lease_id{7});
  CHECK(worker.no_action());
}

TEST_CASE("session: an answer without a source, and without a reason, ends the call by name") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.update(worker.now, latest, worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  messages::update_reply reply;
  reply.version = 3;
  worker.answer(std::move(reply));
  REQUIRE(worker.result(ticket).has_value());
  CHECK(worker.result(ticket)->outcome.code == errc::protocol_mismatch);
  CHECK(worker.no_action());
}

TEST_CASE("session: the call says how far it may reach, and how it can be read while it receives") {
  driver worker;
  worker.join();
  const auto before = worker.core.epoch();
  SUBCASE("readable") {
    worker.core.update(worker.now, latest, worker.in(60s), driver::control(),
                       messages::update_reach::prefer_local);
    const auto request = worker.sent_body<messages::update_request>();
    CHECK(request.reach == messages::update_reach::prefer_local);
    REQUIRE(request.shows.has_value());
    CHECK(request.shows->epoch == before + 1);
    CHECK(request.shows->control == driver::control());
    worker.answer(driver::assign(driver::source(3)));
    CHECK(worker.action<session_actions::raise_epoch>().epoch == request.shows->epoch);
  }
  SUBCASE("not readable") {
    worker.core.update(worker.now, latest, worker.in(60s));
    const auto request = worker.sent_body<messages::update_request>();
    CHECK(request.reach == messages::update_reach::anywhere);
    CHECK_FALSE(request.shows.has_value());
  }
}

// ---- who is told that this worker can be read

TEST_CASE("session: an epoch that was announced is not used for anything else") {
  driver worker;
  worker.join();
  static_cast<void>(worker.core.update(worker.now, latest, worker.in(60s), driver::control()));
  const auto first = worker.sent_body<messages::update_request>().shows.value().epoch;
  worker.core.cancel(worker.now, 2);
  worker.answer(worker.sent<messages::finish_request>().value().sequence, messages::status_reply{});
  static_cast<void>(worker.core.update(worker.now, latest, worker.in(60s), driver::control()));
  const auto second = worker.sent_body<messages::update_request>().shows.value().epoch;
  CHECK(second > first);
  worker.answer(driver::assign(driver::source(3)));
  CHECK(worker.action<session_actions::raise_epoch>().epoch == second);
  CHECK(worker.core.epoch() == second);
}

TEST_CASE("session: the server is told of the receiving only if it could not know it") {
  driver worker;
  worker.join();
  SUBCASE("nothing was drained, the call has said it") {
    worker.core.update(worker.now, latest, worker.in(60s), driver::control());
    static_cast<void>(worker.sent_body<messages::update_request>());
    worker.answer(driver::assign(driver::source(3)));
    worker.begin_reading(3);
    worker.core.pull_started(worker.now, driver::control());
    CHECK(worker.silent());
  }
  SUBCASE("nothing was drained, the call has not said it") {
    worker.start_update(3);
    worker.core.pull_started(worker.now, driver::control());
    CHECK(worker.sent_body<messages::receiving_request>().shows.epoch == worker.core.epoch());
  }
  SUBCASE("a drain came before: the server waits for word that it has ended") {
    start_draining(worker, 3, driver::control());
    worker.answer(messages::drained_reply{});
    worker.begin_reading(3);
    CHECK(worker.silent());
    worker.core.pull_started(worker.now, driver::control());
    const auto told = worker.sent_body<messages::receiving_request>();
    CHECK(told.operation == operation_counter{2});
    CHECK(told.shows.epoch == worker.core.epoch());
    CHECK(told.shows.control == driver::control());
    worker.core.pull_started(worker.now, driver::control());
    CHECK(worker.silent());  // once
  }
}

TEST_CASE("session: a pull that starts when there is none, or is being stopped, is not told") {
  driver worker;
  worker.join();
  worker.core.pull_started(worker.now, driver::control());
  CHECK(worker.silent());
  const auto ticket = worker.start_update(3);
  worker.core.cancel(worker.now, ticket);
  worker.core.pull_started(worker.now, driver::control());
  CHECK(worker.silent());
}

// ---- reassign_push

TEST_CASE("session: the server adds a source; its repetition adds nothing") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.push(more(driver::source(3, 6)));
  const auto order = worker.action<session_actions::add_source>();
  CHECK(order.source.lease == lease_id{6});
  CHECK_FALSE(order.released);
  worker.push(more(driver::source(3, 6)));
  CHECK(worker.no_action());
  CHECK(worker.silent());
}

TEST_CASE("session: the server replaces a source; the old lease is released when nothing of it runs") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.push(more(driver::source(3, 6), 5));
  const auto order = worker.action<session_actions::add_source>();
  CHECK(order.source.lease == lease_id{6});
  CHECK(order.released == lease_id{5});
  CHECK(worker.silent());
  worker.core.source_released(worker.now, order.released);
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{5});
  // A late failure of the old one is nobody's business any more.
  worker.core.source_failed(worker.now, {5}, errc::source_lost, "connection reset");
  CHECK(worker.silent());
}

TEST_CASE("session: a push that comes before the answer that names the old source releases nothing") {
  driver worker;
  worker.join();
  worker.core.update(worker.now, latest, worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  worker.push(without(5));
  CHECK(worker.silent());  // it may be about to be read
}

TEST_CASE("session: a copy of a push does not release a source while a read of it is outstanding") {
  driver worker;
  worker.join();
  worker.start_update(3);
  const auto moves = more(driver::source(3, 6), 5);
  worker.push(moves);
  CHECK(worker.action<session_actions::add_source>().released == lease_id{5});
  worker.push(moves);
  CHECK(worker.silent());
  worker.core.source_released(worker.now, {5});
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{5});
  worker.core.source_failed(worker.now, {6}, errc::source_lost, "connection reset");
  CHECK(worker.sent_body<messages::sources_request>().lease == lease_id{6});
  worker.push(moves);  // a late copy: the server has taken this source back
  CHECK(worker.silent());
}

TEST_CASE("session: an update that is being stopped keeps the sources of which reads are outstanding") {
  driver worker;
  worker.join();
  const session_ticket ticket = worker.start_update(3);
  worker.core.cancel(worker.now, ticket);
  static_cast<void>(worker.action<session_actions::stop_pull>());
  worker.push(without(5));
  worker.push(more(driver::source(3, 6), 5));
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{6});  // it was never read
  CHECK(worker.silent());
}

TEST_CASE("session: a source that is given up is released, also if its successor is known already") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.push(more(driver::source(3, 6)));
  static_cast<void>(worker.action<session_actions::add_source>());
  worker.push(more(driver::source(3, 6), 5));
  CHECK(worker.action<session_actions::release_source>().released == lease_id{5});
  CHECK(worker.silent());
}

TEST_CASE("session: the server replaces a source that this reader does not use any more") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.push(more(driver::source(3, 7), 4));
  const auto order = worker.action<session_actions::add_source>();
  CHECK(order.source.lease == lease_id{7});
  CHECK_FALSE(order.released);  // there is nothing to wait for
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{4});
}

TEST_CASE("session: the server takes a source back and gives none instead") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.push(more(driver::source(3, 6)));
  static_cast<void>(worker.action<session_actions::add_source>());
  worker.push(without(5));
  CHECK(worker.action<session_actions::release_source>().released == lease_id{5});
  CHECK(worker.no_action());
  worker.push(without(5));  // repeated
  CHECK(worker.no_action());
  CHECK(worker.silent());  // the shell says when
  worker.core.source_released(worker.now, {5});
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{5});
}

TEST_CASE("session: leases that are not of this update are given back at once") {
  driver worker;
  worker.join();
  SUBCASE("no update runs") {
    worker.push(more(driver::source(3, 6), 5));
  }
  SUBCASE("another version is being read") {
    worker.start_update(3);
    worker.push(more(driver::source(2, 6), 5));
    CHECK(worker.no_action());
    CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{6});
    // The old one is of this update, and stays: the push is of another one.
    worker.clear_output();
    worker.core.source_failed(worker.now, {5}, errc::source_lost, "x");
    CHECK(worker.sent<messages::sources_request>().has_value());
    return;
  }
  SUBCASE("another operation") {
    worker.start_update(3);
    auto other = driver::source(3, 6);
    other.operation = {9};
    worker.push(more(other));
    CHECK(worker.no_action());
    CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{6});
    return;
  }
  SUBCASE("the update is being stopped") {
    const auto ticket = worker.start_update(3);
    worker.core.cancel(worker.now, ticket);
    static_cast<void>(worker.action<session_actions::stop_pull>());
    worker.push(more(driver::source(3, 6)));
    CHECK(worker.no_action());
    CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{6});
    return;
  }
  SUBCASE("the update waits for its group") {
    worker.start_update(3);
    worker.core.pull_finished(worker.now, driver::control());
    worker.clear_output();
    worker.push(more(driver::source(3, 6)));
    CHECK(worker.no_action());
    CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{6});
    return;
  }
  CHECK(worker.no_action());
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{6});
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{5});
}

TEST_CASE("session: sources that change while own readers are drained change what will be read") {
  driver worker;
  worker.join();
  start_draining(worker, 3);
  worker.push(more(second_call(driver::source(3, 6))));
  worker.push(more(second_call(driver::source(3, 7)), 5));
  CHECK(worker.no_action());
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{5});  // never read from
  auto gone = without(6);
  gone.source.operation = {2};
  worker.push(gone);
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{6});
  worker.push(more(second_call(driver::source(4, 8))));  // of another version
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{8});
  CHECK(worker.no_action());
  // The drain's answer is what starts the reading.
  worker.pass_heard(5000ms);
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  worker.carry_out_cut_off();
  const auto order = worker.action<session_actions::start_pull>();
  REQUIRE(order.sources.size() == 1);
  CHECK(order.sources[0].lease == lease_id{7});
}

// ---- failures and stalls

TEST_CASE("session: one of several sources fails: the others stay, and the server may add some") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.push(more(driver::source(3, 6)));
  static_cast<void>(worker.action<session_actions::add_source>());
  worker.core.source_failed(worker.now, {6}, errc::corrupt, "chunk 7", 7);
  const auto request = worker.sent_body<messages::sources_request>();
  CHECK(request.why == messages::sources_wanted::one_failed);
  CHECK(request.lease == lease_id{6});
  CHECK(request.reason == errc::corrupt);
  CHECK(request.chunk == 7);
  messages::update_reply nobody;
  nobody.version = 3;
  SUBCASE("none") {
    worker.answer(std::move(nobody));
    CHECK(worker.no_action());
  }
  SUBCASE("two, of which one is known from a push") {
    worker.push(more(driver::source(3, 8)));
    nobody.sources = {driver::source(3, 7), driver::source(3, 8)};
    worker.answer(std::move(nobody));
    CHECK(worker.action<session_actions::add_source>().source.lease == lease_id{8});
    CHECK(worker.action<session_actions::add_source>().source.lease == lease_id{7});
    CHECK(worker.no_action());
  }
  worker.core.source_failed(worker.now, {6}, errc::corrupt, "again");  // is not a source any more
  CHECK(worker.silent());
}

TEST_CASE(
    "session: a source that was taken back before it was known is not read when a late answer names it") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.core.source_failed(worker.now, {5}, errc::source_lost, "connection reset");
  const auto asked = worker.sent<messages::sources_request>().value();
  worker.clear_output();
  worker.push(more(driver::source(3, 8), 7));  // the server has answered with 7, and that answer was lost
  CHECK(worker.action<session_actions::add_source>().source.lease == lease_id{8});
  CHECK(worker.sent_body<messages::lease_released_request>().lease == lease_id{7});
  worker.answer(asked.sequence, driver::assign(driver::source(3, 7)));
  CHECK(worker.no_action());
}

TEST_CASE("session: a stall is told without a lease, and only while reading") {
  driver worker;
  worker.join();
  worker.core.pull_stalled(worker.now, "nothing runs");
  CHECK(worker.silent());
  const auto ticket = worker.start_update(3);
  worker.core.pull_stalled(worker.now, "no new chunk from trainer");
  const auto request = worker.sent_body<messages::sources_request>();
  CHECK(request.why == messages::sources_wanted::all_stalled);
  CHECK_FALSE(request.lease);
  CHECK(request.operation == operation_counter{1});
  CHECK(request.detail == "no new chunk from trainer");
  SUBCASE("the server knows more sources") {
    worker.answer(driver::assign(driver::source(3, 6)));
    CHECK(worker.action<session_actions::add_source>().source.lease == lease_id{6});
    CHECK_FALSE(worker.result(ticket).has_value());
  }
  SUBCASE("the server says that it will not come") {
    worker.answer(messages::update_reply{{errc::unavailable, "nobody is left"}, {}, false, {}, {}, {}});
    CHECK(worker.action<session_actions::stop_pull>().reason.code == errc::unavailable);
  }
}

TEST_CASE("session: a stall is told once, until the server has answered") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.core.pull_stalled(worker.now, "no new chunk from trainer");
  const auto told = worker.sent<messages::sources_request>().value();
  worker.clear_output();
  worker.core.pull_stalled(worker.now, "still none");
  CHECK(worker.silent());
  worker.push(more(driver::source(3, 6)));
  worker.core.source_failed(worker.now, {5}, errc::source_lost, "connection reset");
  CHECK(worker.sent_body<messages::sources_request>().lease == lease_id{5});
  worker.core.pull_stalled(worker.now, "still none");
  CHECK(worker.silent());
  worker.answer(told.sequence, driver::assign(driver::source(3, 7)));
  worker.core.pull_stalled(worker.now, "again none");
  CHECK(worker.sent_body<messages::sources_request>().detail == "again none");
}

TEST_CASE("session: a shortage is told without a lease, unless a stall is told, which it does not silence") {
  driver worker;
  worker.join();
  worker.core.pull_ran_short(worker.now);
  CHECK(worker.silent());
  worker.start_update(3);
  worker.core.pull_ran_short(worker.now);
  const auto told = worker.sent<messages::sources_request>().value();
  const auto& request = *get_if<messages::sources_request>(&told.body);
  CHECK(request.why == messages::sources_wanted::short_of_chunks);
  CHECK_FALSE(request.lease);
  CHECK(request.operation == operation_counter{1});
  worker.clear_output();
  worker.core.pull_ran_short(worker.now);
  CHECK(worker.silent());
  worker.core.pull_stalled(worker.now, "no new chunk");
  const auto stall = worker.sent<messages::sources_request>().value();
  CHECK(get_if<messages::sources_request>(&stall.body)->why == messages::sources_wanted::all_stalled);
  SUBCASE("nothing can be exchanged") {
    messages::update_reply nothing;
    nothing.version = 3;
    worker.answer(told.sequence, std::move(nothing));
  }
  SUBCASE("a new server knows nothing of the update yet") {
    worker.answer(told.sequence,
                  messages::update_reply{{errc::unavailable, "not known"}, {}, false, {}, {}, {}});
  }
  CHECK(worker.no_action());
  worker.clear_output();
  worker.core.pull_ran_short(worker.now);
  CHECK(worker.silent());
}

TEST_CASE("session: whatever ends the reading raises the epoch: what was received was shown") {
  driver worker;
  worker.join();
  const auto ticket = worker.start_update(3);
  const auto shown_at = worker.core.epoch();
  worker.core.pull_started(worker.now, driver::control());
  worker.clear_output();
  SUBCASE("it fails") {
    worker.core.cancel(worker.now, ticket);
    static_cast<void>(worker.action<session_actions::stop_pull>());
    worker.core.pull_failed(worker.now, {errc::source_lost, "stopped"}, {});
    CHECK(worker.action<session_actions::raise_epoch>().epoch == shown_at + 1);
  }
  SUBCASE("it does not: the readers of what was received go on reading") {
    worker.core.pull_finished(worker.now, driver::control());
    CHECK(worker.no_action());
    CHECK(worker.sent_body<messages::finish_request>().held.value().epoch == shown_at);
  }
}

// ---- a server that is restarted meanwhile

TEST_CASE("session: a new server is told what is being read from whom, and what is shown of it") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.push(more(driver::source(3, 6)));
  static_cast<void>(worker.action<session_actions::add_source>());
  SUBCASE("it can be read") {
    worker.core.pull_started(worker.now, driver::control());
    worker.clear_output();
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
    const auto join = worker.sent_body<messages::join_request>();
    REQUIRE(join.before.reading.size() == 2);
    CHECK(join.before.reading[0].lease == lease_id{5});
    CHECK(join.before.reading[1].lease == lease_id{6});
    REQUIRE(join.before.receiving.has_value());
    CHECK(join.before.receiving->version == version_number{3});
    CHECK(join.before.receiving->epoch == worker.core.epoch());
    CHECK(join.before.receiving->root == driver::source(3).root);
    CHECK(join.before.receiving->control == driver::control());
    CHECK_FALSE(join.before.held.has_value());
  }
  SUBCASE("it has not begun to show anything") {
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
    const auto join = worker.sent_body<messages::join_request>();
    CHECK(join.before.reading.size() == 2);
    CHECK_FALSE(join.before.receiving.has_value());
  }
  SUBCASE("one of the sources has failed") {
    worker.core.source_failed(worker.now, {5}, errc::source_lost, "connection reset");
    worker.clear_output();
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
    const auto join = worker.sent_body<messages::join_request>();
    REQUIRE(join.before.reading.size() == 1);
    CHECK(join.before.reading[0].lease == lease_id{6});
  }
  CHECK(worker.no_action());  // losing the server stops nothing in flight
}

TEST_CASE("session: when the reading is over, nothing of it is announced any more") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.core.pull_started(worker.now, driver::control());
  worker.core.pull_finished(worker.now, driver::control());
  worker.clear_output();
  worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  const auto join = worker.sent_body<messages::join_request>();
  CHECK(join.before.reading.empty());
  CHECK_FALSE(join.before.receiving.has_value());
  CHECK(join.before.held.value().version == version_number{3});
}

// ---- why

TEST_CASE("session: why asks for this worker's own decisions") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.why(worker.now, worker.in(10s));
  const auto request = worker.sent_body<messages::why_request>();
  CHECK(request.model == "policy");
  CHECK(request.replica == "rollout");
  CHECK(request.shard == 0);
  worker.answer(messages::why_reply{{}, "nearest, then least loaded\n"});
  CHECK(worker.result(ticket).value().why == "nearest, then least loaded\n");
}

TEST_CASE("session: hearts beat with the chunks that have been received") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.core.progress(17);
  worker.clear_output();
  worker.pass(500ms);
  CHECK(worker.sent_body<messages::heartbeat_request>().chunks == 17);
}

}  // namespace

TEST_CASE("session: a running call keeps its number when the worker joins another server") {
  driver worker;
  worker.join();
  worker.hold(1);  // operation 1
  const auto unpublish = worker.core.unpublish(worker.now, worker.in(1s));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  worker.answer(messages::drained_reply{});
  REQUIRE(worker.result(unpublish).has_value());
  worker.clear_output();
  const auto update = worker.core.update(worker.now, latest, worker.in(60s));
  CHECK(worker.sent_body<messages::update_request>().operation == operation_counter{2});
  auto assigned = driver::assign(driver::source(2));
  assigned.operation = {2};
  worker.answer(assigned);
  messages::goodbye_push unknown;
  unknown.rejoin = true;
  worker.push(unknown);
  CHECK(worker.sent_body<messages::join_request>().before.operation == operation_counter{1});
  auto joined = driver::joined_reply();
  joined.operation = {5};  // the others have gone on
  worker.answer(joined);
  worker.clear_output();
  worker.core.pull_finished(worker.now, driver::control());
  CHECK(worker.sent_body<messages::finish_request>().operation == operation_counter{2});
  worker.answer(messages::status_reply{});
  CHECK(worker.result(update).value().operation == operation_counter{2});
  static_cast<void>(worker.core.update(worker.now, latest, worker.in(60s)));
  CHECK(worker.sent_body<messages::update_request>().operation == operation_counter{6});
}

TEST_CASE("session: who has everything asks for no source any more") {
  driver worker;
  worker.join();
  worker.start_update(3);
  worker.core.source_failed(worker.now, {5}, errc::source_lost, "connection reset");
  static_cast<void>(worker.sent_body<messages::sources_request>());
  worker.core.pull_finished(worker.now, driver::control());
  static_cast<void>(worker.sent_body<messages::finish_request>());
  messages::goodbye_push unknown;
  unknown.rejoin = true;
  worker.push(unknown);
  static_cast<void>(worker.sent_body<messages::join_request>());
  worker.answer(driver::joined_reply());
  for (const messages::envelope& sent : worker.core.take_output())
    CHECK_FALSE(holds_alternative<messages::sources_request>(sent.body));
}
