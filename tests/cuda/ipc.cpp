/// \file ipc.cpp
/// CUDA IPC and dmabufs over the fake driver.

#include "ipc.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "fake_scene.hpp"

using namespace fake_scenes;
using fake_cuda::origin;
using tensorhub::device_export;
using tensorhub::error;

TEST_CASE("process: fake exporter of device 0" * doctest::skip()) {
  ipc::export_one<fake_cuda_driver>(0);
}
TEST_CASE("process: fake exporter of device 1" * doctest::skip()) {
  ipc::export_one<fake_cuda_driver>(1);
}

TEST_CASE("process: fake exporter of a hidden device" * doctest::skip()) {
  fake_cuda::driver::instance().set.first_device = 2;  // the reader sees the devices 0 and 1
  ipc::export_one<fake_cuda_driver>(0);
}

TEST_CASE("cuda ipc: memory of a device that the reader cannot see is read where it lies") {
  const scene here;
  ipc::read_the_other_process<fake_cuda_driver>("process: fake exporter of a hidden device", 0);
}

TEST_CASE("cuda ipc: memory of another process is read where it lies, on the same device and on another") {
  const scene here;
  ipc::read_the_other_process<fake_cuda_driver>("process: fake exporter of device 0", 0);
  ipc::read_the_other_process<fake_cuda_driver>("process: fake exporter of device 1", 0);
}

TEST_CASE("cuda ipc: what was imported from another device is copied to memory of a pool") {
  scene here;
  const auto other = processes::child_process::of_test_case("process: fake exporter of device 1");
  const auto out = other.line().take<device_export>();
  const auto import = device::at(0).import_memory(out);
  const auto given = ipc::pattern(1);
  for (const int number : {0, 1}) {
    std::byte* const pool = here.driver.allocate(origin::pool, number, given.size());
    memory space;
    space.copy(pool, import->data() + out.offset, given.size());
    CHECK(space.trouble().empty());
    CHECK(here.driver.bytes_of(pool, given.size()) == given);
    here.driver.free(pool);
  }
}

TEST_CASE("cuda ipc: an allocation is mapped once, however often it is imported") {
  scene here;
  const auto other = processes::child_process::of_test_case("process: fake exporter of device 0");
  const auto out = other.line().take<device_export>();
  const auto mapped = here.driver.counted.imports.load();
  auto first = device::at(0).import_memory(out);
  const auto second = device::at(0).import_memory(out);
  CHECK(first->data() == second->data());
  CHECK(here.driver.counted.imports.load() == mapped + 1);
  first.reset();
  CHECK(ipc::fetched(device::at(0), second->data() + out.offset) == ipc::pattern(1));
  // Each device of the reader's has its own mapping.
  const auto elsewhere = device::at(1).import_memory(out);
  CHECK(here.driver.counted.imports.load() == mapped + 2);
  device_export larger = out;
  larger.allocation_bytes *= 2;
  CHECK_THROWS_AS(static_cast<void>(device::at(0).import_memory(larger)), error);
}

TEST_CASE("cuda ipc: nothing is imported while an older mapping of the address is in use") {
  scene here;
  const auto other = processes::child_process::of_test_case("process: fake exporter of device 0");
  const auto out = other.line().take<device_export>();
  here.driver.set.older_mapping = true;
  CHECK(device::at(0).import_memory(out) == nullptr);
  here.driver.set.older_mapping = false;
  const auto import = device::at(0).import_memory(out);
  CHECK(ipc::fetched(device::at(0), import->data() + out.offset) == ipc::pattern(1));
}

TEST_CASE("cuda ipc: lanes do not wait while a handle is opened or closed") {
  scene here;
  memory space;
  const auto one = space.allocate(1000);
  std::byte* const pool = here.driver.allocate(origin::pool, 1, 1000);
  const auto other = processes::child_process::of_test_case("process: fake exporter of device 0");
  const auto out = other.line().take<device_export>();
  const auto lane = device::at(0).open_lane();
  const auto copies_while = [&](auto&& work) {
    const auto calls = here.driver.counted.ipc_calls.load();
    here.driver.set.ipc_held = true;
    const std::jthread waits{work};
    while (here.driver.counted.ipc_calls.load() == calls) std::this_thread::yield();
    auto copied = std::async(std::launch::async, [&] {
      return lane->wait(lane->copy(one.data(), pool, 1000), ipc::long_enough) == tensorhub::lane_state::done;
    });
    const bool in_time = copied.wait_for(std::chrono::seconds{5}) == std::future_status::ready;
    here.driver.set.ipc_held = false;
    return copied.get() && in_time;
  };
  std::unique_ptr<tensorhub::device_import> import;
  CHECK(copies_while([&] { import = device::at(0).import_memory(out); }));
  CHECK(copies_while([&] { import.reset(); }));
  here.driver.free(pool);
}

