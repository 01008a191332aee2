/// \file no_memory.cpp
/// There is no memory in the middle of a step: what is reported again then is done once, and a request that
/// is repeated is answered.

#include <doctest/doctest.h>

#include <cstdio>
#include <new>

#include "catalog_driver.hpp"
#include "session_driver.hpp"
#include "support/few_allocations.hpp"
#include "tensorhub/service/inquiry.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using session_test::driver;

#if TENSORHUB_MEMORY_CAN_FAIL

namespace {

/// Reports that everybody is cut off. False: there was not so much memory, and it was reported again.
[[nodiscard]] bool reports_with(int allocations, driver& worker) {
  try {
    const with_few_allocations limit{allocations};
    worker.core.all_cut_off(worker.now);
    return true;
  } catch (const std::bad_alloc&) {
    CHECK(worker.core.is_revoking());
  }
  worker.core.all_cut_off(worker.now);
  return false;
}

/// `run` has so many allocations, until it is done with them: at least one time it is not.
template <typename Run>
void with_more_and_more(Run&& run) {
  int allocations = 0;
  while (allocations < 1000 && !run(allocations)) ++allocations;
  CHECK(allocations > 0);
  CHECK(allocations < 1000);
}

/// Says goodbye. False: there was not so much memory, and it was said again.
template <typename Core>
[[nodiscard]] bool ends_with(int allocations, Core& core, time_point now) {
  const messages::envelope goodbye = messages::goodbye_of_shell(
      {errc::system_failed, "a sentence that is longer than what a string keeps inside"});
  try {
    const with_few_allocations limit{allocations};
    core.receive(now, goodbye);
    return true;
  } catch (const std::bad_alloc&) {
    CHECK_FALSE(core.fatal().has_value());
  }
  core.receive(now, goodbye);
  return false;
}

}  // namespace

TEST_CASE("no memory at the end of a session: it ends when it is told so again, and with it all calls") {
  with_more_and_more([](int allocations) {
    CAPTURE(allocations);
    driver worker;
    worker.join();
    const auto update = worker.start_update(2);
    const auto question = worker.core.list(worker.now, "policy", worker.in(60s));
    const bool had_enough = ends_with(allocations, worker.core, worker.now);
    CHECK(worker.result(question).has_value());
    static_cast<void>(worker.action<session_actions::stop_pull>());
    static_cast<void>(worker.action<session_actions::raise_epoch>());
    worker.carry_out_cut_off();
    CHECK(worker.no_action());
    CHECK(worker.result(update).has_value());
    return had_enough;
  });
}

TEST_CASE("no memory at the end of a session that joins: its calls end all the same") {
  with_more_and_more([](int allocations) {
    CAPTURE(allocations);
    driver worker;
    const auto first = worker.core.join(worker.now, worker.in(60s));
    const auto second = worker.core.join(worker.now, worker.in(60s));
    const bool had_enough = ends_with(allocations, worker.core, worker.now);
    CHECK(worker.result(first).has_value());
    CHECK(worker.result(second).has_value());
    return had_enough;
  });
}

