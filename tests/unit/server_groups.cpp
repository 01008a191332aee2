/// \file server_groups.cpp
/// Which group of servers a model belongs to.

#include "tensorhub/detail/server_groups.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

using namespace tensorhub::detail;

TEST_CASE("server groups: a list in its parts") {
  CHECK(split_groups("") == std::vector<std::string>{""});
  CHECK(split_groups("tcp://a:1, tcp://b:1") == std::vector<std::string>{"tcp://a:1, tcp://b:1"});
  CHECK(split_groups("a, b | c|") == std::vector<std::string>{"a, b ", " c", ""});
}

TEST_CASE("server groups: every process chooses alike, of whatever build") {
  CHECK(group_of_model("", 1) == 0);
  std::string chosen;
  for (const char* name : {"actor", "critic", "judge", "policy", "reward", "student", "\xc3\xa4"})
    chosen += std::to_string(group_of_model(name, 5));
  CHECK(chosen == "4142121");
}

TEST_CASE("server groups: equal shares, and one group more takes its own only") {
  std::array<std::size_t, 5> models{};
  std::size_t moved = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = "model-" + std::to_string(i);
    const std::size_t before = group_of_model(name, 4);
    const std::size_t after = group_of_model(name, 5);
    CHECK((after == before || after == 4));
    ++models[before];
    moved += after == 4 ? 1 : 0;
  }
  for (std::size_t group = 0; group < 4; ++group) {
    CHECK(models[group] > 2300);
    CHECK(models[group] < 2700);
  }
  CHECK(moved > 1800);
  CHECK(moved < 2200);
}
