#pragma once
/// \file copy.cuh
/// Copies one run of a batch with the threads of one block.
///
/// One launch packs or unpacks thousands of small tensors (norms, biases) with one block per run. It replaces
/// the launches of 2,000 calls of cuMemcpyAsync (2 us or more each, 4 ms and more in all). The speed is
/// calculated and not yet measured (bench/cuda_kernels.cpp measures it): a thread has four 16-byte loads in
/// flight before its first store, 256 threads have 16 KiB; with 48 registers each, five blocks run on a
/// multiprocessor at once. That is 11 MB in flight on the 132 multiprocessors of an H200, whose 5 TB/s of
/// memory with 1 us of latency need 5 MB. 2,000 tensors of 100 KiB are 200 MB to read and as many to write:
/// 0.1 ms at the speed of the memory, so 1 ms leaves time for runs that are not aligned. The caller cuts runs
/// to 256 KiB, which one block copies in about 20 us, so that the longest run does not determine the time.

#include "team.cuh"

namespace tensorhub::cuda_kernels {

/// Copies words of a type to which both ends are aligned.
template <typename Word>
TENSORHUB_KERNEL_CODE void copy_words(unsigned thread, unsigned threads, uint64_t to, uint64_t from,
                                      uint64_t words) {
  constexpr uint64_t size = sizeof(Word);
  uint64_t at = thread;
  for (; at + 3 * static_cast<uint64_t>(threads) < words; at += 4 * static_cast<uint64_t>(threads)) {
    Word taken[4];
    TENSORHUB_UNROLL
    for (unsigned i = 0; i < 4; ++i)
      taken[i] = load_aligned<Word>(from + (at + i * static_cast<uint64_t>(threads)) * size);
    TENSORHUB_UNROLL
    for (unsigned i = 0; i < 4; ++i)
      store_aligned<Word>(to + (at + i * static_cast<uint64_t>(threads)) * size, taken[i]);
  }
  for (; at < words; at += threads) store_aligned<Word>(to + at * size, load_aligned<Word>(from + at * size));
}

/// Copies the bytes before the first aligned word of the target, the words, and the bytes after the last one.
template <typename Word>
TENSORHUB_KERNEL_CODE void copy_run_by(unsigned thread, unsigned threads, uint64_t to, uint64_t from,
                                       uint64_t bytes) {
  constexpr uint64_t size = sizeof(Word);
  uint64_t head = (size - to % size) % size;
  if (head > bytes) head = bytes;
  const uint64_t words = (bytes - head) / size;
  const uint64_t tail = head + words * size;
  copy_words<unsigned char>(thread, threads, to, from, head);
  copy_words<Word>(thread, threads, to + head, from + head, words);
  copy_words<unsigned char>(thread, threads, to + tail, from + tail, bytes - tail);
}

struct alignas(16) vector16 {
  uint64_t words[2];
};

/// Job: copy_job (memory/cuda/jobs.hpp). Wide words need both ends at the same offset from a multiple of 16;
/// otherwise the widest word that fits both ends is used.
template <typename Team, typename Job>
TENSORHUB_KERNEL_CODE void copy_block(const Team& team, const Job& job) {
  const uint64_t apart = job.to ^ job.from;
  team.each([&](unsigned thread) {
    if (apart % 16 == 0) {
      copy_run_by<vector16>(thread, team.size(), job.to, job.from, job.bytes);
    } else if (apart % 8 == 0) {
      copy_run_by<uint64_t>(thread, team.size(), job.to, job.from, job.bytes);
    } else if (apart % 4 == 0) {
      copy_run_by<uint32_t>(thread, team.size(), job.to, job.from, job.bytes);
    } else if (apart % 2 == 0) {
      copy_run_by<uint16_t>(thread, team.size(), job.to, job.from, job.bytes);
    } else {
      copy_words<unsigned char>(thread, team.size(), job.to, job.from, job.bytes);
    }
  });
}

}  // namespace tensorhub::cuda_kernels
