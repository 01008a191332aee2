#pragma once
/// \file xxh3.cuh
/// Computes the 128-bit XXH3 of one run of memory with the threads of one block. The code follows the
/// algorithm's specification (doc/xxhash_spec.md of https://github.com/Cyan4973/xxHash, "XXH3 Algorithm
/// Overview").
///
/// Inputs of more than 240 bytes are hashed in blocks of 1 KiB: each of a block's 16 stripes of 64 bytes adds
/// to eight 64-bit accumulators, then the accumulators are scrambled. The additions of a block commute and do
/// not depend on the accumulators. The work is therefore split into
///   (i)  *sums*: the eight words that a block adds are computed for many blocks at once. A thread takes two
///   of
///        the eight words of one block and adds up its 16 stripes, 16 bytes of each, without other threads.
///   (ii) *chain*: accumulator = scramble(accumulator + sum), block after block. Eight threads, one for each
///        accumulator, do that for the blocks whose sums were computed in the step before.
/// Warp 0 computes the chain. The seven other warps compute the sums of 56 blocks per step, into the half of
/// the shared memory that the chain is not reading.
///
/// The speed is calculated from bytes in flight and not yet measured (bench/cuda_kernels.cpp measures it). An
/// H200 has 132 multiprocessors and reads 4.8 TB/s, so a copy moves about 2 TB/s; with 1 us of latency under
/// load, 4.8 MB must be in flight. A thread has 8 loads of 16 bytes in flight, the 224 threads of a team have
/// 28 KiB; 4 teams of 256 threads fit on a multiprocessor with 64 registers each, 528 on the device: 15 MB.
/// Half of that, because of the time between two steps, is still more than needed. Instructions: about 20 per
/// thread and 16 bytes; 132 x 128 threads at 1.7 GHz issue the instructions for 23 TB/s. The chain takes
/// about 30 cycles per block (an addition, a shift, an xor and a product that depend on each other), 18 us
/// per MiB: a single job runs at 58 GB/s at any memory speed, and from about 80 jobs at once the memory is
/// the limit. 1,000 jobs of 1 MiB take 0.25 ms at the speed of the memory; the goal, half of the rate of a
/// copy, allows 1 ms. A job of many MiB would need all its sums first and the chain in a second pass; a chunk
/// has 1 MiB, so there is no such job.
///
/// Data may begin at any address. 16-byte loads need a multiple of 16; the other loads are slower.

#include "team.cuh"

namespace tensorhub::cuda_kernels {

inline constexpr unsigned accumulators = 8;
inline constexpr unsigned stripe_bytes = 64;
inline constexpr unsigned stripes_per_block = 16;
inline constexpr unsigned block_bytes = stripe_bytes * stripes_per_block;
inline constexpr unsigned secret_words = 24;
inline constexpr unsigned secret_bytes = 8 * secret_words;
inline constexpr unsigned chain_threads = 32;
/// For a team of 256 threads: four threads per block.
inline constexpr unsigned blocks_per_step = (256 - chain_threads) / 4;

inline constexpr uint64_t prime32_1 = 0x9E3779B1u;
inline constexpr uint64_t prime32_2 = 0x85EBCA77u;
inline constexpr uint64_t prime32_3 = 0xC2B2AE3Du;
inline constexpr uint64_t prime64_1 = 0x9E3779B185EBCA87u;
inline constexpr uint64_t prime64_2 = 0xC2B2AE3D27D4EB4Fu;
inline constexpr uint64_t prime64_3 = 0x165667B19E3779F9u;
inline constexpr uint64_t prime64_4 = 0x85EBCA77C2B2AE63u;
inline constexpr uint64_t prime64_5 = 0x27D4EB2F165667C5u;
inline constexpr uint64_t prime_mx1 = 0x165667919E3779F9u;
inline constexpr uint64_t prime_mx2 = 0x9FB21C651E98DF25u;

/// The memory that the threads of a team share.
struct digest_shared {
  uint64_t secret[secret_words];  ///< the default secret with the seed added and subtracted
  uint64_t accumulator[accumulators];
  uint64_t sums[2][blocks_per_step][accumulators];
};

TENSORHUB_KERNEL_TABLE uint64_t default_secret[secret_words] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu,
    0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu, 0xa32e531b8b65d088u,
    0x4ef90da297486471u, 0xd8acdea946ef1938u, 0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
    0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
};
TENSORHUB_KERNEL_TABLE uint64_t first_accumulators[accumulators] = {
    prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1};

