/// \file session_recovery.cpp
/// The session and a server that follows another one: what it is told, and who is still listened to.

#include "session_driver.hpp"

using namespace session_test;

namespace {

TEST_CASE("session: a new server is told everything again, and open requests keep their numbers") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto ticket = worker.core.update(worker.now, at_least(9), worker.in(60s));
  static_cast<void>(worker.sent_body<messages::update_request>());
  const auto number = worker.last_sequence;
  worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  CHECK_FALSE(worker.core.joined());
  const auto join = worker.sent_body<messages::join_request>();
  CHECK(join.before.held.value().version == version_number{3});
  CHECK(join.before.operation == operation_counter{1});  // the second one is not finished
  CHECK_FALSE(worker.sent<messages::update_request>().has_value());
  auto reply = driver::joined_reply();
  reply.epoch = server_epoch{78};
  worker.answer(reply);
  CHECK(worker.core.server() == server_epoch{78});
  CHECK(worker.sent<messages::update_request>().value().sequence == number);
  CHECK_FALSE(worker.result(ticket).has_value());
}

TEST_CASE(
    "session: a new server is told which readers were cut off for an earlier one, the last few of them") {
  driver worker;
  auto ticket = worker.core.join(worker.now, worker.in(30s));
  const auto first = worker.sent_body<messages::join_request>();
  CHECK_FALSE(first.before.server);
  CHECK(first.before.barred.empty());
  worker.answer(driver::joined_reply());
  REQUIRE(worker.result(ticket).value().outcome.ok());
  for (std::uint64_t id = 1; id <= limits::barred_readers + 2; ++id) {
    worker.push(messages::cut_off_push{{id}});
    worker.push(messages::cut_off_push{{id}});  // repeated until it is confirmed
  }
  worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  const auto join = worker.sent_body<messages::join_request>();
  CHECK(join.before.server == server_epoch{77});
  REQUIRE(join.before.barred.size() == limits::barred_readers);
  CHECK(join.before.barred.front() == incarnation{3});
  CHECK(join.before.barred.back() == incarnation{limits::barred_readers + 2});
}

TEST_CASE(
    "session: two workers of one process that belong to two servers do not move each other without end") {
  driver worker{[](session_options& how) {
    how.servers = 2;
    how.server_timeout = 2000ms;
  }};
  worker.join();
  messages::join_reply refusal;
  refusal.result = {errc::unavailable, "no election"};
  const auto is_moved_and_refused = [&] {
    worker.core.move_to_server(worker.now, 1);  // there the other one belongs
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
    CHECK(worker.sent_body<messages::join_request>().before.moved);
    worker.answer(refusal);
  };
  is_moved_and_refused();
  CHECK(worker.action<session_actions::use_server>().index == 0);
  CHECK_FALSE(worker.sent_body<messages::join_request>().before.moved);
  worker.answer(driver::joined_reply());
  CHECK(worker.core.joined());
  worker.clear_output();
  is_moved_and_refused();
  CHECK(worker.no_action());
  CHECK_FALSE(worker.sent<messages::join_request>().has_value());
  CHECK(worker.core.next_deadline() <= worker.in(2000ms));
  SUBCASE("it goes back after a pause") {
    worker.pass(2001ms);
    CHECK(worker.action<session_actions::use_server>().index == 0);
    CHECK_FALSE(worker.sent_body<messages::join_request>().before.moved);
  }
  SUBCASE("or leaves, once it is there") {
    const auto leaving = worker.core.leave(worker.now, worker.in(60s));
    CHECK_FALSE(worker.result(leaving).has_value());
    worker.pass(2001ms);
    CHECK(worker.action<session_actions::use_server>().index == 0);
    static_cast<void>(worker.sent_body<messages::join_request>());
    worker.answer(driver::joined_reply());
    CHECK(worker.sent<messages::leave_request>().has_value());
  }
  SUBCASE("but not if it has been given up") {
    worker.core.abandon(worker.now);
    worker.drop_actions();
    worker.clear_output();
    worker.pass(2001ms);
    CHECK(worker.no_action());
    CHECK(worker.silent());
  }
  SUBCASE("or when the other one does") {
    worker.core.move_to_server(worker.now, 0);
    CHECK_FALSE(worker.sent_body<messages::join_request>().before.moved);
    worker.answer(driver::joined_reply());
    worker.pass(1000ms);
    CHECK(worker.no_action());
    CHECK(worker.core.joined());
  }
}

