/// \file exhaustive.cpp
/// Every order of deliveries, reads, calls and faults in small worlds (support/simulation/search/), for as
/// long as there is a state that was not seen. Random histories (short.cpp, contract.cpp) have larger worlds
/// and more faults, and see few orders of each.
///
/// The worlds of the first test are searched to their ends at every run. TENSORHUB_SIMULATION_STATES=<count>
/// searches the larger ones too, each up to so many states; TENSORHUB_SIMULATION_LONG=1 up to 600,000, and
/// looks for the planted bug that takes longest.
/// A history that breaks a rule is printed in words and as a list of steps; TENSORHUB_SIMULATION_WORLD=<name>
/// TENSORHUB_SIMULATION_STEPS="<steps>" goes through such a list again.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broken_servers.hpp"
#include "histories.hpp"
#include "support/simulation/search/search.hpp"
#include "support/simulation/search/small_world.hpp"
#include "tensorhub/policy/consistency/independent.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

struct named_world {
  std::string_view name;
  small_world_options options;
};

/// A trainer that publishes versions 1 and 2, and one rollout or two.
constexpr small_world_options one_rollout{.rollouts = 1};
constexpr small_world_options two_rollouts{.updates = 1};
constexpr small_world_options two_shards{.shards = 2, .rollouts = 1};

template <typename Change>
small_world_options with(small_world_options world, Change change) {
  change(world);
  return world;
}

/// At most a minute together.
std::vector<named_world> small_worlds() {
  return {{"two rollouts", two_rollouts},
          {"two shards", two_shards},
          {"loss", with(one_rollout, [](auto& world) { world.losses = 1; })},
          {"death", with(one_rollout, [](auto& world) { world.kills = 1; })},
          {"server", with(one_rollout, [](auto& world) { world.servers = 1; })},
          {"pause", with(one_rollout, [](auto& world) { world.pauses = 1; })},
          {"loss and death", with(one_rollout, [](auto& world) { world.losses = world.kills = 1; })},
          {"two shards, loss", with(two_shards,
                                    [](auto& world) {
                                      world.updates = 1;
                                      world.losses = 1;
                                    })},
          {"server, latest", with(one_rollout,
                                  [](auto& world) {
                                    world.servers = 1;
                                    world.asks_latest = true;
                                  })},
          {"retention", with(one_rollout, [](auto& world) { world.keep_latest = 1; })}};
}
std::vector<named_world> larger_worlds() {
  return {{"two rollouts, two updates", small_world_options{}},
          {"loss and server", with(one_rollout, [](auto& world) { world.losses = world.servers = 1; })},
          {"death and server", with(one_rollout, [](auto& world) { world.kills = world.servers = 1; })},
          {"two shards, death", with(two_shards,
                                     [](auto& world) {
                                       world.updates = 1;
                                       world.kills = 1;
                                     })},
          {"two shards, server", with(two_shards,
                                      [](auto& world) {
                                        world.updates = 1;
                                        world.servers = 1;
                                      })},
          {"two shards, pause", with(two_shards,
                                     [](auto& world) {
                                       world.updates = 1;
                                       world.pauses = 1;
                                     })},
          {"retention, death", with(one_rollout,
                                    [](auto& world) {
                                      world.keep_latest = 1;
                                      world.kills = 1;
                                    })},
          {"retention, server", with(one_rollout,
                                     [](auto& world) {
                                       world.keep_latest = 1;
                                       world.servers = 1;
                                     })},
          {"two rollouts, loss", with(two_rollouts, [](auto& world) { world.losses = 1; })},
          {"two rollouts, death", with(two_rollouts, [](auto& world) { world.kills = 1; })},
          {"two rollouts, server", with(two_rollouts, [](auto& world) { world.servers = 1; })},
          {"two rollouts, pause", with(two_rollouts, [](auto& world) { world.pauses = 1; })}};
}

/// Slower builds search the smallest worlds alone.
bool is_fast() {
  return scaled(400) >= 100;
}
void say_skipped(std::string_view what,
                 std::string_view why = "a build without optimization, or with a sanitizer, takes too long") {
  std::cout << "SKIPPED: simulation.exhaustive: " << what << ": " << why << std::endl;
}
constexpr std::string_view takes_long = "it takes long: TENSORHUB_SIMULATION_LONG=1 has it";

search_result look_everywhere(const named_world& world, std::uint64_t most_states,
                              const simulated_policies& policies = policies_of()) {
  const auto started = std::chrono::steady_clock::now();
  search all{[&] { return std::make_unique<small_world>(world.options, policies); }};
  search_result found = all.run(most_states);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::cout << "exhaustive: " << world.name << ": " << found.states << " states, " << found.steps
            << " steps, depth " << found.depth << ", " << found.ends << " ends, "
            << (found.exhausted ? "exhausted" : "not exhausted") << ", " << seconds << " s" << std::endl;
  return found;
}

/// Prints what happens on the way; ends at a step that is not possible, which fails, as a broken rule does.
void replay(const small_world_options& options, const std::vector<choice>& steps) {
  small_world again{options};
  again.log = [](const std::string& line) { std::cout << "  " << line << "\n"; };
  for (const choice each : steps) {
    const auto possible = again.choices();
    const auto is_it = [&](choice other) { return to_string(other) == to_string(each); };
    if (std::ranges::none_of(possible, is_it)) {
      FAIL_CHECK("not possible: " << to_string(each) << "; possible: " << to_string(possible));
      break;
    }
    again.apply(each);
  }
  for (const violation& found : again.violations()) FAIL_CHECK("BROKEN: " << found.sentence);
  std::cout << std::flush;
}

