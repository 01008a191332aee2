/// \file catalog_faulty_policies.cpp
/// The catalog over policies that break their rules: it does not believe them, and says what they have
/// decided.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "catalog_driver.hpp"

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
