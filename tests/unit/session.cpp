/// \file session.cpp
/// The session, message by message and action by action. Sources that come and go while it reads:
/// session_sources.cpp; servers that come and go: session_recovery.cpp.

#include <tensorhub/transfer/first_of/address.hpp>

#include "session_driver.hpp"

using namespace session_test;

namespace {

// ---- joining

TEST_CASE("session: a request is repeated under its number until it is answered") {
  driver worker;
  const auto ticket = worker.core.join(worker.now, worker.in(30s));
  const auto first = worker.sent<messages::join_request>();
  REQUIRE(first.has_value());
  CHECK(first->sender == 42);
  worker.pass(900ms);
  CHECK(worker.silent());
  worker.pass(100ms);
  const auto second = worker.sent<messages::join_request>();
  REQUIRE(second.has_value());
  CHECK(second->sequence == first->sequence);
  worker.answer(first->sequence, driver::joined_reply());
  CHECK(worker.result(ticket).value().outcome.ok());
  CHECK(worker.core.joined());
  worker.answer(first->sequence, driver::joined_reply());  // the answer to the repetition
  CHECK(worker.result(ticket).has_value());
  worker.pass(5000ms);
  CHECK_FALSE(worker.sent<messages::join_request>().has_value());
}

TEST_CASE("session: the layout is sent when the server asks for it, as another request") {
  driver worker;
  worker.core.join(worker.now, worker.in(30s));
  CHECK(worker.sent_body<messages::join_request>().form.tensors.empty());
  const auto first = worker.last_sequence;
  messages::join_reply wants;
  wants.wants_layout = true;
  worker.answer(wants);
  CHECK_FALSE(worker.core.joined());
  const auto join = worker.sent_body<messages::join_request>();
  REQUIRE(join.form.tensors.size() == 2);
  CHECK(join.form.tensors[1].name == "norm");
  CHECK(worker.last_sequence != first);
  worker.answer(driver::joined_reply());
  REQUIRE(worker.core.joined());
  // The next server may know it, or hear it from another worker.
  messages::goodbye_push unknown;
  unknown.rejoin = true;
  worker.core.receive(worker.now, {78, {}, {}, unknown});
  CHECK(worker.sent_body<messages::join_request>().form.tensors.empty());
}

TEST_CASE("session: a refused join ends with the server's sentence, and so does every later call") {
  driver worker;
  const auto ticket = worker.core.join(worker.now, worker.in(30s));
  static_cast<void>(worker.sent_body<messages::join_request>());
  messages::join_reply refused;
  refused.result = {errc::layout_mismatch, "tensor 1 differs"};
  worker.answer(refused);
  CHECK(worker.result(ticket).value().outcome.sentence == "tensor 1 differs");
  const auto later = worker.core.update(worker.now, latest, worker.in(1s));
  CHECK(worker.result(later).value().outcome.code == errc::layout_mismatch);
  CHECK(worker.core.fatal().has_value());
}

TEST_CASE("session: a server that does not answer is named at the deadline of the join") {
  driver worker;
  const auto ticket = worker.core.join(worker.now, worker.in(2s));
  worker.pass(1999ms);
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.pass(1ms);
  const auto result = worker.result(ticket);
  REQUIRE(result.has_value());
  CHECK(result->outcome.code == errc::disconnected);
  CHECK(result->outcome.sentence.find(
            "no answer from the reference server at tcp://server:5570 within 2000 ms") == 0);
}

TEST_CASE("session: a join that has no time says so, and accuses no server") {
  driver worker;
  for (const auto given : {0ms, -5ms}) {
    const auto ticket = worker.core.join(worker.now, worker.in(given));
    worker.pass(1ms);
    const auto outcome = worker.result(ticket).value().outcome;
    CHECK(outcome.code == errc::disconnected);
    CHECK_MESSAGE(outcome.sentence.find("the time-out left no time") == 0, outcome.sentence);
  }
}

TEST_CASE("session: joins at the same time are one request, and each ends by its own deadline") {
  driver worker;
  const auto short_one = worker.core.join(worker.now, worker.in(1s));
  const auto cancelled = worker.core.join(worker.now, worker.in(20s));
  const auto long_one = worker.core.join(worker.now, worker.in(30s));
  static_cast<void>(worker.sent_body<messages::join_request>());
  CHECK(worker.silent());
  worker.core.cancel_join(cancelled, {errc::cancelled, "not wanted"});
  CHECK(worker.result(cancelled).value().outcome.code == errc::cancelled);
  worker.pass(1000ms);
  CHECK(worker.result(short_one).value().outcome.code == errc::disconnected);
  CHECK(worker.core.next_deadline() <= worker.in(30s));
  CHECK_FALSE(worker.result(long_one).has_value());
  SUBCASE("answered") {
    worker.answer(driver::joined_reply());
    CHECK(worker.result(long_one).value().outcome.ok());
    CHECK(worker.core.joined());
  }
  SUBCASE("interrupted") {
    worker.core.interrupt(worker.now);
    CHECK(worker.result(long_one).value().outcome.code == errc::cancelled);
  }
}

TEST_CASE("session: hearts beat at the server's interval, with what has been acknowledged") {
  driver worker;
  worker.join();
  worker.pass(499ms);
  CHECK(worker.silent());
  worker.pass(1ms);
  const auto beat = worker.sent<messages::heartbeat_request>();
  REQUIRE(beat.has_value());
  CHECK(beat->sequence == request_sequence{});
  CHECK(beat->acknowledged == worker.last_sequence);
  worker.core.list(worker.now, "", worker.in(10s));  // an open request holds the acknowledgement back
  worker.clear_output();
  worker.pass(500ms);
  CHECK(worker.sent<messages::heartbeat_request>().value().acknowledged == worker.last_sequence);
}

TEST_CASE("session: a long wait holds no acknowledgement back, and questions leave room for reports") {
  driver worker;
  worker.join();
  worker.core.wait(worker.now, at_least(100), worker.in(3600s));
  const request_sequence wait = worker.sent<messages::wait_request>().value().sequence;
  for (int i = 0; i < 3; ++i) {
    worker.core.source_released(worker.now, lease_id{7});
    const auto sent = worker.sent<messages::lease_released_request>();
    REQUIRE(sent.has_value());
    CHECK(sent->acknowledged.value == sent->sequence.value - 1);
    REQUIRE(sent->open.size() == 1);
    CHECK(sent->open.front() == wait);
    worker.answer(sent->sequence, messages::status_reply{});
  }
  for (std::size_t i = 1; i < limits::worker_questions; ++i)
    CHECK_FALSE(worker.result(worker.core.wait(worker.now, at_least(100), worker.in(3600s))).has_value());
  const auto refused = worker.result(worker.core.wait(worker.now, at_least(100), worker.in(3600s)));
  CHECK(refused.value().outcome.code == errc::limit_exceeded);
}

TEST_CASE("session: the latest version does not go backwards") {
  driver worker;
  worker.join();
  worker.push(messages::version_push{7});
  CHECK(worker.core.latest() == version_number{7});
  worker.push(messages::heartbeat_reply{server_epoch{77}, 6});
  CHECK(worker.core.latest() == version_number{7});
  worker.push(messages::heartbeat_reply{server_epoch{77}, 8});
  CHECK(worker.core.latest() == version_number{8});
}

// ---- publish and unpublish

TEST_CASE("session: publish holds the version; a second one before unpublish is refused by name") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto ticket = worker.core.publish(worker.now, 4, {}, driver::control(), worker.in(1s));
  const auto result = worker.result(ticket);
  REQUIRE(result.has_value());
  CHECK(result->outcome.code == errc::still_published);
  CHECK(result->outcome.sentence == "version 3 is still published: call unpublish() first");
  CHECK(worker.core.held()->version == version_number{3});
  CHECK_FALSE(worker.sent<messages::publish_request>().has_value());
}

