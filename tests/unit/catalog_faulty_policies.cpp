/// \file catalog_faulty_policies.cpp
/// The catalog over policies that break their rules: it does not believe them, and says what they have
/// decided.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "catalog_driver.hpp"
#include "support/catalog_of.hpp"

using namespace catalog_test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- schedulers

/// Chooses what is behind the last candidate.
struct points_outside : nearest_source {
  static constexpr std::string_view name = "points_outside";
  using nearest_source::nearest_source;
  source_choice choose(const source_query&, std::span<const source_candidate> from) noexcept {
    return {from.size() + 4, "the fifth behind the last"};
  }
};
static_assert(scheduler<points_outside>);

/// The same, for further sources only.
struct points_outside_later : nearest_source {
  static constexpr std::string_view name = "points_outside_later";
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> from) noexcept {
    if (query.sources_held == 0) return nearest_source::choose(query, from);
    return {from.size(), "the one behind the last"};
  }
};

/// Thinks that nobody is good enough.
struct chooses_nobody : nearest_source {
  static constexpr std::string_view name = "chooses_nobody";
  using nearest_source::nearest_source;
  source_choice choose(const source_query&, std::span<const source_candidate>) noexcept {
    return {std::nullopt, "it rains"};
  }
};

/// What has been logged at this level and names the scheduler.
template <typename Driver>
std::vector<std::string> warnings_of(Driver& server, std::string_view scheduler) {
  std::vector<std::string> out;
  for (const log_line& line : server.core.take_log())
    if (line.level == log_level::warning && has(line.text, "'" + std::string{scheduler} + "'"))
      out.push_back(line.text);
  return out;
}

/// A trainer with a version that a rollout waits for.
template <typename Driver>
incarnation wait_in_vain(Driver& server) {
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(trainer, 1).ok());
  const std::uint64_t sequence = server.update(reader, latest, 60'000ms);
  server.pass_alive(700ms, {trainer, reader});
  CHECK_FALSE(server.template answer<messages::update_reply>(reader, sequence).has_value());
  return reader;
}

template <typename Driver>
std::string stuck_advice(Driver& server) {
  const auto reply =
      server.template ask<messages::stuck_reply>(incarnation{9999}, messages::stuck_request{"policy", 0});
  const auto entry =
      std::ranges::find(reply.entries, messages::stuck_kind::no_credit, &messages::stuck_entry::kind);
  REQUIRE(entry != reply.entries.end());
  return entry->advice;
}

// ---- consistency policies

using kind = version_decision::kind_type;

/// Decides the same whatever it is asked.
template <version_decision (*Decide)(const version_view&)>
struct decides : group_consistent {
  static constexpr std::string_view name = "decides";
  using group_consistent::group_consistent;
  version_decision decide(const version_selector&, const version_view& view) const noexcept {
    return Decide(view);
  }
};
version_decision keep_the_latest(const version_view& view) {
  return {kind::keep, view.latest_available, errc::ok};
}
version_decision take_the_next(const version_view& view) {
  return {kind::take, view.latest_ever.value + 1, errc::ok};
}
version_decision take_the_latest(const version_view& view) {
  return {view.latest_available == view.held ? kind::keep : kind::take, view.latest_available, errc::ok};
}
version_decision take_the_latest_ever(const version_view& view) {
  return {kind::take, view.latest_ever, errc::ok};
}
version_decision refuse_silently(const version_view&) {
  return {kind::refuse, {}, errc::ok};
}

template <version_decision (*Decide)(const version_view&)>
struct decided_scene {
  driver<testing::catalog_of<nearest_source, decides<Decide>>> server{};
  incarnation trainer, first, second;
  decided_scene() {
    server.consistency_name = "decides";
    trainer = server.join(1, "trainer");
    first = server.join(2, "rollout", {0, 1});
    second = server.join(3, "other");
    REQUIRE(server.publish(trainer, 5).ok());
    server.clear();
  }
  /// How the update ends at once.
  messages::status update(version_selector selector = latest) {
    const auto reply = server.template answer<messages::update_reply>(first, server.update(first, selector));
    REQUIRE(reply.has_value());
    return reply->result;
  }
};

void require_fault(const messages::status& result, const std::string& what) {
  CHECK(result.code == errc::policy_mismatch);
  CHECK_FALSE(retryable(result.code));
  CHECK_MESSAGE(has(result.sentence, "'decides' has decided to " + what), result.sentence);
  CHECK_MESSAGE(has(result.sentence, "version 5 is the latest one"), result.sentence);
}

}  // namespace

