/// What the catalog lets go of, and what has to be safe first.

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "catalog_driver.hpp"

using namespace catalog_test;
using namespace tensorhub;

namespace {

/// A trainer and two rollouts of one shard each; the trainer holds version 1, and one version is retained.
struct retaining {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  incarnation a = server.join(2, "rollout-a");
  incarnation b = server.join(3, "rollout-b");

  retaining() {
    REQUIRE(server.publish(trainer, 1).ok());
    REQUIRE(change({1, {}, {}}).ok());
    server.clear();
  }
  messages::status change(const messages::retain_request& request) {
    const auto reply = server.ask<messages::status_reply>(trainer, request);
    server.acknowledge(trainer, server.last_sequence(trainer));
    return reply.result;
  }
  bool is_let_go(incarnation worker, std::uint64_t unpublish) {
    return server.answer<messages::drained_reply>(worker, unpublish).has_value();
  }
  std::uint64_t leave(incarnation worker, version_number version) {
    return server.send(worker, messages::unpublish_request{version, 1, {}, true});
  }
  /// What an ordered temporary replica does.
  incarnation take(std::uint64_t id, const messages::offload_push& order) {
    auto message = server.join_message(order.replica);
    message.temporary = true;
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, message).result.ok());
    const auto source = server.start_update({id}, exactly(order.version));
    server.finish({id}, source);
    return {id};
  }
};

}  // namespace

TEST_CASE("retention: the last holder waits until a temporary replica has its version") {
  retaining s;
  const auto unpublish = s.server.unpublish(s.trainer, 1);
  CHECK_FALSE(s.is_let_go(s.trainer, unpublish));
  const auto order = s.server.push<messages::offload_push>(s.trainer);
  REQUIRE(order.has_value());
  CHECK(order->version == 1);
  CHECK(order->replica == "trainer~1");
  CHECK(s.server.available() == versions{1});  // it can be read meanwhile
  s.take(10, *order);
  CHECK(s.is_let_go(s.trainer, unpublish));
  CHECK(s.server.available() == versions{1});
}

TEST_CASE("retention: a holder that an order has set aside still gives its version to who takes it over") {
  retaining s;
  const messages::manage_request drain{messages::manage_kind::drain, "policy", "trainer", {}};
  REQUIRE(s.server.ask<messages::manage_reply>(incarnation{500}, drain).result.ok());
  const auto unpublish = s.server.unpublish(s.trainer, 1);
  CHECK_FALSE(s.is_let_go(s.trainer, unpublish));
  std::optional<messages::offload_push> order;
  for (const incarnation host : {s.a, s.b})
    if (!order) order = s.server.push<messages::offload_push>(host);
  REQUIRE(order.has_value());
  const auto other = s.server.update(s.b, exactly(1));
  s.take(10, *order);
  CHECK(s.is_let_go(s.trainer, unpublish));
  CHECK(s.server.available() == versions{1});
  CHECK(s.server.sources_of(s.b, other).front().source == incarnation{10});  // not the trainer
}

TEST_CASE("retention: a worker that has not left after all is relied upon again") {
  retaining s;
  s.server.finish(s.a, s.server.start_update(s.a));
  CHECK(s.is_let_go(s.trainer, s.leave(s.trainer, 1)));  // rollout-a has the version
  SUBCASE("it publishes again") {
    REQUIRE(s.server.publish(s.trainer, 1).ok());
  }
  SUBCASE("it says that it still holds the version") {
    const messages::holding_request still{s.server.reference(1)};
    REQUIRE(s.server.ask<messages::status_reply>(s.trainer, still).result.ok());
  }
  CHECK(s.is_let_go(s.a, s.server.unpublish(s.a, 1)));
}

TEST_CASE(
    "retention: nobody waits for a version that is not retained, or that another reliable replica has") {
  retaining s;
  SUBCASE("another has it") {
    s.server.finish(s.a, s.server.start_update(s.a));
    CHECK(s.is_let_go(s.trainer, s.server.unpublish(s.trainer, 1)));
  }
  SUBCASE("not retained") {
    CHECK(s.change({0, {}, {}}).ok());
    CHECK(s.is_let_go(s.trainer, s.server.unpublish(s.trainer, 1)));
  }
  CHECK_FALSE(s.server.push<messages::offload_push>(s.trainer).has_value());
}

