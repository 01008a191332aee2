// cuda_loop: a trainer and a rollout, each a process, exchange weights that live on a GPU.
//
//     launcher -+- trainer    cudaMemsetAsync is its optimizer; publishes each step in place
//               +- rollout    updates its own device memory, checks it, says how fast it was
//
// Both may use one GPU: then the bytes go by CUDA IPC, from device memory to device memory. Between machines
// the same program would use verbs or TCP. Without a GPU it says so and ends with 77.

#include <cuda_runtime_api.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <tensorhub/leave_on_signal.hpp>
#include <tensorhub/memory/cuda.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using hub = tensorhub::hub<tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>,
                           tensorhub::nearest_source, tensorhub::group_consistent, tensorhub::xxh3_128,
                           tensorhub::cuda_memory>;

constexpr std::uint64_t steps = 5;
constexpr std::uint64_t layers = 8;
constexpr std::uint64_t layer_bytes = 32u << 20;
constexpr std::uint64_t norm_bytes = 8192;  // small tensors are packed on the device
constexpr int no_device = 77;

void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string{what} + ": " + cudaGetErrorString(result));
}

/// The model's tensors in device memory.
struct weights {
  std::vector<std::uint8_t*> tensors;
  std::vector<std::uint64_t> bytes;

  weights() {
    for (std::uint64_t i = 0; i < 2 * layers; ++i) {
      bytes.push_back(i % 2 == 0 ? layer_bytes : norm_bytes);
      void* memory = nullptr;
      check(cudaMalloc(&memory, bytes.back()), "cudaMalloc");
      tensors.push_back(static_cast<std::uint8_t*>(memory));
    }
  }
  weights(const weights&) = delete;
  weights& operator=(const weights&) = delete;
  ~weights() {
    for (std::uint8_t* each : tensors) static_cast<void>(cudaFree(each));
  }

  template <typename Worker>
  void add_to(Worker& worker) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      worker.add("tensor." + std::to_string(i), tensors[i], {bytes[i]}, tensorhub::dtype::u8);
  }
};

tensorhub::worker_options who(const std::string& server, const std::string& replica) {
  tensorhub::worker_options options;
  options.server = server;
  options.model = "policy";
  options.replica = replica;
  options.location.host = "here";
  return options;
}

void run_trainer(const std::string& server) {
  tensorhub::leave_on_signal on_notice{5s};
  weights memory;
  hub::publisher trainer{who(server, "trainer")};
  memory.add_to(trainer);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  for (std::uint64_t step = 1; step <= steps; ++step) {
    for (std::size_t i = 0; i < memory.tensors.size(); ++i)
      check(cudaMemsetAsync(memory.tensors[i], static_cast<int>(step), memory.bytes[i], stream), "memset");
    trainer.publish(step, stream);  // what the stream holds becomes the version
    std::this_thread::sleep_for(300ms);
    if (step < steps) trainer.unpublish();
  }
  on_notice.watch(trainer);  // the last version stays until the launcher says so
  for (int looks = 0; looks < 1200 && !on_notice.done(); ++looks) std::this_thread::sleep_for(50ms);
  on_notice.forget(trainer);
}

void run_rollout(const std::string& server) {
  weights memory;
  hub::subscriber rollout{who(server, "rollout")};
  memory.add_to(rollout);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  std::vector<std::uint8_t> seen(layer_bytes);
  for (std::uint64_t held = 0; held < steps;) {
    rollout.wait(tensorhub::at_least(held + 1), 60s);
    const auto update = rollout.update(tensorhub::latest, stream, 60s);
    held = update.version.value;
    for (std::size_t i = 0; i < memory.tensors.size(); ++i) {  // stands for generating
      check(cudaMemcpyAsync(seen.data(), memory.tensors[i], memory.bytes[i], cudaMemcpyDeviceToHost, stream),
            "cudaMemcpy");
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      const auto others =
          std::count_if(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(memory.bytes[i]),
                        [&](std::uint8_t each) { return each != held; });
      if (others != 0)
        throw std::runtime_error("tensor " + std::to_string(i) + " does not hold version " +
                                 std::to_string(held));
    }
    std::cout << "rollout: version " << held << ", " << (update.bytes >> 20) << " MiB in "
              << update.pull_seconds * 1e3 << " ms through " << update.paths.front() << std::endl;
  }
  rollout.leave(5s);
}

::pid_t start(const char* program, const char* role, const std::string& server) {
  std::array<char*, 4> arguments{const_cast<char*>(program), const_cast<char*>(role),
                                 const_cast<char*>(server.c_str()), nullptr};
  ::pid_t child = -1;
  if (::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0)
    throw std::runtime_error("no process can be started");
  return child;
}
int ended(::pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

int run_launcher(const char* program) {
  hub::reference_server server;
  const ::pid_t trainer = start(program, "trainer", server.address());
  const int rollout = ended(start(program, "rollout", server.address()));
  ::kill(trainer, SIGTERM);
  return std::max(rollout, ended(trainer));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int devices = 0;
    const cudaError_t result = cudaGetDeviceCount(&devices);
    if (result != cudaSuccess || devices == 0) {
      std::cout << "SKIPPED: cuda_loop: there is no CUDA device here: " << cudaGetErrorString(result) << "\n";
      return no_device;
    }
    if (argc == 1) return run_launcher(argv[0]);
    if (argc != 3) throw std::runtime_error("start it without arguments");
    if (std::string{argv[1]} == "trainer")
      run_trainer(argv[2]);
    else
      run_rollout(argv[2]);
    return EXIT_SUCCESS;
  } catch (const std::exception& problem) {
    std::cerr << "cuda_loop: " << problem.what() << std::endl;
    return EXIT_FAILURE;
  }
}