TEST_CASE("cuda ipc: what is gone or too large is an error") {
  scene here;
  auto other = processes::child_process::of_test_case("process: fake exporter of device 0");
  const auto out = other.line().take<device_export>();
  const auto trouble_of = [](const device_export& from) -> std::string {
    try {
      static_cast<void>(device::at(0).import_memory(from));
    } catch (const error& e) {
      CHECK(e.code() == tensorhub::errc::system_failed);
      return e.sentence();
    }
    return {};
  };
  device_export larger = out;
  larger.allocation_bytes *= 2;
  CHECK(trouble_of(larger).find("is not what it was") != std::string::npos);
  CHECK(trouble_of(out).empty());
  other.end();
  CHECK(trouble_of(out).find("has ended or freed it") != std::string::npos);
  CHECK(trouble_of(out).find("hidden") == std::string::npos);
  device_export hidden = out;
  hidden.device_id.fill(std::byte{7});
  CHECK(trouble_of(hidden).find("its device is hidden from this process") != std::string::npos);
}

TEST_CASE("cuda ipc: what cannot be exported says why") {
  scene here;
  memory space;
  std::string why;
  const auto refused = [&](const tensorhub::memory_range& range) {
    why.clear();
    return !device::at(0).export_memory(range, why).has_value() && !why.empty();
  };
  std::byte* const pool = here.driver.allocate(origin::pool, 0, 5000);
  CHECK(refused(space.describe(pool, 5000)));
  CHECK(why.find("cudaMallocAsync") != std::string::npos);
  CHECK(why.find("expandable_segments:False") != std::string::npos);
  std::byte* const pinned = here.driver.allocate(origin::pinned, 0, 5000);
  CHECK(refused(space.describe(pinned, 5000)));
  here.driver.free(pinned);
  const auto one = space.allocate(5000);
  auto beyond = one.range();
  beyond.bytes = 1 << 20;
  CHECK(refused(beyond));
  CHECK(why.find("beyond its allocation") != std::string::npos);
  const auto gone = space.describe(pool, 5000);
  here.driver.free(pool);
  CHECK(refused(gone));
  CHECK(why.find("was it freed") != std::string::npos);
  CHECK_FALSE(refused(one.range()));
}

TEST_CASE("cuda context: a library that calls the driver by itself finds the device's, and no capture ends") {
  scene here;
  const auto& cuda = fake_cuda_driver::functions();
  here.driver.set.capturing_globally = true;
  CUcontext found = nullptr;
  void* pages = nullptr;
  device::at(1).in_context([&] {
    CHECK(cuda.context_get_current(&found) == CUDA_SUCCESS);
    CHECK(cuda.host_allocate(&pages, 4096, 0) == CUDA_SUCCESS);
    CHECK(cuda.host_free(pages) == CUDA_SUCCESS);
  });
  CHECK(found == device::at(1).context());
  CHECK(cuda.context_get_current(&found) == CUDA_SUCCESS);
  CHECK(found == nullptr);
}

TEST_CASE("cuda dmabuf: whole pages around the range, where the driver has them") {
  scene here;
  memory space;
  const auto one = space.allocate(20'000);
  std::uint64_t where = 0;
  std::string why;
  CHECK(device::at(0).export_dmabuf(one.range(), where, why) == -1);
  CHECK(why.find("gives no dmabufs") != std::string::npos);
  here.driver.set.dmabufs = true;
  auto part = one.range();
  part.data += 5000;
  part.bytes = 7000;
  const int descriptor = device::at(0).export_dmabuf(part, where, why);
  CHECK(descriptor >= 0);
  CHECK(where == 5000 - 4096);
  ::close(descriptor);
}

TEST_CASE("cuda dmabuf: of pools and mappings too; of two allocations at once, and where nothing is, none") {
  scene here;
  memory space;
  here.driver.set.dmabufs = true;
  std::uint64_t where = 0;
  std::string why;
  constexpr std::uint64_t unit = 2u << 20;
  const auto is_given = [&](const tensorhub::memory_range& range) {
    const int descriptor = device::at(0).export_dmabuf(range, where, why);
    if (descriptor >= 0) ::close(descriptor);
    return descriptor >= 0;
  };
  std::byte* const one = here.driver.allocate(origin::device, 0, unit);
  std::byte* const next = here.driver.allocate(origin::device, 0, unit);
  std::byte* const pool = here.driver.allocate(origin::pool, 0, unit);
  std::byte* const reserved = here.driver.allocate(origin::reserved, 0, 2 * unit);
  here.driver.map(reserved, unit);
  REQUIRE(one + unit == next);
  for (std::byte* const each : {one, next, pool, reserved}) CHECK(is_given(space.describe(each, unit)));
  for (std::byte* const each : {one, reserved}) {
    auto both = space.describe(each, unit);
    both.bytes = 2 * unit;
    CHECK_FALSE(is_given(both));
    CHECK(why.find("cuMemGetHandleForAddressRange") != std::string::npos);
  }
  for (std::byte* const each : {one, next, pool, reserved}) here.driver.free(each);
}

TEST_CASE("cuda rdma: what has arrived is flushed where not all devices see it, if the host can do that") {
  scene here;
  auto& set = here.driver.set.gpu_direct;
  const auto flushes = [&] {
    const auto before = here.driver.counted.flushes.load();
    CHECK(device::at(1).flush_arrived() != set.flush_fails);
    return here.driver.counted.flushes.load() - before;
  };
  set.flush_options =
      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST | CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS;
  CHECK(flushes() == 0);
  for (const int some_only :
       {CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER}) {
    set.ordering = some_only;
    CHECK(flushes() == 1);
  }
  set.flush_fails = true;
  CHECK(flushes() == 0);
  set.flush_fails = false;
  set.flush_options = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS;
  CHECK(flushes() == 0);
}
