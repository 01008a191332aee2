#pragma once
/// \file cpu_access.ipp
/// Asks the kernel to copy the bytes: definitions of detail/cpu_access.hpp.

#include "tensorhub/detail/cpu_access.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace tensorhub::inline TENSORHUB_MODE::detail {

[[nodiscard]] TENSORHUB_DECL bool has_copied_two(ssize_t count) noexcept {
  return count == 2 || (count < 0 && (errno == EPERM || errno == ENOSYS));
}

TENSORHUB_DECL bool cpu_can_read(const void* data, std::uint64_t bytes) noexcept {
  std::byte taken[2];
  iovec into{taken, sizeof taken};
  auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
  const iovec from[2] = {{first, 1}, {first + (bytes > 0 ? bytes - 1 : 0), 1}};
  return has_copied_two(::process_vm_readv(::getpid(), &into, 1, from, 2, 0));
}

TENSORHUB_DECL bool cpu_can_write(void* data, std::uint64_t bytes) noexcept {
  auto* const first = static_cast<std::byte*>(data);
  const iovec ends[2] = {{first, 1}, {first + (bytes > 0 ? bytes - 1 : 0), 1}};
  return has_copied_two(::process_vm_readv(::getpid(), ends, 2, ends, 2, 0));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
