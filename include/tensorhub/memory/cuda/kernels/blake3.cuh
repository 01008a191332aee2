#pragma once
/// \file blake3.cuh
/// Computes the keyed BLAKE3 hash of one run of memory, its first 128 bits, with the threads of one block.
/// The code follows the specification (types/blake3.hpp names it), as types/impl/blake3.ipp does.
///
/// Each thread hashes a leaf of 1 KiB. The 256 values of a step are joined to one, level by level, in the
/// memory that the threads share; thread 0 joins these to the values of earlier steps.
///
/// The speed is calculated and not yet measured (bench/cuda_kernels.cpp measures it): 64 bytes take about 700
/// instructions for 32-bit integers, of which an H200 issues 132 x 64 in each cycle: 1.3 TB/s at 1.7 GHz,
/// about two thirds of what a copy moves. Joining takes a fifteenth of that, and eight levels of waiting per
/// 256 KiB, which other blocks on the same multiprocessor fill.
///
/// Data may begin at any address. 16-byte loads need a multiple of 16; the other loads are slower.

#include "team.cuh"

namespace tensorhub::cuda_kernels::blake3 {

inline constexpr unsigned block_bytes = 64;
inline constexpr unsigned leaf_bytes = 1024;
inline constexpr unsigned leaves_per_step = 256;  ///< a power of two; the team has as many threads

inline constexpr uint32_t leaf_start = 1;
inline constexpr uint32_t leaf_end = 2;
inline constexpr uint32_t parent_flag = 4;
inline constexpr uint32_t root_flag = 8;
inline constexpr uint32_t keyed_flag = 16;

struct value {
  uint32_t words[8];
};

/// The memory that the threads of a team share.
struct shared_memory {
  value values[2][leaves_per_step];  ///< one level is read while the next one is written
  value left[48];                    ///< of complete subtrees, the largest first
  unsigned depth;                    ///< how many of them
};

// ---- one block --------------------------------------------------------------------------------------------

TENSORHUB_KERNEL_CODE uint32_t rotated(uint32_t word, unsigned bits) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(word, word, bits);
#else
  return (word >> bits) | (word << (32 - bits));
#endif
}

TENSORHUB_KERNEL_CODE void mix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t x, uint32_t y) {
  a += b + x;
  d = rotated(d ^ a, 16);
  c += d;
  b = rotated(b ^ c, 12);
  a += b + y;
  d = rotated(d ^ a, 8);
  c += d;
  b = rotated(b ^ c, 7);
}

TENSORHUB_KERNEL_CODE void mix_all(uint32_t* v, const uint32_t* m) {
  mix(v[0], v[4], v[8], v[12], m[0], m[1]);
  mix(v[1], v[5], v[9], v[13], m[2], m[3]);
  mix(v[2], v[6], v[10], v[14], m[4], m[5]);
  mix(v[3], v[7], v[11], v[15], m[6], m[7]);
  mix(v[0], v[5], v[10], v[15], m[8], m[9]);
  mix(v[1], v[6], v[11], v[12], m[10], m[11]);
  mix(v[2], v[7], v[8], v[13], m[12], m[13]);
  mix(v[3], v[4], v[9], v[14], m[14], m[15]);
}

/// `m` is used up.
TENSORHUB_KERNEL_CODE void compress(value& of, uint32_t* m, uint64_t counter, uint32_t bytes,
                                    uint32_t flags) {
  uint32_t v[16] = {of.words[0],
                    of.words[1],
                    of.words[2],
                    of.words[3],
                    of.words[4],
                    of.words[5],
                    of.words[6],
                    of.words[7],
                    0x6a09e667u,
                    0xbb67ae85u,
                    0x3c6ef372u,
                    0xa54ff53au,
                    static_cast<uint32_t>(counter),
                    static_cast<uint32_t>(counter >> 32),
                    bytes,
                    flags};
  TENSORHUB_UNROLL
  for (unsigned round = 0; round < 7; ++round) {
    mix_all(v, m);
    const uint32_t next[16] = {m[2], m[6],  m[3],  m[10], m[7], m[0],  m[4],  m[13],
                               m[1], m[11], m[12], m[5],  m[9], m[14], m[15], m[8]};
    TENSORHUB_UNROLL
    for (unsigned i = 0; i < 16; ++i) m[i] = next[i];
  }
  TENSORHUB_UNROLL
  for (unsigned i = 0; i < 8; ++i) of.words[i] = v[i] ^ v[i + 8];
}

// ---- the tree ---------------------------------------------------------------------------------------------

