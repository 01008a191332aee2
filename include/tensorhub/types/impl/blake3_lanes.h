/// \file blake3_lanes.h
/// BLAKE3 of several inputs at once, one in each lane of the vectors: a part of blake3.ipp, which includes it
/// once per width (hence no guard) after it has defined
///
///     TENSORHUB_BLAKE3_LANES   4, 8 or 16
///     TENSORHUB_BLAKE3_SPACE   the namespace
///     TENSORHUB_BLAKE3_TARGET  the attribute that allows the instructions
///
/// The text is repeated, and no template, because a compiler breaks vectors that a function's own target
/// lacks into pieces before it inlines the function. Vectors are passed by reference: how they are passed by
/// value depends on the target.

namespace TENSORHUB_BLAKE3_SPACE {

#define TENSORHUB_BLAKE3_PART TENSORHUB_BLAKE3_TARGET __attribute__((always_inline)) inline

inline constexpr unsigned lanes = TENSORHUB_BLAKE3_LANES;
using vector = std::uint32_t __attribute__((vector_size(4 * lanes)));
using bytes_vector = std::uint8_t __attribute__((vector_size(4 * lanes)));

template <unsigned... I>
struct numbers {};
#if TENSORHUB_BLAKE3_LANES == 4
using all_lanes = numbers<0, 1, 2, 3>;
using all_bytes = numbers<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#elif TENSORHUB_BLAKE3_LANES == 8
using all_lanes = numbers<0, 1, 2, 3, 4, 5, 6, 7>;
using all_bytes = numbers<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                          23, 24, 25, 26, 27, 28, 29, 30, 31>;
#else
using all_lanes = numbers<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#endif

#if TENSORHUB_BLAKE3_LANES == 8 || defined(__aarch64__)
/// AVX2 and NEON have no rotation, but move bytes within words in one instruction.
template <unsigned count, unsigned... I>
TENSORHUB_BLAKE3_PART void rotate_by_bytes(vector& x, numbers<I...>) noexcept {
  const auto from = reinterpret_cast<bytes_vector>(x);
  x = reinterpret_cast<vector>(
      __builtin_shufflevector(from, from, static_cast<int>(I / 4 * 4 + (I + count) % 4)...));
}
#endif

template <unsigned bits>
TENSORHUB_BLAKE3_PART void rotate(vector& x) noexcept {
#if TENSORHUB_BLAKE3_LANES == 8 || defined(__aarch64__)
  if constexpr (bits % 8 == 0) return rotate_by_bytes<bits / 8>(x, all_bytes{});
#endif
#if defined(__aarch64__)
  vector out = x << (32 - bits);  // and the rest by one instruction, for which g++ 12 takes two
  __asm__("sri %0.4s, %1.4s, %2" : "+w"(out) : "w"(x), "i"(bits));
  x = out;
#else
  x = (x >> bits) | (x << (32 - bits));
#endif
}

TENSORHUB_BLAKE3_PART void mix(vector& a, vector& b, vector& c, vector& d, const vector& x,
                               const vector& y) noexcept {
  a += b + x;
  d ^= a;
  rotate<16>(d);
  c += d;
  b ^= c;
  rotate<12>(b);
  a += b + y;
  d ^= a;
  rotate<8>(d);
  c += d;
  b ^= c;
  rotate<7>(b);
}

template <unsigned number>
TENSORHUB_BLAKE3_PART void round(vector (&v)[16], const vector (&m)[16]) noexcept {
  constexpr const std::uint8_t(&at)[16] = schedule.words[number];
  mix(v[0], v[4], v[8], v[12], m[at[0]], m[at[1]]);
  mix(v[1], v[5], v[9], v[13], m[at[2]], m[at[3]]);
  mix(v[2], v[6], v[10], v[14], m[at[4]], m[at[5]]);
  mix(v[3], v[7], v[11], v[15], m[at[6]], m[at[7]]);
  mix(v[0], v[5], v[10], v[15], m[at[8]], m[at[9]]);
  mix(v[1], v[6], v[11], v[12], m[at[10]], m[at[11]]);
  mix(v[2], v[7], v[8], v[13], m[at[12]], m[at[13]]);
  mix(v[3], v[4], v[9], v[14], m[at[14]], m[at[15]]);
}

/// Which words of two vectors, each with groups of four, make one of theirs by turns: `unit` words of the
/// first, as many of the second; of the lower or the upper halves of the groups.
constexpr int interleaved(unsigned lane, unsigned unit, bool upper) noexcept {
  const unsigned word = lane % 4;
  const bool second = word / unit % 2 == 1;
  const unsigned within = word / (2 * unit) * unit + word % unit + (upper ? 2 : 0);
  return static_cast<int>((second ? lanes : 0) + lane / 4 * 4 + within);
}

template <unsigned unit, bool upper, unsigned... I>
TENSORHUB_BLAKE3_PART void interleave(vector& out, const vector& first, const vector& second,
                                      numbers<I...>) noexcept {
  out = __builtin_shufflevector(first, second, interleaved(I, unit, upper)...);
}

/// Each group of four lanes is transposed: lane k of group g becomes word k of that group's rows.
TENSORHUB_BLAKE3_PART void transpose(vector* rows) noexcept {
  vector pairs[4];
  interleave<1, false>(pairs[0], rows[0], rows[1], all_lanes{});
  interleave<1, true>(pairs[1], rows[0], rows[1], all_lanes{});
  interleave<1, false>(pairs[2], rows[2], rows[3], all_lanes{});
  interleave<1, true>(pairs[3], rows[2], rows[3], all_lanes{});
  interleave<2, false>(rows[0], pairs[0], pairs[2], all_lanes{});
  interleave<2, true>(rows[1], pairs[0], pairs[2], all_lanes{});
  interleave<2, false>(rows[2], pairs[1], pairs[3], all_lanes{});
  interleave<2, true>(rows[3], pairs[1], pairs[3], all_lanes{});
}

/// 16 bytes of the inputs `lane`, `lane` + 4, ...: group by group.
TENSORHUB_BLAKE3_PART void load_row(vector& row, const std::byte* const* inputs,
                                    std::size_t offset) noexcept {
  using quad = std::uint32_t __attribute__((vector_size(16)));
  quad groups[lanes / 4];
#pragma GCC unroll 4
  for (unsigned g = 0; g < lanes / 4; ++g) std::memcpy(&groups[g], inputs[4 * g] + offset, sizeof(quad));
#if TENSORHUB_BLAKE3_LANES == 4
  row = groups[0];
#elif TENSORHUB_BLAKE3_LANES == 8
  row = __builtin_shufflevector(groups[0], groups[1], 0, 1, 2, 3, 4, 5, 6, 7);
#else
  const auto lower = __builtin_shufflevector(groups[0], groups[1], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto upper = __builtin_shufflevector(groups[2], groups[3], 0, 1, 2, 3, 4, 5, 6, 7);
  row = __builtin_shufflevector(lower, upper, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
}

TENSORHUB_BLAKE3_PART void load(vector (&m)[16], const std::byte* const* inputs,
                                std::size_t offset) noexcept {
#pragma GCC unroll 4
  for (unsigned quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 4
    for (unsigned k = 0; k < 4; ++k) load_row(m[4 * quarter + k], inputs + k, offset + 16 * quarter);
    transpose(m + 4 * quarter);
  }
}

TENSORHUB_BLAKE3_PART void store(vector (&h)[8], blake3_value* out) noexcept {
  for (unsigned half = 0; half < 2; ++half) {
    transpose(h + 4 * half);
    for (unsigned k = 0; k < 4; ++k) {
      std::uint32_t row[lanes];
      std::memcpy(row, &h[4 * half + k], sizeof row);
      for (unsigned g = 0; g < lanes / 4; ++g) std::memcpy(out[4 * g + k].words + 4 * half, row + 4 * g, 16);
    }
  }
}

TENSORHUB_BLAKE3_PART void compress(vector (&h)[8], const vector (&m)[16], const vector& low,
                                    const vector& high, std::uint32_t flags) noexcept {
  vector v[16];
#pragma GCC unroll 8
  for (unsigned i = 0; i < 8; ++i) v[i] = h[i];
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) v[8 + i] = vector{} + initial.words[i];
  v[12] = low;
  v[13] = high;
  v[14] = vector{} + static_cast<std::uint32_t>(block_bytes);
  v[15] = vector{} + flags;
  round<0>(v, m);
  round<1>(v, m);
  round<2>(v, m);
  round<3>(v, m);
  round<4>(v, m);
  round<5>(v, m);
  round<6>(v, m);
#pragma GCC unroll 8
  for (unsigned i = 0; i < 8; ++i) h[i] = v[i] ^ v[i + 8];
}

/// `inputs` and `out` have one entry per lane. Each input is read before any result is written.
TENSORHUB_BLAKE3_TARGET inline void hash(const job& what, const std::byte* const* inputs,
                                         blake3_value* out) noexcept {
  vector h[8];
  for (unsigned i = 0; i < 8; ++i) h[i] = vector{} + what.key.words[i];
  vector low{};
  vector high{};
  for (unsigned i = 0; i < lanes; ++i) {
    const std::uint64_t counter = what.counter + i * what.step;
    low[i] = static_cast<std::uint32_t>(counter);
    high[i] = static_cast<std::uint32_t>(counter >> 32);
  }
  for (std::size_t block = 0; block < what.blocks; ++block) {
    vector m[16];
    load(m, inputs, block * block_bytes);
    // What comes next: so many places at once are more than a processor sees by itself. A prefetch beyond the
    // end has no effect.
    if (what.blocks > 1) {
      for (unsigned i = 0; i < lanes; ++i)
        __builtin_prefetch(inputs[i] + lanes * chunk_bytes + block * block_bytes);
    }
    compress(h, m, low, high, what.flags_of(block));
  }
  store(h, out);
}

#undef TENSORHUB_BLAKE3_PART

}  // namespace TENSORHUB_BLAKE3_SPACE
#undef TENSORHUB_BLAKE3_LANES
#undef TENSORHUB_BLAKE3_SPACE
#undef TENSORHUB_BLAKE3_TARGET
