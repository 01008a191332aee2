/// \file forgery.cpp
/// A source that lies: other bytes with the same digest can be made for xxh3_128, and not so for blake3_128.

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/xxh3_forgery.hpp"
#include "tensorhub/policy/integrity/blake3_128.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"

using namespace tensorhub;

static_assert(forgery_resistant_integrity<blake3_128> && !forgery_resistant_integrity<xxh3_128>);

namespace {

[[nodiscard]] std::vector<std::byte> some_weights(std::size_t length) {
  std::vector<std::byte> bytes(length);
  std::uint64_t state = length;
  for (std::byte& each : bytes) {
    state = state * 6'364'136'223'846'793'005ull + 1;
    each = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

}  // namespace

TEST_CASE("whoever knows the subject of a chunk makes other bytes with its xxh3-128 digest; not its BLAKE3") {
  for (const std::size_t length : {241u, 1'000u, 4'096u, 65'536u, 1u << 20, (1u << 20) - 500}) {
    CAPTURE(length);
    constexpr std::uint64_t chunk = 5;
    const std::vector<std::byte> published = some_weights(length);
    const std::uint64_t seed = xxh3_128::bind("policy", 7, {1, 2}).chunks;
    // The liar would like zeros. All but 128 bytes of the chunk are.
    std::vector<std::byte> forged(length);
    xxh3_forgery::known_seed{xxh3_128::chunk_seed(seed, chunk)}.forge(forged, published);
    CHECK(std::count(forged.begin(), forged.end(), std::byte{}) >=
          static_cast<std::ptrdiff_t>(length - xxh3_forgery::paid_bytes));
    CHECK(forged != published);
    CHECK(xxh3_128::chunk_digest(seed, chunk, forged) == xxh3_128::chunk_digest(seed, chunk, published));
    // It is made for one chunk: elsewhere the same bytes do not pass.
    CHECK(xxh3_128::chunk_digest(seed, chunk + 1, forged) !=
          xxh3_128::chunk_digest(seed, chunk + 1, published));

    const std::uint64_t other = blake3_128::bind("policy", 7, {1, 2}).chunks;
    CHECK(blake3_128::chunk_digest(other, chunk, forged) !=
          blake3_128::chunk_digest(other, chunk, published));
    std::vector<std::byte> once_more(length);
    xxh3_forgery::known_seed{other}.forge(once_more, published);
    CHECK(blake3_128::chunk_digest(other, chunk, once_more) !=
          blake3_128::chunk_digest(other, chunk, published));
  }
}
