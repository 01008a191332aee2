#pragma once
/// \file blake3.ipp
/// Definitions of types/blake3.hpp. Section numbers are those of the specification.

#include "tensorhub/types/blake3.hpp"

#include <bit>
#include <cstring>

namespace tensorhub::inline TENSORHUB_MODE::detail {
namespace blake3 {

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie in memory");

inline constexpr std::size_t block_bytes = 64;
inline constexpr std::size_t chunk_bytes = 1024;
inline constexpr std::size_t blocks_of_chunk = chunk_bytes / block_bytes;

/// The initial chaining value (2.2).
inline constexpr blake3_value initial{
    {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};

/// Domain flags (2.2).
enum flag : std::uint32_t {
  no_flag = 0,
  chunk_start = 1,
  chunk_end = 2,
  parent = 4,
  root = 8,
  keyed = 16,
  derive_context = 32,
  derive_material = 64
};

/// The order in which each round takes the words of a block: the permutation of 2.2, applied again and again.
struct word_schedule {
  std::uint8_t words[7][16]{};
  constexpr word_schedule() noexcept {
    constexpr std::uint8_t permuted[16]{2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
    for (unsigned i = 0; i < 16; ++i) words[0][i] = static_cast<std::uint8_t>(i);
    for (unsigned round = 1; round < 7; ++round)
      for (unsigned i = 0; i < 16; ++i) words[round][i] = words[round - 1][permuted[i]];
  }
};
inline constexpr word_schedule schedule{};

/// The same work on several inputs of equal length: all whole chunks, or all parents.
struct job {
  blake3_value key;
  std::uint64_t counter = 0;  ///< of the first input
  std::uint64_t step = 0;     ///< from one input's counter to the next one's
  std::size_t blocks = 1;
  std::uint32_t flags = 0;  ///< of every block
  std::uint32_t first_flags = 0;
  std::uint32_t last_flags = 0;

  [[nodiscard]] std::uint32_t flags_of(std::size_t block) const noexcept {
    return flags | (block == 0 ? first_flags : 0u) | (block + 1 == blocks ? last_flags : 0u);
  }
};

// Nothing of the sort of <immintrin.h> is included: it alone takes longer to compile than all of this.
#define TENSORHUB_BLAKE3_LANES 4
#define TENSORHUB_BLAKE3_SPACE four_lanes
#define TENSORHUB_BLAKE3_TARGET
#include "tensorhub/types/impl/blake3_lanes.h"
#if defined(__x86_64__)
#define TENSORHUB_BLAKE3_LANES 8
#define TENSORHUB_BLAKE3_SPACE eight_lanes
#define TENSORHUB_BLAKE3_TARGET __attribute__((target("avx2")))
#include "tensorhub/types/impl/blake3_lanes.h"
#define TENSORHUB_BLAKE3_LANES 16
#define TENSORHUB_BLAKE3_SPACE sixteen_lanes
#define TENSORHUB_BLAKE3_TARGET __attribute__((target("avx512f")))
#include "tensorhub/types/impl/blake3_lanes.h"
#endif

/// One block of one input (2.2).
TENSORHUB_DECL void compress(blake3_value& value, const std::uint32_t* m, std::uint64_t counter,
                             std::uint32_t bytes, std::uint32_t flags) noexcept {
  std::uint32_t v[16];
  std::memcpy(v, value.words, sizeof value.words);
  std::memcpy(v + 8, initial.words, 16);
  v[12] = static_cast<std::uint32_t>(counter);
  v[13] = static_cast<std::uint32_t>(counter >> 32);
  v[14] = bytes;
  v[15] = flags;
  const auto mix = [&v](unsigned a, unsigned b, unsigned c, unsigned d, std::uint32_t x, std::uint32_t y) {
    v[a] += v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 7);
  };
  for (const auto& at : schedule.words) {
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; ++i) mix(i, 4 + i, 8 + i, 12 + i, m[at[2 * i]], m[at[2 * i + 1]]);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; ++i)
      mix(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[at[8 + 2 * i]], m[at[9 + 2 * i]]);
  }
  for (unsigned i = 0; i < 8; ++i) value.words[i] = v[i] ^ v[i + 8];
}

/// One input of a job.
TENSORHUB_DECL blake3_value hash_one(const job& what, const std::byte* input) noexcept {
  blake3_value value = what.key;
  for (std::size_t block = 0; block < what.blocks; ++block) {
    std::uint32_t m[16];
    std::memcpy(m, input + block * block_bytes, block_bytes);
    compress(value, m, what.counter, block_bytes, what.flags_of(block));
  }
  return value;
}

/// A call to one of the three: as many inputs and results as `lanes`.
TENSORHUB_DECL void hash_lanes(blake3_lanes lanes, const job& what, const std::byte* const* inputs,
                               blake3_value* out) noexcept {
#if defined(__x86_64__)
  if (lanes == blake3_lanes::sixteen) return sixteen_lanes::hash(what, inputs, out);
  if (lanes == blake3_lanes::eight) return eight_lanes::hash(what, inputs, out);
#endif
  if (lanes == blake3_lanes::one) {
    out[0] = hash_one(what, inputs[0]);
    return;
  }
  four_lanes::hash(what, inputs, out);
}

/// The fewest lanes that hold `count` inputs, at most `most`.
TENSORHUB_DECL blake3_lanes lanes_for(std::size_t count, blake3_lanes most) noexcept {
  for (const blake3_lanes few : {blake3_lanes::one, blake3_lanes::four, blake3_lanes::eight})
    if (few >= most || count <= static_cast<std::size_t>(few)) return few < most ? few : most;
  return most;
}

/// `count` inputs that lie `stride` bytes apart; counters go up by `what.step`. The results may take the
/// place of inputs if they are not larger.
TENSORHUB_DECL void hash_many(job what, const std::byte* first, std::size_t stride, std::size_t count,
                              blake3_lanes most, blake3_value* out) noexcept {
  while (count > 0) {
    const blake3_lanes lanes = lanes_for(count, most);
    const auto width = static_cast<std::size_t>(lanes);
    const std::size_t taken = count < width ? count : width;
    const std::byte* inputs[16];
    for (std::size_t i = 0; i < width; ++i) inputs[i] = first + (i < taken ? i : 0) * stride;
    blake3_value made[16];
    hash_lanes(lanes, what, inputs, taken == width ? out : made);
    if (taken != width) std::memcpy(out, made, taken * sizeof *made);
    what.counter += taken * what.step;
    first += taken * stride;
    out += taken;
    count -= taken;
  }
}

/// What distinguishes hash, keyed hash and key derivation (2.3).
struct mode {
  blake3_value key;
  std::uint32_t flags;
  blake3_lanes lanes;
};

/// A chunk that may be shorter than others, even empty (2.4).
TENSORHUB_DECL blake3_value chunk_value(const mode& how, std::span<const std::byte> bytes,
                                        std::uint64_t counter, flag last) noexcept {
  blake3_value value = how.key;
  std::uint32_t flags = how.flags | chunk_start;
  for (; bytes.size() > block_bytes; bytes = bytes.subspan(block_bytes), flags = how.flags) {
    std::uint32_t m[16];
    std::memcpy(m, bytes.data(), block_bytes);
    compress(value, m, counter, block_bytes, flags);
  }
  std::uint32_t m[16]{};
  if (!bytes.empty()) std::memcpy(m, bytes.data(), bytes.size());
  compress(value, m, counter, static_cast<std::uint32_t>(bytes.size()), flags | chunk_end | last);
  return value;
}

TENSORHUB_DECL blake3_value parent_value(const mode& how, const blake3_value& left, const blake3_value& right,
                                         flag last) noexcept {
  const blake3_value children[2]{left, right};
  const job what{.key = how.key, .flags = how.flags | parent | last};
  return hash_one(what, reinterpret_cast<const std::byte*>(children));
}

/// So many chunks are hashed before their parents are: a power of two, so that they are one subtree.
inline constexpr std::size_t chunks_at_once = 256;

/// The values of the chunks of up to `chunks_at_once`; how many they are. `first`: the number of the first.
TENSORHUB_DECL std::size_t chunk_values(const mode& how, std::span<const std::byte> bytes,
                                        std::uint64_t first, blake3_value* out) noexcept {
  const std::size_t whole = bytes.size() / chunk_bytes;
  const job what{how.key, first, 1, blocks_of_chunk, how.flags, chunk_start, chunk_end};
  hash_many(what, bytes.data(), chunk_bytes, whole, how.lanes, out);
  const std::span<const std::byte> rest = bytes.subspan(whole * chunk_bytes);
  if (rest.empty()) return whole;
  out[whole] = chunk_value(how, rest, first + whole, no_flag);
  return whole + 1;
}

/// Replaces values by those of their parents, level by level, until `most` (1 or 2) are left. An odd one
/// waits for a level where it has a neighbour: this is the tree of 2.1.
TENSORHUB_DECL void join(const mode& how, blake3_value* values, std::size_t count,
                         std::size_t most) noexcept {
  while (count > most) {
    const std::size_t pairs = count / 2;
    const job what{.key = how.key, .flags = how.flags | parent};
    hash_many(what, reinterpret_cast<const std::byte*>(values), block_bytes, pairs, how.lanes, values);
    if (count % 2 == 1) values[pairs] = values[count - 1];
    count -= pairs;
  }
}

TENSORHUB_DECL blake3_value hash(const mode& how, std::span<const std::byte> bytes) noexcept {
  if (bytes.size() <= chunk_bytes) return chunk_value(how, bytes, 0, root);
  constexpr std::size_t bytes_at_once = chunks_at_once * chunk_bytes;
  blake3_value left[48];  // complete subtrees, the largest first: one for each bit that is set in `before`
  std::size_t depth = 0;
  std::uint64_t before = 0;  // how many times `chunks_at_once` chunks are in them
  blake3_value values[chunks_at_once];
  for (; bytes.size() > bytes_at_once; bytes = bytes.subspan(bytes_at_once)) {
    const std::size_t count = chunk_values(how, bytes.first(bytes_at_once), before * chunks_at_once, values);
    join(how, values, count, 1);
    ++before;
    for (std::uint64_t same = before; same % 2 == 0; same /= 2)
      values[0] = parent_value(how, left[--depth], values[0], no_flag);
    left[depth++] = values[0];
  }
  const std::size_t count = chunk_values(how, bytes, before * chunks_at_once, values);
  if (depth == 0) {
    join(how, values, count, 2);
    return parent_value(how, values[0], values[1], root);
  }
  join(how, values, count, 1);
  while (depth > 1) values[0] = parent_value(how, left[--depth], values[0], no_flag);
  return parent_value(how, left[0], values[0], root);
}

}  // namespace blake3

TENSORHUB_DECL blake3_lanes blake3_most_lanes() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return blake3_lanes::sixteen;
  if (__builtin_cpu_supports("avx2")) return blake3_lanes::eight;
#endif
  return blake3_lanes::four;
}

TENSORHUB_DECL blake3_value blake3_hash(std::span<const std::byte> bytes, blake3_lanes lanes) noexcept {
  return blake3::hash({blake3::initial, blake3::no_flag, lanes}, bytes);
}

TENSORHUB_DECL blake3_value blake3_keyed_hash(const blake3_value& key, std::span<const std::byte> bytes,
                                              blake3_lanes lanes) noexcept {
  return blake3::hash({key, blake3::keyed, lanes}, bytes);
}

TENSORHUB_DECL blake3_value blake3_derive_key(std::string_view context, std::span<const std::byte> material,
                                              blake3_lanes lanes) noexcept {
  const std::span<const char> text{context.data(), context.size()};
  const blake3_value key =
      blake3::hash({blake3::initial, blake3::derive_context, lanes}, std::as_bytes(text));
  return blake3::hash({key, blake3::derive_material, lanes}, material);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