TEST_CASE("catalog: a scheduler's index outside of the candidates is logged, once") {
  SUBCASE("of an upstream") {
    driver<> server{{}, points_outside{}};
    const incarnation reader = wait_in_vain(server);
    const auto said = warnings_of(server, points_outside::name);
    REQUIRE(said.size() == 1);
    CHECK(has(said.front(), "index 5 of 1 candidates"));
    server.update(server.join(3, "another"), latest, 60'000ms);
    server.pass_alive(300ms, {reader});
    CHECK(warnings_of(server, points_outside::name).empty());
  }
  SUBCASE("of a further source") {
    driver<> server{{}, points_outside_later{}};
    const incarnation trainer = server.join(1, "trainer");
    REQUIRE(server.publish(trainer, 1).ok());
    const auto sources = server.start_shown(server.join(2, "rollout"));
    CHECK(sources.size() == 1);
    CHECK(warnings_of(server, points_outside_later::name).size() == 1);
  }
  SUBCASE("not of one that keeps the rules") {
    driver<> server{{}, chooses_nobody{}};
    wait_in_vain(server);
    CHECK(warnings_of(server, chooses_nobody::name).empty());
  }
}

TEST_CASE("stuck: nobody is chosen, although a holder has a credit left") {
  driver<> server{{}, chooses_nobody{}};
  wait_in_vain(server);
  const std::string advice = stuck_advice(server);
  CHECK_MESSAGE(has(advice, "has chosen none of 1 candidates: it rains"), advice);
  CHECK_FALSE(has(advice, "maximum number of readers"));
}

TEST_CASE("catalog: what a policy keeps must be held") {
  decided_scene<keep_the_latest> s;
  require_fault(s.update(), "keep version 5");
  require_fault(s.update(), "keep version 5");  // the replica is none the worse
  s.server.check_rules();
}

TEST_CASE("catalog: what a policy takes must be available") {
  SUBCASE("a version that nobody has") {
    decided_scene<take_the_next> s;
    require_fault(s.update(), "take version 6");
    CHECK(s.server.leases_on(s.trainer) == 0);
  }
  SUBCASE("another one than the call asked for") {
    decided_scene<take_the_latest> s;
    require_fault(s.update(exactly(4)), "take version 5");
  }
  SUBCASE("what is gone") {
    decided_scene<take_the_latest_ever> s;
    s.server.unpublish(s.trainer, 5);
    REQUIRE(s.server.publish(s.server.join(9, "slow trainer"), 4).code == errc::version_conflict);
    const auto result = s.update();
    CHECK(result.code == errc::policy_mismatch);
    CHECK_MESSAGE(has(result.sentence, "holds no version, while no version is the latest"), result.sentence);
  }
}

TEST_CASE("catalog: all shards of a replica learn of a policy's fault, and one that calls later") {
  driver<testing::catalog_of<nearest_source, decides<take_the_next>>> server;
  server.consistency_name = "decides";
  const incarnation trainer_0 = server.join(1, "trainer", {0, 2});
  const incarnation trainer_1 = server.join(2, "trainer", {1, 2});
  const incarnation rollout_0 = server.join(3, "rollout", {0, 2});
  const incarnation rollout_1 = server.join(4, "rollout", {1, 2});
  REQUIRE(server.publish(trainer_0, 5).ok());
  REQUIRE(server.publish(trainer_1, 5).ok());
  const std::uint64_t of_0 = server.update(rollout_0);
  const std::uint64_t of_1 = server.update(rollout_1);  // may be one call ahead: it hears of it at the end
  server.pass_alive(1100ms, {trainer_0, trainer_1, rollout_0, rollout_1});
  const auto first = server.answer<messages::update_reply>(rollout_0, of_0);
  const auto second = server.answer<messages::update_reply>(rollout_1, of_1);
  REQUIRE((first.has_value() && second.has_value()));
  require_fault(first->result, "take version 6");
  require_fault(second->result, "take version 6");
}

TEST_CASE("catalog: a policy may not refuse without a reason") {
  decided_scene<refuse_silently> s;
  require_fault(s.update(), "refuse, without a reason");
}

TEST_CASE("catalog: a policy that decides what can be is not disturbed") {
  decided_scene<take_the_latest> s;
  s.server.finish(s.first, s.server.start_update(s.first));
  CHECK(s.update().ok());                      // it keeps what it holds
  CHECK(s.server.available() == versions{5});  // two have it
  s.server.unpublish(s.trainer, 5);
  CHECK(s.update().ok());
  CHECK(s.server.start_update(s.second).source == s.first);
}
