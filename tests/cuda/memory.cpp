/// \file memory.cpp
/// What the memory spaces say of addresses of every kind, over the fake driver.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/transfer/parallel_copy.hpp>
#include <tensorhub/transfer/shard_memory.hpp>
#include <utility>
#include <vector>

#include "fake_scene.hpp"

using namespace fake_scenes;
using fake_cuda::origin;
using tensorhub::copy_run;
using tensorhub::dtype;
using tensorhub::errc;
using tensorhub::error;
using tensorhub::layout;
using tensorhub::memory_kind;
using tensorhub::shard_memory;
using tensorhub::testing::memory_transport;

namespace {

std::string refusal(memory& space, void* data, std::uint64_t bytes) {
  try {
    static_cast<void>(space.describe(data, bytes));
  } catch (const error& e) {
    CHECK(e.code() == errc::invalid_argument);
    return e.sentence();
  }
  return {};
}

}  // namespace

TEST_CASE("cuda memory: an allocation is zero-filled device memory, aligned to a page") {
  const scene here;
  memory space;
  auto one = space.allocate(10'000);
  const auto range = one.range();
  CHECK(range.kind == memory_kind::cuda_device);
  CHECK_FALSE(range.host_accessible());
  CHECK(range.device == &device::at(0));
  CHECK(range.bytes == 10'000);
  CHECK_FALSE(tensorhub::detail::cpu_can_read(range.data, 1));  // else these tests would find no wrong access
  CHECK(tensorhub::detail::cuda_address(range.data) % 4096 == 0);
  CHECK(here.driver.bytes_of(range.data, range.bytes) == std::vector<std::byte>(10'000));
  auto other = std::move(one);
  CHECK(other.data() == range.data);
  other = space.allocate(5);
  CHECK(space.describe(other.data(), 5).data == other.data());
  CHECK_THROWS_AS(static_cast<void>(space.allocate(0)), error);
}

TEST_CASE("cuda memory: the device of an option, else the thread's own") {
  const scene here;
  memory second{{.device = 1}};
  CHECK(second.allocate(64).range().device == &device::at(1));
  memory none{{.device = 2}};
  CHECK_THROWS_AS(static_cast<void>(none.allocate(64)), error);
  const auto& cuda = fake_cuda_driver::functions();
  REQUIRE(cuda.context_push(device::at(1).context()) == CUDA_SUCCESS);
  memory current;
  CHECK(current.allocate(64).range().device == &device::at(1));
  CUcontext popped = nullptr;
  REQUIRE(cuda.context_pop(&popped) == CUDA_SUCCESS);
  CHECK(popped == device::at(1).context());
}

TEST_CASE("cuda memory: a thread without a device takes the one that the process uses") {
  scene here;
  CHECK(&device::current() == &device::at(0));
  CHECK(memory{}.pci_address().empty());
  here.driver.set.devices_in_use = 2;
  CHECK(&device::current() == &device::at(1));
  CHECK(memory{}.pci_address() == "0000:1c:00.0");
  CHECK(memory{{.device = 0}}.pci_address() == "0000:1b:00.0");
}

TEST_CASE("cuda memory: memory beside a tensor is on its device, unless the options name another") {
  const scene here;
  memory space{{.device = 1}};
  const auto tensor = space.allocate(64);
  memory any;
  CHECK(any.allocate_beside(tensor.range(), 64).range().device == &device::at(1));
  memory first{{.device = 0}};
  CHECK(first.allocate_beside(tensor.range(), 64).range().device == &device::at(0));
  std::array<std::byte, 64> host;
  CHECK(any.allocate_beside(any.describe(host.data(), host.size()), 64).range().device == &device::at(0));
}

TEST_CASE("cuda memory: the small tensors are kept together on their own device") {
  const scene here;
  memory_transport transport{{}, {1}};
  memory second{{.device = 1}};
  const auto tensor = second.allocate(64);
  shard_memory<memory_transport, memory> shard{transport};
  shard.add({"small", dtype::u8, {64}}, tensor.data());
  const layout shape = shard.build_layout(4096, {});
  REQUIRE(shape.packed_bytes() > 0);
  shard.register_all(shape);
  CHECK(shard.places().front().device == &device::at(1));
}

TEST_CASE("cuda memory: small tensors in host memory are kept together there, and take nothing of a device") {
  scene here;
  memory_transport transport{{}, {1}};
  const auto pinned = pinned_memory{}.allocate(64);
  std::vector<std::byte> plain(64);
  here.driver.set.free_bytes = 0;
  for (std::byte* const data : {pinned.data(), plain.data()}) {
    shard_memory<memory_transport, memory> shard{transport};
    shard.add({"small", dtype::u8, {64}}, data);
    const layout shape = shard.build_layout(4096, {});
    shard.register_all(shape);
    CHECK(shard.places().front().device == nullptr);
    data[7] = std::byte{9};
    shard.pack();
    CHECK(shard.places().front().data[7] == std::byte{9});
    data[7] = std::byte{0};
    shard.expect();
    shard.unpack();
    CHECK(data[7] == std::byte{9});
  }
}

TEST_CASE("cuda memory: no room is an error that says how much there is") {
  scene here;
  memory space;
  here.driver.set.free_bytes = 1 << 20;
  try {
    static_cast<void>(space.allocate(8 << 20));
    FAIL("allocated what is not there");
  } catch (const error& e) {
    CHECK(e.code() == errc::system_failed);
    CHECK(e.sentence().find("1048576") != std::string::npos);
    CHECK(e.sentence().find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  }
}

TEST_CASE("cuda memory: an allocation that finds no lane to clear it leaves nothing behind") {
  scene here;
  memory space;
  here.driver.set.fail_after = 0;
  CHECK_THROWS_AS(static_cast<void>(space.allocate(4096)), error);  // the device's lane for errands is gone
  here.driver.set.fail_after = UINT64_MAX;
  here.driver.set.free_bytes = 8192;  // less than a new lane needs
  std::vector<std::unique_ptr<tensorhub::device_lane>> every_ring;
  try {
    for (;;) every_ring.push_back(device::at(0).open_lane());
  } catch (const error&) {
  }
  const auto blocks = here.driver.now().blocks;
  CHECK_THROWS_AS(static_cast<void>(space.allocate(4096)), error);
  CHECK(here.driver.now().blocks == blocks);
  every_ring.clear();
  here.driver.set.free_bytes = 1ull << 40;
  CHECK(space.allocate(4096).data() != nullptr);
}

TEST_CASE("cuda memory: every kind of pointer is described as what it is") {
  scene here;
  memory space;
  struct expected {
    origin from;
    memory_kind kind;
    bool host_accessible;
  };
  for (const expected& each : {expected{origin::device, memory_kind::cuda_device, false},
                               expected{origin::pool, memory_kind::cuda_device, false},
                               expected{origin::pinned, memory_kind::cuda_pinned, true},
                               expected{origin::managed, memory_kind::cuda_managed, true}}) {
    for (const int number : {0, 1}) {
      std::byte* const data = here.driver.allocate(each.from, number, 9000);
      const auto range = space.describe(data + 100, 8900);
      CHECK(range.kind == each.kind);
      CHECK(range.host_accessible() == each.host_accessible);
      CHECK(range.device == &device::at(number));
      CHECK(range.data == data + 100);
      CHECK(range.bytes == 8900);
      CHECK(range.backing_fd == -1);
      const auto whole = space.allocation_around(range);
      const bool joined = each.from != origin::pool;  // of which the driver knows addresses only
      CHECK(whole.data == (joined ? data : range.data));
      CHECK(whole.bytes == (joined ? 9000 : range.bytes));
      CHECK(whole.kind == each.kind);
      CHECK(whole.device == range.device);
      CHECK(refusal(space, data + 100, 8901).find("8900 from this address on") != std::string::npos);
      here.driver.free(data);
    }
  }
}

TEST_CASE("cuda memory: host memory is described as host_memory does") {
  const scene here;
  memory space;
  std::vector<std::byte> plain(500);
  const auto range = space.describe(plain.data(), plain.size());
  CHECK(range.kind == memory_kind::host);
  CHECK(range.device == nullptr);
  CHECK(range.backing_fd == -1);
  const tensorhub::host_memory::allocation file{8192};
  CHECK(space.describe(file.data() + 4096, 4096).backing_fd == file.range().backing_fd);
  CHECK(space.describe(file.data() + 4096, 4096).backing_offset == 4096);
  CHECK(space.allocation_around(space.describe(file.data() + 4096, 4096)).data == file.data());
}

TEST_CASE("cuda memory: freed pointers, and those of nobody, are named errors") {
  scene here;
  memory space;
  std::byte* freed = nullptr;
  {
    const auto gone = space.allocate(4096);
    freed = gone.data();
  }
  CHECK(refusal(space, freed, 100).find("was it freed") != std::string::npos);
  CHECK(refusal(space, reinterpret_cast<void*>(std::uintptr_t{4096}), 100).find("another process's") !=
        std::string::npos);
  CHECK(refusal(space, nullptr, 100).find("null") != std::string::npos);
  // Readable where it begins, but not where it ends.
  void* const pages = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(::munmap(static_cast<std::byte*>(pages) + 4096, 4096) == 0);
  CHECK(refusal(space, pages, 8192).find("was it freed") != std::string::npos);
  ::munmap(pages, 4096);
}

TEST_CASE("cuda memory: reserved addresses are memory where something is mapped, and only there") {
  scene here;
  memory space;
  constexpr std::uint64_t unit = 2u << 20;
  std::byte* const data = here.driver.allocate(origin::reserved, 0, 8 * unit);
  for (const std::uint64_t at : {0u, 1u, 3u}) here.driver.map(data + at * unit, unit);
  CHECK(space.describe(data, 2 * unit).kind == memory_kind::cuda_device);
  CHECK(space.describe(data + unit / 2, unit).device == &device::at(0));  // two mappings that touch
  CHECK(space.allocation_around(space.describe(data, unit)).bytes == unit);
  CHECK(refusal(space, data + 2 * unit, 1).find("was it freed") != std::string::npos);
  CHECK(refusal(space, data + unit, unit + 1).find("2097152 from this address on") != std::string::npos);
  CHECK_FALSE(refusal(space, data + unit, 3 * unit).empty());  // over a hole, to memory again
  here.driver.unmap(data);
  CHECK(refusal(space, data, 1).find("was it freed") != std::string::npos);
  CHECK(space.describe(data + unit, unit).bytes == unit);
  // Older drivers do not say where a mapping begins and ends, or not even that there is one.
  here.driver.set.last_attribute = CU_POINTER_ATTRIBUTE_MAPPED;
  CHECK(space.describe(data + unit, 2 * unit).bytes == 2 * unit);
  CHECK_FALSE(refusal(space, data, 1).empty());
  here.driver.set.last_attribute = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
  CHECK(space.describe(data, unit).bytes == unit);
  here.driver.free(data);
}

TEST_CASE("cuda memory: copies between all kinds and devices") {
  scene here;
  memory space;
  constexpr std::size_t bytes = 70'000;
  const auto given = noise(bytes, 1);
  std::vector<std::byte> plain = given;
  std::vector<std::byte> taken(bytes);
  std::byte* const device0 = here.driver.allocate(origin::device, 0, bytes);
  std::byte* const device1 = here.driver.allocate(origin::pool, 1, bytes);
  std::byte* const pinned = here.driver.allocate(origin::pinned, 0, bytes);
  std::byte* const managed = here.driver.allocate(origin::managed, 1, bytes);
  space.copy(device0, plain.data(), bytes);
  const auto peers = here.driver.counted.peer_copies.load();
  space.copy(device1, device0, bytes);  // memory of a pool, which only cuMemcpyPeerAsync brings to a peer
  CHECK(here.driver.counted.peer_copies.load() == peers + 1);
  space.copy(pinned, device1, bytes);
  space.copy(managed, pinned, bytes);
  space.copy(taken.data(), managed, bytes);
  CHECK(space.trouble().empty());
  CHECK(taken == given);
  CHECK(here.driver.bytes_of(device1, bytes) == given);
  const std::array<tensorhub::copy_run, 2> with_nothing{tensorhub::copy_run{},
                                                        tensorhub::copy_run{device0, managed, 10}};
  CHECK(space.copy_all(with_nothing));
  CHECK(space.copy_all(std::span{with_nothing}.first(1)));
  for (std::byte* const each : {device0, device1, pinned, managed}) here.driver.free(each);
  space.copy(taken.data(), device0, bytes);
  CHECK(space.trouble().find("was it freed") != std::string::npos);
}

TEST_CASE("cuda memory: in a batch every run is copied by its own device") {
  scene here;
  memory space;
  std::byte* const one = here.driver.allocate(origin::pool, 0, 5000);
  std::byte* const other = here.driver.allocate(origin::pool, 1, 5000);
  const auto given = noise(3000, 13);
  std::vector<std::byte> taken(1000);
  const auto part = [&](std::size_t at) { return std::vector(&given[at], &given[at] + 1000); };
  const std::array<copy_run, 3> in{copy_run{one, given.data(), 1000},
                                   copy_run{other, given.data() + 1000, 1000},
                                   copy_run{taken.data(), given.data() + 2000, 1000}};
  CHECK(space.copy_all(in));
  CHECK(here.driver.bytes_of(one, 1000) == part(0));
  CHECK(here.driver.bytes_of(other, 1000) == part(1000));
  CHECK(taken == part(2000));
  const std::array<copy_run, 3> across{copy_run{one + 2000, other, 1000}, copy_run{other + 2000, one, 1000},
                                       copy_run{taken.data(), other, 1000}};
  CHECK(space.copy_all(across));
  CHECK(here.driver.bytes_of(one + 2000, 1000) == part(1000));
  CHECK(here.driver.bytes_of(other + 2000, 1000) == part(0));
  CHECK(taken == part(1000));
  CHECK(space.trouble().empty());
  here.driver.free(one);
  here.driver.free(other);
}

TEST_CASE("cuda memory: a copy that the device fails says so, and the next one works") {
  scene here;
  memory space;
  const auto one = space.allocate(1000);
  const auto given = noise(1000, 2);
  here.driver.set.fail_after = 0;
  space.copy(one.data(), given.data(), 1000);
  CHECK(space.trouble().find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos);
  here.driver.set.fail_after = UINT64_MAX;
  const auto other = space.allocate(1000);
  const copy_run run{other.data(), one.data(), 1000};
  here.driver.set.fail_after = 0;
  CHECK_THROWS_WITH_AS(tensorhub::parallel_copy<memory>(std::span{&run, 1}, 1),
                       doctest::Contains("CUDA_ERROR_LAUNCH_FAILED"), error);
  here.driver.set.fail_after = UINT64_MAX;
  memory again;
  again.copy(one.data(), given.data(), 1000);
  CHECK(again.trouble().empty());
  CHECK(here.driver.bytes_of(one.data(), 1000) == given);
}

TEST_CASE("cuda pinned memory: the CPU's and the device's, in a file that can be served") {
  const scene here;
  pinned_memory space;
  auto one = space.allocate(20'000);
  const auto range = one.range();
  CHECK(range.kind == memory_kind::cuda_pinned);
  CHECK(range.host_accessible());
  CHECK(range.device == &device::at(0));
  CHECK(range.backing_fd >= 0);
  CHECK(std::all_of(range.data, range.data + range.bytes, [](std::byte b) { return b == std::byte{0}; }));
  const auto described = space.describe(range.data + 4096, 100);
  CHECK(described.kind == memory_kind::cuda_pinned);
  CHECK(described.backing_fd == range.backing_fd);
  CHECK(described.backing_offset == 4096);
  CHECK(described.device == range.device);
  CHECK(space.allocation_around(described).data == range.data);
  memory devices;
  const auto far = devices.allocate(20'000);
  const auto given = noise(20'000, 3);
  std::copy(given.begin(), given.end(), range.data);
  devices.copy(far.data(), range.data, range.bytes);
  CHECK(here.driver.bytes_of(far.data(), 20'000) == given);
  CHECK_THROWS_AS(static_cast<void>(space.describe(far.data(), 100)), error);
  auto other = std::move(one);
  other = space.allocate(100);
}

TEST_CASE(
    "cuda pinned memory: plain host memory where the driver pins no pages, and other failures are errors") {
  scene here;
  pinned_memory space;
  memory devices;
  const auto far = devices.allocate(20'000);
  const auto given = noise(20'000, 4);
  for (const CUresult refusal : {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED}) {
    here.driver.set.registering = refusal;
    auto one = space.allocate(20'000);
    const auto range = one.range();
    CHECK(range.kind == memory_kind::host);
    CHECK(range.device == nullptr);
    CHECK(range.backing_fd >= 0);
    CHECK(space.describe(range.data, range.bytes).kind == memory_kind::host);
    std::copy(given.begin(), given.end(), range.data);
    devices.copy(far.data(), range.data, range.bytes);
    CHECK(here.driver.bytes_of(far.data(), 20'000) == given);
    here.driver.set.registering = CUDA_SUCCESS;
    auto other = space.allocate(100);
    std::swap(one, other);
    CHECK(one.range().kind == memory_kind::cuda_pinned);
    CHECK(other.range().kind == memory_kind::host);
  }
  here.driver.set.registering = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK_THROWS_WITH_AS(static_cast<void>(space.allocate(100)), doctest::Contains("CUDA_ERROR_OUT_OF_MEMORY"),
                       error);
}