TEST_CASE("session: a refused publish holds nothing and raises the epoch that was shown already") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.publish(worker.now, 3, {}, driver::control(), worker.in(1s));
  const auto before = worker.core.epoch();
  CHECK(worker.sent_body<messages::publish_request>().held.epoch == before);
  worker.answer(messages::status_reply{{errc::version_conflict, "version 3 goes backwards"}, {}});
  CHECK(worker.result(ticket).value().outcome.code == errc::version_conflict);
  CHECK_FALSE(worker.core.held().has_value());
  CHECK(worker.action<session_actions::raise_epoch>().epoch == before + 1);
}

TEST_CASE("session: a publish without an answer is taken back at the deadline, with the reason") {
  driver worker;
  worker.join();
  const auto ends_after = [&](std::chrono::milliseconds timeout, bool is_heard) {
    const auto ticket = worker.core.publish(worker.now, 3, {}, driver::control(), worker.in(timeout));
    is_heard ? worker.pass_heard(timeout) : worker.pass(timeout);
    CHECK_FALSE(worker.result(ticket).has_value());  // there may be readers, and the bytes may not change
    static_cast<void>(worker.action<session_actions::raise_epoch>());
    worker.carry_out_cut_off();
    return worker.result(ticket).value().outcome;
  };
  SUBCASE("the server is there") {
    const auto outcome = ends_after(2000ms, true);
    CHECK(outcome.code == errc::timed_out);
    CHECK(outcome.sentence == "the deadline passed while waiting for the server's answer to publish()");
  }
  SUBCASE("the server is silent") {
    const auto outcome = ends_after(10s, false);
    CHECK(outcome.code == errc::disconnected);
    CHECK(outcome.sentence.find("tcp://server:5570 does not answer") != std::string::npos);
  }
  CHECK(worker.sent_body<messages::unpublish_request>().version == version_number{3});
  // The server may retain the version: it gives up that there are other holders first.
  CHECK(worker.sent_body<messages::cut_off_done_request>().reader == incarnation{});
  CHECK_FALSE(worker.core.held().has_value());
}

TEST_CASE("session: an interrupted publish ends as cancelled, and is taken back") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.publish(worker.now, 4, {}, driver::control(), worker.in(60s));
  static_cast<void>(worker.sent_body<messages::publish_request>());
  worker.core.interrupt(worker.now);
  worker.pass(0ms);
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  worker.carry_out_cut_off();
  CHECK(worker.result(ticket).value().outcome.code == errc::cancelled);
  CHECK(worker.sent_body<messages::unpublish_request>().version == version_number{4});
}

TEST_CASE("session: unpublish ends when the server says that no reader is left, then raises the epoch") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto before = worker.core.epoch();
  const auto ticket = worker.core.unpublish(worker.now, worker.in(10s));
  CHECK(worker.sent_body<messages::unpublish_request>().epoch == before);
  CHECK(worker.no_action());
  CHECK_FALSE(worker.result(ticket).has_value());
  messages::drained_reply drained{{}, 2, 1, 0};
  drained.refused = 7;
  worker.answer(drained);
  const auto result = worker.result(ticket);
  REQUIRE(result.has_value());
  CHECK(result->outcome.ok());
  CHECK_FALSE(result->forced);
  CHECK(result->drained.finished == 2);
  CHECK(result->version == version_number{3});
  CHECK(result->drained.refused == 7);
  CHECK(worker.action<session_actions::raise_epoch>().epoch == before + 1);
  CHECK_FALSE(worker.core.held().has_value());
}

TEST_CASE("session: the answer to an unpublish that was forced meanwhile is about the version of before") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto ticket = worker.core.unpublish(worker.now, worker.in(2s));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  worker.core.end_by(worker.in(10s));
  worker.pass(2s);
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  worker.core.all_cut_off(worker.now);
  CHECK_FALSE(worker.result(ticket).has_value());
  messages::drained_reply drained{{}, 0, 0, 1};
  drained.refused = 7;
  worker.answer(drained);
  const auto result = worker.result(ticket).value();
  CHECK(result.forced);
  CHECK(result.drained.refused == 7);
  CHECK(result.version == version_number{3});
}

TEST_CASE("session: where keys are cheap, no earlier reader keeps one after an unpublish") {
  driver worker{[](session_options& how) { how.revokes_cheaply = true; }};
  worker.join();
  worker.hold(3);
  const auto ticket = worker.core.unpublish(worker.now, worker.in(2s));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  worker.answer(messages::drained_reply{});
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.carry_out_cut_off();
  CHECK(worker.result(ticket).value().outcome.ok());
  CHECK_FALSE(worker.sent<messages::cut_off_done_request>().has_value());
}

TEST_CASE(
    "session: what the server says others may still read by old keys is revoked at the end of an unpublish") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto ticket = worker.core.unpublish(worker.now, worker.in(2s));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  messages::drained_reply drained;
  drained.revoke = true;
  worker.answer(drained);
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.carry_out_cut_off();
  CHECK(worker.result(ticket).value().outcome.ok());
}

