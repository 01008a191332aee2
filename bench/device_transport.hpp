#pragma once
/// \file device_transport.hpp
/// A transport between device memory of two processes against the same transport between host memory, in
/// turns of one run. For any memory space: tcp_device.cpp has the fake device, so that it runs everywhere.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tensorhub/concepts/memory_space.hpp>
#include <tensorhub/concepts/transport.hpp>
#include <tensorhub/memory/host.hpp>
#include <vector>

#include "harness.hpp"
#include "read_all.hpp"
#include "region_text.hpp"
#include "support/child_process.hpp"

namespace bench {

/// What is compared.
struct device_turn {
  const char* name;
  bool source_on_device;
  bool target_on_device;
};
inline constexpr std::array<device_turn, 4> device_turns{{{"host to host", false, false},
                                                          {"device to device", true, true},
                                                          {"device to host", true, false},
                                                          {"host to device", false, true}}};

/// The other process: one region of the host, one of the device, with the same bytes. Nothing of the device
/// may have been touched before the fork.
template <tensorhub::transport T, tensorhub::memory_space Memory>
void serve_device(processes::channel& line, std::uint64_t bytes, tensorhub::incarnation self) {
  Memory space;
  const tensorhub::host_memory::allocation on_host{bytes};
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) std::memcpy(on_host.data() + i, &i, 8);
  const auto on_device = space.allocate(bytes);
  space.copy(on_device.range().data, on_host.data(), bytes);
  T through{{}, self};
  const std::array ranges{on_host.range(), on_device.range()};
  const auto regions = through.register_memory(ranges, tensorhub::region_access::remote_read);
  std::ostringstream facts;
  facts << through.address().text << " " << to_text(through.describe(regions[0])) << " "
        << to_text(through.describe(regions[1]));
  line.say(facts.str());
  for (;;) {
    static_cast<void>(line.hear());
    line.say(std::to_string(cpu_seconds()));
  }
}

/// `device`: what to call it. `goal`: the least ratio of device-to-device to host-to-host; 0: the figures of
/// this device say nothing about speed.
template <tensorhub::transport T, tensorhub::memory_space Memory>
void compare_device(const arguments& given, const std::string& device, double goal) {
  constexpr tensorhub::incarnation source_id{41};
  constexpr tensorhub::incarnation reader_id{42};
  constexpr std::uint64_t chunk_bytes = 8u << 20;
  constexpr std::size_t depth = 4;
  const std::uint64_t bytes = given.smoke ? 32u << 20 : 512u << 20;
  const processes::child_process source{
      [&](processes::channel& line) { serve_device<T, Memory>(line, bytes, source_id); }};
  std::istringstream facts{source.line().hear()};
  tensorhub::transport_address address;
  facts >> address.text;
  const std::array remote{from_text(facts), from_text(facts)};

  Memory space;
  const tensorhub::host_memory::allocation on_host{bytes};
  std::memset(on_host.data(), 0, bytes);
  const auto on_device = space.allocate(bytes);
  T through{{}, reader_id};
  const std::array ranges{on_host.range(), on_device.range()};
  const auto into = through.register_memory(ranges, tensorhub::region_access::local_write);
  auto queue = through.make_queue(16);
  auto endpoint = through.connect(queue, address, source_id, std::chrono::seconds{5});

  comparison rivals{given, std::string{T::name} + " between host and device memory: " + device,
                    "each turn moves " + std::to_string(bytes >> 20) +
                        " MiB in 8 MiB chunks, 4 asked for ahead, from another process over loopback, one "
                        "lane; 1 warming round, then 9, order rotates; medians; CPU seconds per GB by "
                        "getrusage of each process"};
  for (const device_turn& turn : device_turns) {
    rivals.add(turn.name, [&] {
      return timed(source, bytes, [&] {
        read_all<T>(queue, endpoint, into[turn.target_on_device ? 1 : 0],
                    remote[turn.source_on_device ? 1 : 0], chunk_bytes, depth);
      });
    });
  }
  rivals.run(given.smoke ? 1 : 9);
  rivals.print({"GB/s", "source cpu s/GB", "reader cpu s/GB"});
  const ratio_of_rounds ratio = rivals.ratio("device to device", {"host to host"}, "GB/s", true);
  if (goal > 0) {
    rivals.goal("device to device / host to host", ratio, goal);
  } else {
    std::printf("device to device / host to host: %.3f (no goal: this device is a thread that copies)\n",
                ratio.middle);
  }

  std::vector<std::byte> arrived(bytes);
  space.copy(arrived.data(), on_device.range().data, bytes);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8)
    wrong += std::memcmp(arrived.data() + i, &i, 8) != 0 || std::memcmp(on_host.data() + i, &i, 8) != 0;
  if (wrong != 0) throw std::runtime_error("wrong bytes arrived");
  rivals.write_json(given.json_path);
}

}  // namespace bench
