/// \file session_install.cpp
/// A session whose shell copies a version from its own machine: it needs no server, and no other shard.

#include <doctest/doctest.h>

#include "session_driver.hpp"

using namespace session_test;

namespace {

/// Its version 1 is read by others.
session_ticket start_install(driver& worker, std::chrono::milliseconds timeout = 60s,
                             const messages::retention& keeps = {1, 0, {}}) {
  worker.join();
  worker.push(messages::retention_push{keeps});
  worker.hold(1);
  const auto ticket = worker.core.install(worker.now, {2}, {2, 9}, worker.in(timeout));
  CHECK_FALSE(worker.sent_body<messages::unpublish_request>().operation);
  CHECK(worker.no_action());
  return ticket;
}

/// The copy, which succeeds.
void carry_out_copy(driver& worker) {
  CHECK(worker.action<session_actions::start_pull>().sources.empty());
  worker.core.pull_finished(worker.now, driver::control(9));
}

}  // namespace

TEST_CASE("session: an installation waits for its own readers, and for nothing else") {
  driver worker;
  const auto ticket = start_install(worker);
  messages::drained_reply drained;
  drained.lost = true;
  worker.answer(drained);
  CHECK(worker.action<session_actions::raise_epoch>().epoch == worker.core.epoch());
  worker.clear_output();
  carry_out_copy(worker);
  const auto result = worker.result(ticket).value();
  CHECK(result.outcome.ok());
  CHECK(result.version == version_number{2});
  CHECK(result.drained.lost);
  const auto told = worker.sent_body<messages::holding_request>().held;
  CHECK(told.version == version_number{2});
  CHECK(told.root == digest128{2, 9});
  CHECK(told.epoch == worker.core.epoch());
  CHECK(told.control == driver::control(9));
  CHECK(worker.core.held().value().version == version_number{2});
  SUBCASE("the next call waits until the server has heard of it") {
    worker.core.update(worker.now, latest, worker.in(60s));
    CHECK_FALSE(worker.sent<messages::update_request>().has_value());
    worker.answer(messages::status_reply{});
    worker.pass(0ms);
    CHECK(worker.sent<messages::update_request>().has_value());
  }
  SUBCASE("a new server hears of it when the worker joins") {
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
    const auto join = worker.sent_body<messages::join_request>();
    CHECK(join.before.held.value().version == version_number{2});
    CHECK_FALSE(join.before.decided);
  }
}

TEST_CASE("session: an installation with nothing held before, or of what is held already") {
  driver worker;
  worker.join();
  const auto first = worker.core.install(worker.now, {2}, {2, 9}, worker.in(1s));
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  carry_out_copy(worker);
  CHECK(worker.result(first).value().outcome.ok());
  worker.drop_actions();
  worker.clear_output();
  const auto again = worker.core.install(worker.now, {2}, {2, 9}, worker.in(1s));
  CHECK(worker.result(again).value().kept);
  CHECK(worker.silent());
  CHECK(worker.no_action());
}

TEST_CASE("session: an installation does not wait for a server that is silent") {
  driver worker{[](session_options& how) { how.server_timeout = 2000ms; }};
  messages::retention keeps{1, 0, {}};
  SUBCASE("its readers are cut off") {}
  SUBCASE("but what is retained may have to be kept elsewhere first") {
    keeps.keep_latest = 1;
  }
  SUBCASE("and so may what is pinned") {
    keeps.pinned = {version_number{1}};
  }
  const bool is_retained = keeps.keep_latest > 0 || !keeps.pinned.empty();
  const auto ticket = start_install(worker, 60s, keeps);
  worker.pass(1900ms);
  CHECK(worker.no_action());
  worker.pass(100ms);
  CHECK(worker.no_action() == is_retained);
  if (is_retained) worker.pass(3000ms);  // drain_timeout
  worker.drop_actions();
  CHECK(worker.core.is_revoking());
  worker.core.all_cut_off(worker.now);
  carry_out_copy(worker);
  CHECK(worker.result(ticket).value().outcome.ok());
  CHECK(worker.core.held().value().version == version_number{2});
  worker.clear_output();
  worker.pass(1s);  // the reports go out again, what is offered anew last
  CHECK(worker.sent<messages::cut_off_done_request>().has_value());
  CHECK_FALSE(worker.sent<messages::holding_request>().has_value());
}

TEST_CASE("session: that all readers were cut off is told to the server that knew them, and to no other") {
  driver worker{[](session_options& how) { how.server_timeout = 2000ms; }};
  static_cast<void>(start_install(worker));
  worker.pass(2000ms);
  worker.drop_actions();
  worker.core.all_cut_off(worker.now);
  worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  static_cast<void>(worker.sent_body<messages::join_request>());
  worker.clear_output();
  auto reply = driver::joined_reply();
  bool is_new = false;
  SUBCASE("a new server") {
    is_new = true;
  }
  SUBCASE("the same, which the worker joins again because another one does not take it over") {}
  if (is_new) reply.epoch = server_epoch{78};
  worker.answer(reply);
  CHECK(worker.sent<messages::cut_off_done_request>().has_value() != is_new);
}