TEST_CASE("retention: two that let go at once do not take each other for the survivor") {
  retaining s;
  s.server.finish(s.a, s.server.start_update(s.a));
  const auto first = s.server.unpublish(s.trainer, 1);
  CHECK(s.is_let_go(s.trainer, first));  // rollout-a stays
  const auto second = s.server.unpublish(s.a, 1);
  CHECK_FALSE(s.is_let_go(s.a, second));
  CHECK(s.server.push<messages::offload_push>(s.a).has_value());
}

TEST_CASE("retention: one that waits for another to be heard is not that one's survivor") {
  retaining s;
  s.server.finish(s.a, s.server.start_update(s.a));
  const catalog_options settings;
  s.server.pass(2 * settings.heartbeat_interval + 1ms);  // rollout-a falls silent
  CHECK_FALSE(s.is_let_go(s.trainer, s.server.unpublish(s.trainer, 1)));
  const auto second = s.server.unpublish(s.a, 1);
  CHECK_FALSE(s.is_let_go(s.a, second));
  CHECK(s.server.push<messages::offload_push>(s.a).has_value());
}

namespace {

/// The trainer asks to let go of a version that rollout-a holds too, after something has happened to
/// rollout-a. Returns the number of the request, which waits.
template <typename Change>
std::uint64_t unpublish_after(retaining& s, Change change) {
  s.server.finish(s.a, s.server.start_update(s.a));
  change(s.server);
  const std::uint64_t unpublish = s.server.unpublish(s.trainer, 1);
  CHECK_FALSE(s.is_let_go(s.trainer, unpublish));
  CHECK_FALSE(s.server.push<messages::offload_push>(s.trainer).has_value());
  return unpublish;
}

}  // namespace

TEST_CASE("retention: a holder that has fallen silent is not relied upon until it is heard") {
  const catalog_options settings;
  const auto silence = [&](driver<>& server) { server.pass(2 * settings.heartbeat_interval + 1ms); };
  SUBCASE("it is heard again") {
    retaining s;
    const auto unpublish = unpublish_after(s, silence);
    s.server.send_as(s.a, 0, messages::heartbeat_request{});
    CHECK(s.is_let_go(s.trainer, unpublish));
  }
  SUBCASE("its connection was broken, and it is heard again") {
    retaining s;
    const auto unpublish =
        unpublish_after(s, [&](driver<>& server) { server.core.unreachable(server.now, s.a); });
    s.server.send_as(s.a, 0, messages::heartbeat_request{});
    CHECK(s.is_let_go(s.trainer, unpublish));
  }
  SUBCASE("it is declared dead: the version is handed over") {
    retaining s;
    const auto unpublish = unpublish_after(s, silence);
    s.server.pass_alive(settings.worker_timeout + settings.heartbeat_interval, {s.trainer, s.b});
    CHECK_FALSE(s.is_let_go(s.trainer, unpublish));
    const auto order = s.server.push<messages::offload_push>(s.trainer);
    REQUIRE(order.has_value());
    s.take(10, *order);
    CHECK(s.is_let_go(s.trainer, unpublish));
  }
}

TEST_CASE("retention: of two that wait to let go, each makes the other wait") {
  retaining s;
  const auto first = s.server.unpublish(s.trainer, 1);
  CHECK_FALSE(s.is_let_go(s.trainer, first));
  s.server.finish(s.a, s.server.start_update(s.a));
  CHECK(s.is_let_go(s.trainer, first));  // now there is somebody
  CHECK_FALSE(s.is_let_go(s.a, s.server.unpublish(s.a, 1)));
}

TEST_CASE("retention: a spot replica does not count, and is not asked to take anything") {
  driver server;
  const auto trainer = server.join(1, "trainer");
  auto spot = server.join_message("rollout-spot");
  spot.spot = true;
  REQUIRE(server.ask<messages::join_reply>({2}, spot).result.ok());
  REQUIRE(server.publish(trainer, 1).ok());
  REQUIRE(server.ask<messages::status_reply>(trainer, messages::retain_request{1, {}, {}}).result.ok());
  server.finish({2}, server.start_update({2}));
  const auto unpublish = server.send(trainer, messages::unpublish_request{1, 1, {}, true});
  // It leaves, and only the spot replica is there: the version is lost, and that is said.
  const auto reply = server.answer<messages::drained_reply>(trainer, unpublish);
  REQUIRE(reply.has_value());
  CHECK(reply->lost);
  CHECK(server.core.has_lost("policy", 1));
}