TEST_CASE("session: a silent server is given up, also by calls that end before it is") {
  driver worker{[](session_options& how) {
    how.servers = 2;
    how.server_timeout = 2000ms;
  }};
  SUBCASE("joins") {
    for (int i = 0; i < 5; ++i) {
      static_cast<void>(worker.core.join(worker.now, worker.in(500ms)));
      worker.pass(700ms);
    }
  }
  SUBCASE("questions of one that has joined") {
    worker.join();
    worker.pass_heard(60s);
    for (int i = 0; i < 5; ++i) {
      static_cast<void>(worker.core.wait(worker.now, at_least(9), worker.in(500ms)));
      worker.pass(700ms);
    }
  }
  CHECK(worker.action<session_actions::use_server>().index == 1);
}

TEST_CASE("session: heartbeats that the only server leaves unanswered ask for a new connection") {
  driver worker;
  worker.join();
  worker.pass_heard(400ms);
  static_cast<void>(worker.core.update(worker.now, latest, worker.in(60s)));
  worker.pass(200ms);  // a heartbeat
  worker.clear_output();
  worker.pass(defaults::server_timeout - 1ms);
  CHECK(worker.no_action());
  CHECK(worker.new_connections == 0);
  worker.clear_output();
  worker.pass(1ms);
  CHECK(worker.no_action());
  CHECK(worker.new_connections == 1);
  CHECK(worker.core.joined());
  bool is_repeated = false, has_beat = false;
  for (const messages::envelope& each : worker.core.take_output()) {
    is_repeated = is_repeated || holds_alternative<messages::update_request>(each.body);
    has_beat = has_beat || holds_alternative<messages::heartbeat_request>(each.body);
  }
  CHECK(is_repeated);
  CHECK(has_beat);
  worker.pass(defaults::server_timeout - 1ms);
  CHECK(worker.no_action());
  CHECK(worker.new_connections == 1);
  worker.pass(1ms);
  CHECK(worker.no_action());
  CHECK(worker.new_connections == 2);
}

TEST_CASE("session: a short server_timeout repeats nothing more often than request_retry does") {
  driver worker{[](session_options& how) {
    how.server_timeout = 1ms;
    how.request_retry = 1000ms;
  }};
  worker.join();
  static_cast<void>(worker.core.update(worker.now, latest, worker.in(60s)));
  int updates = 0;
  worker.clear_output();
  for (int i = 0; i < 3000; ++i) {
    worker.pass(1ms);
    CHECK(worker.no_action());
    for (const messages::envelope& each : worker.core.take_output())
      updates += holds_alternative<messages::update_request>(each.body) ? 1 : 0;
  }
  CHECK(updates <= 6);
  CHECK(worker.new_connections <= 3);
}

TEST_CASE("session: the only server may be silent between heartbeats, and while a question waits") {
  driver worker;
  static_cast<void>(worker.core.join(worker.now, worker.in(30s)));
  worker.pass(20s);  // a large layout takes long to send
  static_cast<void>(worker.sent_body<messages::join_request>());
  messages::join_reply reply = driver::joined_reply();
  reply.heartbeat_interval_ms = 10'000;
  worker.answer(reply);
  static_cast<void>(worker.core.wait(worker.now, at_least(9), worker.in(60s)));
  for (int i = 0; i < 9; ++i) worker.pass(1s);
  CHECK(worker.no_action());
  CHECK(worker.new_connections == 0);
}

