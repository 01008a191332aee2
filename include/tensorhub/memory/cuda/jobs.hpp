#pragma once
/// \file jobs.hpp
/// The parameters and names of the kernels. The kernels include this file too (kernels/kernels.cu), so it
/// contains only plain structures.

#include <stdint.h>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::cuda_jobs {

/// Addresses are device addresses. They need no alignment; the two ends must not overlap.
struct copy_job {
  uint64_t to;
  uint64_t from;
  uint64_t bytes;
};

struct digest_job {
  uint64_t data;
  uint64_t bytes;
  uint64_t seed;
};

/// Of keyed BLAKE3.
struct keyed_digest_job {
  uint64_t data;
  uint64_t bytes;
  uint32_t key[8];
};

/// Has the memory layout of `digest128`.
struct digest_result {
  uint64_t low;
  uint64_t high;
};

/// One block of this many threads per job: grid = number of jobs. Parameters: (jobs) and (jobs, results).
inline constexpr unsigned threads_per_job = 256;
inline constexpr char copy_kernel[] = "tensorhub_copy_runs";
inline constexpr char digest_kernel[] = "tensorhub_digest_jobs";
inline constexpr char keyed_digest_kernel[] = "tensorhub_keyed_digest_jobs";

}  // namespace tensorhub::inline TENSORHUB_MODE::cuda_jobs
