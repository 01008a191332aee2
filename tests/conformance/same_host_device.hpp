#pragma once
/// \file same_host_device.hpp
/// What the tests of device memory over the same-host transport are made of: memory of several kinds, a
/// source in another process, a reader.

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <thread>
#include <vector>

#include "gated_device.hpp"
#include "source_process.hpp"

namespace same_host_device {

using namespace std::chrono_literals;
using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::errc;
using tensorhub::incarnation;
using tensorhub::region_access;
using tensorhub::testing::fake_device;
using tensorhub::testing::fake_device_memory;
using tensorhub::transports::same_host;

inline constexpr std::uint64_t region_bytes = 20u << 20;  // several pieces, the last one a short one
inline constexpr std::uint64_t regions_in_allocation = 2;
inline constexpr incarnation source_id{41};
inline constexpr incarnation reader_id{42};
inline constexpr incarnation renamed_id{43};

using processes::channel;
using processes::child_process;
using source_processes::counts;

[[nodiscard]] inline std::vector<std::byte> pattern(std::uint64_t seed) {
  std::vector<std::byte> out(region_bytes);
  for (std::uint64_t i = 0; i * 8 < region_bytes; ++i) {
    const std::uint64_t word = (i + 1 + seed * region_bytes) * 0x9e3779b97f4a7c15u;
    std::memcpy(out.data() + i * 8, &word, 8);
  }
  return out;
}

/// The device as every test finds it.
struct calm_device {
  calm_device() { reset(); }
  ~calm_device() { reset(); }
  static void reset() {
    auto& set = fake_device::instance().set;
    set.delay_ns = 0;
    set.fail_after = UINT64_MAX;
    set.exports = true;
    set.older_mapping = false;
  }
};

enum class kind_of_memory { device, host_file, host_plain };

/// Memory of a kind: pattern 0, 1, ... one region after the other.
class some_memory {
 public:
  explicit some_memory(kind_of_memory kind, std::uint64_t regions = 1) {
    const std::uint64_t bytes = regions * region_bytes;
    if (kind == kind_of_memory::device) device_.emplace(bytes);
    if (kind == kind_of_memory::host_file) file_.emplace(bytes);
    if (kind == kind_of_memory::host_plain) plain_.resize(bytes);
  }
  [[nodiscard]] tensorhub::memory_range range(std::uint64_t region = 0) {
    tensorhub::memory_range out;
    if (device_) out = device_->range();
    if (file_) out = file_->range();
    if (!plain_.empty()) out.data = plain_.data();
    out.data += region * region_bytes;
    out.bytes = region_bytes;
    out.backing_offset += region * region_bytes;
    return out;
  }
  void fill(const std::vector<std::byte>& bytes, std::uint64_t region = 0) {
    const auto at = range(region);
    if (device_)
      fake_device::instance().fill(at.data, bytes);
    else
      std::memcpy(at.data, bytes.data(), bytes.size());
  }
  [[nodiscard]] bool holds(const std::vector<std::byte>& bytes) {
    if (device_) return fake_device::instance().bytes_of(range().data, region_bytes) == bytes;
    return std::memcmp(range().data, bytes.data(), bytes.size()) == 0;
  }
  void free() { device_.reset(); }

 private:
  std::optional<fake_device_memory::allocation> device_{};
  std::optional<tensorhub::host_memory::allocation> file_{};
  std::vector<std::byte> plain_{};
};

struct source_setup {
  kind_of_memory memory = kind_of_memory::device;
  bool exports = true;
  std::int64_t delay_ns = 0;
  std::uint64_t fail_after = UINT64_MAX;
};

/// A process that serves two regions of one allocation. Orders: 'r' it revokes and overwrites the first, 'n'
/// it deregisters and frees all and serves other memory with pattern 7 in its place, 'd' it deregisters all
/// and registers the same memory again, 'f' it frees without deregistering, 'c' it cuts the reader off, 'm'
/// it is renamed.
struct source_process {
  child_process process;
  tensorhub::transport_address address{};
  std::array<tensorhub::remote_region, regions_in_allocation> regions{};
  std::string says{};

  explicit source_process(const source_setup& setup = {})
      : process{[&](channel& line) { serve(setup, line); }} {
    address.text = process.line().take<source_processes::text>().data();
    says = process.line().take<source_processes::text>().data();
    hear();
  }
  void order(char what) {
    process.line().tell(what);
    hear();
  }
  void signal(int number) const { process.signal(number); }
  void end() { process.end(); }

