#pragma once
/// \file file_limit.hpp
/// The length of a file that this process makes. One that is longer than RLIMIT_FSIZE (`ulimit -f`) allows,
/// also in memory, ends the process (SIGXFSZ): here it is an error like the others.
///
/// Thread safety: any thread. Errors are results.

#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// False, with EFBIG in errno: this process may make no file of so many bytes.
[[nodiscard]] bool may_make_file_of(std::uint64_t bytes) noexcept;

/// ftruncate(2). False, with errno, if the file does not get this length.
[[nodiscard]] bool set_file_bytes(int descriptor, std::uint64_t bytes) noexcept;

/// What this errno means for a file, and what to do if it is that limit.
[[nodiscard]] std::string file_trouble(int error);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/file_limit.ipp"
#endif
