/// \file held_wait.cpp
/// Who holds a version by an answer of the server, and what a wait for that does with many answers.

#include "tensorhub/worker/held_wait.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/calls.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using calls::code_of;
using calls::contains;
using detail::held_question;
using detail::held_wait;
using detail::holders_of;
using verdict = detail::held_wait::verdict;
using names = std::vector<std::string>;

namespace {

[[nodiscard]] replica_entry row(std::string name, std::uint64_t version, std::uint32_t shards_joined = 2) {
  replica_entry out;
  out.name = std::move(name);
  out.version = version;
  out.shards_joined = shards_joined;
  return out;
}
[[nodiscard]] replica_entry torn(std::string name) {
  auto out = row(std::move(name), 0);
  out.torn = true;
  return out;
}
/// A model of two shards, of which everything that a replica holds is available.
[[nodiscard]] model_entry model_of(std::uint64_t latest, std::vector<replica_entry> replicas) {
  model_entry out;
  out.name = "policy";
  out.shards = 2;
  out.latest = latest;
  for (const auto& each : replicas)
    if (each.version) out.available.push_back(each.version);
  out.replicas = std::move(replicas);
  return out;
}
[[nodiscard]] held_question any(std::uint64_t version, std::uint32_t replicas) {
  return {version, replicas, "trainer-0", {}};
}
[[nodiscard]] held_question all_of(std::uint64_t version, names replicas) {
  return {version, 0, {}, std::move(replicas)};
}

/// A wait, and the time.
struct scene {
  held_wait wait;
  held_wait::time_point now{1h};
  explicit scene(held_question question) : wait{std::move(question)} {}
  verdict answer(const model_entry& model, std::chrono::milliseconds took = 0ms) {
    now += took;
    return wait.see(now, took, model);
  }
};

}  // namespace

TEST_CASE("held wait: a replica counts once, by any of its parts, and its temporary copies do not") {
  const auto told = holders_of(model_of(7, {row("flips@a", 6), row("flips@b", 7), row("plain", 7),
                                            row("stages", 6), row("stages@stage", 7), row("stages~7", 7),
                                            row("old", 6), row("old~7", 7), row("newer", 8)}),
                               any(7, 4));
  CHECK(told.holding == names{"flips", "newer", "plain", "stages"});
  CHECK(told.lacking == names{"old (version 6)"});
  CHECK(told.are_enough);
  CHECK(holders_of(model_of(8, {row("flips@a", 8), row("flips@b", 7)}), any(8, 1)).are_enough);
  CHECK(!holders_of(model_of(7, {row("flips@a", 7), row("flips@b", 7)}), any(7, 2)).are_enough);
}

TEST_CASE("held wait: the publisher that asks does not count, nor do its snapshots") {
  const auto model = model_of(7, {row("trainer-0", 7), row("trainer-0@snapshot-0", 7), row("trainer-1", 7)});
  CHECK(holders_of(model, any(7, 1)).holding == names{"trainer-1"});
  CHECK(holders_of(model, all_of(7, {"trainer-0"})).are_enough);  // who names it means it
  const auto marked =
      model_of(7, {row("group@0", 7), row("group@0@snapshot-1", 7), row("rollout@0@stage", 7)});
  CHECK(holders_of(marked, {7, 1, "group@0", {}}).holding == names{"rollout"});
}

TEST_CASE("held wait: of names each has to hold it") {
  const auto model =
      model_of(7, {row("rollout-0", 7), row("rollout-1", 6), row("rollout-1@stage", 7), row("rollout-2", 6),
                   torn("rollout-3"), row("rollout-4", 0, 1), row("rollout-5", 0), row("other", 7)});
  CHECK(holders_of(model, all_of(7, {"rollout-1", "rollout-0", "rollout-1"})).holding ==
        names{"rollout-0", "rollout-1"});
  const auto told = holders_of(model, all_of(7, {"rollout-0", "rollout-2", "rollout-3", "rollout-4",
                                                 "rollout-5", "rollout-6", "rollout-1@stage"}));
  CHECK(told.holding == names{"rollout-0", "rollout-1@stage"});
  CHECK(told.lacking == names{"rollout-2 (version 6)", "rollout-3 (torn)",
                              "rollout-4 (1 of 2 shards have joined)", "rollout-5 (no version)",
                              "rollout-6 (has not joined)"});
  CHECK(!told.are_enough);
}

TEST_CASE("held wait: none and no names are enough at once") {
  CHECK(holders_of(model_of(7, {row("rollout-0", 6)}), any(7, 0)).are_enough);
  CHECK(holders_of(model_of(7, {row("rollout-0", 6)}), all_of(7, {})).are_enough);
}

TEST_CASE("held wait: the pauses grow to 200 ms, and with the time that an answer takes to 1 s") {
  scene here{any(7, 2)};
  const auto model = model_of(7, {row("trainer-0", 7)});
  std::vector<std::int64_t> pauses;
  for (const auto took : {0ms, 0ms, 0ms, 0ms, 0ms, 0ms, 0ms, 30ms, 5000ms, 0ms}) {
    CHECK(here.answer(model, took) == verdict::ask_again);
    pauses.push_back(here.wait.pause().count());
  }
  CHECK(pauses == std::vector<std::int64_t>{10, 20, 40, 80, 160, 200, 200, 300, 1000, 200});
}