TEST_CASE("retention: who leaves hands over to another replica; if that one cannot, to the next") {
  retaining s;
  const auto unpublish = s.leave(s.trainer, 1);
  CHECK_FALSE(s.is_let_go(s.trainer, unpublish));
  CHECK_FALSE(s.server.push<messages::offload_push>(s.trainer).has_value());
  const auto to_a = s.server.push<messages::offload_push>(s.a);
  REQUIRE(to_a.has_value());
  s.server.send(s.a, messages::offload_failed_request{1, {errc::limit_exceeded, "no memory"}});
  const auto to_b = s.server.push<messages::offload_push>(s.b);
  REQUIRE(to_b.has_value());
  CHECK_FALSE(s.is_let_go(s.trainer, unpublish));
  SUBCASE("it can") {
    s.take(10, *to_b);
    const auto reply = s.server.answer<messages::drained_reply>(s.trainer, unpublish);
    REQUIRE(reply.has_value());
    CHECK_FALSE(reply->lost);
    CHECK(s.server.available() == versions{1});
  }
  SUBCASE("it cannot either") {
    s.server.send(s.b, messages::offload_failed_request{1, {errc::limit_exceeded, "no memory"}});
    const auto reply = s.server.answer<messages::drained_reply>(s.trainer, unpublish);
    REQUIRE(reply.has_value());
    CHECK(reply->lost);
    CHECK(s.server.core.has_lost("policy", 1));
  }
}

namespace {

/// A trainer that holds version 1, which is retained, and replicas at given places.
struct placed {
  driver<> server{};
  location home{.datacenter = "eu", .rack = "r1", .host = "h1"};
  incarnation trainer = server.join_at(1, "trainer", home);
  std::map<std::string, incarnation> replicas{};

  placed() {
    REQUIRE(server.publish(trainer, 1).ok());
    retain({1, {}, {}});
  }
  void retain(const messages::retain_request& request) {
    REQUIRE(server.ask<messages::status_reply>(trainer, request).result.ok());
  }
  incarnation add(const std::string& replica, const location& place) {
    return replicas[replica] = server.join_at(10 + replicas.size(), replica, place);
  }
  std::uint64_t leave(incarnation worker, version_number version) {
    return server.send(worker, messages::unpublish_request{version, 1, {}, true});
  }
  /// The replica that was ordered to take the version; empty: none was.
  std::string ordered(version_number version) {
    for (const auto& [name, id] : replicas) {
      while (const auto order = server.push<messages::offload_push>(id))
        if (order->version == version) return name;
    }
    return {};
  }
  /// The replicas that are ordered one after the other, each of which answers with this failure.
  std::vector<std::string> all_that_fail(errc code) {
    std::vector<std::string> out;
    for (std::string each = ordered(1); !each.empty(); each = ordered(1)) {
      out.push_back(each);
      server.clear();
      server.send(replicas[each], messages::offload_failed_request{1, {code, "it cannot"}});
    }
    return out;
  }
};

}  // namespace

TEST_CASE("retention: the nearest replica takes the version of one that leaves") {
  placed s;
  s.add("a, another datacenter", {.datacenter = "us", .rack = "r1", .host = "h1"});
  s.add("b, the same datacenter", {.datacenter = "eu", .rack = "r2", .host = "h9"});
  s.add("c, the same rack", {.datacenter = "eu", .rack = "r1", .host = "h2"});
  s.add("d, the same host", s.home);
  s.leave(s.trainer, 1);
  CHECK(s.all_that_fail(errc::limit_exceeded) ==
        std::vector<std::string>{"d, the same host", "c, the same rack", "b, the same datacenter",
                                 "a, another datacenter"});
}

