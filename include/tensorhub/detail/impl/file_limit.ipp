#pragma once
/// \file file_limit.ipp
/// Definitions of detail/file_limit.hpp.

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tensorhub/detail/file_limit.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL bool may_make_file_of(std::uint64_t bytes) noexcept {
  rlimit most{};
  if (::getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur == RLIM_INFINITY || bytes <= most.rlim_cur)
    return true;
  errno = EFBIG;
  return false;
}

TENSORHUB_DECL bool set_file_bytes(int descriptor, std::uint64_t bytes) noexcept {
  return may_make_file_of(bytes) && ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0;
}

TENSORHUB_DECL std::string file_trouble(int error) {
  std::string out = std::strerror(error);
  if (error == EFBIG)
    out += ": raise the limit of files' lengths (ulimit -f), which is also that of shared memory";
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
