#pragma once
/// \file device_bytes.hpp
/// The transport conformance suite over device memory: the same rules, with regions that fault when the CPU
/// touches them (testing/fake_device.hpp), at the source, at the reader, or at both.
///
///     run_rules(over_device(subject, device_side::both));
///
/// Thread safety: as testing/fake_device.hpp says.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/fixture.hpp"
#include "tensorhub/testing/fake_device.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Memory of the fake device.
class device_bytes final : public conformance_bytes {
 public:
  explicit device_bytes(std::uint64_t bytes) : memory_{bytes}, bytes_{bytes} {}

  [[nodiscard]] memory_range range() const override {
    memory_range all = memory_.range();
    all.bytes = bytes_;
    return all;
  }
  void write(std::uint64_t at, std::span<const std::byte> bytes) override {
    fake_device::instance().fill(memory_.data() + at, bytes);
  }
  [[nodiscard]] bool equal(std::uint64_t at, std::span<const std::byte> bytes) const override {
    return bytes.empty() || std::memcmp(read(at, bytes.size()).data(), bytes.data(), bytes.size()) == 0;
  }
  [[nodiscard]] std::vector<std::byte> read(std::uint64_t at, std::uint64_t bytes) const override {
    return fake_device::instance().bytes_of(memory_.data() + at, bytes);
  }

 private:
  fake_device_memory::allocation memory_;
  std::uint64_t bytes_;
};

/// The side of the suite's reads that has device memory.
enum class device_side : std::uint8_t { source, target, both };

template <transport T>
[[nodiscard]] conformance_subject<T> over_device(conformance_subject<T> subject, device_side side) {
  const memory_maker maker = [](std::uint64_t bytes) { return std::make_unique<device_bytes>(bytes); };
  if (side != device_side::target) subject.source_memory = maker;
  if (side != device_side::source) subject.target_memory = maker;
  return subject;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