TEST_CASE(
    "session: what is retained, and nobody has said to be elsewhere, is lost by an unpublish that is "
    "forced") {
  messages::retention keeps{1, 0, {}};
  SUBCASE("nothing is") {}
  SUBCASE("the latest") {
    keeps.keep_latest = 1;
  }
  SUBCASE("this version") {
    keeps.pinned = {version_number{3}};
  }
  driver worker;
  worker.join();
  worker.push(messages::retention_push{keeps});
  worker.hold(3);
  const auto ticket = worker.core.unpublish(worker.now, worker.in(2s));
  worker.pass(2s);
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  worker.carry_out_cut_off();
  const auto result = worker.result(ticket).value();
  CHECK(result.forced);
  CHECK(result.drained.lost == (keeps.keep_latest > 0 || !keeps.pinned.empty()));
}

TEST_CASE("session: an unpublish that is forced by its deadline ends when everybody is cut off") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto before = worker.core.epoch();
  const auto ticket = worker.core.unpublish(worker.now, worker.in(2s));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  worker.pass(2s);
  CHECK(worker.action<session_actions::raise_epoch>().epoch == before + 1);
  static_cast<void>(worker.action<session_actions::cut_off_all>());
  // A transport may need long for large memory. Heartbeats go on, and the memory is not the caller's yet.
  worker.clear_output();
  worker.pass(10s);
  CHECK(worker.sent<messages::heartbeat_request>().has_value());
  CHECK_FALSE(worker.sent<messages::cut_off_done_request>().has_value());
  CHECK_FALSE(worker.result(ticket).has_value());
  const auto early = worker.core.publish(worker.now, {4}, {}, driver::control(), worker.in(1s));
  CHECK(worker.result(early).value().outcome.code == errc::busy);
  CHECK(worker.no_action());
  worker.core.all_cut_off(worker.now);
  const auto result = worker.result(ticket);
  REQUIRE(result.has_value());
  CHECK(result->outcome.ok());
  CHECK(result->forced);
  CHECK_FALSE(worker.core.held().has_value());
  CHECK(worker.sent_body<messages::cut_off_done_request>().reader == incarnation{});
  worker.clear_output();
  worker.pass(1s);  // and the server must still hear of the unpublish itself
  CHECK(worker.sent<messages::unpublish_request>().has_value());
}

TEST_CASE("session: unpublish of nothing ends at once") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.unpublish(worker.now, worker.in(1s));
  CHECK(worker.result(ticket).value().outcome.ok());
  CHECK(worker.silent());
}

// ---- update

TEST_CASE("session: an update pulls, reports, and ends with the group") {
  driver worker{&driver::in_two_shards};
  worker.join();
  const auto ticket = worker.core.update(worker.now, at_least(3), worker.in(60s));
  const auto request = worker.sent_body<messages::update_request>();
  CHECK(request.selector == at_least(3));
  CHECK(request.timeout_ms == 60'000);
  worker.answer(driver::assign(driver::source(3)));
  const auto order = worker.begin_reading(3);
  REQUIRE(order.sources.size() == 1);
  CHECK(order.sources[0].lease == lease_id{5});
  worker.core.pull_finished(worker.now, driver::control());
  const auto finish = worker.sent_body<messages::finish_request>();
  CHECK(finish.result.ok());
  CHECK(finish.lease == lease_id{5});
  REQUIRE(finish.held.has_value());
  CHECK(finish.held->version == version_number{3});
  CHECK(finish.held->root == driver::source(3).root);
  CHECK(finish.held->epoch == worker.core.epoch());
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().version == version_number{3});
  CHECK(worker.core.held()->version == version_number{3});
}

TEST_CASE(
    "session: an update of the only shard does not wait for the answer to its report, but the next one "
    "does") {
  driver worker;
  worker.join();
  const auto ticket = worker.start_update(3);
  worker.core.pull_finished(worker.now, driver::control());
  CHECK(worker.result(ticket).value().version == version_number{3});
  const auto report = worker.sent<messages::finish_request>();
  REQUIRE(report.has_value());
  worker.pass_heard(1000ms);
  CHECK(worker.sent_body<messages::finish_request>().lease == lease_id{5});  // again, until it is answered
  const auto next = worker.core.update(worker.now, at_least(4), worker.in(60s));
  CHECK_FALSE(worker.sent<messages::update_request>().has_value());
  worker.answer(messages::status_reply{});
  worker.core.advance(worker.now);  // it is due at once
  CHECK(worker.sent_body<messages::update_request>().selector == at_least(4));
  CHECK_FALSE(worker.result(next).has_value());
}

TEST_CASE("session: nothing is taken back before the server has heard that it is held") {
  driver worker;
  worker.join();
  static_cast<void>(worker.start_update(3));
  worker.core.pull_finished(worker.now, driver::control());
  static_cast<void>(worker.sent_body<messages::finish_request>());
  const auto report = worker.last_sequence;
  const auto ticket = worker.core.unpublish(worker.now, worker.in(60s));
  CHECK_FALSE(worker.sent<messages::unpublish_request>().has_value());
  worker.pass_heard(1000ms);
  CHECK(worker.sent<messages::finish_request>().has_value());  // the first one may be lost
  CHECK_FALSE(worker.sent<messages::unpublish_request>().has_value());
  worker.answer(report, messages::status_reply{});
  worker.core.advance(worker.now);
  CHECK(worker.sent_body<messages::unpublish_request>().version == 3);
  CHECK_FALSE(worker.result(ticket).has_value());
}

TEST_CASE("session: an update that others await ends when the server knows of it") {
  driver worker{[](session_options& options) { options.awaited = true; }};
  worker.join();
  const auto ticket = worker.start_update(3);
  worker.core.pull_finished(worker.now, driver::control());
  CHECK(worker.sent_body<messages::finish_request>().result.ok());
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().version == version_number{3});
}

TEST_CASE("session: a version that is held already is kept without any action") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto ticket = worker.core.update(worker.now, latest, worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  worker.answer(messages::update_reply{{}, {}, true, 3, {}});
  CHECK(worker.result(ticket).value().kept);
  CHECK(worker.no_action());
  CHECK(worker.core.held()->version == version_number{3});
}

TEST_CASE("session: a call while another runs is busy") {
  driver worker;
  worker.join();
  const auto running = worker.start_update(3);
  for (const auto ticket : {worker.core.update(worker.now, latest, worker.in(1s)),
                            worker.core.unpublish(worker.now, worker.in(1s)),
                            worker.core.publish(worker.now, 9, {}, driver::control(), worker.in(1s)),
                            worker.core.leave(worker.now, worker.in(1s))}) {
    CHECK(worker.result(ticket).value().outcome.code == errc::busy);
  }
  CHECK_FALSE(worker.result(running).has_value());
  CHECK(worker.no_action());
}