TEST_CASE("retention: a replica of which one shard is far away is far away") {
  driver<> server;
  const location here{.datacenter = "eu", .rack = "r1", .host = "h1"};
  const location there{.datacenter = "us", .rack = "r1", .host = "h1"};
  const incarnation trainers[]{server.join_at(1, "trainer", here, {0, 2}),
                               server.join_at(2, "trainer", here, {1, 2})};
  server.join_at(3, "a", here, {0, 2});
  server.join_at(4, "a", there, {1, 2});
  const incarnation near = server.join_at(5, "b", {.datacenter = "eu"}, {0, 2});
  server.join_at(6, "b", {.datacenter = "eu"}, {1, 2});
  for (const incarnation trainer : trainers) REQUIRE(server.publish(trainer, 1).ok());
  REQUIRE(server.ask<messages::status_reply>(trainers[0], messages::retain_request{1, {}, {}}).result.ok());
  server.send(trainers[0], messages::unpublish_request{1, 1, {}, true});
  CHECK(server.push<messages::offload_push>(near).has_value());
}

TEST_CASE("retention: equally near replicas share the work") {
  placed s;
  const location there{.datacenter = "eu", .rack = "r2", .host = "h2"};
  const incarnation a = s.add("a", there);
  s.add("b", there);
  SUBCASE("each takes one version") {
    s.retain({3, {}, {}});
    const auto first = s.server.join_at(2, "holder of 1", {.datacenter = "eu", .host = "h3"});
    s.server.finish(first, s.server.start_update(first));
    REQUIRE(s.server.publish(s.trainer, 2).ok());
    s.leave(first, 1);
    CHECK(s.ordered(1) == "a");
    s.leave(s.trainer, 2);
    CHECK(s.ordered(2) == "b");
  }
  SUBCASE("one that reads or serves already is spared") {
    static_cast<void>(s.server.start_update(a));
    s.leave(s.trainer, 1);
    CHECK(s.ordered(1) == "b");
  }
}

TEST_CASE("retention: where the source cannot be read, only a few replicas are asked") {
  placed s;
  for (const std::string name : {"a", "b", "c", "d", "e", "f"}) s.add(name, s.home);
  const auto unpublish = s.leave(s.trainer, 1);
  SUBCASE("it cannot be read") {
    CHECK(s.all_that_fail(errc::unavailable) == std::vector<std::string>{"a", "b", "c"});
  }
  SUBCASE("each replica has a reason of its own") {
    CHECK(s.all_that_fail(errc::limit_exceeded).size() == 6);
  }
  const auto reply = s.server.answer<messages::drained_reply>(s.trainer, unpublish);
  REQUIRE(reply.has_value());
  CHECK(reply->lost);
  CHECK(s.server.core.has_lost("policy", 1));
}

TEST_CASE("retention: the order is repeated until the temporary replica is there") {
  retaining s;
  s.server.unpublish(s.trainer, 1);
  REQUIRE(s.server.push<messages::offload_push>(s.trainer).has_value());
  s.server.clear();
  s.server.pass_alive(1500ms, {s.trainer, s.a, s.b});
  CHECK(s.server.push<messages::offload_push>(s.trainer).has_value());
}

TEST_CASE("retention: a temporary replica is dropped when it is not needed any more") {
  retaining s;
  s.server.unpublish(s.trainer, 1);
  const auto temporary = s.take(10, *s.server.push<messages::offload_push>(s.trainer));
  s.server.clear();
  SUBCASE("another reliable replica has it") {
    s.server.finish(s.b, s.server.start_update(s.b, exactly(1)));
  }
  SUBCASE("not retained any more") {
    CHECK(s.change({0, {}, {}}).ok());
  }
  SUBCASE("newer ones are the latest") {
    REQUIRE(s.server.publish(s.trainer, 2).ok());
  }
  s.server.pass_alive(1500ms, {s.trainer, s.a, s.b, temporary});
  CHECK(s.server.push<messages::drop_push>(temporary).has_value());
}

