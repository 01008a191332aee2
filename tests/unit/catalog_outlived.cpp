/// \file catalog_outlived.cpp
/// A model whose workers have all been declared dead, while the server ran on: what comes back afterwards.

#include <memory>
#include <string>

#include "catalog_driver.hpp"

using namespace catalog_test;

namespace {

constexpr version_number fifth{5};

/// A trainer has published version 5, which a rollout holds. Then everybody is silent for too long.
struct scene {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  incarnation rollout = server.join(2, "rollout-0");

  explicit scene(version_number held = fifth) {
    if (held.line != 0) {
      REQUIRE(server.publish(trainer, fifth).ok());
      static_cast<void>(server.unpublish(trainer, fifth));
      REQUIRE(roll_back(trainer, 4).ok());
    }
    REQUIRE(server.publish(trainer, held).ok());
    server.finish(rollout, server.start_update(rollout));
  }
  void cut_off() {
    server.pass(7000ms);
    REQUIRE_FALSE(server.core.knows(trainer));
    REQUIRE_FALSE(server.core.knows(rollout));
    server.clear();
  }
  messages::status roll_back(incarnation worker, std::uint64_t to) {
    messages::retain_request order;
    order.roll_back_to = version_number{to};
    return server.ask<messages::status_reply>(worker, order).result;
  }
  /// With what it holds, as its successor says it.
  incarnation return_as(std::uint64_t id, const std::string& replica, version_number held,
                        const messages::retention& keeps = {}) {
    auto join = server.join_message(replica);
    join.before.held = server.reference(held);
    join.before.latest = held;
    join.before.operation = {1};
    join.before.keeps = keeps;
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return incarnation{id};
  }
  /// From whom a newcomer reads this version; zero: from nobody.
  incarnation source_of(version_number version) {
    ++next_;
    const incarnation reader = server.join(next_, "newcomer-" + std::to_string(next_));
    const auto reply = server.answer<messages::update_reply>(
        reader, server.update(reader, exactly(version_number{version.value})));
    return reply && !reply->sources.empty() ? reply->sources.front().source : incarnation{};
  }
  std::uint64_t next_ = 100;
};

}  // namespace

TEST_CASE("catalog: a version of the same number that was published after all were cut off is another one") {
  scene s;
  s.cut_off();
  const incarnation trainer = s.server.join(11, "trainer");
  REQUIRE(s.roll_back(trainer, 4).ok());
  const auto told = s.server.push<messages::retention_push>(trainer);
  REQUIRE(told);
  const version_number again = of_line(told->keeps.rollbacks.back().line, 5);
  REQUIRE(again.line == 1);
  REQUIRE(s.server.publish(trainer, again).ok());
  const incarnation back = s.return_as(12, "rollout-0", fifth);
  CHECK(s.source_of(fifth) == trainer);
  CHECK_FALSE(s.server.core.record_of(back)->shows_open());
}

TEST_CASE("catalog: a trainer that counts anew, after all were cut off, begins a new line by itself") {
  scene s;
  messages::retain_request keep;
  keep.keep_latest = 3;
  REQUIRE(s.server.ask<messages::status_reply>(s.trainer, keep).result.ok());
  s.cut_off();
  const incarnation trainer = s.server.join(11, "trainer");
  s.server.clear();
  CHECK(s.server.publish(trainer, 1).code == errc::version_conflict);
  const auto told = s.server.push<messages::retention_push>(trainer);
  REQUIRE(told);
  REQUIRE(told->keeps.rollbacks.size() == 1);
  CHECK(told->keeps.rollbacks.back().to == 0);
  CHECK(told->keeps.keep_latest == 0);
  CHECK(s.server.publish(trainer, of_line(told->keeps.rollbacks.back().line, 1)).ok());
  s.return_as(12, "rollout-0", fifth);
  CHECK_FALSE(s.source_of(fifth));
}

