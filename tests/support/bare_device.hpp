#pragma once
/// \file bare_device.hpp
/// A device that can do nothing, for tests of what is asked of it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class bare_device : public device_access {
 public:
  [[nodiscard]] std::string description() const override { return "a device that can do nothing"; }
  [[nodiscard]] std::unique_ptr<device_lane> open_lane() override { return {}; }
  [[nodiscard]] std::byte* allocate_pinned(std::uint64_t) override { return nullptr; }
  void free_pinned(std::byte*, std::uint64_t) noexcept override {}
  [[nodiscard]] std::optional<device_export> export_memory(const memory_range&, std::string&) override {
    return {};
  }
  [[nodiscard]] std::unique_ptr<device_import> import_memory(const device_export&) override { return {}; }
  [[nodiscard]] int export_dmabuf(const memory_range&, std::uint64_t&, std::string&) override { return -1; }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