/// Prints a history that breaks a rule.
void check_sound(const named_world& world, const search_result& found) {
  if (!found.broken) return;
  replay(world.options, found.history);
  FAIL_CHECK("TENSORHUB_SIMULATION_WORLD=\"" << world.name << "\" TENSORHUB_SIMULATION_STEPS=\""
                                             << to_string(found.history) << "\": " << found.broken->sentence);
}

/// Says that nobody reads any more only when it is asked again.
class server_that_wakes_nobody : public simulated_server {
 public:
  using simulated_server::simulated_server;
  [[nodiscard]] std::vector<outgoing> take_output() override {
    auto output = catalog::take_output();
    std::erase_if(output, [this](const outgoing& out) {
      const bool drained = holds_alternative<messages::drained_reply>(out.message.body);
      return drained && kept_.insert({out.to.value, out.message.sequence.value}).second;
    });
    return output;
  }

 private:
  std::set<std::pair<std::uint64_t, std::uint64_t>> kept_;
};

/// Waits for the cut-off of a dead reader, and orders none.
class server_that_orders_no_cut_off : public simulated_server {
 public:
  using simulated_server::simulated_server;
  [[nodiscard]] std::vector<outgoing> take_output() override {
    auto output = catalog::take_output();
    std::erase_if(output, [](const outgoing& out) {
      return holds_alternative<messages::cut_off_push>(out.message.body);
    });
    return output;
  }
};

void check_caught(const std::string& bug, const small_world_options& options, rule broken,
                  std::size_t most_steps, const simulated_policies& policies = policies_of()) {
  const search_result found = look_everywhere({bug, options}, 100'000, policies);
  REQUIRE_MESSAGE(found.broken.has_value(), bug);
  std::cout << "planted: " << bug << " | steps: " << found.history.size() << " | " << found.broken->sentence
            << " | " << to_string(found.history) << std::endl;
  CHECK_MESSAGE(found.broken->broken == broken, bug);
  CHECK_MESSAGE(found.history.size() <= most_steps, bug);
}

}  // namespace

TEST_CASE("exhaustive: every order in small worlds") {
  for (const named_world& world : small_worlds()) {
    if (!is_fast() && world.options.pauses + world.options.servers > 0) {
      say_skipped(world.name);
      continue;
    }
    const search_result found = look_everywhere(world, 200'000);
    check_sound(world, found);
    CHECK_MESSAGE(found.exhausted, world.name);
    CHECK_MESSAGE(found.ends > 0, world.name);
  }
}

TEST_CASE("exhaustive: every order in larger worlds") {
  const std::uint64_t otherwise = number_from_environment("TENSORHUB_SIMULATION_LONG", 0) != 0 ? 600'000 : 0;
  const std::uint64_t most = number_from_environment("TENSORHUB_SIMULATION_STATES", otherwise);
  if (most == 0) return say_skipped("larger worlds", takes_long);
  for (const named_world& world : larger_worlds()) check_sound(world, look_everywhere(world, most));
}

TEST_CASE("exhaustive: a printed history") {
  const char* const name = std::getenv("TENSORHUB_SIMULATION_WORLD");
  const char* const steps = std::getenv("TENSORHUB_SIMULATION_STEPS");
  if (name == nullptr || steps == nullptr) return;
  bool is_known = false;
  for (const auto& worlds : {small_worlds(), larger_worlds()}) {
    for (const named_world& world : worlds) {
      if (world.name != name) continue;
      is_known = true;
      replay(world.options, choices_of(steps));
    }
  }
  REQUIRE_MESSAGE(is_known, "no world is called '" << std::string{name} << "'");
}

TEST_CASE("exhaustive: orders that are left out lead to no other end") {
  const auto make = [] {
    return std::make_unique<small_world>(with(two_shards, [](auto& world) { world.updates = 1; }));
  };
  const search_result some = search{make}.run(200'000);
  const search_result all = search{make, true}.run(200'000);
  CHECK(some.exhausted);
  CHECK(all.exhausted);
  CHECK(some.states < all.states);
  CHECK(some.ends == all.ends);
}

TEST_CASE("exhaustive: planted bugs") {
  check_caught("no cut-off",
               with(one_rollout,
                    [](auto& world) {
                      world.pauses = 1;
                      world.planted.cuts_nobody_off = true;
                    }),
               rule::permission, 20);
  check_caught("lease counted at transfer start", one_rollout, rule::permission, 20,
               decided_by<server_that_counts_at_the_start>());
  check_caught("grace period left out",
               with(one_rollout,
                    [](auto& world) {
                      world.servers = 1;
                      world.asks_latest = true;
                    }),
               rule::grace, 40, with_grace({}));
  check_caught("retention forgotten", with(one_rollout, [](auto& world) { world.keep_latest = 1; }),
               rule::retention, 20, decided_by<server_that_retains_nothing>());
  check_caught("a drain's answer is not sent", one_rollout, rule::calls, 30,
               decided_by<server_that_wakes_nobody>());
  check_caught("a dead reader's lease stays", with(one_rollout, [](auto& world) { world.kills = 1; }),
               rule::end_of_history, 60, decided_by<server_that_orders_no_cut_off>());
  if (!is_fast()) return say_skipped("two planted bugs");
  check_caught("each shard decides for itself",
               with(two_shards, [](auto& world) { world.asks_latest = true; }), rule::group_version, 40,
               policies_of<nearest_source, independent>());
  if (scaled(400) < 400) return say_skipped("a planted bug that planted.cpp has, too", takes_long);
  check_caught("keys not revoked after a fail-over",
               with(one_rollout,
                    [](auto& world) {
                      world.updates = 1;
                      world.servers = 1;
                      world.pauses = 1;
                    }),
               rule::permission, 30, decided_by<server_that_revokes_nothing>());
}
