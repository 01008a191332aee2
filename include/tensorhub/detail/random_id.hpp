#pragma once
/// \file random_id.hpp
/// Random identities: incarnations of workers, epochs of servers.

#include <cstdint>
#include <random>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// 64 random bits of the system's; never zero, which means "none".
template <typename Id>
[[nodiscard]] Id random_id() {
  std::random_device device;
  std::uint64_t value = 0;
  while (value == 0) value = static_cast<std::uint64_t>(device()) << 32 | device();
  return {value};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