TEST_CASE("catalog: those that were cut off go on where they were, in whatever order they come back") {
  scene s{of_line(1, 5)};
  const messages::retention keeps = s.server.core.record_of(s.trainer)->model->keeps;
  s.cut_off();
  SUBCASE("at once") {}
  SUBCASE("after a newcomer") {
    s.server.join(20, "rollout-9");
  }
  const incarnation rollout = s.return_as(12, "rollout-0", of_line(1, 5), keeps);
  CHECK(s.source_of(fifth) == rollout);
  const incarnation trainer = s.return_as(11, "trainer", of_line(1, 5), keeps);
  static_cast<void>(s.server.unpublish(trainer, of_line(1, 5)));
  CHECK(s.server.publish(trainer, of_line(1, 5)).code != errc::version_conflict);
  SUBCASE("what it had is not published again with other bytes") {
    auto other = s.server.reference(of_line(1, 5));
    other.root.low ^= 1;
    CHECK(s.server.publish(trainer, other).code == errc::version_conflict);
    CHECK(s.server.publish(trainer, of_line(1, 4)).code == errc::version_conflict);
  }
  CHECK(s.server.publish(trainer, of_line(1, 6)).ok());
}

TEST_CASE("catalog: what all had that were cut off is no version that newcomers are told of") {
  scene s;
  s.cut_off();
  const auto joined = s.server.ask<messages::join_reply>(incarnation{20}, s.server.join_message("rollout-9"));
  CHECK(joined.result.ok());
  CHECK(joined.latest == version_number{});
  const auto asked = s.server.update({20}, exactly(fifth), 5000ms);
  CHECK_FALSE(s.server.answer<messages::update_reply>({20}, asked).has_value());
  const auto hasty = s.server.ask<messages::version_reply>({20}, messages::wait_request{latest, 0});
  CHECK(hasty.result.sentence ==
        "no version (latest) of model 'policy' appeared; none is known yet; the server has lost all workers "
        "that had version 5, and none of them is back");
  const incarnation rollout = s.return_as(12, "rollout-0", fifth);
  CHECK(s.server.sources_of({20}, asked).front().source == rollout);
}

TEST_CASE("catalog: the first reader after all were cut off does not decide what the model looks like") {
  scene s;
  s.cut_off();
  client_rules trains{"trainers"}, reads{"rollouts"};
  trains.may = right::publish | right::serve;
  reads.may = right::read;
  s.server.clients[{11}] = {"a", std::make_shared<const client_rules>(trains)};
  s.server.clients[{20}] = {"b", std::make_shared<const client_rules>(reads)};
  auto misfit = s.server.join_message("rollout-9");
  driver<>::set_layout(misfit, layout{{{"wq", dtype::f32, {9}}}, 64});
  REQUIRE(s.server.ask<messages::join_reply>({20}, misfit).result.ok());
  const incarnation trainer = s.return_as(11, "trainer", fifth);
  CHECK(s.server.core.knows(trainer));
  CHECK_FALSE(s.server.core.knows({20}));
  CHECK(s.server.publish(trainer, 4).code == errc::version_conflict);
}

TEST_CASE("catalog: a model whose workers have all left is forgotten") {
  scene s;
  s.server.send(s.rollout, messages::leave_request{});
  s.server.send(s.trainer, messages::leave_request{});
  CHECK(s.server.publish(s.server.join(11, "trainer"), 1).ok());
}

TEST_CASE("catalog: only so many models outlive their workers") {
  driver server;
  for (std::uint64_t i = 1; i <= catalog_detail::outlived_models::most + 2; ++i) {
    auto join = server.join_message("trainer");
    join.model = "m" + std::to_string(i);
    REQUIRE(server.ask<messages::join_reply>(incarnation{i}, std::move(join)).result.ok());
    REQUIRE(server.publish({i}, 5).ok());
  }
  server.pass(7000ms);
  const auto first_of = [&](std::uint64_t id, std::uint64_t model) {
    auto join = server.join_message("trainer");
    join.model = "m" + std::to_string(model);
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(join)).result.ok());
    return server.publish({id}, 1).code;
  };
  std::size_t forgotten = 0;
  for (std::uint64_t i = 1; i <= catalog_detail::outlived_models::most + 2; ++i)
    forgotten += first_of(1000 + i, i) == errc::ok ? 1 : 0;
  CHECK(forgotten == 2);
}
