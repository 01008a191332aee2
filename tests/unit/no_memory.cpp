/// \file no_memory.cpp
/// There is no memory in the middle of a session's step: what is reported again then is done once.

#include <doctest/doctest.h>

#include <cstdio>
#include <new>

#include "session_driver.hpp"
#include "support/few_allocations.hpp"

using namespace session_test;

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

}  // namespace

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

#else

TEST_CASE("no memory") {
  std::puts("SKIPPED: unit.no_memory: the sanitizer replaces operator new itself");
}

#endif