// ---- arithmetic -------------------------------------------------------------------------------------------

TENSORHUB_KERNEL_CODE uint64_t high_product(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using product = unsigned __int128;
  return static_cast<uint64_t>((static_cast<product>(a) * b) >> 64);
#endif
}
TENSORHUB_KERNEL_CODE uint64_t folded_product(uint64_t a, uint64_t b) {
  return (a * b) ^ high_product(a, b);
}
/// The product of the two halves of a word.
TENSORHUB_KERNEL_CODE uint64_t half_product(uint64_t word) {
  return (word & 0xffffffffu) * (word >> 32);
}

TENSORHUB_KERNEL_CODE uint64_t swapped32(uint64_t word) {
  return ((word & 0xffu) << 24) | ((word & 0xff00u) << 8) | ((word >> 8) & 0xff00u) | ((word >> 24) & 0xffu);
}
TENSORHUB_KERNEL_CODE uint64_t swapped64(uint64_t word) {
  return (swapped32(word & 0xffffffffu) << 32) | swapped32(word >> 32);
}
/// The avalanche of XXH3; `old_avalanche` is that of the older XXH64, which the shortest inputs use.
TENSORHUB_KERNEL_CODE uint64_t avalanche(uint64_t word) {
  word ^= word >> 37;
  word *= prime_mx1;
  return word ^ (word >> 32);
}
TENSORHUB_KERNEL_CODE uint64_t old_avalanche(uint64_t word) {
  word ^= word >> 33;
  word *= prime64_2;
  word ^= word >> 29;
  word *= prime64_3;
  return word ^ (word >> 32);
}

// ---- the secret ------------------------------------------------------------------------------------------

/// Loads eight bytes of the secret from any offset.
TENSORHUB_KERNEL_CODE uint64_t secret_at(const uint64_t* secret, unsigned offset) {
  const unsigned skipped = offset % 8;
  const uint64_t low = secret[offset / 8];
  return skipped == 0 ? low : (low >> (8 * skipped)) | (secret[offset / 8 + 1] << (64 - 8 * skipped));
}

// ---- up to 240 bytes, by one thread. `secret` is the default one ------------------------------------------

TENSORHUB_SELDOM_CODE word_pair hash_up_to_16(const uint64_t* secret, uint64_t data, uint64_t bytes,
                                              uint64_t seed) {
  const uint64_t end = data + bytes;
  if (bytes > 8) {
    const uint64_t low = load_word(data, end);
    uint64_t high = load_word(end - 8, end);
    const uint64_t mixed = low ^ high ^ ((secret[4] ^ secret[5]) - seed);
    uint64_t first_low = mixed * prime64_1 + ((bytes - 1) << 54);
    high ^= (secret[6] ^ secret[7]) + seed;
    const uint64_t first_high =
        high_product(mixed, prime64_1) + high + (high & 0xffffffffu) * (prime32_2 - 1);
    first_low ^= swapped64(first_high);
    return {avalanche(first_low * prime64_2),
            avalanche(high_product(first_low, prime64_2) + first_high * prime64_2)};
  }
  if (bytes >= 4) {
    seed ^= swapped32(seed & 0xffffffffu) << 32;
    const uint64_t both = load_bytes(data, 4) | (load_bytes(end - 4, 4) << 32);
    const uint64_t keyed = both ^ ((secret[2] ^ secret[3]) + seed);
    const uint64_t factor = prime64_1 + (bytes << 2);
    uint64_t low = keyed * factor;
    const uint64_t high = high_product(keyed, factor) + (low << 1);
    low ^= high >> 3;
    low ^= low >> 35;
    low *= prime_mx2;
    return {low ^ (low >> 28), avalanche(high)};
  }
  if (bytes > 0) {
    const uint64_t low = (load_bytes(data, 1) << 16) | (load_bytes(data + (bytes >> 1), 1) << 24) |
                         load_bytes(end - 1, 1) | (bytes << 8);
    const uint64_t swapped = swapped32(low);
    const uint64_t high = ((swapped << 13) | (swapped >> 19)) & 0xffffffffu;
    const uint64_t low_key = (secret[0] & 0xffffffffu) ^ (secret[0] >> 32);
    const uint64_t high_key = (secret[1] & 0xffffffffu) ^ (secret[1] >> 32);
    return {old_avalanche(low ^ (low_key + seed)), old_avalanche(high ^ (high_key - seed))};
  }
  return {old_avalanche(seed ^ secret[8] ^ secret[9]), old_avalanche(seed ^ secret[10] ^ secret[11])};
}