TEST_CASE("session: own readers are drained before the bytes are overwritten") {
  driver worker;
  worker.join();
  worker.hold(1);
  const auto before = worker.core.epoch();
  worker.core.update(worker.now, latest, worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  worker.answer(driver::assign(driver::source(2, 5, false)));
  CHECK(worker.sent_body<messages::unpublish_request>().operation);
  CHECK(worker.no_action());
  SUBCASE("they end") {
    worker.answer(messages::drained_reply{});
  }
  SUBCASE("they do not: they are cut off") {
    worker.pass_heard(5000ms);
    CHECK(worker.action<session_actions::raise_epoch>().epoch == before + 1);
    static_cast<void>(worker.action<session_actions::cut_off_all>());
    CHECK_FALSE(worker.sent<messages::cut_off_done_request>().has_value());
    worker.pass_heard(5000ms);
    CHECK(worker.no_action());  // nothing is overwritten that can still be read
    worker.core.all_cut_off(worker.now);
    CHECK(worker.sent<messages::cut_off_done_request>().has_value());
    CHECK(worker.action<session_actions::start_pull>().version == version_number{2});
    return;
  }
  CHECK(worker.core.epoch() == before + 1);
  worker.begin_reading(2);
}

TEST_CASE("session: an update that is cancelled while keys are revoked keeps the version held") {
  driver worker;
  worker.join();
  worker.hold(1);
  const auto ticket = worker.core.update(worker.now, latest, worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  worker.answer(driver::assign(driver::source(2, 5, false)));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  messages::drained_reply old_keys;
  SUBCASE("by the server's word") {
    old_keys.revoke = true;
    worker.answer(old_keys);
    worker.drop_actions();
    worker.core.cancel(worker.now, ticket);
  }
  SUBCASE("by force, and the call's time is over meanwhile") {
    worker.pass_heard(5000ms);
    worker.drop_actions();
    worker.pass_heard(60s);
  }
  CHECK(worker.no_action());
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.core.all_cut_off(worker.now);
  static_cast<void>(worker.action<session_actions::start_pull>());
  static_cast<void>(worker.action<session_actions::stop_pull>());
  worker.core.pull_failed(worker.now, {errc::cancelled, "stopped"}, driver::control(9));
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  CHECK(worker.action<session_actions::restore>().held.version == version_number{1});
  CHECK(worker.core.held().value().control == driver::control(9));
}

TEST_CASE(
    "session: a source that fails is replaced; when there is none the pull is stopped with the reason") {
  driver worker;
  worker.join();
  const auto ticket = worker.start_update(3);
  worker.core.source_failed(worker.now, {4}, errc::source_lost, "an earlier lease");
  CHECK(worker.silent());
  worker.core.source_failed(worker.now, {5}, errc::source_lost, "connection reset");
  CHECK(worker.sent_body<messages::sources_request>().lease == lease_id{5});
  worker.answer(driver::assign(driver::source(3, 6)));
  const auto order = worker.action<session_actions::add_source>();
  CHECK(order.source.lease == lease_id{6});
  CHECK_FALSE(order.released);  // the server has ended the old lease itself
  worker.core.source_failed(worker.now, {6}, errc::source_lost, "connection reset");
  static_cast<void>(worker.sent_body<messages::sources_request>());
  worker.answer(messages::update_reply{{errc::unavailable, "nobody is left"}, {}, false, {}, {}});
  CHECK(worker.action<session_actions::stop_pull>().reason.sentence == "nobody is left");
  worker.core.pull_failed(worker.now, {errc::source_lost, "stopped"}, {});
  const auto finish = worker.sent_body<messages::finish_request>();
  CHECK(finish.result.code == errc::unavailable);
  CHECK_FALSE(finish.intact);
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().outcome.sentence == "nobody is left");
}

constexpr std::string_view late_for_version =
    "the deadline passed while waiting for a version (at least 9), or for the other shards to make this "
    "call";

TEST_CASE("session: the deadline of an update names what was waited for") {
  driver worker{&driver::in_two_shards};
  worker.join();
  SUBCASE("a version") {
    const auto ticket = worker.core.update(worker.now, at_least(9), worker.in(2s));
    static_cast<void>(worker.sent_body<messages::update_request>());
    worker.pass_heard(2000ms);
    const auto finish = worker.sent_body<messages::finish_request>();
    CHECK(finish.intact);
    worker.answer(messages::status_reply{});
    CHECK(worker.result(ticket).value().outcome.code == errc::timed_out);
    CHECK(worker.result(ticket).value().outcome.sentence == late_for_version);
  }
  SUBCASE("a version, and the server says it first") {
    const auto ticket = worker.core.update(worker.now, at_least(9), worker.in(2s));
    worker.core.end_by(worker.in(2200ms));
    CHECK(worker.sent_body<messages::update_request>().timeout_ms == 2000);
    worker.pass_heard(2099ms);
    messages::update_reply reply;
    reply.result = {errc::timed_out, "no such version"};
    worker.answer(reply);
    CHECK(worker.result(ticket).value().outcome.sentence == "no such version");
  }
  SUBCASE("a version, and the server is late as well") {
    const auto ticket = worker.core.update(worker.now, at_least(9), worker.in(2s));
    worker.core.end_by(worker.in(2200ms));
    static_cast<void>(worker.sent_body<messages::update_request>());
    SUBCASE("says nothing") {
      worker.pass_heard(2100ms);
    }
    SUBCASE("names sources") {
      worker.pass_heard(2050ms);
      worker.answer(driver::assign(driver::source(9)));
    }
    CHECK(worker.sent_body<messages::finish_request>().intact);
    worker.answer(messages::status_reply{});
    CHECK(worker.result(ticket).value().outcome.sentence == late_for_version);
  }
  SUBCASE("bytes") {
    const auto ticket = worker.start_update(3, 2000ms);
    worker.pass_heard(2000ms);
    CHECK(worker.action<session_actions::stop_pull>().reason.sentence ==
          "the deadline passed while waiting for the bytes of version 3 from trainer at tcp://trainer:1");
    worker.core.pull_failed(worker.now, {}, {});
    static_cast<void>(worker.sent_body<messages::finish_request>());
    worker.answer(messages::status_reply{});
    CHECK(worker.result(ticket).value().outcome.code == errc::timed_out);
  }
  SUBCASE("the group, and the server says nothing more") {
    const auto ticket = worker.start_update(3, 2000ms);
    worker.core.pull_finished(worker.now, driver::control());
    worker.pass_heard(2000ms);
    CHECK_FALSE(worker.result(ticket).has_value());
    worker.pass_heard(2000ms);  // two retry intervals for the report itself
    CHECK(worker.result(ticket).value().outcome.sentence ==
          "the deadline passed while waiting for the other shards of the replica");
  }
}

TEST_CASE("session: a source that several transports reach is named by all of its addresses") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.update(worker.now, latest, worker.in(2s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  messages::assignment source = driver::source(3);
  source.address.text =
      first_of_detail::encode({"machine", "", {{0, "same-host://1"}, {1, "tcp://a.b:4711"}}});
  worker.answer(driver::assign(source));
  worker.begin_reading(3);
  worker.pass_heard(2000ms);
  CHECK(worker.action<session_actions::stop_pull>().reason.sentence ==
        "the deadline passed while waiting for the bytes of version 3 from trainer at same-host://1, "
        "tcp://a.b:4711");
  CHECK_FALSE(worker.result(ticket).has_value());
}

TEST_CASE("session: cancel ends an update that reads") {
  driver worker;
  worker.join();
  const auto ticket = worker.start_update(3);
  worker.core.cancel(worker.now, ticket);
  static_cast<void>(worker.action<session_actions::stop_pull>());
  SUBCASE("when every byte is here already: nothing is held either") {
    worker.core.pull_finished(worker.now, driver::control(9));
    static_cast<void>(worker.action<session_actions::raise_epoch>());
    const auto finish = worker.sent_body<messages::finish_request>();
    CHECK(finish.result.code == errc::cancelled);
    CHECK_FALSE(finish.held);
    worker.answer(messages::status_reply{});
    CHECK(worker.result(ticket).value().outcome.code == errc::cancelled);
    CHECK_FALSE(worker.core.held());
  }
  SUBCASE("though the server says nothing any more") {
    worker.core.pull_failed(worker.now, {errc::source_lost, "stopped"}, {});
    worker.pass(2000ms);
    CHECK(worker.result(ticket).value().outcome.code == errc::cancelled);
  }
}

TEST_CASE("session: cancel ends an update, and only that") {
  driver worker;
  worker.join();
  SUBCASE("while waiting") {
    const auto ticket = worker.core.update(worker.now, at_least(9), worker.in(60s));
    worker.core.cancel(worker.now, ticket + 1);
    CHECK_FALSE(worker.sent<messages::finish_request>().has_value());
    worker.core.cancel(worker.now, ticket);
    CHECK(worker.sent_body<messages::finish_request>().intact);
    worker.answer(messages::status_reply{});
    CHECK(worker.result(ticket).value().outcome.code == errc::cancelled);
    CHECK(worker.no_action());
  }
  SUBCASE("while pulling, before a byte was written: what was held is shown again") {
    worker.hold(1);
    const auto ticket = worker.start_update(3);
    worker.core.cancel(worker.now, ticket);
    static_cast<void>(worker.action<session_actions::stop_pull>());
    remote_region renewed = driver::control();
    renewed.key.used_bytes = 8;  // the drain has revoked the keys
    worker.core.pull_failed(worker.now, {errc::source_lost, "stopped"}, renewed);
    static_cast<void>(worker.action<session_actions::raise_epoch>());  // what had been received was shown
    const auto restored = worker.action<session_actions::restore>();
    CHECK(restored.held.version == version_number{1});
    CHECK(restored.held.epoch == worker.core.epoch());
    const auto finish = worker.sent_body<messages::finish_request>();
    CHECK(finish.result.code == errc::cancelled);
    CHECK(finish.intact);
    CHECK(finish.held.value().version == version_number{1});
    CHECK(finish.held.value().control == renewed);
    worker.answer(messages::status_reply{});
    CHECK(worker.result(ticket).value().outcome.code == errc::cancelled);
    CHECK(worker.core.held()->version == version_number{1});
  }
  SUBCASE("while pulling, afterwards: nothing is held") {
    worker.hold(1);
    const auto ticket = worker.start_update(3);
    worker.core.cancel(worker.now, ticket);
    static_cast<void>(worker.action<session_actions::stop_pull>());
    worker.core.pull_failed(worker.now, {errc::source_lost, "stopped"}, {});
    static_cast<void>(worker.action<session_actions::raise_epoch>());
    CHECK(worker.no_action());
    CHECK_FALSE(worker.sent_body<messages::finish_request>().held.has_value());
    CHECK_FALSE(worker.core.held().has_value());
  }
  SUBCASE("a publish is not cancelled") {
    const auto ticket = worker.core.publish(worker.now, 3, {}, driver::control(), worker.in(10s));
    worker.core.cancel(worker.now, ticket);
    CHECK_FALSE(worker.result(ticket).has_value());
    static_cast<void>(worker.sent_body<messages::publish_request>());
    worker.answer(messages::status_reply{});
    CHECK(worker.result(ticket).value().outcome.ok());
  }
}

TEST_CASE(
    "session: an update that is cancelled while it waits for its group tells what the memory holds now") {
  driver worker{&driver::in_two_shards};
  worker.join();
  worker.hold(1);
  const auto ticket = worker.start_update(3);
  worker.core.pull_finished(worker.now, driver::control());
  worker.clear_output();  // the report of success is lost
  worker.core.cancel(worker.now, ticket);
  const auto finish = worker.sent_body<messages::finish_request>();
  CHECK(finish.result.code == errc::cancelled);
  CHECK_FALSE(finish.intact);  // version 1 is gone
  REQUIRE(finish.held.has_value());
  CHECK(finish.held->version == version_number{3});
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().outcome.code == errc::cancelled);
  CHECK(worker.core.held()->version == version_number{3});
}

TEST_CASE("session: an abort of the group stops its own operation only") {
  driver worker;
  worker.join();
  const auto ticket = worker.start_update(3);
  worker.push(messages::abort_push{{99}, {errc::group_failed, "of another one"}});
  CHECK(worker.no_action());
  worker.push(messages::abort_push{{1}, {errc::group_failed, "shard 1/2 failed"}});
  CHECK(worker.action<session_actions::stop_pull>().reason.sentence == "shard 1/2 failed");
  worker.core.pull_failed(worker.now, {}, {});
  static_cast<void>(worker.sent_body<messages::finish_request>());
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().outcome.code == errc::group_failed);
}