TEST_CASE("retention: a temporary replica that is being dropped does not end a handover") {
  retaining s;
  for (const incarnation other : {s.a, s.b}) s.server.send(other, messages::leave_request{});
  const auto first = s.server.unpublish(s.trainer, 1);
  const auto order = s.server.push<messages::offload_push>(s.trainer);
  REQUIRE(order.has_value());
  const incarnation copy = s.take(10, *order);
  CHECK(s.is_let_go(s.trainer, first));
  REQUIRE(s.server.publish(s.trainer, 1).ok());  // the copy is not needed any more
  CHECK(s.server.push<messages::drop_push>(copy).has_value());
  s.server.clear();
  static_cast<void>(s.server.core.take_log());
  const auto second = s.server.unpublish(s.trainer, 1);
  CHECK_FALSE(s.is_let_go(s.trainer, second));
  std::size_t orders = 0;
  while (s.server.push<messages::offload_push>(s.trainer)) ++orders;
  CHECK(orders >= 1);
  CHECK(orders <= 2);
  for (const log_line& line : s.server.core.take_log())
    CHECK_MESSAGE(line.text.find("does not settle") == std::string::npos, line.text);
  s.server.send(copy, messages::leave_request{});
  s.take(11, *order);
  CHECK(s.is_let_go(s.trainer, second));
}

TEST_CASE("retention: a host that still ends an older copy of the version is not asked to take it again") {
  retaining s;
  const location near{.datacenter = "eu", .rack = "r1", .host = "h1"};
  const incarnation holder = s.server.join_at(5, "rollout-c", near);
  const incarnation host = s.server.join_at(6, "rollout-d", near);
  s.server.finish(holder, s.server.start_update(holder));
  REQUIRE(s.is_let_go(s.trainer, s.server.unpublish(s.trainer, 1)));
  s.server.send(s.trainer, messages::leave_request{});
  const auto first = s.leave(holder, 1);
  const auto order = s.server.push<messages::offload_push>(host);
  REQUIRE(order.has_value());
  const incarnation copy = s.take(10, *order);
  CHECK(s.is_let_go(holder, first));
  s.server.send(holder, messages::leave_request{});
  const incarnation reader = s.server.join_at(7, "rollout-e", near);
  s.server.finish(reader, s.server.start_update(reader));
  REQUIRE(s.server.push<messages::drop_push>(copy).has_value());  // and a reader keeps it from ending
  s.server.clear();
  static_cast<void>(s.leave(reader, 1));
  CHECK_FALSE(s.server.push<messages::offload_push>(host).has_value());
  CHECK((s.server.push<messages::offload_push>(s.a).has_value() ||
         s.server.push<messages::offload_push>(s.b).has_value()));
}

TEST_CASE("retention: the copy of a host that stays, and that leaves itself, goes to another host") {
  retaining s;
  s.server.finish(s.a, s.server.start_update(s.a));
  s.server.unpublish(s.trainer, 1);
  s.server.unpublish(s.a, 1);
  const incarnation copy = s.take(10, *s.server.push<messages::offload_push>(s.a));
  s.server.clear();
  static_cast<void>(s.server.core.take_log());
  const auto leaving = s.leave(copy, 1);
  CHECK_FALSE(s.is_let_go(copy, leaving));
  for (const log_line& line : s.server.core.take_log())
    CHECK_MESSAGE(line.text.find("does not settle") == std::string::npos, line.text);
  CHECK_FALSE(s.server.push<messages::offload_push>(s.a).has_value());
  const auto order = s.server.push<messages::offload_push>(s.b);
  REQUIRE(order.has_value());
  s.take(11, *order);
  CHECK(s.is_let_go(copy, leaving));
}

TEST_CASE("retention: an update that would overwrite the last copy waits for the handover") {
  retaining s;
  s.server.finish(s.a, s.server.start_update(s.a));
  CHECK(s.change({0, 1, {}}).ok());  // pinned
  CHECK(s.is_let_go(s.trainer, s.server.unpublish(s.trainer, 1)));
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  const auto update = s.server.update(s.a);
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.a, update).has_value());
  const auto order = s.server.push<messages::offload_push>(s.a);
  REQUIRE(order.has_value());
  s.take(10, *order);
  const auto reply = s.server.answer<messages::update_reply>(s.a, update);
  REQUIRE(reply.has_value());
  CHECK(reply->version == 2);
  CHECK(s.server.available() == versions{1, 2});
}

