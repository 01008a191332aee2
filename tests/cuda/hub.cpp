/// \file hub.cpp
/// Publish and update with weights in CUDA memory, over the fake driver: both transports, streams, processes.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/testing/memory_transport.hpp>
#include <vector>

#include "fake_scene.hpp"
#include "hub_scene.hpp"
#include "read_all.hpp"

using namespace std::chrono_literals;
using tensorhub::region_access;
using tensorhub::transports::device_memory;
using tensorhub::transports::same_host;
using tensorhub::transports::same_host_options;
using tensorhub::transports::tcp;

namespace {

struct adapter_options : tensorhub::testing::memory_transport_options {
  std::string near_device{};
  bool operator==(const adapter_options&) const = default;
};

/// Counts how often each address is registered, and knows what it is to be near.
struct counting_transport : tensorhub::testing::memory_transport {
  using options = adapter_options;
  counting_transport(options chosen, tensorhub::incarnation self) : memory_transport{chosen, self} {
    near_device = chosen.near_device;
  }
  static inline std::string near_device{};
  static inline std::mutex mutex{};
  static inline std::map<const std::byte*, int> registered{};  ///< guarded by mutex: lanes register, too
  [[nodiscard]] static int times_of(const std::byte* data) {
    const std::lock_guard lock{mutex};
    return registered[data];
  }
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const tensorhub::memory_range> ranges,
                                                           region_access access) {
    {
      const std::lock_guard lock{mutex};
      for (const auto& each : ranges) ++registered[each.data];
    }
    return memory_transport::register_memory(ranges, access);
  }
};

}  // namespace

TEST_CASE("process: fake rollout" * doctest::skip()) {
  hubs::be_a_rollout<fake_cuda_driver>();
}

TEST_CASE("process: fake rollout on a device that the trainer cannot see" * doctest::skip()) {
  fake_cuda::driver::instance().set.first_device = 2;
  fake_cuda::driver::instance().set.devices = 1;
  hubs::be_a_rollout<fake_cuda_driver>();
}

TEST_CASE("cuda hub: versions travel over tcp, from device to device") {
  const auto& counted = fake_cuda::driver::instance().counted;
  const auto launches = counted.launches.load();
  hubs::versions_travel<fake_cuda_driver, hubs::hub<fake_cuda_driver, tcp>>("tcp");
  CHECK(counted.launches.load() > launches);  // packing and digests are the device's work
  CHECK(counted.context_faults == 0);
}

TEST_CASE("cuda hub: versions travel within the process and between processes by IPC") {
  hubs::versions_travel<fake_cuda_driver, hubs::near_hub<fake_cuda_driver>>("same_host");
  hubs::two_processes<fake_cuda_driver>("process: fake rollout");
  CHECK(fake_cuda::driver::instance().counted.context_faults == 0);
}

TEST_CASE("cuda hub: a source that is killed while its memory is being copied is replaced") {
  hubs::a_killed_source_is_replaced<fake_cuda_driver>("process: fake rollout");
  CHECK(fake_cuda::driver::instance().counted.context_faults == 0);
}

TEST_CASE("cuda hub: allocations that lie beside each other are mapped, each for itself") {
  const fake_scenes::scene here;
  hubs::neighbours_are_mapped<fake_cuda_driver>();
}

TEST_CASE("cuda hub: IPC reaches processes whose devices the other one cannot see") {
  hubs::two_processes<fake_cuda_driver>("process: fake rollout on a device that the trainer cannot see");
}

TEST_CASE("cuda hub: no call ends a graph capture of the user") {
  auto& machine = fake_cuda::driver::instance();
  machine.set.capturing_globally = true;
  hubs::versions_travel<fake_cuda_driver, hubs::hub<fake_cuda_driver, tcp>>("tcp");
  hubs::versions_travel<fake_cuda_driver, hubs::near_hub<fake_cuda_driver>>("same_host");
  hubs::two_processes<fake_cuda_driver>("process: fake rollout");
  machine.set.capturing_globally = false;
  CHECK(machine.counted.broken_captures == 0);
  CHECK(machine.counted.context_faults == 0);
}