TEST_CASE("session: operations are counted as the server counts them") {
  driver worker;
  worker.core.join(worker.now, worker.in(30s));
  static_cast<void>(worker.sent_body<messages::join_request>());
  auto reply = driver::joined_reply();
  reply.operation = {20};
  worker.answer(reply);
  const auto ticket = worker.core.update(worker.now, latest, worker.in(60s));
  CHECK(worker.sent_body<messages::update_request>().operation == operation_counter{});  // not known yet
  auto answer = driver::assign(driver::source(3));
  answer.operation = {25};
  worker.answer(answer);
  worker.core.pull_finished(worker.now, driver::control());
  CHECK(worker.sent_body<messages::finish_request>().operation == operation_counter{25});
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().operation == operation_counter{25});
  worker.core.update(worker.now, latest, worker.in(60s));
  CHECK(worker.sent_body<messages::update_request>().operation == operation_counter{26});
}

TEST_CASE("session: a call that is given up before it was answered does not make up a number") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.update(worker.now, latest, worker.in(60s));
  worker.core.cancel(worker.now, ticket);
  CHECK(worker.sent_body<messages::finish_request>().operation == operation_counter{});
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().operation == operation_counter{});
  worker.core.update(worker.now, latest, worker.in(60s));
  worker.clear_output();
  worker.pass(1000ms);
  CHECK(worker.sent_body<messages::update_request>().operation == operation_counter{});
}

