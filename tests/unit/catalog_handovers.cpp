/// Handovers of groups, of which one process ends meanwhile.

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "catalog_driver.hpp"

using namespace catalog_test;
using namespace tensorhub;

namespace {

/// A trainer of two shards that holds version 1, which is retained.
struct trainers {
  driver<> server{};
  std::array<incarnation, 2> shards{server.join(1, "trainer", {0, 2}), server.join(2, "trainer", {1, 2})};
  std::array<incarnation, 2> copies{incarnation{11}, incarnation{12}};  ///< of a temporary replica
  catalog_options settings{};

  trainers() {
    for (const incarnation shard : shards) REQUIRE(server.publish(shard, 1).ok());
    retain({1, {}, {}});
    server.clear();
  }
  void retain(const messages::retain_request& request) {
    REQUIRE(server.ask<messages::status_reply>(shards[0], request).result.ok());
  }
  /// As a part of a temporary replica.
  void join(std::uint32_t shard, const std::string& temporary) {
    auto message = server.join_message(temporary, {shard, 2});
    message.temporary = true;
    REQUIRE(server.ask<messages::join_reply>(copies[shard], message).result.ok());
  }
  void pass(std::chrono::milliseconds time) { server.pass_alive(time, {shards[0], shards[1], copies[0]}); }
  bool is_dropped() { return server.push<messages::drop_push>(copies[0]).has_value(); }
  bool is_let_go(incarnation worker, std::uint64_t unpublish) {
    return server.answer<messages::drained_reply>(worker, unpublish).has_value();
  }
};

}  // namespace

TEST_CASE("handovers: a shard does not wait for one any more when another shard of its group is gone") {
  trainers t;
  const auto unpublish = t.server.unpublish(t.shards[0], 1);
  CHECK_FALSE(t.is_let_go(t.shards[0], unpublish));
  REQUIRE(t.server.push<messages::offload_push>(t.shards[0]).has_value());
  SUBCASE("it has left") {
    t.server.send(t.shards[1], messages::leave_request{});
  }
  SUBCASE("it has died") {
    t.server.pass_alive(t.settings.worker_timeout + 2 * t.settings.heartbeat_interval, {t.shards[0]});
    CHECK_FALSE(t.server.core.knows(t.shards[1]));
  }
  CHECK(t.is_let_go(t.shards[0], unpublish));
}

namespace {

/// The trainer's processes have taken version 1 into their host memory; then the copy of shard 1 has died.
struct half_copy : trainers {
  half_copy() {
    const auto unpublish = server.unpublish(shards[0], 1);
    const auto order = server.push<messages::offload_push>(shards[0]);
    REQUIRE(order.has_value());
    for (const std::uint32_t shard : {0u, 1u}) join(shard, order->replica);
    for (const incarnation copy : copies) server.finish(copy, server.start_update(copy, exactly(1)));
    CHECK(is_let_go(shards[0], unpublish));
    server.unpublish(shards[1], 1);
    server.send(copies[1], messages::leave_request{});
    server.clear();
  }
};

}  // namespace

TEST_CASE("handovers: what is left of a temporary replica whose other process has died is dropped") {
  half_copy h;
  SUBCASE("its version is released") {
    h.retain({0, {}, {}});
  }
  SUBCASE("its version is retained, which nobody has any more") {
    CHECK(h.server.available().empty());
  }
  h.pass(h.settings.worker_timeout - h.settings.heartbeat_interval);
  CHECK_FALSE(h.is_dropped());
  h.pass(3 * h.settings.heartbeat_interval);
  CHECK(h.is_dropped());
}

TEST_CASE("handovers: a temporary replica is not dropped while it waits for its other process") {
  trainers t;
  const auto unpublish = t.server.unpublish(t.shards[0], 1);
  t.join(0, t.server.push<messages::offload_push>(t.shards[0])->replica);
  t.pass(2 * t.settings.worker_timeout);
  CHECK_FALSE(t.is_dropped());
  t.join(1, "trainer~1");
  for (const incarnation copy : t.copies) t.server.finish(copy, t.server.start_update(copy, exactly(1)));
  CHECK(t.is_let_go(t.shards[0], unpublish));
}
