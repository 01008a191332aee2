#pragma once
/// \file cpu_can_read.hpp
/// Whether an address may be followed by the CPU, asked without following it.
///
/// Memory spaces with devices ask it of addresses that no device knows: device memory that was freed is a
/// range without access, or none at all.

#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The CPU can read the first and the last byte. True where the kernel forbids to ask (a container's system
/// call filter): then a wrong address is found when it is followed.
[[nodiscard]] bool cpu_can_read(const void* data, std::uint64_t bytes) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/cpu_can_read.ipp"
#endif
