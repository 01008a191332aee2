/// \file etcd_election.cpp
/// One candidate, step by step: what it asks, when it leads, when it does not any more.

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "tensorhub/etcd/election.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using namespace etcd_answers;

namespace {

election_options with(std::string name = "x") {
  election_options out;
  out.name = std::move(name);
  out.address = "tcp://a:1";
  out.lease = 10s;
  out.margin = 1000ms;
  out.keep_alive = 2000ms;
  out.poll = 500ms;
  out.answer_time = 3000ms;
  return out;
}

/// A candidate with a clock.
struct driver {
  explicit driver(election_options options = with()) : core{validated(std::move(options)), 1} {}

  time_point now{1'000'000'000};
  election core;

  void pass(duration time) {
    now = now + time;
    core.advance(now);
  }
  /// The next question, which must be a `Body`.
  template <typename Body>
  etcd_request asks() {
    while (now < core.next_deadline()) now = core.next_deadline();
    const auto request = core.take_request(now);
    REQUIRE(request);
    REQUIRE(std::holds_alternative<Body>(request->body));
    return *request;
  }
  void answer(const etcd_request& request, const etcd_answer& with) {
    core.receive(now, request.number, with);
  }
  /// Becomes the leader; no time passes. Returns the lease.
  std::int64_t win(std::uint64_t term = 1) {
    answer(asks<etcd_requests::look>(),
           term == 1 ? situation{} : situation{.term_revision = 8, .term = term - 1});
    const auto grant = asks<etcd_requests::grant_lease>();
    answer(grant, lease{10});
    const auto take = asks<etcd_requests::take>();
    CHECK(std::get<etcd_requests::take>(take.body).term == term);
    answer(take, situation{.taken = true});
    REQUIRE(core.leads(now));
    CHECK(core.term() == term);
    return std::get<etcd_requests::grant_lease>(grant.body).lease;
  }
  [[nodiscard]] bool said(const std::string& part) {
    bool found = false;
    for (const log_line& line : core.take_log()) found = found || line.text.find(part) != std::string::npos;
    return found;
  }
};

situation led_by(std::int64_t lease, std::uint64_t term = 7) {
  return {.leader_lease = lease, .leader_address = "tcp://b:1", .term_revision = 9, .term = term};
}

}  // namespace

TEST_CASE("election: nobody leads, and one candidate wins; it renews its lease and looks for its key") {
  driver one;
  const std::int64_t lease_number = one.win();
  CHECK(one.said("this server leads, in term 1"));
  for (int i = 0; i < 5; ++i) {
    const auto renewal = one.asks<etcd_requests::keep_alive>();
    CHECK(std::get<etcd_requests::keep_alive>(renewal.body).lease == lease_number);
    const time_point sent = one.now;
    one.pass(100ms);
    one.answer(renewal, lease{10});
    CHECK(one.core.leads_until() == sent + 9s);  // from before the question, less the margin
    one.answer(one.asks<etcd_requests::look>(), led_by(lease_number, 1));
    CHECK(one.core.leads(one.now));
  }
}

TEST_CASE("election: while somebody leads it looks again after a poll, and asks for nothing") {
  driver one;
  for (int i = 0; i < 3; ++i) {
    const auto look = one.asks<etcd_requests::look>();
    CHECK_FALSE(one.core.take_request(one.now));  // one at a time
    one.answer(look, led_by(99));
    CHECK(one.core.state() == election_state::follower);
    CHECK(one.core.leader_address() == "tcp://b:1");
    CHECK(one.core.next_deadline() == one.now + 500ms);
  }
}

TEST_CASE("election: the loser of a race gives its lease back and follows") {
  driver one;
  one.answer(one.asks<etcd_requests::look>(), situation{});
  const auto grant = one.asks<etcd_requests::grant_lease>();
  one.answer(grant, lease{10});
  CHECK(one.core.state() == election_state::candidate);
  one.answer(one.asks<etcd_requests::take>(), led_by(99));
  CHECK(one.core.state() == election_state::follower);
  const auto revocation = one.asks<etcd_requests::revoke_lease>();
  CHECK(std::get<etcd_requests::revoke_lease>(revocation.body).lease ==
        std::get<etcd_requests::grant_lease>(grant.body).lease);
  one.answer(revocation, revoked{});
  CHECK(one.core.lease() == 0);
  one.asks<etcd_requests::look>();
}

TEST_CASE("election: a term that has moved on meanwhile is read again") {
  driver one;
  one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 3, .term = 4});
  one.answer(one.asks<etcd_requests::grant_lease>(), lease{10});
  const auto take = one.asks<etcd_requests::take>();
  CHECK(std::get<etcd_requests::take>(take.body).term == 5);
  CHECK(std::get<etcd_requests::take>(take.body).term_revision == 3);
  // Another one has led, and is gone again.
  one.answer(take, situation{.term_revision = 6, .term = 5});
  const auto again = one.asks<etcd_requests::take>();
  CHECK(std::get<etcd_requests::take>(again.body).term == 6);
  CHECK(std::get<etcd_requests::take>(again.body).term_revision == 6);
}

