#pragma once
/// \file available_memory.hpp
/// How much memory this process can still take.
///
/// Thread safety: any thread.

#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// What the memory limits of a process's control groups leave it: those of the group and of all around it, in
/// the folder where they are mounted. What the kernel gives up first does not count as used, as in its own
/// MemAvailable: pages of files that were not used lately, half of the other ones, and caches of its own.
/// `groups`: what /proc/<pid>/cgroup says. UINT64_MAX: nothing limits it.
/// (Version 2: Documentation/admin-guide/cgroup-v2.rst; version 1: cgroup-v1/memory.rst.)
[[nodiscard]] std::uint64_t room_in_groups(const std::string& folder, const std::string& groups);

/// What this process can take without that another one loses memory: what the kernel calls MemAvailable
/// (/proc/meminfo), and no more than its control groups leave it. Zero: there is no memory even to ask. What
/// others take at the same moment is not seen.
[[nodiscard]] std::uint64_t available_memory_bytes() noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/available_memory.ipp"
#endif
