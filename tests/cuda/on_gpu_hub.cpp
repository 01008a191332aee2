/// \file on_gpu_hub.cpp
/// Publish and update with weights on a real device; see on_gpu.cpp.

#include <doctest/doctest.h>

#include "gpu.hpp"
#include "hub_scene.hpp"

using tensorhub::cuda_driver;

TEST_CASE("process: rollout on the gpu" * doctest::skip()) {
  hubs::be_a_rollout<cuda_driver>();
}

TEST_CASE("gpu: versions travel over tcp, from device to device") {
  if (!gpu::is_here("hub over tcp")) return;
  hubs::versions_travel<cuda_driver, hubs::hub<cuda_driver, tensorhub::transports::tcp>>("tcp");
}

TEST_CASE("gpu: versions travel within the process and between processes by IPC") {
  if (!gpu::is_here("hub over same_host")) return;
  hubs::versions_travel<cuda_driver, hubs::near_hub<cuda_driver>>("same_host");
  hubs::two_processes<cuda_driver>("process: rollout on the gpu");
}

TEST_CASE("gpu: a source that is killed while its memory is being copied is replaced") {
  if (!gpu::is_here("a killed source")) return;
  for (int round = 0; round < 5; ++round)
    hubs::a_killed_source_is_replaced<cuda_driver>("process: rollout on the gpu");
}

TEST_CASE("gpu: allocations that lie beside each other are mapped, each for itself") {
  if (!gpu::is_here("neighbouring allocations")) return;
  hubs::neighbours_are_mapped<cuda_driver>();
}