TENSORHUB_SELDOM_CODE void mix_32(word_pair& sum, const uint64_t* secret, unsigned key, uint64_t one,
                                  uint64_t other, uint64_t end, uint64_t seed) {
  const uint64_t a0 = load_word(one, end);
  const uint64_t a1 = load_word(one + 8, end);
  const uint64_t b0 = load_word(other, end);
  const uint64_t b1 = load_word(other + 8, end);
  sum.low += folded_product(a0 ^ (secret_at(secret, key) + seed), a1 ^ (secret_at(secret, key + 8) - seed));
  sum.low ^= b0 + b1;
  sum.high +=
      folded_product(b0 ^ (secret_at(secret, key + 16) + seed), b1 ^ (secret_at(secret, key + 24) - seed));
  sum.high ^= a0 + a1;
}

TENSORHUB_SELDOM_CODE word_pair hash_17_to_240(const uint64_t* secret, uint64_t data, uint64_t bytes,
                                               uint64_t seed) {
  const uint64_t end = data + bytes;
  word_pair sum{bytes * prime64_1, 0};
  if (bytes <= 128) {
    // From the middle outwards, 16 bytes on each side.
    TENSORHUB_ROLLED
    for (unsigned i = static_cast<unsigned>((bytes - 1) / 32) + 1; i-- > 0;)
      mix_32(sum, secret, 32 * i, data + 16 * i, end - 16 * (i + 1), end, seed);
  } else {
    TENSORHUB_ROLLED
    for (unsigned i = 0; i < 4; ++i)
      mix_32(sum, secret, 32 * i, data + 32 * i, data + 32 * i + 16, end, seed);
    sum = {avalanche(sum.low), avalanche(sum.high)};
    TENSORHUB_ROLLED
    for (unsigned i = 4; 32 * (i + 1) <= bytes; ++i)
      mix_32(sum, secret, 3 + 32 * (i - 4), data + 32 * i, data + 32 * i + 16, end, seed);
    mix_32(sum, secret, 103, end - 16, end - 32, end, 0 - seed);
  }
  const uint64_t high = sum.low * prime64_1 + sum.high * prime64_4 + (bytes - seed) * prime64_2;
  return {avalanche(sum.low + sum.high), 0 - avalanche(high)};
}

// ---- more than 240 bytes ----------------------------------------------------------------------------------

/// The words that one block adds to the accumulators 2 * pair and 2 * pair + 1.
template <typename Loads>
TENSORHUB_KERNEL_CODE word_pair block_sum(const uint64_t* secret, uint64_t block, unsigned pair,
                                          uint64_t end) {
  constexpr unsigned at_once = 8;
  word_pair sum{0, 0};
  TENSORHUB_ROLLED
  for (unsigned stripe = 0; stripe < stripes_per_block; stripe += at_once) {
    word_pair data[at_once];
    TENSORHUB_UNROLL
    for (unsigned i = 0; i < at_once; ++i)
      data[i] = Loads::load(block + (stripe + i) * stripe_bytes + 16 * pair, end);
    TENSORHUB_UNROLL
    for (unsigned i = 0; i < at_once; ++i) {
      sum.low += data[i].high + half_product(data[i].low ^ secret[stripe + i + 2 * pair]);
      sum.high += data[i].low + half_product(data[i].high ^ secret[stripe + i + 2 * pair + 1]);
    }
  }
  return sum;
}

/// Like `block_sum`, for data at any address.
template <typename Loads>
TENSORHUB_SELDOM_CODE word_pair slow_block_sum(const uint64_t* secret, uint64_t block, unsigned pair,
                                               uint64_t end) {
  word_pair sum{0, 0};
  TENSORHUB_ROLLED
  for (unsigned stripe = 0; stripe < stripes_per_block; ++stripe) {
    const word_pair data = Loads::load(block + stripe * stripe_bytes + 16 * pair, end);
    sum.low += data.high + half_product(data.low ^ secret[stripe + 2 * pair]);
    sum.high += data.low + half_product(data.high ^ secret[stripe + 2 * pair + 1]);
  }
  return sum;
}

/// The word that a single stripe adds to one accumulator; `key` is an offset in the secret.
TENSORHUB_SELDOM_CODE uint64_t stripe_sum(const uint64_t* secret, unsigned key, uint64_t stripe,
                                          unsigned accumulator, uint64_t end) {
  const uint64_t own = load_word(stripe + 8 * accumulator, end);
  const uint64_t neighbours = load_word(stripe + 8 * (accumulator ^ 1u), end);
  return neighbours + half_product(own ^ secret_at(secret, key + 8 * accumulator));
}

