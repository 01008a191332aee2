#pragma once
/// \file cpu_access.ipp
/// Asks the kernel to copy the bytes: definitions of detail/cpu_access.hpp.

#include "tensorhub/detail/cpu_access.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Of two bytes. `gettid`, because the first thread may have ended.
[[nodiscard]] TENSORHUB_DECL bool can_copy(const iovec* into, unsigned long into_count,
                                           const iovec* from) noexcept {
  const ssize_t count = ::process_vm_readv(::gettid(), into, into_count, from, 2, 0);
  return count == 2 || (count < 0 && errno != EFAULT);
}

/// As the kernel lists the process's memory. (A store may reach memory from which the kernel cannot copy.)
[[nodiscard]] TENSORHUB_DECL bool is_mapped_writable(const std::byte* at) noexcept {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps{
      std::fopen("/proc/thread-self/maps", "re"), [](std::FILE* file) { return std::fclose(file); }};
  if (!maps) return true;
  const auto wanted = reinterpret_cast<std::uintptr_t>(at);
  char line[4096];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    unsigned long begin = 0, end = 0;
    char access[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s", &begin, &end, access) != 3) continue;
    if (wanted >= begin && wanted < end) return access[1] == 'w';
  }
  return false;
}

TENSORHUB_DECL bool cpu_can_read(const void* data, std::uint64_t bytes) noexcept {
  std::byte taken[2];
  const iovec into{taken, sizeof taken};
  auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
  const iovec from[2] = {{first, 1}, {first + (bytes > 0 ? bytes - 1 : 0), 1}};
  return can_copy(&into, 1, from);
}

TENSORHUB_DECL bool cpu_can_write(void* data, std::uint64_t bytes) noexcept {
  auto* const first = static_cast<std::byte*>(data);
  std::byte* const last = first + (bytes > 0 ? bytes - 1 : 0);
  const iovec ends[2] = {{first, 1}, {last, 1}};
  return can_copy(ends, 2, ends) || (is_mapped_writable(first) && is_mapped_writable(last));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
