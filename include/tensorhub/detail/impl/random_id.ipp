#pragma once
/// \file random_id.ipp
/// Random numbers from std::random_device: definitions of detail/random_id.hpp.

#include "tensorhub/detail/random_id.hpp"

#include <random>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::uint64_t random_number() {
  std::random_device device;
  std::uint64_t value = 0;
  while (value == 0) value = static_cast<std::uint64_t>(device()) << 32 | device();
  return value;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