TEST_CASE("election: lost answers") {
  driver one;
  SUBCASE("of taking: etcd has done it, and the next look tells") {
    one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 3, .term = 4});
    const auto grant = one.asks<etcd_requests::grant_lease>();
    const time_point granted = one.now;
    one.answer(grant, lease{10});
    const auto take = one.asks<etcd_requests::take>();
    one.pass(3s);
    CHECK(one.core.state() == election_state::follower);
    CHECK(one.said("no answer in time"));
    one.answer(take, situation{.taken = true});  // late
    CHECK_FALSE(one.core.leads(one.now));
    one.answer(one.asks<etcd_requests::look>(),
               led_by(std::get<etcd_requests::grant_lease>(grant.body).lease, 5));
    CHECK(one.core.leads(one.now));
    CHECK(one.core.term() == 5);
    CHECK(one.core.leads_until() == granted + 9s);
    CHECK(one.said("etcd answers again"));
  }
  SUBCASE("of taking, for so long that the lease may have ended") {
    one.answer(one.asks<etcd_requests::look>(), situation{});
    const auto grant = one.asks<etcd_requests::grant_lease>();
    one.answer(grant, lease{10});
    one.asks<etcd_requests::take>();
    one.pass(8900ms);
    const auto look = one.asks<etcd_requests::look>();
    one.pass(200ms);
    one.answer(look, led_by(std::get<etcd_requests::grant_lease>(grant.body).lease, 1));
    CHECK_FALSE(one.core.leads(one.now));
    CHECK(one.core.state() == election_state::follower);
    one.asks<etcd_requests::revoke_lease>();
  }
  SUBCASE("of granting: another lease is asked for") {
    one.answer(one.asks<etcd_requests::look>(), situation{});
    const auto first = one.asks<etcd_requests::grant_lease>();
    one.pass(3s);
    one.answer(first, lease{10});  // late
    CHECK(one.core.lease() == 0);
    one.answer(one.asks<etcd_requests::look>(), situation{});
    const auto second = one.asks<etcd_requests::grant_lease>();
    CHECK(std::get<etcd_requests::grant_lease>(second.body).lease !=
          std::get<etcd_requests::grant_lease>(first.body).lease);
  }
  SUBCASE("of renewing: asked again, until the lease is at risk") {
    one.win();
    const time_point end = one.core.leads_until();
    int asked = 0;
    while (one.core.state() == election_state::leader) {
      if (const auto request = one.core.take_request(one.now)) {
        ++asked;
        CHECK(request->until <= end);
        one.answer(*request, no_answer{"broken"});
      } else {
        one.now = one.core.next_deadline();
        one.core.advance(one.now);
      }
    }
    CHECK(asked > 10);
    CHECK(one.now == end);
    CHECK(one.said("no leader any more (term 1): its lease may have ended"));
  }
}

TEST_CASE("election: the reason why etcd does not answer is logged: if told late, and if another") {
  driver one;
  const auto fails = [&](const std::string& why, duration after) {
    const auto request = one.asks<etcd_requests::look>();
    one.now = one.now + after;
    one.answer(request, no_answer{why});
  };
  fails("timed out", 3000ms);  // the request's whole time
  CHECK(one.said("a request to etcd failed: timed out"));
  fails("wrong certificate", 0ms);
  CHECK_FALSE(one.said("a request to etcd failed"));  // it was said within the time of a lease
  one.now = one.now + 10s;
  fails("no route", 0ms);
  CHECK(one.said("a request to etcd failed: no route"));
  one.now = one.now + 10s;
  fails("no route", 0ms);
  CHECK_FALSE(one.said("a request to etcd failed"));
  one.now = one.now + 10s;
  fails("timed out", 0ms);
  CHECK(one.said("a request to etcd failed: timed out"));
  fails("no route", 0ms);  // not said, for the time of a lease
  one.answer(one.asks<etcd_requests::look>(), led_by(99));
  CHECK(one.said("etcd answers again"));
}

