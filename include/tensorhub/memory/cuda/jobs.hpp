#pragma once
/// \file jobs.hpp
/// What the kernels are given, and what they are called. Included by the kernels too (kernels/kernels.cu):
/// nothing here but plain structures.

#include <stdint.h>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::cuda_jobs {

/// Addresses are the device's. Neither end is aligned to anything; the ends do not overlap.
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

/// As `digest128` lies in memory.
struct digest_result {
  uint64_t low;
  uint64_t high;
};

/// One block of so many threads for each job: grid = number of jobs. Parameters: (jobs) and (jobs, results).
inline constexpr unsigned threads_per_job = 256;
inline constexpr char copy_kernel[] = "tensorhub_copy_runs";
inline constexpr char digest_kernel[] = "tensorhub_digest_jobs";

}  // namespace tensorhub::inline TENSORHUB_MODE::cuda_jobs
