#pragma once
/// \file fake_scene.hpp
/// The component over the fake driver, and what every test of it begins and ends with.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tensorhub/memory/cuda.hpp>
#include <vector>

#include "fake_cuda_driver.hpp"

namespace fake_scenes {

using device = tensorhub::cuda_device<fake_cuda_driver>;
using memory = tensorhub::basic_cuda_memory<fake_cuda_driver>;
using pinned_memory = tensorhub::basic_cuda_pinned_memory<fake_cuda_driver>;

inline std::vector<std::byte> noise(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 words{seed};
  std::vector<std::byte> out(bytes);
  for (std::byte& each : out) each = static_cast<std::byte>(words());
  return out;
}

/// At its end everything that the test made is gone, and every context that was pushed was popped. What the
/// devices keep (their lane for errands, rings) is there from the start.
struct scene {
  fake_cuda::driver& driver = fake_cuda::driver::instance();
  fake_cuda::inventory before{};

  scene() {
    for (int i = 0; i < device::count(); ++i) {
      // Rings: one for the errands, four for a test's own lanes.
      std::string why;
      std::vector<std::unique_ptr<tensorhub::device_lane>> lanes;
      for (int j = 0; j < 4; ++j) lanes.push_back(device::at(i).open_lane());
      REQUIRE(device::at(i).with_lane([](auto& errands) { return errands.copy(nullptr, nullptr, 0); }, why));
    }
    before = driver.now();
  }
  ~scene() {
    driver.set.held = false;
    driver.set.held_stream = 0;
    driver.set.delay_ns = 0;
    driver.set.fail_after = UINT64_MAX;
    driver.set.refuse_copies = false;
    driver.set.capturing = false;
    driver.set.capturing_globally = false;
    driver.set.registering = CUDA_SUCCESS;
    driver.set.ipc_held = false;
    driver.set.older_mapping = false;
    driver.set.dmabufs = false;
    driver.set.gpu_direct.ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES;
    driver.set.gpu_direct.flush_options = 0;
    driver.set.gpu_direct.flush_fails = false;
    driver.set.refuse_events = false;
    driver.set.devices_in_use = 0;
    driver.set.free_bytes = 1ull << 40;
    driver.set.last_attribute = CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
    CHECK(driver.now().blocks == before.blocks);
    CHECK(driver.now().streams == before.streams);
    CHECK(driver.now().events == before.events);
    CHECK(driver.counted.context_faults == 0);
    CHECK(driver.counted.broken_captures == 0);
    CHECK(driver.counted.unmapped_touches.load() == 0);
    CUcontext current = nullptr;
    CHECK(fake_cuda_driver::functions().context_get_current(&current) == CUDA_SUCCESS);
    CHECK(current == nullptr);
  }
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;
};

}  // namespace fake_scenes
