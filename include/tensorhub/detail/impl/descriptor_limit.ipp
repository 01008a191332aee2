#pragma once
/// \file descriptor_limit.ipp
/// Definitions of detail/descriptor_limit.hpp.

#include <sys/resource.h>

#include <algorithm>

#include "tensorhub/detail/descriptor_limit.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::size_t at_most_half_of_descriptors(std::size_t wanted) noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  return std::min<std::size_t>(wanted, std::max<std::size_t>(1, files.rlim_cur / 2));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
