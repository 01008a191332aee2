/// \file on_gpu.cpp
/// The component on the real driver. Every case here has "gpu" in its name; on a machine without a device
/// each is skipped and says why. `tests/run --gpu` runs them, also under compute-sanitizer.

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <tensorhub/memory/cuda.hpp>
#include <tensorhub/types/blake3.hpp>
#include <tensorhub/types/xxh3.hpp>
#include <thread>
#include <vector>

#include "gpu.hpp"
#include "ipc.hpp"

using namespace tensorhub;

namespace {

using device = cuda_device<cuda_driver>;
constexpr auto long_enough = std::chrono::seconds{60};

std::vector<std::byte> noise(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 words{seed};
  std::vector<std::byte> out(bytes);
  for (std::byte& each : out) each = static_cast<std::byte>(words());
  return out;
}

/// A function of the driver that only a test needs.
template <typename Function>
Function driver_call(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = library != nullptr ? ::dlsym(library, name) : nullptr;
  REQUIRE_MESSAGE(found != nullptr, name);
  return reinterpret_cast<Function>(found);
}

/// Four units of reserved addresses of device 0, with memory behind those that were mapped.
class reservation {
 public:
  explicit reservation(CUcontext context) : scope_{cuda_driver::functions(), context} {
    what_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    REQUIRE(driver_call<decltype(&::cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity")(
                &unit_, &what_, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    REQUIRE(driver_call<decltype(&::cuMemAddressReserve)>("cuMemAddressReserve")(&base_, units * unit_, 0, 0,
                                                                                 0) == CUDA_SUCCESS);
  }
  ~reservation() {
    static_cast<void>(driver_call<decltype(&::cuMemAddressFree)>("cuMemAddressFree")(base_, units * unit_));
  }
  reservation(const reservation&) = delete;
  reservation& operator=(const reservation&) = delete;

  void map(std::uint64_t number) const {
    CUmemGenericAllocationHandle memory{};
    REQUIRE(driver_call<decltype(&::cuMemCreate)>("cuMemCreate")(&memory, unit_, &what_, 0) == CUDA_SUCCESS);
    REQUIRE(driver_call<decltype(&::cuMemMap)>("cuMemMap")(base_ + number * unit_, unit_, 0, memory, 0) ==
            CUDA_SUCCESS);
    REQUIRE(driver_call<decltype(&::cuMemRelease)>("cuMemRelease")(memory) == CUDA_SUCCESS);
    const CUmemAccessDesc access{what_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE(driver_call<decltype(&::cuMemSetAccess)>("cuMemSetAccess")(base_ + number * unit_, unit_, &access,
                                                                       1) == CUDA_SUCCESS);
  }
  void unmap(std::uint64_t number) const {
    REQUIRE(driver_call<decltype(&::cuMemUnmap)>("cuMemUnmap")(base_ + number * unit_, unit_) ==
            CUDA_SUCCESS);
  }
  [[nodiscard]] std::byte* at(std::uint64_t number) const {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(base_ + number * unit_));
  }
  [[nodiscard]] std::size_t unit() const noexcept { return unit_; }

 private:
  static constexpr std::size_t units = 4;
  detail::cuda_scope scope_;
  CUmemAllocationProp what_{};
  std::size_t unit_ = 0;
  CUdeviceptr base_ = 0;
};

}  // namespace

TEST_CASE("process: exporter on the gpu" * doctest::skip()) {
  ipc::export_one<cuda_driver>(0);
}

TEST_CASE("gpu: kinds of memory") {
  if (!gpu::is_here("kinds of memory")) return;
  const cuda_functions& cuda = cuda_driver::functions();
  cuda_memory space;
  auto one = space.allocate(100'000);
  const auto range = space.describe(one.data() + 10, 1000);
  CHECK(range.kind == memory_kind::cuda_device);
  CHECK(range.device == &space.device());
  CHECK(space.allocation_around(range).bytes >= 100'000);
  std::vector<std::byte> taken(100'000, std::byte{1});
  space.copy(taken.data(), one.data(), taken.size());
  CHECK(taken == std::vector<std::byte>(100'000));
  cuda_pinned_memory pinned;
  const auto host = pinned.allocate(50'000);
  CHECK(space.describe(host.data() + 5, 100).kind == memory_kind::cuda_pinned);
  CHECK(space.describe(host.data() + 5, 100).backing_fd == host.range().backing_fd);
  std::byte* const staging = space.device().allocate_pinned(8192);
  CHECK(space.describe(staging, 8192).kind == memory_kind::cuda_pinned);
  CHECK_THROWS_AS(static_cast<void>(space.describe(staging, 1u << 30)), error);
  space.device().free_pinned(staging, 8192);
  std::byte* const freed = one.data();
  one = space.allocate(64u << 20);
  const auto big = one.data();
  one = space.allocate(64);
  CHECK_THROWS_AS(static_cast<void>(space.describe(big + (32u << 20), 100)), error);
  static_cast<void>(freed);
  CUcontext current = nullptr;
  CHECK(cuda.context_get_current(&current) == CUDA_SUCCESS);
  CHECK(current == nullptr);
}

TEST_CASE("gpu: digests are the host's, for any length and place") {
  if (!gpu::is_here("digests")) return;
  cuda_memory space;
  constexpr std::size_t bytes = 3u << 20;
  const auto given = noise(bytes, 4);
  const auto data = space.allocate(bytes);
  space.copy(data.data(), given.data(), bytes);
  std::vector<digest_job> jobs;
  for (std::size_t length = 0; length <= 2600; ++length)
    jobs.push_back({data.data() + length % 17, length, length * 0x9e3779b97f4a7c15u});
  for (std::size_t offset = 0; offset < 16; ++offset) {
    for (std::size_t length :
         {57'343u, 57'344u, 57'345u, 114'688u, 114'689u, 1u << 20, (1u << 20) + 13u, 3'000'000u})
      jobs.push_back({data.data() + offset, length, offset});
  }
  std::vector<digest128> made(jobs.size());
  const auto lane = space.device().open_lane();
  REQUIRE_MESSAGE(lane->wait(lane->digest(jobs, made.data()), long_enough) == lane_state::done,
                  lane->trouble());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto offset = static_cast<std::size_t>(jobs[i].data - data.data());
    wrong += made[i] == detail::xxh3_128({given.data() + offset, jobs[i].bytes}, jobs[i].seed) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("gpu: keyed digests are the host's, for any length and place") {
  if (!gpu::is_here("keyed digests")) return;
  cuda_memory space;
  constexpr std::size_t bytes = 3u << 20;
  const auto given = noise(bytes, 5);
  const auto data = space.allocate(bytes);
  space.copy(data.data(), given.data(), bytes);
  std::vector<keyed_digest_job> jobs;
  for (std::uint32_t length = 0; length <= 2600; ++length)
    jobs.push_back({data.data() + length % 17, length, {length, 1, 2, 3}});
  for (std::uint32_t offset = 0; offset < 16; ++offset) {
    for (const std::size_t length :
         {57'343u, 262'143u, 262'144u, 262'145u, 524'289u, 1u << 20, (1u << 20) + 13u, 3'000'000u})
      jobs.push_back({data.data() + offset, length, {offset, 3, 2, 1}});
  }
  std::vector<digest128> made(jobs.size());
  const auto lane = space.device().open_lane();
  REQUIRE_MESSAGE(lane->wait(lane->keyed_digest(jobs, made.data()), long_enough) == lane_state::done,
                  lane->trouble());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto part = std::span{given}.subspan(static_cast<std::size_t>(jobs[i].data - data.data()));
    const auto key = std::bit_cast<detail::blake3_value>(jobs[i].key);
    wrong += made[i] == detail::blake3_keyed_hash(key, part.first(jobs[i].bytes)).first_half() ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("gpu: thousands of runs, packed and unpacked") {
  if (!gpu::is_here("batched copies")) return;
  cuda_memory space;
  constexpr std::size_t count = 3000;
  std::vector<std::size_t> places(count);
  std::size_t room = 0;
  std::size_t packed_bytes = 0;
  const auto length_of = [](std::size_t i) { return i * 37 % 9000 + 1; };
  for (std::size_t i = 0; i < count; ++i) {
    places[i] = room + i % 19;
    room = places[i] + length_of(i);
    packed_bytes += length_of(i);
  }
  const auto given = noise(room, 8);
  const auto tensors = space.allocate(room);
  const auto packed = space.allocate(packed_bytes);
  const auto back = space.allocate(room);
  space.copy(tensors.data(), given.data(), room);
  space.copy(back.data(), given.data(), room);
  std::vector<copy_run> pack;
  std::vector<copy_run> unpack;
  std::vector<copy_run> wipe;
  const auto zeros = space.allocate(10'000);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    pack.push_back({packed.data() + at, tensors.data() + places[i], length_of(i)});
    wipe.push_back({back.data() + places[i], zeros.data() + i % 16, length_of(i)});
    unpack.push_back({back.data() + places[i], packed.data() + at, length_of(i)});
    at += length_of(i);
  }
  const auto lane = space.device().open_lane();
  CHECK(lane->copy_all(pack) == 1);
  CHECK(lane->copy_all(wipe) == 2);
  REQUIRE_MESSAGE(lane->wait(lane->copy_all(unpack), long_enough) == lane_state::done, lane->trouble());
  std::vector<std::byte> taken(room);
  space.copy(taken.data(), back.data(), room);
  CHECK(taken == given);
}

TEST_CASE("gpu: copies of every kind, in order on a lane") {
  if (!gpu::is_here("copies")) return;
  cuda_memory space;
  constexpr std::size_t bytes = 20u << 20;
  const auto one = space.allocate(bytes);
  const auto two = space.allocate(bytes);
  pinned_memory staging{space.device(), bytes};
  const auto given = noise(bytes, 3);
  std::copy(given.begin(), given.end(), staging.data());
  std::vector<std::byte> taken(bytes);
  const auto lane = space.device().open_lane();
  lane_ticket last = lane->copy(one.data(), staging.data(), bytes);
  last = lane->copy(two.data(), one.data(), bytes);
  last = lane->copy(one.data(), given.data(), 16);
  last = lane->copy(taken.data(), two.data(), bytes);
  REQUIRE_MESSAGE(lane->wait(last, long_enough) == lane_state::done, lane->trouble());
  CHECK(taken == given);
  CHECK(lane->state(1) == lane_state::done);
}

TEST_CASE("gpu: a wrong address fails the lane and nothing else") {
  if (!gpu::is_here("a wrong address")) return;
  cuda_memory space;
  const auto one = space.allocate(4096);
  const auto lane = space.device().open_lane();
  const digest_job job{reinterpret_cast<const std::byte*>(std::uintptr_t{0x1000}), 64, 0};
  digest128 out{};
  CHECK(lane->digest(std::span{&job, 1}, &out) == 0);
  CHECK(lane->trouble().find("was it freed") != std::string::npos);
  const auto next = space.device().open_lane();
  CHECK(next->wait(next->copy(one.data(), one.data() + 2048, 1024), long_enough) == lane_state::done);
}

TEST_CASE("gpu: reserved addresses are memory where something is mapped, and only there") {
  if (!gpu::is_here("reserved addresses")) return;
  cuda_memory space;
  auto& first = device::at(0);
  const reservation addresses{first.context()};
  const std::size_t unit = addresses.unit();
  const auto trouble = [&](std::byte* to, std::size_t bytes) {
    const auto from = space.allocate(bytes);
    const auto lane = first.open_lane();
    const auto ticket = lane->copy(to, from.data(), bytes);
    if (ticket != 0) CHECK(lane->wait(ticket, long_enough) == lane_state::done);
    return lane->trouble();
  };
  CHECK(trouble(addresses.at(0), 64).find("was it freed") != std::string::npos);
  for (const std::uint64_t number : {0u, 1u, 3u}) addresses.map(number);
  CHECK(space.describe(addresses.at(0), 2 * unit).kind == memory_kind::cuda_device);
  CHECK(trouble(addresses.at(0), 2 * unit).empty());
  CHECK(trouble(addresses.at(1), unit).empty());
  CHECK_THROWS_AS(static_cast<void>(space.describe(addresses.at(1), 2 * unit)), error);
  CHECK_FALSE(trouble(addresses.at(1), 3 * unit).empty());
  CHECK(trouble(addresses.at(2), 64).find("was it freed") != std::string::npos);
  const auto two = space.describe(addresses.at(0), 2 * unit);
  const std::uint64_t identity = space.identity(two);
  CHECK(space.identity(two) == identity);
  addresses.unmap(1);
  addresses.map(1);
  CHECK(space.identity(two) != identity);
  for (const std::uint64_t number : {0u, 1u, 3u}) addresses.unmap(number);
  CHECK(trouble(addresses.at(0), 64).find("was it freed") != std::string::npos);
  CHECK(trouble(space.allocate(64).data(), 64).empty());  // the context is as good as before
}

TEST_CASE("gpu: a mark behind the user's stream") {
  if (!gpu::is_here("marks")) return;
  const cuda_functions& cuda = cuda_driver::functions();
  cuda_memory space;
  const auto one = space.allocate(256u << 20);
  CUstream stream = nullptr;
  {
    const detail::cuda_scope scope{cuda, space.device().context()};
    REQUIRE(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    for (int i = 0; i < 100; ++i)
      REQUIRE(cuda.memory_fill_async(detail::cuda_address(one.data()), static_cast<unsigned char>(i),
                                     256u << 20, stream) == CUDA_SUCCESS);
  }
  const auto mark = space.mark(stream);
  for (int i = 0; i < 100'000 && mark.state() == lane_state::pending; ++i)
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  CHECK(mark.state() == lane_state::done);
  std::byte last{};
  space.copy(&last, one.data() + 12345, 1);
  CHECK(last == std::byte{99});
  const auto legacy = space.mark(nullptr);
  for (int i = 0; i < 100'000 && legacy.state() == lane_state::pending; ++i)
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  CHECK(legacy.state() == lane_state::done);
  const detail::cuda_scope scope{cuda, space.device().context()};
  CHECK(cuda.stream_destroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("gpu: a graph that is captured while lanes work stays valid") {
  if (!gpu::is_here("captures")) return;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  const auto begin = reinterpret_cast<CUresult (*)(CUstream, CUstreamCaptureMode)>(
      ::dlsym(library, "cuStreamBeginCapture_v2"));
  const auto end = reinterpret_cast<CUresult (*)(CUstream, CUgraph*)>(::dlsym(library, "cuStreamEndCapture"));
  const auto destroy = reinterpret_cast<CUresult (*)(CUgraph)>(::dlsym(library, "cuGraphDestroy"));
  REQUIRE((begin != nullptr && end != nullptr && destroy != nullptr));
  const cuda_functions& cuda = cuda_driver::functions();
  cuda_memory space;
  const auto one = space.allocate(1u << 20);
  const auto given = noise(1u << 20, 9);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  {
    const detail::cuda_scope scope{cuda, space.device().context()};
    REQUIRE(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    REQUIRE(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  }
  std::thread{[&] {
    const auto more = space.allocate(1u << 20);
    const auto lane = space.device().open_lane();
    CHECK(lane->wait(lane->copy(more.data(), given.data(), given.size()), long_enough) == lane_state::done);
    const digest_job job{more.data(), given.size(), 0};
    digest128 out{};
    CHECK(lane->wait(lane->digest(std::span{&job, 1}, &out), long_enough) == lane_state::done);
  }}.join();
  CHECK_THROWS_AS(static_cast<void>(space.mark(stream)), error);
  const detail::cuda_scope scope{cuda, space.device().context()};
  CHECK(end(stream, &graph) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
  if (graph != nullptr) CHECK(destroy(graph) == CUDA_SUCCESS);
  CHECK(cuda.stream_destroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("gpu: memory of another process is read where it lies") {
  if (!gpu::is_here("IPC")) return;
  ipc::read_the_other_process<cuda_driver>("process: exporter on the gpu", 0);
  if (device::count() > 1) ipc::read_the_other_process<cuda_driver>("process: exporter on the gpu", 1);
}

TEST_CASE("gpu: a dmabuf, or the reason that there is none") {
  if (!gpu::is_here("dmabufs")) return;
  cuda_memory space;
  const auto one = space.allocate(2u << 20);
  std::uint64_t offset = 0;
  std::string why;
  const int descriptor = space.device().export_dmabuf(one.range(), offset, why);
  int can_be_had = 0;
  const cuda_functions& cuda = cuda_driver::functions();
  REQUIRE(cuda.device_get_attribute(&can_be_had, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0) == CUDA_SUCCESS);
  if (descriptor < 0) {
    std::cout << "cuda.on_gpu: no dmabuf: " << why << std::endl;
    CHECK_FALSE(why.empty());
    CHECK_MESSAGE(can_be_had == 0, "the driver says that this device has dmabufs: " << why);
  } else {
    CHECK(offset == 0);
    ::close(descriptor);
  }
}