TEST_CASE("session: a worker that is back at a server that knows it still asks whether it is taken back") {
  driver worker{[](session_options& how) {
    how.servers = 2;
    how.server_timeout = 2000ms;
  }};
  const auto second_says = [&](request_sequence sequence, messages::message body) {
    worker.core.receive(worker.now, {78, sequence, {}, std::move(body)});
  };
  worker.join();
  const auto waiting = worker.core.wait(worker.now, at_least(4), worker.in(60s));
  worker.pass(2001ms);
  CHECK(worker.action<session_actions::use_server>().index == 1);
  second_says({}, messages::goodbye_push{server_epoch{78}, true, {}});
  CHECK(worker.sent_body<messages::join_request>().before.moved);
  auto accepted = driver::joined_reply();
  accepted.epoch = server_epoch{78};
  second_says(worker.last_sequence, accepted);
  REQUIRE(worker.core.server() == server_epoch{78});
  worker.clear_output();
  SUBCASE("a late word of the first server is none of it") {
    worker.push(messages::heartbeat_reply{server_epoch{77}, {}});
    CHECK(worker.core.joined());
    CHECK_FALSE(worker.sent<messages::join_request>().has_value());
  }
  SUBCASE("the second one is silent") {
    worker.pass(2001ms);
    CHECK(worker.action<session_actions::use_server>().index == 0);
    CHECK(worker.sent<messages::heartbeat_request>().has_value());
    worker.push(messages::heartbeat_reply{server_epoch{77}, {}});
    CHECK_FALSE(worker.core.joined());
    const auto join = worker.sent_body<messages::join_request>();
    CHECK(join.before.moved);
    CHECK(join.before.server == server_epoch{78});
    messages::join_reply refusal;
    refusal.result = {errc::unavailable, "no election"};
    worker.answer(refusal);
    CHECK(worker.action<session_actions::use_server>().index == 1);
    CHECK_FALSE(worker.sent_body<messages::join_request>().before.moved);
    second_says(worker.last_sequence, accepted);
    CHECK(worker.core.joined());
    CHECK_FALSE(worker.result(waiting).has_value());
  }
}

TEST_CASE("session: a server that does not take over sends the worker back to the one that it came from") {
  driver worker{[](session_options& how) {
    how.servers = 2;
    how.server_timeout = 2000ms;
  }};
  worker.join();
  const auto waiting = worker.core.wait(worker.now, at_least(4), worker.in(60s));
  worker.pass(2001ms);
  CHECK(worker.action<session_actions::use_server>().index == 1);
  worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  CHECK(worker.sent_body<messages::join_request>().before.moved);
  messages::join_reply refusal;
  refusal.result = {errc::unavailable, "no election"};
  worker.answer(refusal);
  CHECK(worker.action<session_actions::use_server>().index == 0);
  CHECK_FALSE(worker.core.fatal());
  const auto join = worker.sent<messages::join_request>().value();
  CHECK_FALSE(get_if<messages::join_request>(&join.body)->before.moved);
  SUBCASE("and from there on, while that one is silent; the join says each time where it is") {
    worker.pass(2001ms);
    CHECK(worker.action<session_actions::use_server>().index == 1);
    CHECK(worker.sent_body<messages::join_request>().before.moved);
    worker.pass(2001ms);
    CHECK(worker.action<session_actions::use_server>().index == 0);
    CHECK_FALSE(worker.sent_body<messages::join_request>().before.moved);
  }
  SUBCASE("which was only slow") {
    worker.answer(join.sequence, driver::joined_reply());
    CHECK(worker.core.joined());
    CHECK_FALSE(worker.result(waiting).has_value());
  }
  SUBCASE("which has ended: the call's error says what the other one said") {
    worker.pass(60s);
    const auto ended = worker.result(waiting).value().outcome;
    CHECK(ended.code == errc::disconnected);
    CHECK_MESSAGE(ended.sentence.ends_with("does not answer; another server of the list says: no election"),
                  ended.sentence);
  }
}

TEST_CASE("session: a new server is told how many workers there were, if that was heard lately") {
  driver worker;
  static_cast<void>(worker.core.join(worker.now, worker.in(30s)));
  static_cast<void>(worker.sent_body<messages::join_request>());
  auto reply = driver::joined_reply();
  reply.workers = 1;  // the first of many
  reply.worker_timeout_ms = 5000;
  worker.answer(reply);
  const auto beat = [&](std::uint32_t workers) {
    worker.pass(500ms);
    worker.push(messages::heartbeat_reply{server_epoch{77}, {}, workers});
  };
  const auto told = [&] {
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
    return worker.sent_body<messages::join_request>().before.peers;
  };
  SUBCASE("at the join all the others may have been on their way") {
    CHECK(told() == 0);
  }
  SUBCASE("one heart beat after the other was answered") {
    beat(2);
    beat(3);
    CHECK(told() == 3);
  }
  SUBCASE("the server did not know itself") {
    beat(2);
    beat(0);
    CHECK(told() == 0);
  }
  SUBCASE("it is silent now, for not too long") {
    beat(2);
    beat(3);
    for (int i = 0; i < 10; ++i) worker.pass(500ms);
    CHECK(told() == 3);
  }
  SUBCASE("it is silent for so long that it may have declared this worker dead, and welcomed others") {
    beat(2);
    beat(3);
    for (int i = 0; i < 11; ++i) worker.pass(500ms);
    CHECK(told() == 0);
  }
  SUBCASE("this process stood still") {
    beat(2);
    beat(3);
    worker.now = worker.now + 2s;
    SUBCASE("and hears of the new server first") {
      CHECK(told() == 0);
    }
    SUBCASE("and finds the answers that came meanwhile") {
      worker.push(messages::heartbeat_reply{server_epoch{77}, {}, 3});
      worker.push(messages::heartbeat_reply{server_epoch{77}, {}, 3});
      CHECK(told() == 0);
    }
    SUBCASE("and beats again, until the old server has answered that") {
      worker.pass(0ms);
      CHECK(told() == 0);
    }
    SUBCASE("and the old server has answered ever since") {
      worker.pass(0ms);
      worker.push(messages::heartbeat_reply{server_epoch{77}, {}, 3});  // to what was asked before
      beat(4);
      CHECK(told() == 4);
    }
  }
}