TEST_CASE("election: an etcd that lets this candidate read only is complained about once in a lease's time") {
  driver one;
  std::size_t lines = 0;
  for (const time_point end = one.now + 60s; one.now < end;) {
    one.answer(one.asks<etcd_requests::look>(), situation{});
    one.answer(one.asks<etcd_requests::grant_lease>(), no_answer{"permission denied (HTTP 403)"});
    lines += one.core.take_log().size();
  }
  CHECK(lines >= 10);
  CHECK(lines <= 14);  // "failed" and "answers again"
}

TEST_CASE("election: a leader that was suspended does not lead afterwards, whatever comes then") {
  driver one;
  one.win();
  const auto renewal = one.asks<etcd_requests::keep_alive>();
  CHECK(one.core.leads(one.now + (9s - 1ns)));
  one.now = one.now + 9s;
  CHECK_FALSE(one.core.leads(one.now));  // before anybody has told it the time
  one.answer(renewal, lease{10});        // the answer has waited in the socket
  CHECK_FALSE(one.core.leads(one.now));
  CHECK(one.core.state() == election_state::deposed);
  // Nothing is asked until the owner has stopped: giving the lease back is the next one's start.
  CHECK_FALSE(one.core.take_request(one.now));
  CHECK(one.core.next_deadline() == time_point::never());
  one.core.stopped(one.now);
  one.asks<etcd_requests::revoke_lease>();
}

TEST_CASE("election: etcd has given the lease up, or the key is gone") {
  driver one;
  const std::int64_t lease_number = one.win(12);
  SUBCASE("the lease") {
    one.answer(one.asks<etcd_requests::keep_alive>(), lease{0});
    CHECK(one.said("term 12): etcd has given its lease up"));
  }
  SUBCASE("the key") {
    one.answer(one.asks<etcd_requests::keep_alive>(), lease{10});
    one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 9, .term = 12});
    CHECK(one.said("its key in etcd is gone"));
  }
  SUBCASE("another's key is there") {
    one.answer(one.asks<etcd_requests::keep_alive>(), lease{10});
    one.answer(one.asks<etcd_requests::look>(), led_by(lease_number + 1, 13));
    CHECK(one.said("its key in etcd is gone"));
  }
  CHECK(one.core.state() == election_state::deposed);
  CHECK_FALSE(one.core.leads(one.now));
  CHECK(one.core.lease() == 0);
}

TEST_CASE("election: who resigns gives the lease back at once, and leaves the others a lease's time") {
  driver one;
  one.win();
  one.core.resign(one.now, "the address is taken");
  CHECK_FALSE(one.core.leads(one.now));
  CHECK(one.said("the address is taken"));
  one.core.stopped(one.now);
  const time_point resigned = one.now;
  one.answer(one.asks<etcd_requests::revoke_lease>(), revoked{});
  CHECK(one.now == resigned);
  one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 9, .term = 1});
  one.asks<etcd_requests::grant_lease>();
  CHECK(one.now >= resigned + 10s);
}

TEST_CASE("election: terms that cannot be") {
  driver one;
  SUBCASE("none is left") {
    one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 3, .term = server_term_max});
    CHECK(one.said("no term is left after 16777215: stop the servers and the workers"));
    one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 3, .term = server_term_max});
    CHECK_FALSE(one.said("no term is left"));  // once
  }
  SUBCASE("no number") {
    one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 3});
    CHECK(one.said("its term key in etcd holds no number"));
  }
  CHECK(one.core.state() == election_state::follower);
  one.asks<etcd_requests::look>();
}

TEST_CASE(
    "election: a leader's key without a lease is said with the way out, and a candidate leads once it is "
    "gone") {
  driver one;
  one.answer(one.asks<etcd_requests::look>(), led_by(no_lease));
  CHECK(one.said("delete it (etcdctl del tensorhub/x/leader)"));
  one.answer(one.asks<etcd_requests::look>(), led_by(no_lease));
  CHECK_FALSE(one.said("delete it"));  // once
  CHECK(one.core.state() == election_state::follower);
  one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 3});
  CHECK(one.said("its term key in etcd holds no number"));  // another reason, which the first has hidden
  one.win(8);
}

