// The digests do not depend on how xxHash is built: those of the run-time dispatch are those of the header.

#include <doctest/doctest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace unit {
/// Made by the library, in another file (digest_of_library.cpp): the two forms of xxHash do not mix in one.
void library_digest(const std::vector<std::byte>& bytes, std::uint64_t seed, std::uint64_t& low,
                    std::uint64_t& high);
}  // namespace unit

TEST_CASE("digests are those of the portable xxh3-128, at every length class") {
  for (const std::size_t length :
       {0u, 1u, 3u, 8u, 16u, 17u, 128u, 129u, 240u, 241u, 1023u, 1024u, 65'537u, 1'000'003u}) {
    std::vector<std::byte> bytes(length);
    for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i * 37 + length);
    for (const std::uint64_t seed : {0ull, 1ull, 0x9e3779b97f4a7c15ull}) {
      const XXH128_hash_t expected = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
      std::uint64_t low = 0;
      std::uint64_t high = 0;
      unit::library_digest(bytes, seed, low, high);
      CHECK(low == expected.low64);
      CHECK(high == expected.high64);
    }
  }
}