TEST_CASE("retention: at its deadline a worker's memory is its own, and the version may be lost") {
  retaining s;
  const auto unpublish = s.server.unpublish(s.trainer, 1);
  s.server.send(s.trainer, messages::cut_off_done_request{{}});
  CHECK(s.is_let_go(s.trainer, unpublish));
  CHECK(s.server.available().empty());
  CHECK(s.server.core.has_lost("policy", 1));
}

TEST_CASE("retention: a version that was lost and is published again is no longer said to be lost") {
  retaining s;
  static_cast<void>(s.server.unpublish(s.trainer, 1));
  s.server.send(s.trainer, messages::cut_off_done_request{{}});
  REQUIRE(s.server.core.has_lost("policy", 1));
  REQUIRE(s.server.publish(s.trainer, 1).ok());
  CHECK_FALSE(s.server.core.has_lost("policy", 1));
  s.server.finish(s.a, s.server.start_update(s.a));
  const auto unpublish = s.server.unpublish(s.trainer, 1);
  const auto reply = s.server.answer<messages::drained_reply>(s.trainer, unpublish);
  REQUIRE(reply.has_value());
  CHECK_FALSE(reply->lost);
}

TEST_CASE("retention: a new server hears from its workers what is retained") {
  retaining s;
  const auto told = s.server.ask<messages::status_reply>(s.trainer, messages::retain_request{2, 1, {}});
  CHECK(told.result.ok());
  std::optional<messages::retention_push> newest;
  while (auto push = s.server.push<messages::retention_push>(s.a)) newest = push;
  REQUIRE(newest.has_value());
  CHECK(newest->keeps.keep_latest == 2);
  CHECK(newest->keeps.pinned == std::vector<version_number>{1});
  driver after;
  auto join = after.join_message("rollout-a");
  join.before.keeps = newest->keeps;
  REQUIRE(after.ask<messages::join_reply>({2}, join).result.ok());
  CHECK(after.core.retains("policy", 1));
  // Who has not heard is told with his next heartbeat.
  const auto late = after.join(4, "rollout-late");
  after.clear();
  after.send_as(late, 0, messages::heartbeat_request{0, 0});
  CHECK(after.push<messages::retention_push>(late).has_value());
}

TEST_CASE("retention: the number of retained versions is bounded") {
  retaining s;
  for (std::uint64_t version = 1; version <= limits::retained_versions; ++version)
    CHECK(s.change({{}, version, {}}).ok());
  CHECK(s.change({{}, limits::retained_versions + 1, {}}).code == errc::limit_exceeded);
  CHECK(s.change({limits::retained_versions + 1, {}, {}}).code == errc::limit_exceeded);
  CHECK(s.change({{}, {}, 5}).ok());
  CHECK(s.change({{}, limits::retained_versions + 1, {}}).ok());
}

TEST_CASE("retention: a shard whose report comes late is not told to overwrite what it has got") {
  driver<> server;
  const incarnation trainers[]{server.join(1, "trainer", {0, 2}), server.join(2, "trainer", {1, 2})};
  const incarnation group[]{server.join(3, "rollout", {0, 2}), server.join(4, "rollout", {1, 2})};
  for (const incarnation trainer : trainers) REQUIRE(server.publish(trainer, 1).ok());
  const auto early = server.start_update(group[0]);
  const auto late = server.start_update(group[1]);
  const auto give_up = [&](incarnation worker, const messages::assignment& source) {
    server.send(worker,
                messages::finish_request{
                    source.operation, 1, {errc::cancelled, "no"}, false, server.reference(1), source.lease});
  };
  give_up(group[0], early);
  static_cast<void>(server.update(group[0]));  // of the next operation: decided, and waits for the other one
  SUBCASE("it has the version") {
    give_up(group[1], late);
    CHECK(server.entry("rollout").version == 1);
    const auto reply = server.answer<messages::update_reply>(group[1], server.update(group[1]));
    REQUIRE(reply.has_value());
    CHECK(reply->keep);
    CHECK(server.leases_on(trainers[1]) == 0);
    CHECK(server.entry("rollout").version == 1);
  }
  SUBCASE("it has another one, which counts no more") {
    auto older = server.reference(1);
    older.version = 7;
    server.send(group[1], messages::finish_request{
                              late.operation, 1, {errc::cancelled, "no"}, true, older, late.lease});
    CHECK(server.core.record_of(group[1])->is_overwritten());
    CHECK_FALSE(server.start_update(group[1]).source == incarnation{});
  }
}

