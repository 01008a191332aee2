#pragma once
/// \file copy.hpp
/// The three ways bytes come over: out of a mapping, out of a file, out of another process.
///
/// Thread safety: free functions without shared state.

#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>

#include "tensorhub/detail/build_mode.hpp"
#endif

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// As memcpy, but the target's lines go to memory without being fetched first and without displacing what is
/// in the caches: on a copy that is larger than those this saves a third of the traffic. glibc does the same
/// for very large calls only; ours come in pieces.
void copy_streaming(std::byte* target, const std::byte* from, std::uint64_t bytes) noexcept;

/// Zero, or errno. A file that is shorter than expected is EFAULT.
[[nodiscard]] int copy_from_file(int descriptor, std::uint64_t offset, std::byte* target,
                                 std::uint64_t bytes) noexcept;

/// Zero, or errno: ESRCH (no such process any more), EFAULT (the memory is not mapped there), EPERM.
[[nodiscard]] int copy_from_process(pid_t process, std::uint64_t address, std::byte* target,
                                    std::uint64_t bytes) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/copy.ipp"
#endif