TEST_CASE("cuda hub: staged pieces lie in pinned pages, at the source and at the reader") {
  const fake_scenes::scene here;
  constexpr std::uint64_t bytes = 20u << 20;
  const auto given = fake_scenes::noise(bytes, 6);
  fake_scenes::memory space;
  const auto from = space.allocate(bytes);
  const auto to = space.allocate(bytes);
  here.driver.fill(from.data(), given);
  const auto pageable = here.driver.counted.pageable_copies.load();
  same_host_options options;
  options.device = device_memory::stage;
  constexpr tensorhub::incarnation source_id{21};
  same_host source{options, source_id};
  same_host reader{options, tensorhub::incarnation{22}};
  const std::array ranges{from.range(), to.range()};
  const auto regions = source.register_memory(std::span{ranges}.first(1), region_access::remote_read);
  const auto into = reader.register_memory(std::span{ranges}.last(1), region_access::local_write);
  const auto remote = source.describe(regions.front());
  auto queue = reader.make_queue(4);
  auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
  bench::read_all<same_host>(queue, endpoint, into.front(), remote, 1u << 20, 4);
  CHECK(here.driver.bytes_of(to.data(), bytes) == given);
  CHECK(endpoint.why().find("staged") != std::string::npos);
  CHECK(here.driver.counted.pageable_copies.load() == pageable);
}

TEST_CASE(
    "cuda hub: a source's file is pinned once, for all connections, when an eighth of it has been read") {
  const fake_scenes::scene here;
  constexpr std::uint64_t bytes = 6u << 20;
  const auto given = fake_scenes::noise(bytes, 7);
  const tensorhub::host_memory::allocation from{bytes};
  std::copy(given.begin(), given.end(), from.data());
  fake_scenes::memory space;
  const auto to = space.allocate(bytes);
  const std::array ranges{from.range(), to.range()};
  constexpr tensorhub::incarnation source_id{23};
  same_host source{{}, source_id};
  same_host reader{{}, tensorhub::incarnation{24}};
  const auto regions = source.register_memory(std::span{ranges}.first(1), region_access::remote_read);
  const auto into = reader.register_memory(std::span{ranges}.last(1), region_access::local_write);
  const auto remote = source.describe(regions.front());
  auto queue = reader.make_queue(4);
  auto one = reader.connect(queue, source.address(), source_id, 5s);
  auto other = reader.connect(queue, source.address(), source_id, 5s);
  const auto blocks = here.driver.now().blocks;
  for (const std::uint64_t pageable : {1u, 0u, 0u}) {  // of eight chunks
    const auto before = here.driver.counted.pageable_copies.load();
    here.driver.fill(to.data(), std::vector<std::byte>(bytes));
    bench::read_all<same_host>(queue, pageable == 1 ? one : other, into.front(), remote, bytes / 8, 1);
    CHECK(here.driver.bytes_of(to.data(), bytes) == given);
    CHECK(here.driver.counted.pageable_copies.load() == before + pageable);
    CHECK(here.driver.now().blocks == blocks + 1);
  }
}