TEST_CASE("session: the next update waits until the server has heard how the last one ended") {
  driver worker;
  worker.join();
  const auto first = worker.core.update(worker.now, latest, worker.in(1s));
  worker.core.cancel(worker.now, first);
  static_cast<void>(worker.sent_body<messages::finish_request>());
  const auto report = worker.last_sequence;
  worker.pass(2s);  // nobody answers
  REQUIRE(worker.result(first).has_value());
  worker.clear_output();
  const auto second = worker.core.update(worker.now, latest, worker.in(60s));
  CHECK(worker.silent());
  worker.pass(1000ms);
  CHECK(worker.sent<messages::finish_request>().has_value());
  CHECK_FALSE(worker.sent<messages::update_request>().has_value());
  worker.answer(report, messages::status_reply{});
  CHECK_FALSE(worker.result(second).has_value());  // that was the first one's answer
  worker.pass(0ms);
  CHECK(worker.sent<messages::update_request>().has_value());
}

TEST_CASE("session: a drain that ends because the group has failed starts no reading") {
  driver worker;
  worker.join();
  worker.hold(1);
  const auto ticket = worker.core.update(worker.now, latest, worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  worker.answer(driver::assign(driver::source(3, 5, false)));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  worker.answer(messages::drained_reply{{errc::group_failed, "shard 1/2 failed"}});
  CHECK(worker.no_action());
  CHECK(worker.sent_body<messages::finish_request>().intact);
  worker.answer(messages::status_reply{});
  CHECK(worker.result(ticket).value().outcome.sentence == "shard 1/2 failed");
  CHECK(worker.core.held()->version == version_number{1});
}

// ---- cut-offs and goodbyes

TEST_CASE("session: a reader is cut off on the server's word, and that is confirmed") {
  driver worker;
  worker.join();
  worker.push(messages::cut_off_push{{9}});
  CHECK(worker.action<session_actions::cut_off_reader>().reader == incarnation{9});
  CHECK(worker.silent());
  worker.core.cut_off_done(worker.now, {9});
  CHECK(worker.sent_body<messages::cut_off_done_request>().reader == incarnation{9});
}

TEST_CASE("session: who was declared dead ends every call and lets nobody read any more") {
  driver worker;
  worker.join();
  worker.hold(1);
  const auto ticket = worker.start_update(3);
  const auto question = worker.core.list(worker.now, "", worker.in(10s));
  const auto before = worker.core.epoch();
  worker.push(messages::goodbye_push{server_epoch{77}, false, {errc::replaced, "declared dead"}});
  static_cast<void>(worker.action<session_actions::stop_pull>());
  CHECK(worker.action<session_actions::raise_epoch>().epoch == before + 1);
  const auto unpublish = worker.core.unpublish(worker.now, worker.in(1s));
  CHECK_FALSE(worker.result(ticket).has_value());  // readers can still read what it has received
  CHECK_FALSE(worker.result(unpublish).has_value());
  worker.carry_out_cut_off();
  CHECK(worker.result(ticket).value().outcome.sentence == "declared dead");
  CHECK(worker.result(unpublish).value().outcome.ok());
  CHECK(worker.result(question).value().outcome.code == errc::replaced);
  CHECK_FALSE(worker.core.joined());
  worker.clear_output();
  worker.pass(10s);
  CHECK(worker.silent());
}

const messages::goodbye_push not_heard{server_epoch{77}, false, {errc::disconnected, "not heard"}, {42}};

/// What the shell does: `memory` is what its control block, which it has written again, describes.
void go_on(driver& worker, const std::optional<readable_memory>& memory) {
  REQUIRE(worker.core.may_return());
  worker.clear_output();
  worker.core = worker.core.successor(worker.now, {{43}, {}}, memory);
}

TEST_CASE("session: the server is told where the segments of a version that is whole lie") {
  driver worker;
  worker.join();
  const auto named = [](std::uint64_t base) {
    return std::vector{told_region::of(driver::control(base + 1))};
  };
  const auto first = worker.core.publish(worker.now, 1, {}, driver::readable(10), worker.in(1s));
  CHECK(worker.sent_body<messages::publish_request>().held.segments == named(10));
  worker.answer(messages::status_reply{{}, {1}});
  REQUIRE(worker.result(first).value().outcome.ok());
  const auto second = worker.start_update(2);
  SUBCASE("it has received it") {
    worker.core.pull_finished(worker.now, driver::readable(20));
    CHECK(worker.sent_body<messages::finish_request>().held.value().segments == named(20));
  }
  SUBCASE("it holds what it held before, perhaps with other keys") {
    worker.core.cancel(worker.now, second);
    worker.core.pull_failed(worker.now, {errc::source_lost, "stopped"}, driver::readable(30));
    const auto held = worker.sent_body<messages::finish_request>().held.value();
    CHECK(held.control == driver::control(30));
    CHECK(held.segments == named(30));
  }
}

TEST_CASE("session: a worker that was not heard goes on as another incarnation, with what it holds") {
  driver worker{[](session_options& how) { how.renewable = true; }};
  worker.join();
  worker.hold(1);
  const auto waiting = worker.core.wait(worker.now, at_least(4), worker.in(3s));
  const auto asked = worker.sent<messages::wait_request>().value().sequence;
  const auto epoch = worker.core.epoch();
  worker.push(not_heard);
  const auto ended = worker.result(waiting).value().outcome;
  CHECK(ended.code == errc::disconnected);
  CHECK(ended.sentence == "not heard; it joins again by itself: repeat the call");
  const auto raised = worker.action<session_actions::raise_epoch>().epoch;
  CHECK(raised > epoch);
  CHECK_FALSE(worker.core.may_return());
  worker.carry_out_cut_off();
  CHECK(worker.core.kept().value().version == version_number{1});
  SUBCASE("its memory can be described again") {
    go_on(worker, driver::readable(9));
    CHECK(worker.core.self() == incarnation{43});
    CHECK_FALSE(worker.core.may_return());
    CHECK_FALSE(worker.core.fatal());
    const auto join = worker.sent<messages::join_request>().value();
    CHECK(join.sender == 43);
    CHECK(join.sequence > asked);  // a late answer to an earlier request answers nothing
    const auto& body = *get_if<messages::join_request>(&join.body);
    CHECK(body.before.returns);
    REQUIRE(body.before.held);
    CHECK(body.before.held->version == version_number{1});
    CHECK(body.before.held->epoch == raised);
    CHECK(body.before.held->root == digest128{1, 2});
    CHECK(body.before.held->control.base == 9);
    CHECK(body.before.held->segments == driver::readable(9).segments);
    CHECK(body.before.operation == operation_counter{});
    worker.push(not_heard);  // repeated: it is meant for the earlier incarnation
    CHECK_FALSE(worker.core.fatal());
    worker.answer(join.sequence, driver::joined_reply());
    CHECK(worker.core.joined());
    const auto next = worker.core.wait(worker.now, at_least(4), worker.in(3s));
    CHECK(next > waiting);
    worker.push(messages::goodbye_push{server_epoch{77}, false, {errc::disconnected, "not heard"}, {43}});
    worker.core.all_cut_off(worker.now);
    CHECK(worker.core.may_return());  // as often as it has to
  }
  SUBCASE("it cannot") {
    go_on(worker, std::nullopt);
    CHECK_FALSE(worker.core.held());
    CHECK_FALSE(worker.sent_body<messages::join_request>().before.held);
  }
  SUBCASE("a newer process has its place") {
    go_on(worker, std::nullopt);
    const auto join = worker.sent<messages::join_request>().value().sequence;
    messages::join_reply refusal;
    refusal.result = {errc::replaced, "taken"};
    worker.answer(join, refusal);
    CHECK_FALSE(worker.core.may_return());
    CHECK(worker.core.fatal().value().code == errc::replaced);
  }
}

TEST_CASE("session: whom a worker has cut off for good is told by its next incarnation, too") {
  driver worker{[](session_options& how) { how.renewable = true; }};
  worker.join();
  worker.push(messages::cut_off_push{incarnation{9}});
  worker.push(not_heard);
  worker.core.all_cut_off(worker.now);
  go_on(worker, std::nullopt);
  CHECK(worker.sent_body<messages::join_request>().before.barred == std::vector{incarnation{9}});
}

TEST_CASE("session: what a worker that was not heard keeps") {
  driver worker{[](session_options& how) { how.renewable = true; }};
  worker.join();
  worker.hold(1);
  SUBCASE("nothing, where the caller takes its memory back") {
    const auto ticket = worker.core.unpublish(worker.now, worker.in(5s));
    worker.push(not_heard);
    worker.core.all_cut_off(worker.now);
    CHECK(worker.result(ticket).value().outcome.ok());
    CHECK_FALSE(worker.core.kept());
  }
  SUBCASE("nothing, where the caller takes its memory back before the worker goes on") {
    worker.push(not_heard);
    const auto ticket = worker.core.unpublish(worker.now, worker.in(5s));
    worker.core.all_cut_off(worker.now);
    CHECK(worker.result(ticket).value().outcome.ok());
    CHECK_FALSE(worker.core.kept());
  }
  SUBCASE("nothing, where other bytes are arriving; what has arrived is not shown afterwards") {
    const auto ticket = worker.start_update(3);
    worker.push(not_heard);
    worker.core.all_cut_off(worker.now);
    CHECK(worker.result(ticket).value().outcome.code == errc::disconnected);
    CHECK_FALSE(worker.core.kept());
    go_on(worker, std::nullopt);
    worker.drop_actions();
    const auto epoch = worker.core.epoch();
    worker.core.pull_finished(worker.now, driver::control());  // the last bytes arrived at the same time
    CHECK_FALSE(worker.core.held());
    CHECK(worker.action<session_actions::raise_epoch>().epoch > epoch);
  }
  SUBCASE("the version, where an update waits for the end of old keys") {
    const auto ticket = worker.core.update(worker.now, at_least(2), worker.in(5s));
    static_cast<void>(worker.sent_body<messages::update_request>());
    worker.answer(driver::assign(driver::source(3, 5, false)));
    static_cast<void>(worker.sent_body<messages::unpublish_request>());
    messages::drained_reply drained;
    drained.revoke = true;
    worker.answer(drained);
    REQUIRE(worker.core.is_revoking());
    worker.push(not_heard);
    worker.core.all_cut_off(worker.now);
    CHECK(worker.result(ticket).value().outcome.code == errc::disconnected);
    CHECK(worker.core.kept().value().version == version_number{1});
  }
  SUBCASE("the version, where an update has not begun to read") {
    const auto ticket = worker.core.update(worker.now, at_least(2), worker.in(5s));
    worker.push(not_heard);
    worker.core.all_cut_off(worker.now);
    CHECK(worker.result(ticket).value().outcome.code == errc::disconnected);
    CHECK(worker.core.kept().value().version == version_number{1});
  }
}

TEST_CASE("session: a worker that was not heard does not return when its caller leaves") {
  driver worker{[](session_options& how) { how.renewable = true; }};
  worker.join();
  worker.hold(1);
  worker.push(not_heard);
  SUBCASE("leaves") {
    worker.core.unpublish(worker.now, worker.in(5s));
    const auto ticket = worker.core.leave(worker.now, worker.in(5s));
    CHECK(worker.result(ticket).value().outcome.ok());
  }
  SUBCASE("is given up") {
    worker.core.abandon(worker.now);
  }
  worker.core.all_cut_off(worker.now);
  CHECK_FALSE(worker.core.may_return());
}

TEST_CASE("session: a worker that was not heard and cannot be another incarnation ends") {
  driver worker;
  worker.join();
  worker.push(not_heard);
  CHECK_FALSE(worker.core.may_return());
  CHECK(worker.core.fatal().value().code == errc::replaced);
  CHECK(worker.core.fatal().value().sentence == "not heard; construct a new one to join again");
}

// ---- questions and leaving

TEST_CASE("session: questions end with their answer or at their deadline") {
  driver worker;
  worker.join();
  const auto wait = worker.core.wait(worker.now, at_least(4), worker.in(3s));
  CHECK(worker.sent_body<messages::wait_request>().timeout_ms == 2750);  // the server's word comes first
  worker.answer(messages::version_reply{{}, 4});
  CHECK(worker.result(wait).value().version == version_number{4});
  const auto describe = worker.core.describe(worker.now, 0, worker.in(3s));
  worker.pass_heard(2999ms);
  CHECK_FALSE(worker.result(describe).has_value());
  worker.pass_heard(1ms);
  CHECK(worker.result(describe).value().outcome.sentence ==
        "the deadline passed while waiting for an answer of the reference server");
}

TEST_CASE("session: list and describe need no join, other requests wait for it") {
  driver worker;
  worker.core.list(worker.now, "", worker.in(10s));
  CHECK(worker.sent<messages::list_request>().has_value());
  worker.core.wait(worker.now, latest, worker.in(10s));
  CHECK(worker.silent());
  worker.pass(3s);
  CHECK_FALSE(worker.sent<messages::wait_request>().has_value());
  worker.core.join(worker.now, worker.in(30s));
  static_cast<void>(worker.sent_body<messages::join_request>());
  worker.answer(driver::joined_reply());
  CHECK(worker.sent<messages::wait_request>().has_value());
}

TEST_CASE("session: leaving needs nothing published; being unknown afterwards means that it was heard") {
  driver worker;
  worker.join();
  worker.hold(2);
  CHECK(worker.result(worker.core.leave(worker.now, worker.in(5s))).value().outcome.code ==
        errc::still_published);
  worker.core.unpublish(worker.now, worker.in(5s));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  worker.answer(messages::drained_reply{});
  const auto ticket = worker.core.leave(worker.now, worker.in(5s));
  static_cast<void>(worker.sent_body<messages::leave_request>());
  SUBCASE("answered") {
    worker.answer(messages::status_reply{});
  }
  SUBCASE("the answer was lost") {
    worker.push(messages::goodbye_push{server_epoch{77}, false, {errc::replaced, "declared dead"}});
  }
  SUBCASE("the answer was lost, and so was the server") {
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  }
  CHECK(worker.result(ticket).value().outcome.ok());
  CHECK_FALSE(worker.core.joined());
  worker.clear_output();
  worker.pass(10s);
  CHECK(worker.silent());  // no heartbeat, no repetition
}

TEST_CASE("session: a worker that has left does not look for another server, whatever was open") {
  driver worker{[](session_options& how) {
    how.servers = 2;
    how.server_timeout = 2000ms;
  }};
  worker.join();
  worker.core.source_released(worker.now, lease_id{7});  // never confirmed
  const auto waiting = worker.core.wait(worker.now, at_least(4), worker.in(60s));
  const auto leaving = worker.core.leave(worker.now, worker.in(5s));
  static_cast<void>(worker.sent_body<messages::leave_request>());
  SUBCASE("answered") {
    worker.answer(messages::status_reply{});
  }
  SUBCASE("by a new server, which does not know it") {
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  }
  CHECK(worker.result(leaving).value().outcome.ok());
  CHECK(worker.result(waiting).value().outcome.code == errc::cancelled);
  worker.core.cut_off_done(worker.now, incarnation{9});  // the transport has taken so long
  worker.clear_output();
  worker.pass(10s);
  CHECK(worker.no_action());
  CHECK(worker.silent());
}

TEST_CASE("session: the next deadline is that of what comes first") {
  driver worker;
  CHECK(worker.core.next_deadline() == time_point::never());
  worker.join();
  CHECK(worker.core.next_deadline() == worker.in(500ms));  // heartbeat
  const auto ticket = worker.core.wait(worker.now, latest, worker.in(200ms));
  CHECK(worker.core.next_deadline() == worker.in(200ms));
  worker.pass(200ms);
  CHECK(worker.result(ticket).has_value());
  CHECK(worker.core.next_deadline() == worker.in(300ms));
}

}  // namespace

