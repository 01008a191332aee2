#pragma once
/// \file cpu_can_read.hpp
/// Whether an address may be followed by the CPU, asked without following it.
///
/// Memory spaces with devices ask it of addresses that no device knows: device memory that was freed is a
/// range without access, or none at all.

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The CPU can read the first and the last byte. True where the kernel forbids to ask (a container's system
/// call filter): then a wrong address is found when it is followed.
[[nodiscard]] inline bool cpu_can_read(const void* data, std::uint64_t bytes) noexcept {
  std::byte taken[2];
  iovec into{taken, sizeof taken};
  auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
  const iovec from[2] = {{first, 1}, {first + (bytes > 0 ? bytes - 1 : 0), 1}};
  const ssize_t count = ::process_vm_readv(::getpid(), &into, 1, from, 2, 0);
  return count == 2 || (count < 0 && (errno == EPERM || errno == ENOSYS));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
