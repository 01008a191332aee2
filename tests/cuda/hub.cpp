/// \file hub.cpp
/// Publish and update with weights in CUDA memory, over the fake driver: both transports, streams, processes.

#include <doctest/doctest.h>

#include <chrono>

#include "fake_scene.hpp"
#include "hub_scene.hpp"

using namespace std::chrono_literals;
using tensorhub::transports::tcp;

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