TEST_CASE("no memory at the end of an inquiry: it ends when it is told so again, and with it all questions") {
  with_more_and_more([](int allocations) {
    CAPTURE(allocations);
    inquiry core{driver::options(), incarnation{7}};
    const time_point now{1'000'000'000};
    static_cast<void>(core.list(now, "policy", now + 60s));
    static_cast<void>(core.describe(now, "policy", 0, now + 60s));
    const bool had_enough = ends_with(allocations, core, now);
    CHECK(core.take_results().size() == 2);
    return had_enough;
  });
}

TEST_CASE("no memory at the end of a revocation: the unpublish that waits for it ends all the same") {
  with_more_and_more([](int allocations) {
    CAPTURE(allocations);
    driver worker;
    worker.join();
    worker.hold(3);
    const auto ticket = worker.core.unpublish(worker.now, worker.in(2s));
    static_cast<void>(worker.sent_body<messages::unpublish_request>());
    worker.pass(2s);
    const bool had_enough = reports_with(allocations, worker);
    CHECK_FALSE(worker.core.is_revoking());
    const auto result = worker.result(ticket);
    CHECK(result.has_value());
    CHECK((result && result->forced));
    worker.pass(1s);  // what could not be sent at once is repeated
    CHECK(worker.sent<messages::cut_off_done_request>().has_value());
    return had_enough;
  });
}

TEST_CASE("no memory at the end of a revocation: the update that waits for it goes on, or is stopped") {
  bool is_cancelled = false;
  SUBCASE("goes on") {}
  SUBCASE("is stopped") {
    is_cancelled = true;
  }
  with_more_and_more([&](int allocations) {
    CAPTURE(allocations);
    driver worker;
    worker.join();
    worker.hold(1);
    const auto ticket = worker.core.update(worker.now, latest, worker.in(60s));
    static_cast<void>(worker.sent_body<messages::update_request>());
    worker.answer(driver::assign(driver::source(2, 5, false)));
    static_cast<void>(worker.sent_body<messages::unpublish_request>());
    worker.pass_heard(5000ms);
    worker.drop_actions();
    if (is_cancelled) worker.core.cancel(worker.now, ticket);
    const bool had_enough = reports_with(allocations, worker);
    static_cast<void>(worker.action<session_actions::start_pull>());
    if (is_cancelled) static_cast<void>(worker.action<session_actions::stop_pull>());
    CHECK(worker.no_action());
    return had_enough;
  });
}

namespace {

/// A server with a trainer that holds version 1, a rollout that waits for version 2, and an idle one.
struct server_scene {
  catalog_test::driver<> server;
  incarnation trainer = server.join(1, "trainer");
  incarnation waiting = server.join(2, "waiting");
  incarnation idle = server.join(3, "idle");
  std::uint64_t awaited = 0;

  server_scene() {
    REQUIRE(server.publish(trainer, 1).ok());
    awaited = server.update(waiting, exactly(2), 60s);
    server.clear_answered();
  }
  /// False: there was not so much memory; the request was repeated, and so was that of the one that waits.
  [[nodiscard]] bool sends_with(int allocations, incarnation worker, const messages::message& body) {
    const messages::envelope request{worker.value, {server.last_sequence(worker) + 1}, {}, body};
    bool had_enough = true;
    try {
      const with_few_allocations limit{allocations};
      server.core.receive(server.now, request);
    } catch (const std::bad_alloc&) {
      had_enough = false;
      static_cast<void>(server.core.take_output());  // as the shell does, whatever comes next
    }
    server.together([&] {  // the rules hold when both have been handled anew
      server.send(worker, body);
      if (!had_enough) server.send_as(waiting, awaited, update_of_waiting());
    });
    return had_enough;
  }
  [[nodiscard]] messages::update_request update_of_waiting() {
    messages::update_request out;
    out.operation = server.operation_of(waiting);
    out.selector = exactly(2);
    out.timeout_ms = 60'000;
    return out;
  }
  [[nodiscard]] std::optional<messages::status> result(incarnation worker) {
    return server.result_of(worker, server.last_sequence(worker));
  }
};

}  // namespace

TEST_CASE("no memory in the middle of a request: it is answered when it is repeated") {
  messages::message body;
  std::uint64_t from = 3;
  bool publishes = false;
  SUBCASE("an update") {
    messages::update_request update;
    update.operation = {1};
    update.timeout_ms = 60'000;
    body = update;
  }
  SUBCASE("an unpublish") {
    body = messages::unpublish_request{1, 1, {}};
    from = 1;
  }
  SUBCASE("a publish, for which another worker waits") {
    body = messages::publish_request{{2}, server_scene{}.server.reference(2)};
    from = 1;
    publishes = true;
  }
  SUBCASE("a wait") {
    body = messages::wait_request{latest, 60'000};
  }
  with_more_and_more([&](int allocations) {
    CAPTURE(allocations);
    server_scene scene;
    const bool had_enough = scene.sends_with(allocations, {from}, body);
    const auto outcome = scene.result({from});
    REQUIRE(outcome.has_value());
    CHECK_MESSAGE((outcome->ok() || outcome->code == errc::group_failed), outcome->sentence);
    const bool is_there =
        !scene.server.available().empty() && scene.server.available().back() == version_number{2};
    REQUIRE((is_there || !publishes || !had_enough));
    if (is_there) {
      const auto waited = scene.server.result_of(scene.waiting, scene.awaited);
      REQUIRE(waited.has_value());
      CHECK_MESSAGE((waited->ok() || waited->code == errc::group_failed), waited->sentence);
    }
    return had_enough;
  });
}

#else

TEST_CASE("no memory") {
  std::puts("SKIPPED: unit.no_memory: the sanitizer replaces operator new itself");
}

#endif
