/// Handovers of groups, of which one process ends meanwhile.

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "catalog_driver.hpp"
#include "support/catalog_of.hpp"

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

TEST_CASE("handovers: who was to take its own version, and leaves, has another replica take it") {
  trainers t;
  const incarnation other = t.server.join(21, "rollout", {0, 2});
  t.server.join(22, "rollout", {1, 2});
  t.server.unpublish(t.shards[0], 1);
  REQUIRE(t.server.push<messages::offload_push>(t.shards[0]).has_value());
  CHECK_FALSE(t.server.push<messages::offload_push>(other).has_value());
  t.server.send(t.shards[1], messages::unpublish_request{1, 1, {}, true});
  CHECK(t.server.push<messages::offload_push>(other).has_value());
}

TEST_CASE("handovers: a temporary replica is not dropped for another one of which a process is not heard") {
  trainers t;
  const auto unpublish = t.server.unpublish(t.shards[0], 1);
  const auto order = t.server.push<messages::offload_push>(t.shards[0]);
  REQUIRE(order.has_value());
  for (const std::uint32_t shard : {0u, 1u}) t.join(shard, order->replica);
  for (const incarnation copy : t.copies) t.server.finish(copy, t.server.start_update(copy, exactly(1)));
  CHECK(t.is_let_go(t.shards[0], unpublish));
  const incarnation heard = t.server.join(21, "rollout", {0, 2}),
                    silent = t.server.join(22, "rollout", {1, 2});
  const auto source = t.server.start_update(heard, exactly(1));
  t.server.finish(silent, t.server.start_update(silent, exactly(1)));
  t.pass(3 * t.settings.heartbeat_interval);
  t.server.finish(heard, source);
  t.pass(t.settings.heartbeat_interval);
  CHECK_FALSE(t.is_dropped());
  t.server.send_as(silent, 0, messages::heartbeat_request{});
  t.pass(t.settings.heartbeat_interval);
  CHECK(t.is_dropped());
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

namespace {

/// Counts how often a call's version is looked for.
struct counting : group_consistent {
  using group_consistent::group_consistent;
  inline static std::size_t decided = 0;
  [[nodiscard]] version_decision decide(const version_selector& selector,
                                        const version_view& view) const noexcept {
    ++decided;
    return group_consistent::decide(selector, view);
  }
};

struct fleet {
  static constexpr std::size_t size = 40;
  catalog_options settings;
  driver<testing::catalog_of<nearest_source, counting>> server{settings};
  std::vector<incarnation> readers;

  explicit fleet(catalog_options options) : settings{std::move(options)} {}
  incarnation come_back(std::uint64_t id, const std::string& replica, version_number held) {
    auto join = server.join_message(replica);
    if (held) join.before.held = server.reference(held);
    join.before.latest = version_number{1};
    join.before.peers = 4 * size;
    join.before.keeps = {1, 0, {version_number{1}}};
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  }
  /// Each waits for a version that nobody has.
  void wait_for_two() {
    for (std::uint64_t id = 100; id < 100 + size; ++id) {
      readers.push_back(server.join(id, "reader-" + std::to_string(id)));
      server.update(readers.back(), version_number{2}, 600'000ms);
    }
  }
};

}  // namespace

TEST_CASE("handovers: many workers are heard again at once, and what waits is looked at once") {
  fleet f{driver<>::without_grace({})};
  const incarnation trainer = f.server.join(1, "trainer");
  const incarnation other = f.server.join(2, "other");
  REQUIRE(f.server.publish(trainer, 1).ok());
  REQUIRE(f.server.ask<messages::status_reply>(trainer, messages::retain_request{1, {}, {}}).result.ok());
  const auto copied = f.server.start_update(other);
  f.server.finish(other, copied);
  f.wait_for_two();
  // Only the trainer is heard: the one other copy that it knows of may be gone.
  for (int beat = 0; beat < 3; ++beat) {
    f.server.pass(f.settings.heartbeat_interval);
    f.server.send_as(trainer, 0, messages::heartbeat_request{});
  }
  f.server.clear();
  const auto unpublish = f.server.unpublish(trainer, 1);
  REQUIRE_FALSE(f.server.answer<messages::drained_reply>(trainer, unpublish).has_value());
  counting::decided = 0;
  f.server.together([&] {
    for (const incarnation reader : f.readers) f.server.send_as(reader, 0, messages::heartbeat_request{});
  });
  CHECK(counting::decided <= 2 * fleet::size);
  REQUIRE_FALSE(f.server.answer<messages::drained_reply>(trainer, unpublish).has_value());
  f.server.send_as(other, 0, messages::heartbeat_request{});
  CHECK(f.server.answer<messages::drained_reply>(trainer, unpublish).has_value());
}

TEST_CASE("handovers: what waits for the workers of an earlier server is looked at when they are back") {
  fleet f{{.recovery_grace = 60'000ms}};
  const incarnation trainer = f.come_back(1, "trainer", 1);
  f.come_back(2, "other", 1);
  f.wait_for_two();
  const auto unpublish = f.server.unpublish(trainer, 1);
  REQUIRE_FALSE(f.server.answer<messages::drained_reply>(trainer, unpublish).has_value());
  std::uint64_t next = 200;
  const auto come_back = [&](std::size_t more) {
    for (; more > 0; --more, ++next) f.come_back(next, "late-" + std::to_string(next), {});
  };
  counting::decided = 0;
  come_back(2 * fleet::size);
  CHECK(counting::decided <= 2 * fleet::size);
  REQUIRE_FALSE(f.server.answer<messages::drained_reply>(trainer, unpublish).has_value());
  come_back(2 * fleet::size);
  CHECK(f.server.answer<messages::drained_reply>(trainer, unpublish).has_value());
}
