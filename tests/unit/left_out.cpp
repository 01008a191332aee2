/// The sample that a publish takes of what its caller has left out.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/transfer/digest_table.hpp"

using namespace tensorhub;

namespace {

constexpr std::uint64_t chunk = 1024;

/// Some small tensors, and so many of this many chunks.
[[nodiscard]] layout tensors_of(std::uint64_t count, std::uint64_t chunks) {
  std::vector<tensor_spec> all{{"bias", dtype::u8, {100}}};
  for (std::uint64_t i = 0; i < count; ++i)
    all.push_back({"w" + std::to_string(i), dtype::u8, {chunks * chunk}});
  return layout{std::move(all), chunk};
}

/// The chunks of all tensors but these (by position).
[[nodiscard]] std::vector<chunk_index> all_but(const layout& shape, const std::set<std::size_t>& left_out) {
  std::vector<std::size_t> named;
  for (std::size_t i = 0; i < shape.tensors().size(); ++i)
    if (!left_out.contains(i)) named.push_back(i);
  return chunks_of(shape, named);
}

}  // namespace

TEST_CASE("left out: each tensor has a chunk in the sample, not always the same one") {
  const layout shape = tensors_of(5, 40);
  const auto named = all_but(shape, {0, 2, 4});
  detail::repeatable_random random{1};
  std::set<chunk_index> seen;
  for (int publish = 0; publish < 100; ++publish) {
    const auto sample = sample_of_left_out(shape, named, random);
    CHECK(sample.size() == 8);
    CHECK(std::set<chunk_index>(sample.begin(), sample.end()).size() == 8);
    std::set<std::uint32_t> segments;
    for (const chunk_index each : sample) {
      CHECK(!std::binary_search(named.begin(), named.end(), each));
      segments.insert(shape.slice(each).segment);
      seen.insert(each);
    }
    CHECK(segments.size() == 3);
  }
  CHECK(seen.size() == 81);  // all that was left out, in time
}

TEST_CASE("left out: the sample is a 64th of many tensors, and everything if that is little") {
  detail::repeatable_random random{2};
  const layout many = tensors_of(3000, 2);
  CHECK(sample_of_left_out(many, {}, random).size() == 6001 / 64);
  const layout few = tensors_of(2, 3);
  auto sample = sample_of_left_out(few, all_but(few, {1, 2}), random);
  std::sort(sample.begin(), sample.end());
  CHECK(sample == std::vector<chunk_index>{1, 2, 3, 4, 5, 6});
  CHECK(sample_of_left_out(few, all_but(few, {}), random).empty());
}
