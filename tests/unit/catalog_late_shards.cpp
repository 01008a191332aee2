/// \file catalog_late_shards.cpp
/// A shard that calls after its group was decided, and whose reserved lease has ended meanwhile.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "catalog_driver.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"

using namespace catalog_test;

namespace {

using pair_of_shards = std::array<incarnation, 2>;

/// Two replicas hold version 1, and each of their workers serves one reader: "rollout", whose shard 1 has not
/// called yet, and "other". The source that is reserved for shard 1 then overwrites what it holds.
struct late_shard {
  driver<> server{{}, nearest_source{{.most = {.sources = 1, .credits = 1}}}};
  pair_of_shards trainer = join(1, "trainer");
  pair_of_shards second = join(3, "second");
  pair_of_shards rollout = join(5, "rollout");
  pair_of_shards other = join(7, "other");
  messages::assignment early{};                    ///< of the rollout's shard 0
  std::array<messages::assignment, 2> of_other{};  ///< the second one keeps the only source of shard 1
  std::uint64_t asked = 0;                         ///< the late call

  late_shard() {
    for (const incarnation each : trainer) REQUIRE(server.publish(each, 1).ok());
    for (const incarnation each : second) REQUIRE(server.publish(each, 1).ok());
    early = server.start_update(rollout[0]);
    for (const std::size_t shard : {0u, 1u}) of_other[shard] = server.start_update(other[shard]);
    incarnation reserved{};
    server.core.for_each_lease([&](const auto& lease) {
      if (lease.is_reserved()) reserved = lease.source;
    });
    REQUIRE(reserved != incarnation{});
    REQUIRE(reserved != of_other[1].source);
    REQUIRE(server.publish(reserved, 2).ok());
    server.clear();
    asked = server.update(rollout[1]);
  }
  pair_of_shards join(std::uint64_t first, const std::string& replica) {
    return {server.join(first, replica, {0, 2}), server.join(first + 1, replica, {1, 2})};
  }
  std::vector<incarnation> everybody() const {
    std::vector<incarnation> out;
    for (const auto& replica : {trainer, second, rollout, other})
      out.insert(out.end(), replica.begin(), replica.end());
    return out;
  }
  bool waits() { return !is_torn() && !server.answer<messages::update_reply>(rollout[1], asked).has_value(); }
  bool is_torn() { return server.entry("rollout").torn; }
};

}  // namespace

TEST_CASE("catalog: a late shard whose sources have no credit left waits for one") {
  late_shard s;
  REQUIRE(s.waits());
  SUBCASE("a reader finishes") {
    s.server.finish(s.other[1], s.of_other[1]);
  }
  SUBCASE("a reader gives up") {
    s.server.fail(s.other[1], s.of_other[1], {errc::cancelled, "cancelled"}, false);
    s.server.pass(20ms);
  }
  SUBCASE("there is a new holder") {
    const pair_of_shards third = s.join(11, "third");
    for (const incarnation each : third) REQUIRE(s.server.publish(each, 1).ok());
  }
  SUBCASE("the shards that have called go on meanwhile") {
    s.server.finish(s.rollout[0], s.early);
    s.server.finish(s.other[1], s.of_other[1]);
  }
  const auto reply = s.server.answer<messages::update_reply>(s.rollout[1], s.asked);
  REQUIRE(reply.has_value());
  REQUIRE_MESSAGE(reply->result.ok(), reply->result.sentence);
  REQUIRE(reply->sources.size() == 1);
  s.server.finish(s.rollout[0], s.early);
  s.server.finish(s.rollout[1], reply->sources.front());
  CHECK(s.server.entry("rollout").version == version_number{1});
}

TEST_CASE("catalog: a late shard does not wait for a credit for ever") {
  late_shard s;
  REQUIRE(s.waits());
  SUBCASE("its deadline") {
    s.server.pass_alive(1100ms, s.everybody());
    const auto reply = s.server.answer<messages::update_reply>(s.rollout[1], s.asked);
    REQUIRE(reply.has_value());
    CHECK(reply->result.code == errc::timed_out);
    CHECK(reply->result.sentence.find("no source of version 1") != std::string::npos);
  }
  SUBCASE("the last holder is gone") {
    s.server.send(s.of_other[1].source, messages::leave_request{});
    s.server.fail(s.other[1], s.of_other[1], {errc::source_lost, "gone"}, false);
    s.server.pass(20ms);
    const auto reply = s.server.answer<messages::update_reply>(s.rollout[1], s.asked);
    REQUIRE(reply.has_value());
    CHECK(reply->result.sentence.find("no remaining source holds shard 1/2 of version 1") == 0);
  }
  SUBCASE("another shard fails") {
    s.server.fail(s.rollout[0], s.early, {errc::source_lost, "connection reset"}, false);
    const auto reply = s.server.answer<messages::update_reply>(s.rollout[1], s.asked);
    REQUIRE(reply.has_value());
    CHECK_FALSE(reply->result.ok());
  }
  SUBCASE("it gives up itself") {
    s.server.send(s.rollout[1],
                  messages::finish_request{{1}, 0, {errc::cancelled, "cancelled"}, true, {}, {}});
    CHECK(s.server.push<messages::abort_push>(s.rollout[0]).has_value());
  }
  CHECK(s.is_torn());
  CHECK_FALSE(s.server.core.record_of(s.rollout[1])->is_overwritten());
}

