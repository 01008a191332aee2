/// \file catalog_orders.cpp
/// Orders of a process that is no worker: retention, roll back, a replica that is drained, resumed or
/// evicted.

#include <doctest/doctest.h>

#include <string>

#include "catalog_driver.hpp"

namespace catalog_test {
namespace {

using messages::manage_kind;

constexpr incarnation stranger{500};

struct ordered {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  incarnation first = server.join(2, "rollout-0");
  incarnation second = server.join(3, "rollout-1");

  ordered() {
    REQUIRE(server.publish(trainer, 1).ok());
    server.finish(first, server.start_update(first));
    server.clear();
  }
  messages::manage_reply order(manage_kind kind, const std::string& replica,
                               const std::string& model = "policy") {
    return server.ask<messages::manage_reply>(stranger, messages::manage_request{kind, model, replica, {}});
  }
  messages::manage_reply change(const messages::retain_request& request) {
    return server.ask<messages::manage_reply>(
        stranger, messages::manage_request{manage_kind::retention, "policy", {}, request});
  }
};

}  // namespace

TEST_CASE("orders: retention and roll back, by a process that has not joined") {
  ordered s;
  CHECK(s.change({2, 1, {}, {}}).result.ok());
  const auto& keeps = s.server.core.record_of_model("policy")->keeps;
  CHECK(keeps.keep_latest == 2);
  CHECK(keeps.pinned == versions{1});
  CHECK(s.change({0, {}, 1, {}}).result.ok());
  CHECK(keeps.pinned.empty());
  REQUIRE(s.server.available() == versions{1});
  CHECK(s.change({{}, {}, {}, version_number{0}}).result.ok());
  CHECK(s.server.available().empty());
  CHECK(s.server.core.worker_count() == 3);  // the stranger is none
}

TEST_CASE("orders: a repeated one is answered again, and not carried out again") {
  ordered s;
  const messages::manage_request back{manage_kind::retention, "policy", {}, {{}, {}, {}, version_number{0}}};
  const auto sequence = s.server.send(stranger, back);
  CHECK(s.server.answer<messages::manage_reply>(stranger, sequence)->result.ok());
  s.server.pass(10ms);
  const auto told = s.server.push<messages::retention_push>(s.trainer);
  REQUIRE(told.has_value());
  messages::reference again = s.server.reference(1);
  again.version.line = 1;
  REQUIRE(s.server.unpublish(s.trainer, 1) > 0);
  REQUIRE(s.server.publish(s.trainer, again).ok());
  s.server.send_as(stranger, sequence, back);  // its answer was lost
  CHECK(s.server.answer<messages::manage_reply>(stranger, sequence)->result.ok());
  CHECK(s.server.available() == versions{1});
}

TEST_CASE("orders: a drained replica gets no new reader, and loses those that it has") {
  ordered s;
  const auto sources = s.server.sources_of(s.second, s.server.update(s.second));
  const auto& reads = sources.front();
  const std::string reads_from = reads.source == s.trainer ? "trainer" : "rollout-0";
  const incarnation other = reads.source == s.trainer ? s.first : s.trainer;
  CHECK(s.server.leases_on(reads.source) == 1);
  const auto told = s.order(manage_kind::drain, reads_from);
  CHECK(told.result.ok());
  CHECK(told.workers == 1);
  const auto moved = s.server.push<messages::reassign_push>(s.second);
  REQUIRE(moved.has_value());
  CHECK(moved->old_lease == reads.lease);
  REQUIRE(sources.size() == 2);  // the other one goes on alone
  CHECK(sources.back().source == other);
  s.server.send(s.second, messages::lease_released_request{reads.lease});
  CHECK(s.order(manage_kind::drain, reads_from).readers == 0);
  s.server.finish(s.second, sources.back());
  const auto late = s.server.join(4, "rollout-2");
  CHECK(s.server.start_update(late).source != reads.source);
}

TEST_CASE("orders: the only holder is drained: its reader finishes, the next one waits for its return") {
  driver<> server;
  const auto trainer = server.join(1, "trainer");
  const auto reader = server.join(2, "rollout-0");
  REQUIRE(server.publish(trainer, 1).ok());
  const auto reads = server.start_update(reader);
  const messages::manage_request drain{manage_kind::drain, "policy", "trainer", {}};
  CHECK(server.ask<messages::manage_reply>(stranger, drain).readers == 1);
  const auto next = server.join(3, "rollout-1");
  server.finish(reader, reads);
  CHECK(server.start_update(next).source == reader);
  CHECK(server.ask<messages::manage_reply>(stranger, drain).readers == 0);

  const messages::manage_request drain_reader{manage_kind::drain, "policy", "rollout-0", {}};
  CHECK(server.ask<messages::manage_reply>(stranger, drain_reader).result.ok());
  const auto third = server.join(4, "rollout-2");
  const auto waiting = server.update(third, latest, 60'000ms);
  CHECK_FALSE(server.answer<messages::update_reply>(third, waiting).has_value());
  const messages::manage_request resume{manage_kind::resume, "policy", "trainer", {}};
  CHECK(server.ask<messages::manage_reply>(stranger, resume).result.ok());
  CHECK(server.sources_of(third, waiting).front().source == trainer);
}

TEST_CASE("orders: the order to drain a replica ends when all its workers have left") {
  ordered s;
  REQUIRE(s.order(manage_kind::drain, "rollout-0").result.ok());
  const auto is_source = [&](incarnation worker) {
    return !s.server.core.record_of(worker)->is_barred_as_source();
  };
  CHECK_FALSE(is_source(s.first));
  REQUIRE(s.server.unpublish(s.first, 1) > 0);
  REQUIRE(s.server.ask<messages::status_reply>(s.first, messages::leave_request{}).result.ok());
  CHECK(is_source(s.server.join(9, "rollout-0")));
}

TEST_CASE("orders: a drained replica is relied upon for nothing") {
  ordered s;
  REQUIRE(s.change({1, {}, {}, {}}).result.ok());
  CHECK(s.order(manage_kind::drain, "rollout-0").result.ok());
  // The trainer is now the last reliable holder: it may not let go before somebody has taken the version.
  const auto sequence = s.server.unpublish(s.trainer, 1);
  CHECK_FALSE(s.server.answer<messages::drained_reply>(s.trainer, sequence).has_value());
  CHECK(s.order(manage_kind::resume, "rollout-0").result.ok());
  CHECK(s.server.answer<messages::drained_reply>(s.trainer, sequence).has_value());
}

TEST_CASE("orders: an evicted replica is told so, and its place is free") {
  ordered s;
  CHECK(s.order(manage_kind::evict, "rollout-0").workers == 1);
  const auto goodbye = s.server.push<messages::goodbye_push>(s.first);
  REQUIRE(goodbye.has_value());
  CHECK_FALSE(goodbye->rejoin);
  CHECK(goodbye->reason.code == errc::replaced);
  CHECK(s.server.core.worker_count() == 2);
  s.server.clear();
  s.server.send_as(s.first, 0, messages::heartbeat_request{});  // it has not heard
  CHECK(s.server.push<messages::goodbye_push>(s.first)->reason.code == errc::replaced);
  s.server.join(9, "rollout-0");
  CHECK(s.order(manage_kind::evict, "rollout-0").workers == 1);
  CHECK(s.order(manage_kind::evict, "rollout-1").workers == 1);
  CHECK(s.order(manage_kind::evict, "trainer").workers == 1);  // and the model with it
  CHECK(s.server.core.worker_count() == 0);
  CHECK(s.order(manage_kind::evict, "trainer").result.code == errc::not_found);
}

TEST_CASE("orders: each is one line of the log, which names the key that has given it") {
  ordered s;
  const auto said = [&] {
    std::string all;
    for (const log_line& line : s.server.core.take_log())
      all += std::string{to_string(line.level)} + ": " + line.text + "\n";
    return all;
  };
  static_cast<void>(said());
  CHECK(s.order(manage_kind::drain, "rollout-0").result.ok());
  CHECK(said() ==
        "info: replica 'rollout-0' of model 'policy' is drained by an operator: nobody is sent there\n");

  s.server.clients[stranger] = {
      "a public key", std::make_shared<const client_rules>(client_rules_of("oncall may=retain,evict"))};
  CHECK(s.order(manage_kind::resume, "rollout-0").result.ok());
  CHECK(said() ==
        "info: replica 'rollout-0' of model 'policy' is a source again, by order of the key 'oncall'\n");
  CHECK(s.change({2, 1, {}, {}}).result.ok());
  CHECK(said() ==
        "info: model 'policy' retains its latest 2 versions, by order of the key 'oncall'\n"
        "info: version 1 of model 'policy' was pinned by the key 'oncall'\n");
  CHECK(s.change({{}, {}, 1, {}}).result.ok());
  CHECK(said() == "info: version 1 of model 'policy' was released by the key 'oncall'\n");
  CHECK(s.order(manage_kind::evict, "rollout-0").result.ok());
  const std::string evicted = said();
  CHECK_MESSAGE(
      evicted.find("info: replica 'rollout-0' of model 'policy' is evicted by the key 'oncall'\n") == 0,
      evicted);
  CHECK(evicted.find("was evicted by the key 'oncall'\n") != std::string::npos);

  const auto retain = [&](const messages::retain_request& request) {
    CHECK(s.server.ask<messages::status_reply>(s.trainer, request).result.ok());
    return said();
  };
  const std::string pinned = retain({{}, 1, {}, {}});
  CHECK_MESSAGE(pinned.find("info: version 1 of model 'policy' was pinned by worker policy/trainer/0/1") == 0,
                pinned);
  CHECK(retain({{}, 1, {}, {}}).empty());  // it is already: trainers may repeat it
}

TEST_CASE("orders: what is ordered of a replica is ordered of its parts, those included that join later") {
  ordered s;
  const incarnation stage = s.server.join(4, "rollout-0@stage");
  s.server.finish(stage, s.server.start_update(stage));
  const incarnation other = s.server.join(5, "rollout-00");
  s.server.finish(other, s.server.start_update(other));
  CHECK(s.order(manage_kind::drain, "rollout-0").workers == 2);
  const incarnation copy = s.server.join(6, "rollout-0~1");
  s.server.finish(copy, s.server.start_update(copy));
  CHECK(s.server.core.record_of(copy)->as_source.offered == catalog_detail::offer::none);
  REQUIRE(s.server.unpublish(s.trainer, 1) > 0);
  const auto late = s.server.start_update(s.second);
  CHECK(late.source == other);  // all others are drained
  CHECK(s.order(manage_kind::drain, "rollout-00").readers == 1);

  CHECK(s.order(manage_kind::resume, "rollout-0").workers == 3);
  CHECK(s.order(manage_kind::evict, "rollout-0@stage").workers == 1);
  CHECK(s.order(manage_kind::evict, "rollout-0").workers == 2);
  CHECK(s.server.core.worker_count() == 3);
}

TEST_CASE("orders: what has not joined is not found; a new server waits until it knows") {
  ordered s;
  CHECK(s.order(manage_kind::drain, "nobody").result.code == errc::not_found);
  CHECK(s.order(manage_kind::evict, "trainer", "other").result.code == errc::not_found);
  driver<> young{catalog_options{.recovery_grace = 1000ms}};
  const auto sequence =
      young.send(stranger, messages::manage_request{manage_kind::drain, "policy", "trainer", {}});
  CHECK_FALSE(young.answer<messages::manage_reply>(stranger, sequence).has_value());
  young.pass(1100ms);
  young.send_as(stranger, sequence, messages::manage_request{manage_kind::drain, "policy", "trainer", {}});
  CHECK(young.answer<messages::manage_reply>(stranger, sequence)->result.code == errc::not_found);
}

TEST_CASE("orders: a new server waits for the replica also if others of its model are back") {
  driver<> young{catalog_options{.recovery_grace = 1000ms}};
  young.join(1, "trainer");
  const messages::message drain = messages::manage_request{manage_kind::drain, "policy", "rollout-0", {}};
  const auto sequence = young.send(stranger, drain);
  CHECK_FALSE(young.answer<messages::manage_reply>(stranger, sequence).has_value());
  const auto asked = young.send(stranger, messages::stuck_request{"other", 0});
  CHECK_FALSE(young.answer<messages::stuck_reply>(stranger, asked).has_value());
  young.join(2, "rollout-0");
  young.send_as(stranger, sequence, drain);
  CHECK(young.answer<messages::manage_reply>(stranger, sequence)->workers == 1);
}

}  // namespace catalog_test