TEST_CASE("session: a server of a lower term than the last is not listened to, the own shell is") {
  driver worker;
  worker.join();
  const auto says = [&](server_epoch who, messages::message what) {
    worker.core.receive(worker.now, {who.value, {}, {}, std::move(what)});
  };
  const auto of_term = [](std::uint64_t term) { return server_epoch{term << server_term_shift | 99}; };
  says(of_term(2), messages::goodbye_push{of_term(2), true, {}});
  const auto join = worker.sent<messages::join_request>();
  REQUIRE(join.has_value());
  auto reply = driver::joined_reply();
  reply.epoch = of_term(2);
  worker.core.receive(worker.now, {of_term(2).value, join->sequence, {}, reply});
  REQUIRE(worker.core.server() == of_term(2));

  says(of_term(2), messages::version_push{{5}});
  CHECK(worker.core.latest() == version_number{5});
  for (const server_epoch deposed : {of_term(1), server_epoch{77}}) {
    says(deposed, messages::version_push{{6}});
    says(deposed, messages::goodbye_push{deposed, true, {}});
    says(deposed, messages::goodbye_push{deposed, false, {errc::replaced, "dead"}});
    says(deposed, messages::cut_off_push{{12}});
  }
  CHECK(worker.core.joined());
  CHECK(worker.core.latest() == version_number{5});
  CHECK(worker.no_action());
  says(of_term(3), messages::version_push{{7}});
  CHECK(worker.core.latest() == version_number{7});
  says({}, messages::goodbye_push{{}, false, {errc::limit_exceeded, "a message cannot be sent"}});
  CHECK_FALSE(worker.core.joined());
}

TEST_CASE("session: what an earlier server has answered comes too late when another one was heard of") {
  driver worker;
  worker.join();
  worker.hold(3);
  const auto ticket = worker.core.unpublish(worker.now, worker.in(10s));
  static_cast<void>(worker.sent_body<messages::unpublish_request>());
  const auto number = worker.last_sequence;
  const auto says = [&](std::uint64_t who, request_sequence to, messages::message what) {
    worker.core.receive(worker.now, {who, to, {}, std::move(what)});
  };
  const auto is_told_twice = [&] {
    says(77, number, messages::drained_reply{});
    CHECK_FALSE(worker.result(ticket).has_value());
    says(77, {}, messages::version_push{{9}});
    CHECK(worker.core.latest() == version_number{3});
  };
  SUBCASE("while it joins that one") {
    says(78, {}, messages::goodbye_push{server_epoch{78}, true, {}});
    is_told_twice();
  }
  SUBCASE("when it has joined that one") {
    says(78, {}, messages::goodbye_push{server_epoch{78}, true, {}});
    const auto join = worker.sent<messages::join_request>();
    auto reply = driver::joined_reply();
    reply.epoch = server_epoch{78};
    says(78, join.value().sequence, reply);
    is_told_twice();
    CHECK(worker.sent<messages::unpublish_request>().value().sequence == number);
    says(78, number, messages::drained_reply{});
    CHECK(worker.result(ticket).value().outcome.ok());
  }
  SUBCASE("but questions may be answered by anybody") {
    const auto asked = worker.core.list(worker.now, "", worker.in(10s));
    static_cast<void>(worker.sent_body<messages::list_request>());
    says(78, {}, messages::goodbye_push{server_epoch{78}, true, {}});
    says(77, worker.last_sequence, messages::list_reply{});
    CHECK(worker.result(asked).value().outcome.ok());
  }
}

}  // namespace
