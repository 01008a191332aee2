#pragma once
/// \file ipc.hpp
/// Exports between processes, the same over the fake driver and over a real one.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tensorhub/memory/cuda.hpp>
#include <vector>

#include "support/child_process.hpp"

namespace ipc {

inline constexpr std::size_t bytes = 3u << 20;
inline constexpr std::size_t offset = 4096 + 64;
inline constexpr auto long_enough = std::chrono::seconds{30};

inline std::vector<std::byte> pattern(std::uint64_t seed) {
  std::mt19937_64 words{seed};
  std::vector<std::byte> out(bytes - offset);
  for (std::byte& each : out) each = static_cast<std::byte>(words());
  return out;
}

/// The exporting process: fills memory of a device, says how it is reached, and stays until it is killed.
/// Asked for a number, it writes that pattern into its memory and answers with the number.
template <typename Driver>
void export_one(int device) {
  const processes::channel line = processes::channel_of_parent();
  tensorhub::basic_cuda_memory<Driver> space{{.device = device}};
  const auto one = space.allocate(bytes);
  const auto write = [&](std::uint64_t seed) {
    const auto given = pattern(seed);
    space.copy(one.data() + offset, given.data(), given.size());
  };
  write(1);
  std::string why;
  const auto described = space.describe(one.data() + offset, bytes - offset);
  const auto out = described.device->export_memory(described, why);
  REQUIRE_MESSAGE(out.has_value(), why);
  line.tell(*out);
  std::uint64_t seed = 0;
  while (line.try_take(seed, std::chrono::minutes{1})) {
    write(seed);
    if (!line.try_tell(seed)) return;
  }
}

/// What lies at a device address, brought to the host by a lane of the device.
template <typename Device>
std::vector<std::byte> fetched(Device& device, const std::byte* from) {
  std::vector<std::byte> out(bytes - offset);
  const auto lane = device.open_lane();
  REQUIRE(lane->wait(lane->copy(out.data(), from, out.size()), long_enough) == tensorhub::lane_state::done);
  return out;
}

/// Reads another process's memory in place, and sees what it writes later.
template <typename Driver>
void read_the_other_process(const std::string& exporter, int reader_device) {
  auto& device = tensorhub::cuda_device<Driver>::at(reader_device);
  const auto other = processes::child_process::of_test_case(exporter);
  const auto out = other.line().take<tensorhub::device_export>();
  CHECK(out.allocation_bytes >= bytes);
  const auto import = device.import_memory(out);
  CHECK(fetched(device, import->data() + out.offset) == pattern(1));
  other.line().tell(std::uint64_t{2});
  REQUIRE(other.line().take<std::uint64_t>() == 2);
  CHECK(fetched(device, import->data() + out.offset) == pattern(2));
}

}  // namespace ipc