TEST_CASE(
    "retention: a worker that waited to let go, and keeps its version after all, is relied upon again") {
  retaining s;
  CHECK_FALSE(s.is_let_go(s.trainer, s.server.unpublish(s.trainer, 1)));
  const messages::holding_request still{s.server.reference(1)};
  REQUIRE(s.server.ask<messages::status_reply>(s.trainer, still).result.ok());
  s.server.finish(s.a, s.server.start_update(s.a));
  s.server.clear();
  CHECK(s.is_let_go(s.a, s.server.unpublish(s.a, 1)));
  s.server.pass_alive(1500ms, {s.trainer, s.a, s.b});
  for (const incarnation each : {s.trainer, s.a, s.b})
    CHECK_FALSE(s.server.push<messages::offload_push>(each).has_value());
}

namespace {

/// The only holder of version 1, which is pinned, has asked for version 2, and its call has ended while it
/// waited for the handover.
struct kept_after_all : retaining {
  catalog_options settings{};
  kept_after_all() {
    server.finish(a, server.start_update(a));
    CHECK(change({0, 1, {}}).ok());
    CHECK(is_let_go(trainer, server.unpublish(trainer, 1)));
    REQUIRE(server.publish(trainer, 2).ok());
    server.clear();
  }
  [[nodiscard]] std::vector<incarnation> everybody() const { return {trainer, a, b}; }
  std::uint64_t ask_in_vain(std::chrono::milliseconds timeout = 200ms) {
    const auto asked = server.update(a, latest, timeout);
    CHECK_FALSE(server.answer<messages::update_reply>(a, asked).has_value());
    return asked;
  }
  /// Nobody has to take a copy when another holder lets go.
  bool is_relied_upon() {
    server.finish(b, server.start_update(b, exactly(1)));
    server.clear();
    return is_let_go(b, server.unpublish(b, 1));
  }
  bool is_ordered() {
    server.clear();
    server.pass_alive(2 * settings.heartbeat_interval, everybody());
    const auto has_order = [&](incarnation each) {
      return server.push<messages::offload_push>(each).has_value();
    };
    return has_order(trainer) || has_order(a) || has_order(b);
  }
};

}  // namespace

TEST_CASE("retention: a holder whose update has failed while it waited to let go is relied upon again") {
  kept_after_all s;
  const auto asked = s.ask_in_vain();
  SUBCASE("at its deadline") {
    s.server.pass_alive(300ms, s.everybody());
    CHECK(s.server.answer<messages::update_reply>(s.a, asked).value().result.code == errc::timed_out);
  }
  SUBCASE("it gives up") {
    s.server.send(s.a, messages::finish_request{
                           s.server.operation_of(s.a), 0, {errc::cancelled, "cancelled"}, true, {}, {}});
  }
  SUBCASE("what it asked for is gone: it keeps what it has") {
    s.server.unpublish(s.trainer, 2);
    CHECK(s.server.answer<messages::update_reply>(s.a, asked).value().keep);
  }
  CHECK(s.server.core.statistics().operations == 0);
  CHECK(s.is_ordered());  // it may ask again soon
  s.server.pass_alive(s.settings.worker_timeout, s.everybody());
  CHECK_FALSE(s.is_ordered());
  CHECK(s.is_relied_upon());
}

TEST_CASE("retention: who asks again and again, with short time-outs, gets its handover") {
  kept_after_all s;
  for (auto left = 3 * s.settings.worker_timeout; left > 0ms; left -= 1900ms) {
    s.ask_in_vain();
    s.server.pass_alive(1900ms, s.everybody());
    CHECK(s.is_ordered());
    CHECK(s.server.core.record_of(s.a)->replica->counts_for == version_number{});
  }
  s.ask_in_vain(60'000ms);
  s.server.pass_alive(3 * s.settings.worker_timeout, s.everybody());
  CHECK(s.is_ordered());
  const auto order = s.server.push<messages::offload_push>(s.a);
  s.take(10, order.value_or(messages::offload_push{1, "rollout-a~1"}));
  CHECK(s.server.core.record_of(s.a)->is_overwritten());
}
