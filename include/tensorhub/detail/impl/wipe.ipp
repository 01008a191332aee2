#pragma once
/// \file wipe.ipp
/// Definitions of detail/wipe.hpp.

#include "tensorhub/detail/wipe.hpp"

#include <sodium.h>

#include <cstddef>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL void wipe(void* memory, std::size_t bytes) noexcept {
  ::sodium_memzero(memory, bytes);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
