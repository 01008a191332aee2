/// \file session_rollback.cpp
/// What a worker does when it hears that its model was rolled back.

#include <doctest/doctest.h>

#include "session_driver.hpp"

using namespace session_test;

namespace {

[[nodiscard]] messages::retention_push rolled_back_to(std::uint64_t number) {
  return {{1, 0, {}, {{1, number}}}};
}
[[nodiscard]] version_number of_line(std::uint32_t line, std::uint64_t number) {
  version_number out{number};
  out.line = line;
  return out;
}

}  // namespace

TEST_CASE("session: a version that was rolled back is not held any more, for those who ask") {
  driver worker;
  worker.join();
  worker.hold(5);
  worker.push(messages::version_push{5});
  worker.push(rolled_back_to(3));
  CHECK_FALSE(worker.core.valid_version_held());
  CHECK_FALSE(worker.core.latest());
  worker.push(messages::heartbeat_reply{server_epoch{77}, 3});
  CHECK(worker.core.latest() == 3);
  worker.clear_output();
  SUBCASE("its readers are drained before the memory is overwritten") {
    worker.core.update(worker.now, latest, worker.in(1s));
    static_cast<void>(worker.sent_body<messages::update_request>());
    worker.answer(driver::assign(driver::source(3, 5, false)));
    CHECK(worker.sent_body<messages::unpublish_request>().version == 5);
  }
  SUBCASE("it publishes the number anew, after an unpublish") {
    worker.core.unpublish(worker.now, worker.in(1s));
    static_cast<void>(worker.sent_body<messages::unpublish_request>());
    worker.answer(messages::drained_reply{});
    worker.core.publish(worker.now, 5, {1, 3}, driver::control(), worker.in(1s));
    CHECK(worker.sent_body<messages::publish_request>().held.version == of_line(1, 5));
  }
}

TEST_CASE("session: a new server is told what was rolled back, also by a process that returns") {
  driver worker;
  worker.join();
  worker.hold(2);
  worker.push(rolled_back_to(3));
  SUBCASE("the worker") {
    worker.push(messages::goodbye_push{server_epoch{78}, true, {}});
  }
  SUBCASE("its successor") {
    worker.push(messages::goodbye_push{server_epoch{77}, false, {errc::disconnected, "it was silent"}});
    worker.core = worker.core.successor(worker.now, {{43}, {}}, {});
    static_cast<void>(worker.core.join(worker.now, worker.in(30s)));
  }
  CHECK(worker.sent_body<messages::join_request>().before.keeps.rollbacks ==
        std::vector<messages::rollback>{{1, 3}});
}

TEST_CASE("session: an earlier version is held on") {
  driver worker;
  worker.join();
  worker.hold(3);
  worker.push(rolled_back_to(3));
  CHECK(worker.core.valid_version_held() == 3);
}

TEST_CASE("session: a publish whose worker has not heard of the roll back is made again") {
  driver worker;
  worker.join();
  const auto ticket = worker.core.publish(worker.now, 5, {1, 2}, driver::control(), worker.in(1s));
  CHECK(worker.sent_body<messages::publish_request>().held.version == 5);
  const auto refused = worker.last_sequence;
  worker.push(rolled_back_to(3));
  worker.clear_output();
  worker.answer(refused, messages::status_reply{{errc::version_conflict, "withdrawn"}, {1}});
  CHECK_FALSE(worker.result(ticket).has_value());
  CHECK(worker.sent_body<messages::publish_request>().held.version == of_line(1, 5));
  worker.answer(messages::status_reply{{}, {1}});
  CHECK(worker.result(ticket).value().outcome.ok());
  CHECK(worker.core.held()->version == of_line(1, 5));
}

TEST_CASE("session: a new server's word counts, also if the one before had said more") {
  driver worker;
  worker.join();
  auto told = rolled_back_to(3);
  told.keeps.revision = 7;
  worker.push(told);
  worker.core.receive(worker.now, {78, {}, {}, rolled_back_to(2)});
  worker.core.receive(worker.now, {78, {}, {}, messages::version_push{of_line(1, 3)}});
  CHECK(worker.core.latest() == of_line(1, 3));  // under the first list it was of line 0
  auto late = rolled_back_to(9);
  late.keeps.revision = 0;
  worker.core.receive(worker.now, {78, {}, {}, late});
  CHECK(worker.core.latest() == of_line(1, 3));
}