TEST_CASE("held wait: a version that was there is gone when nobody has had it or read for a while") {
  scene here{any(7, 1)};
  CHECK(here.answer(model_of(7, {row("trainer-0", 7), row("rollout-0", 6)})) == verdict::ask_again);
  const auto without = model_of(7, {row("trainer-0", 0), row("rollout-0", 6)});
  CHECK(here.answer(without) == verdict::ask_again);
  here.now += held_wait::patience - 1ms;
  CHECK(here.answer(without) == verdict::ask_again);
  auto is_read = without;
  is_read.replicas.front().readers = 1;  // a shard of a rollout still reads from it
  CHECK(here.answer(is_read) == verdict::ask_again);
  here.now += held_wait::patience;
  CHECK(here.answer(without) == verdict::ask_again);  // from now on
  here.now += held_wait::patience;
  CHECK(here.answer(without) == verdict::gone);
  CHECK_MESSAGE(contains(here.wait.state(), "nobody who has it is left"), here.wait.state());
  CHECK(here.answer(model_of(8, {row("trainer-0", 8)})) == verdict::ask_again);  // a newer one will do
}

TEST_CASE("held wait: a version that was rolled back is gone, and one that was never published is not") {
  scene rolled_back{any(7, 1)};
  CHECK(rolled_back.answer(model_of(7, {row("trainer-0", 7)})) == verdict::ask_again);
  scene never{any(7, 1)};
  const auto older = model_of(6, {row("trainer-0", 6), row("rollout-0", 6)});
  for (scene* each : {&rolled_back, &never}) {
    CHECK(each->answer(older) == verdict::ask_again);
    each->now += held_wait::patience;
  }
  CHECK(rolled_back.answer(older) == verdict::gone);
  CHECK(never.answer(older) == verdict::ask_again);
  CHECK_MESSAGE(contains(never.wait.state(), "the latest version is 6"), never.wait.state());
}

TEST_CASE("held wait: its sentence names who holds it and who does not, eight of each") {
  scene here{any(7, 20)};
  CHECK(contains(here.wait.state(), "did not say"));
  std::vector<replica_entry> many;
  for (int i = 10; i < 20; ++i) many.push_back(row("with-" + std::to_string(i), 7));
  for (int i = 10; i < 19; ++i) many.push_back(row("without-" + std::to_string(i), 6));
  CHECK(here.answer(model_of(7, many)) == verdict::ask_again);
  const std::string sentence = here.wait.state();
  CHECK_MESSAGE(contains(sentence, "10 of 20 replicas hold version 7"), sentence);
  CHECK_MESSAGE(contains(sentence, "with-10, "), sentence);
  CHECK_MESSAGE(contains(sentence, "with-17 and 2 more; "), sentence);
  CHECK_MESSAGE(contains(sentence, "without-17 (version 6) and 1 more; "), sentence);
}

TEST_CASE("held wait: the shell asks until it is enough, and ends with the right error") {
  int asked = 0;
  bool is_interrupted = false;
  const auto wait = [&](std::chrono::milliseconds timeout, std::uint64_t version, auto&& list) {
    return wait_held(any(version, 1), timeout,
                     {list, [&] { return is_interrupted; },
                      [](errc code, const std::string& sentence) { return error(code, sentence); }});
  };
  const auto without = model_of(7, {row("trainer-0", 7)});
  const auto with = model_of(7, {row("trainer-0", 7), row("rollout-0", 7)});
  CHECK(wait(60s, 7, [&](auto) { return std::vector{++asked < 3 ? without : with}; }) == names{"rollout-0"});
  CHECK(asked == 3);
  const auto never = [&](auto) { return std::vector{without}; };
  std::string sentence;
  CHECK(code_of([&] { wait(30ms, 7, never); }, &sentence) == errc::timed_out);
  CHECK_MESSAGE(contains(sentence, "0 of 1 replicas hold version 7"), sentence);
  CHECK(code_of([&] { wait(60s, 0, never); }) == errc::invalid_argument);
  // The last question has no answer: what the one before said is told.
  asked = 0;
  const auto once = [&](auto) {
    if (++asked > 1) throw error(errc::timed_out, "no answer");
    return std::vector{without};
  };
  CHECK(code_of([&] { wait(60s, 7, once); }, &sentence) == errc::timed_out);
  CHECK_MESSAGE(contains(sentence, "0 of 1 replicas"), sentence);
  CHECK(code_of([&] { wait(60s, 7, once); }, &sentence) == errc::timed_out);
  CHECK_MESSAGE(contains(sentence, "no answer"), sentence);
  is_interrupted = true;
  CHECK(code_of([&] { wait(60s, 7, never); }) == errc::cancelled);
}
