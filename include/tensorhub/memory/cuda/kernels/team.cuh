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

}  // namespace tensorhub::cuda_kernels