TEST_CASE("session: readers that are heard of are waited for until drain_timeout") {
  driver worker{[](session_options& how) { how.server_timeout = 2000ms; }};
  const auto ticket = start_install(worker);
  worker.pass_heard(4900ms);
  CHECK(worker.no_action());
  worker.pass_heard(100ms);
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  worker.carry_out_cut_off();
  carry_out_copy(worker);
  CHECK(worker.result(ticket).value().outcome.ok());
}

TEST_CASE("session: an installation that ends before its copy leaves held what was held") {
  driver worker;
  const auto ticket = start_install(worker, 300ms);
  errc expected = errc::timed_out;
  SUBCASE("by its deadline") {
    worker.pass_heard(300ms);
  }
  SUBCASE("because the worker leaves") {
    expected = errc::cancelled;
    worker.core.make_way(worker.now, worker.in(100ms));
  }
  CHECK(worker.result(ticket).value().outcome.code == expected);
  CHECK(worker.no_action());
  CHECK(worker.core.held().value().version == version_number{1});
  CHECK(worker.sent_body<messages::holding_request>().held.version == version_number{1});
  worker.answer(messages::drained_reply{});  // late
  CHECK(worker.no_action());
  CHECK(worker.core.held());
  worker.clear_output();
  worker.pass(1s);
  CHECK(worker.sent<messages::holding_request>().has_value());
  CHECK_FALSE(worker.sent<messages::unpublish_request>().has_value());
}

TEST_CASE("session: a copy that fails") {
  driver worker;
  const auto ticket = start_install(worker);
  worker.answer(messages::drained_reply{});
  static_cast<void>(worker.action<session_actions::raise_epoch>());
  static_cast<void>(worker.action<session_actions::start_pull>());
  worker.clear_output();
  SUBCASE("before its first byte: what was held is shown again") {
    worker.core.pull_failed(worker.now, {errc::system_failed, "no"}, driver::control(9));
    static_cast<void>(worker.action<session_actions::raise_epoch>());
    CHECK(worker.action<session_actions::restore>().held.version == version_number{1});
    CHECK(worker.sent_body<messages::holding_request>().held.control == driver::control(9));
  }
  SUBCASE("later: nothing is held") {
    worker.core.pull_failed(worker.now, {errc::system_failed, "no"}, std::nullopt);
    CHECK_FALSE(worker.core.held());
    CHECK(worker.silent());
  }
  CHECK(worker.result(ticket).value().outcome.code == errc::system_failed);
  worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  CHECK(worker.sent_body<messages::join_request>().before.ended_well);  // no call of the replica has failed
}

TEST_CASE("session: what the server does not believe is not held") {
  driver worker;
  static_cast<void>(start_install(worker));
  worker.answer(messages::drained_reply{});
  worker.drop_actions();
  worker.core.pull_finished(worker.now, driver::control(9));
  static_cast<void>(worker.sent_body<messages::holding_request>());
  const auto epoch = worker.core.epoch();
  worker.answer(messages::status_reply{{errc::version_conflict, "other bytes"}, {}});
  CHECK_FALSE(worker.core.held());
  CHECK(worker.action<session_actions::raise_epoch>().epoch > epoch);
}

TEST_CASE("session: an installation is no call of the replica") {
  driver worker;
  const auto ticket = start_install(worker);
  worker.push(messages::abort_push{{1}, {errc::group_failed, "an earlier call"}});
  CHECK(worker.no_action());
  CHECK_FALSE(worker.result(ticket).has_value());
  worker.answer(messages::drained_reply{});
  worker.drop_actions();
  worker.core.pull_finished(worker.now, driver::control(9));
  static_cast<void>(worker.sent_body<messages::holding_request>());
  worker.answer(messages::status_reply{});
  worker.core.update(worker.now, latest, worker.in(60s));
  CHECK(worker.sent_body<messages::update_request>().operation == operation_counter{2});
}

TEST_CASE("session: an unpublish waits until the server has heard that an installation was given up") {
  driver worker;
  const auto ticket = start_install(worker, 300ms);
  worker.pass_heard(300ms);
  CHECK(worker.result(ticket).value().outcome.code == errc::timed_out);
  static_cast<void>(worker.sent_body<messages::holding_request>());
  worker.core.unpublish(worker.now, worker.in(1s));
  CHECK_FALSE(worker.sent<messages::unpublish_request>().has_value());
  worker.answer(messages::status_reply{});
  worker.pass(0ms);
  CHECK(worker.sent<messages::unpublish_request>().has_value());
}

TEST_CASE("session: what was rolled back is not installed, and nothing is drained for it") {
  driver worker;
  worker.join();
  worker.push(messages::retention_push{{1, 0, {}, {{1, 1}}}});
  worker.hold(1);
  version_number version{2};
  SUBCASE("a version of before") {
    const auto ticket = worker.core.install(worker.now, version, {2, 9}, worker.in(1s));
    CHECK(worker.result(ticket).value().outcome.code == errc::unavailable);
    CHECK(worker.silent());
    CHECK(worker.no_action());
    CHECK(worker.core.held().value().version == version_number{1});
  }
  SUBCASE("one of the present line, and one of a line of which this worker has not heard yet, are") {
    SUBCASE("present") {
      version.line = 1;
    }
    SUBCASE("later") {
      version.line = 2;
    }
    static_cast<void>(worker.core.install(worker.now, version, {2, 9}, worker.in(1s)));
    CHECK(worker.sent_body<messages::unpublish_request>().version == version_number{1});
  }
}
