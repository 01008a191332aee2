/// \file exhaustive.cpp
/// Every order of steps and faults in small worlds.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "histories.hpp"
#include "support/simulation/search/search.hpp"
#include "support/simulation/search/small_world.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

template <typename Server = catalog_of<>>
search_result look_everywhere(const std::string& title, const small_world_options& options,
                              std::uint64_t most_states) {
  const auto started = std::chrono::steady_clock::now();
  search all{[&] { return std::make_unique<small_world<Server>>(options); }};
  const search_result found = all.run(most_states);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::cout << title << ": " << found.states << " states, " << found.steps << " steps, depth " << found.depth
            << ", " << found.ends << " ends, " << (found.exhausted ? "exhausted" : "not exhausted") << ", "
            << seconds << " s\n";
  if (found.broken) {
    std::cout << found.broken->sentence << "\n  " << to_string(found.history) << "\n";
    small_world<Server> again{options};
    again.log = [](const std::string& line) { std::cout << "  " << line << "\n"; };
    for (const choice each : found.history) again.apply(each);
    std::cout << std::flush;
  }
  return found;
}

std::uint64_t most() { return number_from_environment("TENSORHUB_SEARCH_STATES", 50'000); }

}  // namespace

TEST_CASE("exhaustive: no fault") {
  small_world_options options;
  CHECK(!look_everywhere("no fault", options, most()).broken);
}
TEST_CASE("exhaustive: no fault, two shards") {
  small_world_options options;
  options.shards = 2;
  options.rollouts = 1;
  CHECK(!look_everywhere("two shards", options, most()).broken);
}
TEST_CASE("exhaustive: loss") {
  small_world_options options;
  options.losses = 1;
  CHECK(!look_everywhere("loss", options, most()).broken);
}
TEST_CASE("exhaustive: kill") {
  small_world_options options;
  options.kills = 1;
  CHECK(!look_everywhere("kill", options, most()).broken);
}
TEST_CASE("exhaustive: server") {
  small_world_options options;
  options.servers = 1;
  CHECK(!look_everywhere("server", options, most()).broken);
}
TEST_CASE("exhaustive: pause") {
  small_world_options options;
  options.pauses = 1;
  CHECK(!look_everywhere("pause", options, most()).broken);
}
