#pragma once
/// \file xxh3_forgery.hpp
/// Other bytes with the same XXH3-128 digest, for tests that show what xxh3_128 does not protect from.
///
/// XXH3 of more than 240 bytes keeps eight accumulators. Of each stripe of 64 bytes, word i adds its value to
/// accumulator i ^ 1, and the product of the two halves of (word ^ secret) to accumulator i. Who knows the
/// seed knows the secret, and can choose a word so that one of these halves is zero: the product vanishes,
/// and the word's other half may be anything. Two such stripes add any wanted number to each accumulator, one
/// its lower and one its upper half. Everything before and after them is the forger's to choose.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace xxh3_forgery {

inline constexpr std::size_t stripe_bytes = 64;
inline constexpr std::size_t block_bytes = 1024;  ///< what is added up before the accumulators are scrambled
inline constexpr std::size_t paid_bytes = 2 * stripe_bytes;

[[nodiscard]] inline std::uint64_t word_at(const void* base, std::size_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, static_cast<const unsigned char*>(base) + offset, sizeof word);
  return word;
}

class known_seed {
 public:
  explicit known_seed(std::uint64_t seed) { XXH3_generateSecret_fromSeed(secret_.data(), seed); }

  /// Changes 128 bytes of `wanted`, from `place_of_change` on, so that it has the digest of `original` under
  /// this seed. Both are of one length, whose last block has at least three stripes.
  void forge(std::span<std::byte> wanted, std::span<const std::byte> original) const {
    const std::size_t at = place_of_change(wanted.size());
    // The product is zero and the word is the secret's own: what is missing then is added below.
    std::memcpy(wanted.data() + at, secret_.data(), stripe_bytes);
    std::memcpy(wanted.data() + at + stripe_bytes, secret_.data() + 8, stripe_bytes);
    const accumulators present = sums(wanted);
    const accumulators needed = sums(original);
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint64_t lower_key =
          word_at(secret_.data(), 8 * i);  // each stripe's secret is 8 bytes further
      const std::uint64_t upper_key = word_at(secret_.data(), 8 + 8 * i);
      const std::uint64_t sum = lower_key + upper_key + needed[i ^ 1] - present[i ^ 1];
      const std::uint64_t free_lower = (sum - (upper_key & lower_half)) & lower_half;
      const std::uint64_t lower = (lower_key & ~lower_half) | free_lower;
      const std::uint64_t upper = sum - lower;  // its lower half is the key's
      std::memcpy(wanted.data() + at + 8 * i, &lower, sizeof lower);
      std::memcpy(wanted.data() + at + stripe_bytes + 8 * i, &upper, sizeof upper);
    }
  }

  /// The beginning of the last block.
  [[nodiscard]] static std::size_t place_of_change(std::size_t length) {
    return (length - 1) / block_bytes * block_bytes;
  }

 private:
  using accumulators = std::array<std::uint64_t, 8>;
  static constexpr std::uint64_t lower_half = 0xffffffff;

  void add(accumulators& sum, const std::byte* stripe, std::size_t secret_offset) const {
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint64_t word = word_at(stripe, 8 * i);
      const std::uint64_t keyed = word ^ word_at(secret_.data(), secret_offset + 8 * i);
      sum[i ^ 1] += word;
      sum[i] += (keyed & lower_half) * (keyed >> 32);
    }
  }
  void scramble(accumulators& sum) const {
    for (std::size_t i = 0; i < 8; ++i)
      sum[i] = (sum[i] ^ (sum[i] >> 47) ^ word_at(secret_.data(), secret_.size() - stripe_bytes + 8 * i)) *
               0x9e3779b1u;
  }
  /// The accumulators at the end: the digest is made of them and of the length alone.
  [[nodiscard]] accumulators sums(std::span<const std::byte> bytes) const {
    accumulators sum{
        0xc2b2ae3du,           0x9e3779b185ebca87ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull,
        0x85ebca77c2b2ae63ull, 0x85ebca77u,           0x27d4eb2f165667c5ull, 0x9e3779b1u};
    const std::size_t blocks = (bytes.size() - 1) / block_bytes;
    const std::size_t stripes = (bytes.size() - 1) / stripe_bytes;
    constexpr std::size_t stripes_of_block = block_bytes / stripe_bytes;
    for (std::size_t stripe = 0; stripe < stripes; ++stripe) {
      add(sum, bytes.data() + stripe * stripe_bytes, stripe % stripes_of_block * 8);
      if (stripe % stripes_of_block == stripes_of_block - 1 && stripe / stripes_of_block < blocks)
        scramble(sum);
    }
    add(sum, bytes.data() + bytes.size() - stripe_bytes, secret_.size() - stripe_bytes - 7);
    return sum;
  }

  std::array<unsigned char, XXH3_SECRET_DEFAULT_SIZE> secret_{};
};

}  // namespace xxh3_forgery
