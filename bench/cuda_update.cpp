// Whole updates between two processes whose weights lie on one GPU, against one cuMemcpyAsync of the same
// bytes: what request, mapping, control block, copies of chunks and digests add to the copy.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tensorhub/memory/cuda.hpp>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/policy/integrity/blake3_128.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <type_traits>
#include <vector>

#include "cuda_timer.hpp"
#include "harness.hpp"
#include "read_all.hpp"
#include "support/child_process.hpp"

namespace {

using tensorhub::transports::same_host;
using tensorhub::transports::tcp;

template <typename Transport, typename Integrity>
using hub_of = tensorhub::hub<Transport, tensorhub::nearest_source, tensorhub::group_consistent, Integrity,
                              tensorhub::cuda_memory>;
using checked_hub = hub_of<same_host, tensorhub::xxh3_128>;
using proven_hub = hub_of<same_host, tensorhub::blake3_128>;
using unchecked_hub = hub_of<same_host, tensorhub::no_integrity>;
using remote_hub = hub_of<tcp, tensorhub::xxh3_128>;

constexpr std::uint64_t tensor_bytes = 16u << 20;

/// Memory of a stream-ordered pool, as cudaMallocAsync gives it: no other process can map it by CUDA IPC.
class pool_memory {
 public:
  explicit pool_memory(std::uint64_t bytes) {
    auto& device = bench::cuda_device::current();
    const tensorhub::detail::cuda_scope scope{device.functions(), device.context()};
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    const auto allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t, CUstream)>(
        ::dlsym(driver, "cuMemAllocAsync"));
    const auto finish = reinterpret_cast<CUresult (*)(CUstream)>(::dlsym(driver, "cuStreamSynchronize"));
    if (allocate(&data_, bytes, nullptr) != CUDA_SUCCESS || finish(nullptr) != CUDA_SUCCESS)
      throw std::runtime_error("the pool has no memory");
  }
  [[nodiscard]] std::byte* data() const noexcept {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(data_));
  }

 private:
  CUdeviceptr data_ = 0;  // the process ends with it
};

/// Where the tensors begin.
using tensors = std::vector<std::byte*>;

[[nodiscard]] tensors tensors_in(std::byte* memory, std::uint64_t bytes) {
  tensors out;
  for (std::uint64_t at = 0; at < bytes; at += tensor_bytes) out.push_back(memory + at);
  return out;
}

template <typename Worker>
void add_to(Worker& worker, const tensors& all) {
  for (std::size_t i = 0; i < all.size(); ++i)
    worker.add("tensor." + std::to_string(i), all[i], {tensor_bytes}, tensorhub::dtype::u8);
}

/// Every byte becomes the version's.
void fill(bench::cuda_device& device, const tensors& all, std::uint64_t version) {
  const auto lane = device.open_cuda_lane();
  const tensorhub::detail::cuda_scope scope{device.functions(), device.context()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto value = static_cast<unsigned char>(version * 7 + i);
    const CUresult result = device.functions().memory_fill_async(tensorhub::detail::cuda_address(all[i]),
                                                                 value, tensor_bytes, lane->stream());
    if (result != CUDA_SUCCESS) throw std::runtime_error("the memory cannot be filled");
  }
  bench::done(*lane, lane->copy(nullptr, nullptr, 0));
}

/// How a version is made and taken; a model of its own each, so that nobody else has what it needs.
struct variant {
  std::string name;
  enum class kind_type { checked, proven, unchecked, spread, staged, hosted, remote } kind;
  std::size_t window_chunks = 0;  ///< 0: the default
};
using enum variant::kind_type;
const std::vector<variant> variants{
    {"update, xxh3_128", checked},
    {"update, xxh3_128, 4 chunks on their way", checked, 4},
    {"update, BLAKE3", proven},
    {"update, no digests", unchecked},
    {"update, xxh3_128, an allocation per tensor", spread},
    {"update, xxh3_128, from a pool (staged)", staged},
    {"update, xxh3_128, from host memory", hosted},
    {"update, xxh3_128, tcp", remote},
};

/// Calls `work` with the hub type of a variant.
template <typename Work>
auto with_hub(const variant& of, Work&& work) {
  switch (of.kind) {
    case proven:
      return work(std::type_identity<proven_hub>{});
    case unchecked:
      return work(std::type_identity<unchecked_hub>{});
    case remote:
      return work(std::type_identity<remote_hub>{});
    case checked:
    case spread:
    case staged:
    case hosted:
      break;
  }
  return work(std::type_identity<checked_hub>{});
}

