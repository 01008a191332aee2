#pragma once
/// \file cpu_access.hpp
/// Checks whether the CPU may follow an address, without following it.
///
/// Memory spaces with devices check addresses that no device knows: freed device memory is a range without
/// access, or no range at all. Readers check the memory of their tensors: it may be a file that is mapped
/// read-only.

#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// True if the CPU can read the first and the last byte. Also true if the kernel forbids the check (a
/// container's system call filter); a wrong address then faults when it is followed.
[[nodiscard]] bool cpu_can_read(const void* data, std::uint64_t bytes) noexcept;
/// Likewise, if it can write them. They stay as they are. Pre-condition: nobody else writes to them now.
[[nodiscard]] bool cpu_can_write(void* data, std::uint64_t bytes) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/cpu_access.ipp"
#endif