TEST_CASE("catalog: what a late shard waits for is told") {
  late_shard s;
  REQUIRE(s.waits());
  s.server.finish(s.rollout[0], s.early);
  s.server.pass_alive(500ms, s.everybody());
  const auto seen = s.server.ask<messages::stuck_reply>({99}, messages::stuck_request{"policy", 0}).entries;
  const auto is_late = [](const messages::stuck_entry& each) {
    return each.replica == "rollout" && each.shard == 1 && each.kind == messages::stuck_kind::no_credit;
  };
  const auto is_done = [](const messages::stuck_entry& each) {
    return each.replica == "rollout" && each.shard == 0 &&
           each.kind == messages::stuck_kind::unfinished_group;
  };
  CHECK(std::ranges::count_if(seen, is_late) == 1);
  CHECK(std::ranges::count_if(seen, is_done) == 1);
}

TEST_CASE("catalog: what is reserved for a shard that does not call goes to one that waits") {
  driver<> server{{}, nearest_source{{.most = {.sources = 1, .credits = 1}}}};
  std::vector<incarnation> everybody;
  const auto join = [&](std::uint64_t first, const std::string& replica) {
    for (const std::uint32_t shard : {0u, 1u})
      everybody.push_back(server.join(first + shard, replica, {shard, 2}));
    return pair_of_shards{incarnation{first}, incarnation{first + 1}};
  };
  for (const incarnation each : join(1, "trainer")) REQUIRE(server.publish(each, 1).ok());
  const pair_of_shards silent = join(3, "rollout-0");
  const pair_of_shards other = join(5, "rollout-1");
  server.finish(silent[0], server.start_update(silent[0]));
  const auto asked = server.update(other[0], latest, 60s);
  CHECK_FALSE(server.answer<messages::update_reply>(other[0], asked).has_value());
  server.pass_alive(11s, everybody);
  CHECK(server.answer<messages::update_reply>(other[0], asked).has_value());
}

TEST_CASE(
    "catalog: what was reserved for a shard that had not joined counts where the shard turns out to be") {
  driver<> server;
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    const auto trainer = server.join_at(1 + shard, "trainer", {.datacenter = "east"}, {shard, 2});
    REQUIRE(server.publish(trainer, 1).ok());
  }
  bool has_seed = false;
  SUBCASE("the only reader there") {}
  SUBCASE("beside a seed") {
    has_seed = true;
    for (std::uint32_t shard = 0; shard < 2; ++shard)
      static_cast<void>(
          server.start_update(server.join_at(7 + shard, "other", {.datacenter = "north"}, {shard, 2})));
  }
  const incarnation first = server.join_at(5, "rollout", {.datacenter = "west"}, {0, 2});
  static_cast<void>(server.start_update(first));
  const incarnation second = server.join_at(6, "rollout", {.datacenter = "north"}, {1, 2});
  static_cast<void>(server.start_update(second));
  bool has_lease = false;
  server.core.for_each_lease([&](const auto& lease) {
    if (lease.reader != second) return;
    has_lease = true;
    CHECK(lease.crossing);
    CHECK(lease.datacenter == "north");
    CHECK(lease.seeds == !has_seed);
  });
  CHECK(has_lease);
  server.check_rules();
}

TEST_CASE("catalog: a shard that has failed to publish is in step again with the next version") {
  driver<> server;
  const pair_of_shards trainer{server.join(1, "trainer", {0, 2}), server.join(2, "trainer", {1, 2})};
  std::array<std::uint64_t, 2> calls{};
  const auto publish = [&](std::size_t shard, std::uint64_t version) {
    const auto reply = server.ask<messages::status_reply>(
        trainer[shard], messages::publish_request{{++calls[shard]}, server.reference(version)});
    if (reply.result.ok()) calls[shard] = reply.operation.value;
    return reply.result;
  };
  const auto withdraw = [&](std::size_t shard, std::uint64_t version) {
    server.unpublish(trainer[shard], version);
  };
  for (const std::size_t shard : {0u, 1u}) REQUIRE(publish(shard, 1).ok());
  for (const std::size_t shard : {0u, 1u}) withdraw(shard, 1);
  REQUIRE(publish(0, 2).ok());  // shard 1 has failed before it called
  SUBCASE("once the others have let go of theirs, whichever comes first") {
    withdraw(0, 2);
    for (std::uint64_t version = 3; version < 8; ++version) {
      for (const std::size_t shard : {1u, 0u}) {
        const messages::status result = publish(shard, version);
        CHECK_MESSAGE(result.ok(), result.sentence);
      }
      CHECK(server.available() == std::vector<version_number>{{version}});
      for (const std::size_t shard : {0u, 1u}) withdraw(shard, version);
    }
  }
  SUBCASE("not while they show another version") {
    CHECK(publish(1, 3).code == errc::group_failed);
  }
}
