/// \file inquiry.cpp
/// The questions and orders of a process that is no worker: repeated, answered once, ended at their deadline,
/// taken to the next server.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "tensorhub/service/inquiry.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;

namespace {

constexpr incarnation self{7};

[[nodiscard]] session_options with_servers(std::size_t count) {
  session_options out;
  out.server = "tcp://127.0.0.1:1";
  out.servers = count;
  out.server_timeout = 3s;
  out.request_retry = 1s;
  return out;
}

struct scene {
  inquiry core;
  time_point now{1'000'000'000};
  explicit scene(std::size_t servers = 1) : core{with_servers(servers), self} {}

  void pass(std::chrono::milliseconds time) {
    const time_point until = now + time;
    while (core.next_deadline() < until) {
      now = std::max(now, core.next_deadline());
      core.advance(now);
    }
    now = until;
  }
  template <typename Body>
  void answer(request_sequence sequence, Body body) {
    messages::envelope reply;
    reply.sender = 99;
    reply.sequence = sequence;
    reply.body = std::move(body);
    core.receive(now, reply);
  }
  [[nodiscard]] session_result only_result() {
    const auto results = core.take_results();
    REQUIRE(results.size() == 1);
    return results.front();
  }
};

}  // namespace

TEST_CASE("inquiry: a question is sent without joining, repeated, and answered once") {
  scene s;
  const session_ticket ticket = s.core.list(s.now, "m", s.now + 10s);
  const auto first = s.core.take_output();
  REQUIRE(first.size() == 1);
  CHECK(first[0].sender == self.value);
  s.pass(1500ms);
  const auto again = s.core.take_output();
  REQUIRE(again.size() == 1);
  CHECK(again[0].sequence == first[0].sequence);
  messages::list_reply reply;
  reply.models.push_back({"m", 1, 0, {}, {}, {}});
  s.answer(first[0].sequence, reply);
  const auto result = s.only_result();
  CHECK(result.ticket == ticket);
  CHECK(result.list.models.size() == 1);
  s.answer(first[0].sequence, reply);  // the answer to the repetition
  CHECK(s.core.take_results().empty());
  s.pass(60s);
  CHECK(s.core.take_output().empty());
}

TEST_CASE("inquiry: an order's answer, and an answer of another kind") {
  scene s;
  static_cast<void>(s.core.manage(s.now, {messages::manage_kind::drain, "m", "r", {}}, s.now + 10s));
  const auto sent = s.core.take_output();
  REQUIRE(sent.size() == 1);
  s.answer(sent[0].sequence, messages::list_reply{});
  CHECK(s.core.take_results().empty());
  s.answer(sent[0].sequence, messages::manage_reply{{}, 2, 1});
  const auto result = s.only_result();
  CHECK(result.managed.workers == 2);
  CHECK(result.managed.readers == 1);
}

TEST_CASE("inquiry: without an answer a call ends at its deadline, or when it is interrupted") {
  scene s;
  static_cast<void>(s.core.why(s.now, "m", "r", 0, s.now + 2s));
  s.pass(2500ms);
  CHECK(s.only_result().outcome.code == errc::disconnected);
  static_cast<void>(s.core.describe(s.now, "m", 0, s.now + 2s));
  s.core.interrupt(s.now);
  CHECK(s.only_result().outcome.code == errc::cancelled);
}

TEST_CASE("inquiry: a server that says that it lives, and no more, is not one that does not answer") {
  for (const bool lives : {true, false}) {
    scene s;
    static_cast<void>(s.core.describe(s.now, "m", 0, s.now + 2s));
    if (lives) s.answer({}, messages::version_push{});
    s.pass(3s);
    const messages::status outcome = s.only_result().outcome;
    CHECK(outcome.code == (lives ? errc::timed_out : errc::disconnected));
    CHECK((outcome.sentence.find("does not answer") == std::string::npos) == lives);
  }
}

TEST_CASE("inquiry: a silent server is given up, but not for the silence before a question") {
  scene s{2};
  s.pass(1min);
  static_cast<void>(s.core.list(s.now, "m", s.now + 30s));
  CHECK(s.core.take_output().size() == 1);
  s.pass(2s);
  CHECK(s.core.take_actions().empty());
  static_cast<void>(s.core.take_output());
  s.pass(2s);
  const auto actions = s.core.take_actions();
  REQUIRE(actions.size() == 1);
  REQUIRE(get_if<session_actions::use_server>(&actions[0]) != nullptr);
  CHECK(get_if<session_actions::use_server>(&actions[0])->index == 1);
  CHECK_FALSE(s.core.take_output().empty());  // asked again there
}

TEST_CASE("inquiry: a silent server is given up, also by calls that end before it is") {
  scene s{2};
  for (int i = 0; i < 10; ++i) {
    static_cast<void>(s.core.list(s.now, "m", s.now + 500ms));
    s.pass(600ms);
  }
  REQUIRE_FALSE(s.core.take_actions().empty());
}

TEST_CASE("inquiry: the time between a call without an answer and the next one is not the server's") {
  scene s{2};
  static_cast<void>(s.core.list(s.now, "m", s.now + 500ms));
  SUBCASE("it ended at its deadline") {
    s.pass(500ms);
  }
  SUBCASE("it was interrupted") {
    s.pass(300ms);
    s.core.interrupt(s.now);
    s.pass(200ms);
    s.core.interrupt(s.now);  // nothing runs
  }
  s.pass(1h);
  static_cast<void>(s.core.list(s.now, "m", s.now + 30s));
  s.pass(2s);
  CHECK(s.core.take_actions().empty());
  s.pass(1s);
  CHECK(s.core.take_actions().size() == 1);
}

TEST_CASE("inquiry: a server to which the connection has moved while nothing was asked is not silent yet") {
  scene s{2};
  SUBCASE("nothing was ever asked") {}
  SUBCASE("a call has ended without an answer") {
    static_cast<void>(s.core.list(s.now, "m", s.now + 500ms));
  }
  s.pass(1h);
  s.core.move_to_server(s.now, 1);
  s.pass(1h);
  static_cast<void>(s.core.list(s.now, "m", s.now + 30s));
  s.pass(2s);
  CHECK(s.core.take_actions().empty());
  s.pass(1100ms);
  CHECK(s.core.take_actions().size() == 1);
}

TEST_CASE("inquiry: another session has moved the connection") {
  scene s{2};
  static_cast<void>(s.core.list(s.now, "m", s.now + 30s));
  static_cast<void>(s.core.take_output());
  s.core.move_to_server(s.now, 1);
  CHECK(s.core.take_output().size() == 1);
  s.core.move_to_server(s.now, 1);
  CHECK(s.core.take_output().empty());
  CHECK(s.core.take_actions().empty());
}

TEST_CASE("inquiry: a server that refuses it ends every call, and every later one") {
  scene s;
  static_cast<void>(s.core.list(s.now, "m", s.now + 30s));
  messages::goodbye_push unknown;
  unknown.rejoin = true;
  s.answer({}, unknown);  // it is no worker: nothing to announce
  CHECK(s.core.take_results().empty());
  messages::goodbye_push refused;
  refused.reason = {errc::refused, "the key of this process was revoked"};
  s.answer({}, refused);
  CHECK(s.only_result().outcome.code == errc::refused);
  static_cast<void>(s.core.list(s.now, "m", s.now + 30s));
  CHECK(s.only_result().outcome.code == errc::refused);
}