/// One publisher per variant; each "next" makes a new version of all of them.
void serve(processes::channel& line, std::uint64_t bytes) {
  if (!bench::no_gpu().empty()) return;
  auto& device = bench::cuda_device::current();
  tensorhub::cuda_memory space;
  const auto memory = space.allocate(bytes);
  const pool_memory pool{bytes};
  const tensorhub::host_memory::allocation host{bytes};
  const tensors together = tensors_in(memory.data(), bytes);
  const tensors in_pool = tensors_in(pool.data(), bytes);
  const tensors on_host = tensors_in(host.data(), bytes);
  std::vector<tensorhub::cuda_memory::allocation> own;
  tensors apart;
  for (std::size_t i = 0; i < together.size(); ++i)
    apart.push_back(own.emplace_back(space.allocate(tensor_bytes)).data());
  checked_hub::reference_server server;
  std::vector<std::function<void()>> ends;
  std::vector<std::function<double(std::uint64_t)>> begins;
  for (const variant& each : variants) {
    const tensors& weights = each.kind == staged   ? in_pool
                             : each.kind == hosted ? on_host
                             : each.kind == spread ? apart
                                                   : together;
    with_hub(each, [&]<typename Hub>(std::type_identity<Hub>) {
      auto trainer = std::make_shared<typename Hub::publisher>(
          tensorhub::worker_options{.server = server.address(), .model = each.name, .replica = "trainer"});
      add_to(*trainer, weights);
      ends.push_back([trainer] { trainer->unpublish(); });
      begins.push_back([trainer](std::uint64_t version) {
        return trainer->publish(version, tensorhub::all_done).seconds;
      });
    });
  }
  line.say(server.address());
  for (std::uint64_t version = 1;; ++version) {
    for (std::string word = line.hear(); word != "next"; word = line.hear())
      line.say(std::to_string(bench::cpu_seconds()));
    for (const auto& end : ends) end();
    for (const tensors* each : std::array<const tensors*, 3>{&together, &apart, &in_pool})
      fill(device, *each, version);
    for (std::uint64_t at = 0; at < bytes; at += 4096) host.data()[at] = static_cast<std::byte>(version);
    std::ostringstream said;
    said << version;
    for (const auto& begin : begins) said << " " << begin(version);
    line.say(said.str());
  }
}

/// `seconds`: of each variant, the warming round's first.
void print_publishing(std::uint64_t bytes, std::vector<std::vector<double>> seconds,
                      const std::map<std::string, std::string>& paths) {
  for (std::size_t i = 0; i < variants.size(); ++i) {
    seconds[i].erase(seconds[i].begin());
    const double each = bench::median(seconds[i]);
    std::printf("%-46s publish: %.1f GB/s (%.4f s); path: %s\n", variants[i].name.c_str(),
                static_cast<double>(bytes) * 1e-9 / each, each, paths.at(variants[i].name).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const std::uint64_t bytes = given.smoke ? 2 * tensor_bytes : 2ull << 30;
  const processes::child_process source{[&](processes::channel& line) { serve(line, bytes); }};
  if (const std::string why = bench::no_gpu(); !why.empty()) {
    std::printf("SKIPPED: bench cuda_update: %s\n", why.c_str());
    return 0;
  }
  const std::string server = source.line().hear();
  tensorhub::cuda_memory space;
  auto& device = space.device();
  std::printf("%s\n", device.description().c_str());
  const auto own = space.allocate(bytes);
  const auto target = space.allocate(bytes);
  const auto lane = device.open_lane();

  bench::comparison rivals{
      given, "updates between two processes on one device",
      std::to_string(bytes >> 20) +
          " MiB in tensors of 16 MiB; cuMemcpyAsync within one process, one call; update() of a version that "
          "was published before, 2.5 s after the last one; the host's time; one warming round, then 7, order "
          "rotates; medians"};
  std::uint64_t version = 0;
  std::vector<std::vector<double>> publishing(variants.size());
  rivals.before_round([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{2500});  // a step
    source.line().say("next");
    std::istringstream said{source.line().hear()};
    said >> version;
    for (auto& each : publishing) said >> each.emplace_back();
  });
  const std::string bare = "cuMemcpyAsync, device to device";
  rivals.add(bare, [&] {
    return bench::timed(source, bytes,
                        [&] { bench::done(*lane, lane->copy(target.data(), own.data(), bytes)); });
  });
  std::map<std::string, std::string> paths;
  for (const variant& each : variants) {
    with_hub(each, [&]<typename Hub>(std::type_identity<Hub>) {
      auto rollout = std::make_shared<typename Hub::subscriber>(tensorhub::worker_options{
          .server = server, .model = each.name, .replica = "rollout", .window_chunks = each.window_chunks});
      add_to(*rollout, tensors_in(target.data(), bytes));
      rivals.add(each.name, [&, rollout] {
        return bench::timed(source, bytes, [&] {
          const auto report = rollout->update(tensorhub::exactly(version), tensorhub::all_done);
          paths[each.name] = report.paths.front();
        });
      });
    });
  }
  rivals.run(given.smoke ? 1 : 7);
  rivals.print({"GB/s", "reader cpu s/GB", "source cpu s/GB"});
  print_publishing(bytes, publishing, paths);
  // Between GPUs the link would be the limit: an H100's NVLink has 450 GB/s each way by its datasheet.
  rivals.goal("update, xxh3_128 / 400 GB/s", rivals.figure("update, xxh3_128", "GB/s") / 400, 1.0);
  rivals.write_json(given.json_path);
}
