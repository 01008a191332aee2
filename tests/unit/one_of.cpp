/// \file one_of.cpp
/// The variant of the control messages: a large alternative lies on the heap, and moves without being copied.

#include "tensorhub/detail/one_of.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/service/envelope.hpp"

using namespace tensorhub;

namespace {

struct large {
  std::array<char, detail::one_of_inside_bytes> bytes{};
  std::string name{};
};
struct small {
  std::string name{};
};
using either = detail::one_of<large, small, int>;

}  // namespace

TEST_CASE("one_of: a large alternative costs the others nothing") {
  CHECK(sizeof(either) <= sizeof(small) + 2 * sizeof(void*));
  CHECK(sizeof(messages::message) < sizeof(messages::join_request));
  CHECK(sizeof(messages::message) <= detail::one_of_inside_bytes + 2 * sizeof(void*));
}

TEST_CASE("one_of: a large alternative is copied whole, and moved without a copy") {
  either first = large{{'a'}, "first"};
  either copy = first;
  get_if<large>(&copy)->name = "copy";
  CHECK(get_if<large>(&first)->name == "first");
  const large* const at = get_if<large>(&first);
  either moved = std::move(first);
  CHECK(get_if<large>(&moved) == at);
  CHECK(visit(
            [](const auto& value) -> std::string {
              if constexpr (requires { value.name; }) return value.name;
              return {};
            },
            std::as_const(moved)) == "first");
  first = std::move(copy);  // what was moved from may be assigned to
  CHECK(get_if<large>(&first)->name == "copy");
  copy = small{"small"};
  moved = copy;
  CHECK(get_if<large>(&moved) == nullptr);
  CHECK(get_if<small>(&moved)->name == "small");
  CHECK(moved.emplace<large>().name.empty());
  CHECK(get_if<large>(&moved)->bytes[0] == 0);
  CHECK(moved.emplace<small>().name.empty());
  CHECK(moved.index() == 1);
}

TEST_CASE("one_of: it begins as the first alternative that lies inside") {
  CHECK(holds_alternative<small>(either{}));
  CHECK(holds_alternative<messages::join_reply>(messages::message{}));
}

TEST_CASE("one_of: a list of them grows") {
  std::vector<either> list;
  for (int i = 0; i < 100; ++i) {
    list.emplace_back(large{{}, std::to_string(i)});
    list.emplace_back(small{std::to_string(i)});
    list.emplace_back(i);
  }
  for (std::size_t i = 0; i < 100; ++i) {
    CHECK(get_if<large>(&list[3 * i])->name == std::to_string(i));
    CHECK(get_if<small>(&list[3 * i + 1])->name == std::to_string(i));
    CHECK(*get_if<int>(&list[3 * i + 2]) == static_cast<int>(i));
  }
}
