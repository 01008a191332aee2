#pragma once
/// \file random_id.hpp
/// Random identities (incarnations of workers, epochs of servers) and secrets (keys of regions).
///
/// Thread safety: any thread may call the functions. Throws `system_failed` if the system has no
/// random numbers.

#include <cstdint>
#include <span>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// 128 random bits from the system, in one system call.
void fill_random(std::span<std::uint64_t, 2> words);

/// 64 random bits from the system; never zero, because zero means "none".
[[nodiscard]] std::uint64_t random_number();

template <typename Id>
[[nodiscard]] Id random_id() {
  return {random_number()};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/random_id.ipp"
#endif
