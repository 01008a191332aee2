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
  catalog_options settings{};

  trainers() {
    for (const incarnation shard : shards) REQUIRE(server.publish(shard, 1).ok());
    retain({1, {}, {}});
    server.clear();
  }
  void retain(const messages::retain_request& request) {
    REQUIRE(server.ask<messages::status_reply>(shards[0], request).result.ok());
  }
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
