#pragma once
/// \file copy.hpp
/// The three ways to copy bytes: from a mapping, from a file, from another process.
///
/// Thread safety: free functions without shared state.

#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// Like memcpy, but the target's cache lines are written to memory without being fetched first and without
/// displacing the caches' content: for a copy that is larger than the caches this saves a third of the
/// traffic. glibc does the same only for very large calls; this transport copies in pieces. Without SSE2 it
/// is memcpy.
void copy_streaming(std::byte* target, const std::byte* from, std::uint64_t bytes) noexcept;

/// Returns zero, or errno. EFAULT: the file is shorter than expected.
[[nodiscard]] int copy_from_file(int descriptor, std::uint64_t offset, std::byte* target,
                                 std::uint64_t bytes) noexcept;

/// Returns zero, or errno: ESRCH (the process has ended), EFAULT (the memory is not mapped there), EPERM.
[[nodiscard]] int copy_from_process(pid_t process, std::uint64_t address, std::byte* target,
                                    std::uint64_t bytes) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/copy.ipp"
#endif
