// The kernels of TensorHub::cuda. The host compiler compiles their bodies (copy.cuh, xxh3.cuh, blake3.cuh)
// too, so that tests can run them against the reference.

#include "blake3.cuh"
#include "copy.cuh"
#include "tensorhub/memory/cuda/jobs.hpp"
#include "xxh3.cuh"

namespace jobs = tensorhub::cuda_jobs;
namespace kernels = tensorhub::cuda_kernels;

extern "C" __global__ void __launch_bounds__(jobs::threads_per_job)
    tensorhub_copy_runs(const jobs::copy_job* all) {
  kernels::copy_block(kernels::device_team{}, all[blockIdx.x]);
}

// Four teams per multiprocessor: 64 registers per thread.
extern "C" __global__ void __launch_bounds__(jobs::threads_per_job, 4)
    tensorhub_digest_jobs(const jobs::digest_job* all, jobs::digest_result* results) {
  __shared__ kernels::digest_shared shared;
  kernels::digest_block(kernels::device_team{}, all[blockIdx.x], results + blockIdx.x, shared);
}

extern "C" __global__ void __launch_bounds__(jobs::threads_per_job, 4)
    tensorhub_keyed_digest_jobs(const jobs::keyed_digest_job* all, jobs::digest_result* results) {
  __shared__ kernels::blake3::shared_memory shared;
  kernels::blake3::digest_block(kernels::device_team{}, all[blockIdx.x], results + blockIdx.x, shared);
}