TEST_CASE("election: an etcd that has lost its data does not lead back to a lower term") {
  driver one;
  one.answer(one.asks<etcd_requests::look>(), led_by(99, 40));
  one.answer(one.asks<etcd_requests::look>(), situation{});
  one.answer(one.asks<etcd_requests::grant_lease>(), lease{10});
  CHECK(std::get<etcd_requests::take>(one.asks<etcd_requests::take>().body).term == 41);

  auto options = with();
  options.first_term = 1000;
  driver other{options};
  other.answer(other.asks<etcd_requests::look>(), situation{});
  other.answer(other.asks<etcd_requests::grant_lease>(), lease{10});
  CHECK(std::get<etcd_requests::take>(other.asks<etcd_requests::take>().body).term == 1000);
}

TEST_CASE("election: answers to other questions change nothing") {
  driver one;
  one.answer(one.asks<etcd_requests::look>(), lease{10});
  CHECK(one.core.lease() == 0);
  one.answer(one.asks<etcd_requests::look>(), revoked{});
  one.answer(one.asks<etcd_requests::look>(), situation{.taken = true, .leader_lease = 5});
  CHECK(one.core.state() == election_state::follower);
  one.answer(one.asks<etcd_requests::look>(), situation{});
  one.answer(one.asks<etcd_requests::grant_lease>(), situation{.taken = true});
  CHECK(one.core.state() == election_state::follower);
}

TEST_CASE("election: options that cannot be are refused by name") {
  const auto refused = [](auto change) {
    election_options options = with();
    change(options);
    try {
      static_cast<void>(validated(options));
    } catch (const error& e) {
      return e.sentence();
    }
    return std::string{};
  };
  const auto names = [&](const std::string& what, auto change) {
    return refused(change).find("election_options::" + what) != std::string::npos;
  };
  CHECK(refused([](election_options&) {}).empty());
  CHECK(names("name", [](election_options& o) { o.name.clear(); }));
  CHECK(names("name", [](election_options& o) { o.name.assign(201, 'a'); }));
  CHECK(names("lease", [](election_options& o) { o.lease = 1s; }));
  CHECK(names("margin", [](election_options& o) { o.margin = 5001ms; }));
  CHECK(names("margin", [](election_options& o) { o.margin = -1ms; }));
  CHECK(names("margin", [](election_options& o) { o.margin = std::chrono::milliseconds::max(); }));
  CHECK(names("keep_alive", [](election_options& o) { o.keep_alive = std::chrono::milliseconds::max(); }));
  CHECK(names("keep_alive", [](election_options& o) { o.keep_alive = 0ms; }));
  election_options patient = with();
  patient.answer_time = std::chrono::milliseconds::max();
  CHECK(validated(patient).answer_time == patient.lease);
  CHECK(names("poll", [](election_options& o) { o.poll = 0ms; }));
  CHECK(names("answer_time", [](election_options& o) { o.answer_time = 0ms; }));
  CHECK(names("first_term", [](election_options& o) { o.first_term = 0; }));
  CHECK(names("first_term", [](election_options& o) { o.first_term = server_term_max + 1; }));
}

TEST_CASE("election: a candidate never leads in a term that it has not asked for, whatever etcd shows") {
  driver one;
  one.win(8);
  one.core.resign(one.now, "a test");
  one.core.stopped(one.now);
  one.answer(one.asks<etcd_requests::revoke_lease>(), revoked{});
  one.answer(one.asks<etcd_requests::look>(), situation{.term_revision = 9, .term = 8});
  const auto grant = one.asks<etcd_requests::grant_lease>();
  one.answer(grant, lease{10});
  const auto take = one.asks<etcd_requests::take>();
  CHECK(std::get<etcd_requests::take>(take.body).term == 9);
  one.answer(take, no_answer{"lost"});
  // Its key is there, but another program has written the term: this one was led in before.
  one.answer(one.asks<etcd_requests::look>(),
             led_by(std::get<etcd_requests::grant_lease>(grant.body).lease, 7));
  CHECK_FALSE(one.core.leads(one.now));
  CHECK(one.core.state() == election_state::follower);
  one.asks<etcd_requests::revoke_lease>();
}

TEST_CASE("election: it tells whether etcd answers; before the first answer it does not") {
  driver one;
  CHECK_FALSE(one.core.etcd_answers());
  one.answer(one.asks<etcd_requests::look>(), no_answer{"no route"});
  CHECK_FALSE(one.core.etcd_answers());
  one.answer(one.asks<etcd_requests::look>(), led_by(99));
  CHECK(one.core.etcd_answers());
  static_cast<void>(one.asks<etcd_requests::look>());
  CHECK(one.core.etcd_answers());
  one.pass(3000ms);
  CHECK_FALSE(one.core.etcd_answers());
}