 private:
  void hear() { regions = process.line().take<decltype(regions)>(); }
  static void serve(const source_setup& setup, const channel& line) {
    auto& set = fake_device::instance().set;
    set.exports = setup.exports;
    set.delay_ns = setup.delay_ns;
    set.fail_after = setup.fail_after;
    std::string noted;
    same_host through{{.note = [&](const std::string& text) { noted = text; }}, source_id};
    auto memory = std::make_unique<some_memory>(setup.memory, regions_in_allocation);
    std::vector<same_host::memory_region> registered;
    std::array<tensorhub::remote_region, regions_in_allocation> described{};
    const auto offer = [&](std::uint64_t seed) {
      for (std::uint64_t i = 0; i < regions_in_allocation; ++i) {
        memory->fill(pattern(seed + i), i);
        const auto range = memory->range(i);
        for (auto& each : through.register_memory(std::span{&range, 1}, region_access::remote_read))
          registered.push_back(std::move(each));
        described[i] = through.describe(registered[i]);
      }
    };
    offer(0);
    line.tell(source_processes::text_of(through.address().text));
    line.tell(source_processes::text_of(noted.empty() ? through.how_read(registered.front()) : noted));
    for (char what = 0;;) {
      line.tell(described);
      if (!line.try_take(what)) return;
      if (what == 'r') {
        through.revoke(registered.front());
        memory->fill(pattern(99));
      }
      if (what == 'n') {
        registered.clear();
        memory.reset();
        memory = std::make_unique<some_memory>(setup.memory, regions_in_allocation);
        offer(7);
      }
      if (what == 'd') {
        registered.clear();
        offer(0);
      }
      if (what == 'm') through.rename(source_id, renamed_id);
      if (what == 'f') memory->free();
      if (what == 'c') through.cut_off(reader_id);
    }
  }
};

struct reading_side {
  same_host through;
  some_memory target;
  tensorhub::memory_range range;
  std::vector<same_host::memory_region> into =
      through.register_memory(std::span{&range, 1}, region_access::local_write);
  same_host::queue queue = through.make_queue(8);
  std::optional<same_host::endpoint> endpoint{};

  explicit reading_side(kind_of_memory kind = kind_of_memory::device, const same_host::options& options = {})
      : through{options, reader_id}, target{kind}, range{target.range()} {}
  /// Into device memory, through a gate.
  explicit reading_side(gated_devices::gated_device& gate)
      : through{{}, reader_id}, target{kind_of_memory::device}, range{gate.over(target.range())} {}

  void connect(const source_process& source) {
    endpoint.reset();
    endpoint.emplace(through.connect(queue, source.address, source_id, 5s));
  }
  void post(const tensorhub::remote_region& region, std::size_t count = 1) {
    for (std::size_t i = 0; i < count; ++i)
      REQUIRE(queue.post_read(*endpoint, into.front(), 0, {&region, 0, region_bytes}, i) ==
              tensorhub::post_result::posted);
  }
  /// Posts, and returns with a copy under way: behind the closed gate.
  void begin(const tensorhub::remote_region& region, std::size_t count,
             const gated_devices::gated_device& gate) {
    const std::uint64_t before = gate.queued;
    post(region, count);
    const auto until = std::chrono::steady_clock::now() + 60s;
    std::array<completion, 1> none;
    while (queue.poll(none) == 0 && gate.queued == before && std::chrono::steady_clock::now() < until)
      queue.wait(1ms);
    REQUIRE(gate.queued > before);
    REQUIRE(queue.outstanding() == count);
  }
  counts drain() { return source_processes::counted(source_processes::drain_each(queue)); }
  counts read(const tensorhub::remote_region& region, std::size_t count = 1) {
    target.fill(std::vector<std::byte>(region_bytes));
    post(region, count);
    return drain();
  }
};

inline const counts all_well{{completion_status::ok, 1}};

/// Mappings of the fake device's files in this process, two for each (one of them has no access).
[[nodiscard]] inline std::size_t device_mappings() {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);)
    found += line.find("memfd:fake-device") != std::string::npos;
  return found;
}

[[nodiscard]] inline std::string name_of(kind_of_memory kind) {
  return kind == kind_of_memory::device      ? "device"
         : kind == kind_of_memory::host_file ? "host memory in a file"
                                             : "plain host memory";
}

}  // namespace same_host_device