TEST_CASE("cuda hub: what the user's stream holds comes before a version") {
  using hub = hubs::hub<fake_cuda_driver, tcp>;
  auto& machine = fake_cuda::driver::instance();
  const auto& cuda = fake_cuda_driver::functions();
  hub::reference_server server;
  hubs::member<fake_cuda_driver, hub::publisher> trainer{hubs::who(server.address(), "trainer")};
  hubs::member<fake_cuda_driver, hub::subscriber> rollout{hubs::who(server.address(), "rollout")};
  trainer.memory.fill(1);
  CUstream stream = nullptr;
  const auto bytes = fake_scenes::noise(decltype(trainer.memory)::large_bytes, 77);
  {
    const tensorhub::detail::cuda_scope scope{cuda, fake_scenes::device::at(0).context()};
    REQUIRE(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    machine.set.held_stream = machine.counted.streams.load();
    REQUIRE(cuda.memory_copy_async(tensorhub::detail::cuda_address(trainer.memory.large.data()),
                                   tensorhub::detail::cuda_address(bytes.data()), bytes.size(),
                                   stream) == CUDA_SUCCESS);
  }
  try {
    trainer.worker.publish(1, stream, 50ms);
    FAIL("published what the stream has yet to write");
  } catch (const tensorhub::error& e) {
    CHECK(e.code() == tensorhub::errc::timed_out);
  }
  machine.set.held_stream = 0;
  trainer.worker.publish(1, stream);
  CHECK(rollout.worker.update(tensorhub::latest, stream).version == 1);
  CHECK(machine.bytes_of(rollout.memory.large.data(), bytes.size()) == bytes);
  const tensorhub::detail::cuda_scope scope{cuda, fake_scenes::device::at(0).context()};
  CHECK(cuda.stream_destroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("cuda hub: memory that was mapped anew at its addresses is registered anew") {
  using hub = hubs::hub<fake_cuda_driver, counting_transport>;
  const fake_scenes::scene here;
  constexpr std::uint64_t half = 2u << 20;
  hub::reference_server server;
  hub::publisher trainer{hubs::who(server.address(), "trainer")};
  hub::subscriber rollout{hubs::who(server.address(), "rollout")};
  std::array<std::byte*, 2> weights{};
  for (std::byte*& each : weights) {
    each = here.driver.allocate(fake_cuda::origin::reserved, 0, 2 * half);
    here.driver.map(each, half);
    here.driver.map(each + half, half);
  }
  trainer.add("w", weights[0], {2 * half}, tensorhub::dtype::u8);
  rollout.add("w", weights[1], {2 * half}, tensorhub::dtype::u8);
  const auto travels = [&](std::uint64_t version, int registered) {
    const auto bytes = fake_scenes::noise(2 * half, version);
    here.driver.fill(weights[0], bytes);
    trainer.publish(version, tensorhub::all_done);
    CHECK(rollout.update(tensorhub::exactly(version), tensorhub::all_done).version == version);
    CHECK(here.driver.bytes_of(weights[1], 2 * half) == bytes);
    for (const std::byte* const each : weights) CHECK(counting_transport::times_of(each) == registered);
    trainer.unpublish();
    rollout.unpublish();
  };
  travels(1, 1);
  travels(2, 1);
  for (std::byte* const each : weights) here.driver.unmap(each + half);
  try {
    trainer.publish(3, tensorhub::all_done);
    FAIL("published what is not there");
  } catch (const tensorhub::error& e) {
    CHECK(e.code() == tensorhub::errc::invalid_argument);
  }
  for (std::byte* const each : weights) here.driver.map(each + half, half);
  travels(3, 2);
  travels(4, 2);
  for (std::byte* const each : weights) here.driver.free(each);
}

TEST_CASE("cuda hub: an adapter is chosen near the GPU that is current where the worker is made") {
  using hub = hubs::hub<fake_cuda_driver, counting_transport>;
  const fake_scenes::scene here;
  hub::reference_server server;
  {
    const tensorhub::detail::cuda_scope scope{fake_cuda_driver::functions(),
                                              fake_scenes::device::at(1).context()};
    const hub::publisher trainer{hubs::who(server.address(), "trainer")};
    CHECK(counting_transport::near_device == "0000:1c:00.0");
  }
  adapter_options given;
  given.near_device = "0000:aa:00.0";
  const hub::publisher other{hubs::who(server.address(), "other"), given};
  CHECK(counting_transport::near_device == "0000:aa:00.0");
}