TENSORHUB_SELDOM_CODE uint64_t merged(const digest_shared& shared, unsigned key, uint64_t sum) {
  for (unsigned i = 0; i < accumulators; i += 2) {
    sum += folded_product(shared.accumulator[i] ^ secret_at(shared.secret, key + 8 * i),
                          shared.accumulator[i + 1] ^ secret_at(shared.secret, key + 8 * i + 8));
  }
  return avalanche(sum);
}

/// Job: digest_job, Result: digest_result (memory/cuda/jobs.hpp). The team has 256 threads.
template <typename Team, typename Job, typename Result>
TENSORHUB_KERNEL_CODE void digest_block(const Team& team, const Job& job, Result* result,
                                        digest_shared& shared) {
  const uint64_t data = job.data;
  const uint64_t bytes = job.bytes;
  const uint64_t end = data + bytes;
  const bool is_long = bytes > 240;
  team.each([&](unsigned thread) {
    if (thread < secret_words) {
      const uint64_t seed = !is_long ? 0 : thread % 2 == 0 ? job.seed : 0 - job.seed;
      shared.secret[thread] = default_secret[thread] + seed;
    }
    if (thread < accumulators) shared.accumulator[thread] = first_accumulators[thread];
  });
  if (!is_long) {
    team.each([&](unsigned thread) {
      if (thread != 0) return;
      const word_pair hash = bytes <= 16 ? hash_up_to_16(shared.secret, data, bytes, job.seed)
                                         : hash_17_to_240(shared.secret, data, bytes, job.seed);
      *result = {hash.low, hash.high};
    });
    return;
  }

  const uint64_t blocks = (bytes - 1) / block_bytes;  // the last stripe never belongs to a block
  const uint64_t steps = (blocks + blocks_per_step - 1) / blocks_per_step;
  for (uint64_t step = 0; step <= steps; ++step) {
    team.each([&](unsigned thread) {
      if (thread >= chain_threads) {
        const unsigned place = (thread - chain_threads) / 4;
        const unsigned pair = thread % 4;
        const uint64_t block = step * blocks_per_step + place;
        if (block >= blocks) return;
        const uint64_t at = data + block * block_bytes;
        const word_pair sum = at % 16 == 0 ? block_sum<aligned_to_16>(shared.secret, at, pair, end)
                              : at % 8 == 0
                                  ? block_sum<aligned_to_8>(shared.secret, at, pair, end)
                                  : slow_block_sum<aligned_to_nothing>(shared.secret, at, pair, end);
        shared.sums[step % 2][place][2 * pair] = sum.low;
        shared.sums[step % 2][place][2 * pair + 1] = sum.high;
      } else if (step > 0 && thread < accumulators) {
        const uint64_t done = (step - 1) * blocks_per_step;
        const unsigned count =
            static_cast<unsigned>(blocks - done < blocks_per_step ? blocks - done : blocks_per_step);
        const uint64_t key = shared.secret[16 + thread];
        uint64_t value = shared.accumulator[thread];
        for (unsigned i = 0; i < count; ++i) {
          value += shared.sums[(step - 1) % 2][i][thread];
          value = (value ^ (value >> 47) ^ key) * prime32_1;
        }
        shared.accumulator[thread] = value;
      }
    });
  }

  team.each([&](unsigned thread) {
    if (thread >= accumulators) return;
    const uint64_t rest = data + blocks * block_bytes;
    const unsigned stripes = static_cast<unsigned>((bytes - 1 - blocks * block_bytes) / stripe_bytes);
    uint64_t value = shared.accumulator[thread];
    TENSORHUB_ROLLED
    for (unsigned i = 0; i < stripes; ++i)
      value += stripe_sum(shared.secret, 8 * i, rest + i * stripe_bytes, thread, end);
    value += stripe_sum(shared.secret, secret_bytes - stripe_bytes - 7, end - stripe_bytes, thread, end);
    shared.accumulator[thread] = value;
  });
  team.each([&](unsigned thread) {
    if (thread == 0) result->low = merged(shared, 11, bytes * prime64_1);
    if (thread == 1) result->high = merged(shared, secret_bytes - stripe_bytes - 11, ~(bytes * prime64_2));
  });
}

}  // namespace tensorhub::cuda_kernels
