#pragma once
/// \file file_seals.hpp
/// Seals of files in memory (fcntl, F_ADD_SEALS) that older versions of the C library do not name.

#include <fcntl.h>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// No further mapping or call writes to the file; the mapping of its owner still does.
#ifdef F_SEAL_FUTURE_WRITE
inline constexpr int seal_future_write = F_SEAL_FUTURE_WRITE;
#else
inline constexpr int seal_future_write = 0x0010;  // Linux 5.1; glibc names it later
#endif

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
