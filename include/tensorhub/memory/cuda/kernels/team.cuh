#pragma once
/// \file team.cuh
/// Lets one source be compiled as a kernel for the device and as a loop for the CPU.
///
/// The body of a kernel is a function of a *team*: the threads of one block. `team.each(step)` runs a step
/// for every thread and waits until all threads have done it. On the device that is one call and a barrier;
/// on the CPU it is a loop over the threads. A body is therefore a sequence of steps. Values that outlive a
/// step lie in memory that the threads share, and no step reads a value that another thread writes in the
/// same step.

#include <stdint.h>

#ifdef __CUDACC__
#define TENSORHUB_KERNEL_CODE __device__ __forceinline__
#define TENSORHUB_SELDOM_CODE __device__ __noinline__  // too rarely used to be inlined
#define TENSORHUB_KERNEL_TABLE __constant__ const
#define TENSORHUB_UNROLL _Pragma("unroll")
#define TENSORHUB_ROLLED _Pragma("unroll 1")
#else
#include <cstring>
#define TENSORHUB_KERNEL_CODE inline
#define TENSORHUB_SELDOM_CODE inline
#define TENSORHUB_KERNEL_TABLE inline constexpr
#define TENSORHUB_UNROLL
#define TENSORHUB_ROLLED
#endif

namespace tensorhub::cuda_kernels {

#ifdef __CUDACC__
struct device_team {
  template <typename Step>
  __device__ __forceinline__ void each(Step&& step) const {
    step(threadIdx.x);
    __syncthreads();
  }
  __device__ __forceinline__ unsigned size() const { return blockDim.x; }
};
#else
struct cpu_team {
  unsigned threads = 256;
  template <typename Step>
  void each(Step&& step) const {
    for (unsigned thread = 0; thread < threads; ++thread) step(thread);
  }
  unsigned size() const { return threads; }
};
#endif

struct word_pair {
  uint64_t low;
  uint64_t high;
};

/// Loads a value from `address`, which must be a multiple of the type's size.
template <typename Word>
TENSORHUB_KERNEL_CODE Word load_aligned(uint64_t address) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const Word*>(address);
#else
  Word word;
  ::memcpy(&word, reinterpret_cast<const void*>(static_cast<uintptr_t>(address)), sizeof word);
  return word;
#endif
}
template <typename Word>
TENSORHUB_KERNEL_CODE void store_aligned(uint64_t address, Word word) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<Word*>(address) = word;
#else
  ::memcpy(reinterpret_cast<void*>(static_cast<uintptr_t>(address)), &word, sizeof word);
#endif
}

/// A 16-byte load that bypasses the caches, because every byte is read once.
TENSORHUB_KERNEL_CODE word_pair load_pair_aligned(uint64_t address) {
#ifdef __CUDA_ARCH__
  const ulonglong2 both = __ldcs(reinterpret_cast<const ulonglong2*>(address));
  return {both.x, both.y};
#else
  return load_aligned<word_pair>(address);
#endif
}

TENSORHUB_SELDOM_CODE uint64_t load_bytes(uint64_t address, unsigned count) {
  uint64_t word = 0;
  TENSORHUB_ROLLED
  for (unsigned i = 0; i < count; ++i)
    word |= static_cast<uint64_t>(load_aligned<unsigned char>(address + i)) << (8 * i);
  return word;
}

/// Loads eight bytes from any address before `end`, by aligned words. The first word may begin before the
/// address (in the same allocation: allocations begin at multiples of 8); no byte at or after `end` is read.
TENSORHUB_KERNEL_CODE uint64_t load_word(uint64_t address, uint64_t end) {
  const uint64_t base = address & ~static_cast<uint64_t>(7);
  const unsigned skipped = static_cast<unsigned>(address & 7);
  if (skipped == 0) return load_aligned<uint64_t>(address);
  const uint64_t low = load_aligned<uint64_t>(base);
  const uint64_t high = base + 16 <= end ? load_aligned<uint64_t>(base + 8) : load_bytes(base + 8, skipped);
  return (low >> (8 * skipped)) | (high << (64 - 8 * skipped));
}

/// The ways in which a thread loads 16 bytes of the data.
struct aligned_to_16 {
  TENSORHUB_KERNEL_CODE static word_pair load(uint64_t address, uint64_t) {
    return load_pair_aligned(address);
  }
};
struct aligned_to_8 {
  TENSORHUB_KERNEL_CODE static word_pair load(uint64_t address, uint64_t) {
    return {load_aligned<uint64_t>(address), load_aligned<uint64_t>(address + 8)};
  }
};
struct aligned_to_nothing {
  TENSORHUB_KERNEL_CODE static word_pair load(uint64_t address, uint64_t end) {
    return {load_word(address, end), load_word(address + 8, end)};
  }
};

}  // namespace tensorhub::cuda_kernels
