/// The conformance suite on its own model. A case per rule, so that a failure names it.

#include "tensorhub/testing/memory_transport.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>

#include "run_rules.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

TEST_CASE("memory transport: every rule") {
  conformance_subject<memory_transport> subject;
  subject.make = [](incarnation self) {
    memory_transport::options options;
    options.peer_timeout = std::chrono::milliseconds{50};
    return std::make_unique<memory_transport>(options, self);
  };
  subject.kill = [](memory_transport& victim) { victim.kill(); };
  subject.stall = [](memory_transport& victim) { victim.stall(); };
  run_rules(subject);
}

TEST_CASE("memory transport: every rule, with the suite's own way to end a process") {
  run_rules(conformance_subject<memory_transport>{});
}

TEST_CASE("memory transport: a smaller limit ends larger reads in local_error") {
  memory_transport::options options;
  options.max_read_bytes = 100;
  memory_transport source{{}, incarnation{1}};
  memory_transport target{options, incarnation{2}};
  guarded_memory from{200};
  guarded_memory to{200};
  const auto remote_range = from.range();
  const auto local_range = to.range();
  const auto remote = source.register_memory({&remote_range, 1}, region_access::remote_read);
  const auto local = target.register_memory({&local_range, 1}, region_access::local_write);
  auto queue = target.make_queue(2);
  auto endpoint = target.connect(queue, source.address(), incarnation{1}, std::chrono::seconds{1});
  const remote_region described = source.describe(remote[0]);
  REQUIRE(queue.post_read(endpoint, local[0], 0, {&described, 0, 100}, 1) == post_result::posted);
  REQUIRE(queue.post_read(endpoint, local[0], 0, {&described, 0, 101}, 2) == post_result::posted);
  std::array<completion, 3> done{};
  REQUIRE(queue.poll(done) == 2);
  CHECK(done[0].id == 1);
  CHECK(done[0].status == completion_status::ok);
  CHECK(done[1].id == 2);
  CHECK(done[1].status == completion_status::local_error);
}

TEST_CASE("memory transport: a stalled peer that resumes answers") {
  memory_transport source{{}, incarnation{1}};
  memory_transport target{{}, incarnation{2}};
  guarded_memory from{64};
  guarded_memory to{64};
  from.fill(5);
  const auto remote_range = from.range();
  const auto local_range = to.range();
  const auto remote = source.register_memory({&remote_range, 1}, region_access::remote_read);
  const auto local = target.register_memory({&local_range, 1}, region_access::local_write);
  auto queue = target.make_queue(1);
  auto endpoint = target.connect(queue, source.address(), incarnation{1}, std::chrono::seconds{1});
  const remote_region described = source.describe(remote[0]);
  std::array<completion, 1> done{};
  source.stall();
  REQUIRE(queue.post_read(endpoint, local[0], 0, {&described, 0, 64}, 1) == post_result::posted);
  CHECK(queue.poll(done) == 0);
  CHECK(queue.outstanding() == 1);
  source.resume();
  REQUIRE(queue.poll(done) == 1);
  CHECK(done[0].status == completion_status::ok);
  CHECK(to.holds(0, 64, 5, 0));
}
