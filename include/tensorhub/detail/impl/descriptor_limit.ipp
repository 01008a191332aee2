#pragma once
/// \file descriptor_limit.ipp
/// Definitions of detail/descriptor_limit.hpp.

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::size_t at_most_half_of_descriptors(std::size_t wanted) noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  return std::min<std::size_t>(wanted, std::max<std::size_t>(1, files.rlim_cur / 2));
}

TENSORHUB_DECL void require_descriptors(std::string_view owner, std::size_t needed) {
  std::vector<unique_fd> trial;
  trial.reserve(needed);
  while (trial.size() < needed) {
    unique_fd next{::eventfd(0, EFD_CLOEXEC)};
    const int failure = errno;
    if (!next)
      throw error(errc::system_failed,
                  std::string{owner} + " needs " + std::to_string(needed) +
                      " descriptors, and this process can open only " + std::to_string(trial.size()) +
                      " of them (" + std::strerror(failure) + "): raise the limit of open files (ulimit -n)");
    trial.push_back(std::move(next));
  }
}

TENSORHUB_DECL bool has_free_descriptor() noexcept {
  const unique_fd trial{::eventfd(0, EFD_CLOEXEC)};
  return trial || !is_out_of_descriptors(errno);
}

TENSORHUB_DECL bool is_out_of_descriptors(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