/// `end` is that of the leaf, which may be shorter than others, even empty.
template <typename Loads>
TENSORHUB_KERNEL_CODE value leaf_value(const uint32_t* key, uint64_t at, uint64_t end, uint64_t number,
                                       uint32_t last) {
  value out;
  TENSORHUB_UNROLL
  for (unsigned i = 0; i < 8; ++i) out.words[i] = key[i];
  uint32_t flags = keyed_flag | leaf_start;
  TENSORHUB_ROLLED
  for (bool more = true; more; flags = keyed_flag) {
    const unsigned bytes = end - at > block_bytes ? block_bytes : static_cast<unsigned>(end - at);
    uint32_t m[16];
    if (bytes == block_bytes) {
      TENSORHUB_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        const word_pair both = Loads::load(at + 16 * i, end);
        m[4 * i] = static_cast<uint32_t>(both.low);
        m[4 * i + 1] = static_cast<uint32_t>(both.low >> 32);
        m[4 * i + 2] = static_cast<uint32_t>(both.high);
        m[4 * i + 3] = static_cast<uint32_t>(both.high >> 32);
      }
    } else {
      TENSORHUB_UNROLL
      for (unsigned i = 0; i < 16; ++i) {
        const unsigned rest = bytes > 4 * i ? bytes - 4 * i : 0;
        m[i] = static_cast<uint32_t>(load_bytes(at + 4 * i, rest < 4 ? rest : 4));
      }
    }
    at += bytes;
    more = at != end;
    compress(out, m, number, bytes, flags | (more ? 0 : leaf_end | last));
  }
  return out;
}

TENSORHUB_SELDOM_CODE value parent_value(const uint32_t* key, const value& left, const value& right,
                                         uint32_t last) {
  value out;
  uint32_t m[16];
  for (unsigned i = 0; i < 8; ++i) {
    out.words[i] = key[i];
    m[i] = left.words[i];
    m[8 + i] = right.words[i];
  }
  compress(out, m, 0, block_bytes, keyed_flag | parent_flag | last);
  return out;
}

/// The first step of a group: the values of up to 256 leaves, from number `first` on.
template <typename Team, typename Job>
TENSORHUB_KERNEL_CODE void make_leaves(const Team& team, const Job& job, uint64_t first, unsigned count,
                                       uint32_t last, shared_memory& shared) {
  team.each([&](unsigned thread) {
    if (thread >= count) return;
    const uint64_t number = first + thread;
    const uint64_t at = job.data + number * leaf_bytes;
    const uint64_t whole = job.data + job.bytes;
    const uint64_t end = whole - at > leaf_bytes ? at + leaf_bytes : whole;
    shared.values[0][thread] = at % 16 == 0 ? leaf_value<aligned_to_16>(job.key, at, end, number, last)
                                            : leaf_value<aligned_to_nothing>(job.key, at, end, number, last);
  });
}

/// Joins the values of a group; returns which half of `shared.values` begins with the one that is left.
template <typename Team, typename Job>
TENSORHUB_KERNEL_CODE unsigned join(const Team& team, const Job& job, unsigned count, uint32_t last,
                                    shared_memory& shared) {
  unsigned from = 0;
  for (; count > 1; from = 1 - from) {
    const unsigned pairs = count / 2;
    const value* const present = shared.values[from];
    value* const next = shared.values[1 - from];
    team.each([&](unsigned thread) {
      if (thread < pairs)
        next[thread] =
            parent_value(job.key, present[2 * thread], present[2 * thread + 1], count == 2 ? last : 0);
      else if (thread == pairs && count % 2 == 1)
        next[pairs] = present[count - 1];
    });
    count -= pairs;
  }
  return from;
}

/// Job: keyed_digest_job, Result: digest_result (memory/cuda/jobs.hpp). The team has 256 threads.
template <typename Team, typename Job, typename Result>
TENSORHUB_KERNEL_CODE void digest_block(const Team& team, const Job& job, Result* result,
                                        shared_memory& shared) {
  const uint64_t leaves = job.bytes == 0 ? 1 : (job.bytes + leaf_bytes - 1) / leaf_bytes;
  const uint64_t groups = (leaves + leaves_per_step - 1) / leaves_per_step;
  for (uint64_t group = 0; group < groups; ++group) {
    const uint64_t first = group * leaves_per_step;
    const unsigned count =
        leaves - first < leaves_per_step ? static_cast<unsigned>(leaves - first) : leaves_per_step;
    make_leaves(team, job, first, count, leaves == 1 ? root_flag : 0, shared);
    const unsigned half = join(team, job, count, groups == 1 ? root_flag : 0, shared);
    team.each([&](unsigned thread) {
      if (thread != 0) return;
      value made = shared.values[half][0];
      unsigned depth = group == 0 ? 0 : shared.depth;
      if (group + 1 < groups) {
        for (uint64_t same = group + 1; same % 2 == 0; same /= 2)
          made = parent_value(job.key, shared.left[--depth], made, 0);
        shared.left[depth++] = made;
        shared.depth = depth;
        return;
      }
      while (depth > 0) {
        --depth;
        made = parent_value(job.key, shared.left[depth], made, depth == 0 ? root_flag : 0);
      }
      *result = {made.words[0] | static_cast<uint64_t>(made.words[1]) << 32,
                 made.words[2] | static_cast<uint64_t>(made.words[3]) << 32};
    });
  }
}

}  // namespace tensorhub::cuda_kernels::blake3