TEST_CASE("session: the ends of calls are reported in their order") {
  driver worker;
  worker.join();
  worker.hold(1);
  const auto first = worker.start_update(3);
  worker.core.cancel(worker.now, first);
  worker.core.pull_failed(worker.now, {}, {});  // its memory is torn
  const auto torn = worker.sent<messages::finish_request>();
  REQUIRE(torn.has_value());
  worker.pass(120s);  // the server does not hear it, and the call ends at its deadline
  REQUIRE(worker.result(first).has_value());
  worker.clear_output();
  const auto second = worker.core.update(worker.now, latest, worker.in(60s));
  worker.core.cancel(worker.now, second);
  for (int i = 0; i < 3; ++i) {
    worker.pass(1s);
    while (const auto sent = worker.sent<messages::finish_request>()) CHECK(sent->sequence == torn->sequence);
  }
  worker.answer(torn->sequence, messages::status_reply{});
  worker.pass(0ms);
  const auto later = worker.sent<messages::finish_request>();
  REQUIRE(later.has_value());
  CHECK(later->sequence > torn->sequence);
}

TEST_CASE("session: what is offered anew is said after the end of all earlier readers was heard") {
  driver worker;
  worker.join();
  worker.hold(1);
  const auto unpublish = worker.core.unpublish(worker.now, worker.in(1s));
  worker.pass(1s);  // by force: the readers are cut off
  worker.core.all_cut_off(worker.now);
  const auto cut_off = worker.sent<messages::cut_off_done_request>();
  REQUIRE(cut_off.has_value());
  REQUIRE(worker.result(unpublish).has_value());
  worker.clear_output();
  worker.core.cut_off_done(worker.now, incarnation{5});  // the end of one reader holds nothing back
  CHECK(worker.sent<messages::cut_off_done_request>().has_value());
  const auto update = worker.core.update(worker.now, latest, worker.in(60s));
  worker.core.cancel(worker.now, update);
  worker.pass(500ms);
  CHECK_FALSE(worker.sent<messages::finish_request>().has_value());
  worker.answer(cut_off->sequence, messages::status_reply{});
  worker.pass(0ms);
  CHECK(worker.sent<messages::finish_request>().has_value());
}
