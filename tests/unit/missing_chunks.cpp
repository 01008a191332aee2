/// \file missing_chunks.cpp
/// The bitmap of the chunks that a pull has not taken yet, and how one of them is chosen.

#include "tensorhub/transfer/missing_chunks.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>

using namespace tensorhub;

namespace {

constexpr std::uint64_t all_bits(std::size_t) {
  return ~0ull;
}

/// The chosen ones.
struct only {
  std::set<chunk_index> chunks;
  std::uint64_t operator()(std::size_t word) const {
    std::uint64_t bits = 0;
    for (const chunk_index chunk : chunks)
      if (chunk / 64 == word) bits |= 1ull << (chunk % 64);
    return bits;
  }
};

}  // namespace

TEST_CASE("missing chunks: as many as there are, whatever the last word holds") {
  for (const std::uint64_t chunks : {0u, 1u, 63u, 64u, 65u, 300u}) {
    CAPTURE(chunks);
    missing_chunks missing{chunks};
    CHECK(missing.count() == chunks);
    CHECK(missing.empty() == (chunks == 0));
    CHECK(missing.count_to(chunks, all_bits) == chunks);
    for (chunk_index i = 0; i < chunks; ++i) {
      CHECK(missing.first_from(i, all_bits) == i);
      missing.take(i);
    }
    CHECK(missing.empty());
    if (chunks > 0) CHECK_FALSE(missing.first_from(chunks - 1, all_bits).has_value());
  }
}

TEST_CASE("missing chunks: the search wraps around, and ends before the chunk where it began") {
  missing_chunks missing{200};
  CHECK(missing.first_from(150, only{{3, 149}}) == 3);
  CHECK(missing.first_from(150, only{{149}}) == 149);  // in the word where it began
  CHECK(missing.first_from(150, only{{149, 151}}) == 151);
  missing.take(151);
  CHECK(missing.first_from(150, only{{149, 151}}) == 149);
  missing.give_back(151);
  CHECK(missing.first_from(150, only{{149, 151}}) == 151);
}

TEST_CASE("missing chunks: a draw gives each of them its turn, and nothing else") {
  missing_chunks missing{1000};
  missing.take(130);
  const only chosen{{2, 64, 127, 128, 130, 999}};
  detail::repeatable_random random{1};
  std::map<chunk_index, int> drawn;
  for (int i = 0; i < 5000; ++i) ++drawn[missing.draw(random, chosen).value()];
  CHECK(drawn.size() == 5);
  for (const chunk_index chunk : {2u, 64u, 127u, 128u, 999u}) {
    CAPTURE(chunk);
    CHECK(drawn[chunk] > 800);  // of 1000; the standard deviation is 28
  }
  CHECK_FALSE(missing.draw(random, only{{130}}).has_value());
}

TEST_CASE("missing chunks: counting ends above the limit") {
  missing_chunks missing{1000};
  CHECK(missing.count_to(5, only{{1, 70, 900}}) == 3);
  CHECK(missing.count_to(3, only{{1, 70, 900}}) == 3);
  CHECK(missing.count_to(2, only{{1, 70, 900}}) > 2);
  std::size_t words = 0;
  const auto all = [&](std::size_t) { return ++words, ~0ull; };
  CHECK(missing.count_to(100, all) > 100);
  CHECK(words == 2);
}
