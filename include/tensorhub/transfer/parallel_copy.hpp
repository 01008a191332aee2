#pragma once
/// \file parallel_copy.hpp
/// Copies many runs of memory with several threads, because one thread cannot use the full memory bandwidth.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/in_parallel.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace detail {
/// Throws `system_failed`, with the reason where the memory space keeps it.
template <typename Memory>
[[noreturn]] void copy_failed(const Memory& space, const std::string& what) {
  std::string why;
  if constexpr (requires { space.trouble(); }) why = space.trouble();
  throw error(errc::system_failed, "the device did not copy " + what + (why.empty() ? "" : ": " + why) +
                                       "; retry, and restart the process if the device keeps failing");
}
}  // namespace detail

/// Copies all runs and returns when every byte is copied. The calling thread works too; if the system cannot
/// start more threads, the calling thread works alone. Long runs are cut into units, so that one huge tensor
/// keeps all threads busy. Each thread has its own memory space. Throws `std::bad_alloc` before the first
/// byte is copied. A device copies without threads of this function; a device may fail at any byte, and this
/// function then throws `system_failed`.
template <memory_space Memory>
void parallel_copy(std::span<const copy_run> runs, std::size_t lanes, std::uint64_t unit_bytes = 4u << 20) {
  if constexpr (device_memory_space<Memory>) {
    Memory space{};
    if (!space.copy_all(runs)) detail::copy_failed(space, "the tensors");
    return;
  }
  unit_bytes = std::max<std::uint64_t>(unit_bytes, 1);
  std::vector<copy_run> units;
  for (const copy_run& run : runs) {
    for (std::uint64_t at = 0; at < run.bytes; at += unit_bytes)
      units.push_back({run.to + at, run.from + at, std::min(unit_bytes, run.bytes - at)});
  }
  std::atomic<std::size_t> next{0};
  detail::in_parallel(std::clamp<std::size_t>(lanes, 1, std::max<std::size_t>(units.size(), 1)),
                      [&units, &next](std::size_t) {
                        Memory space{};
                        // A published version: its holder waits for the server before it writes.
                        const detail::peer_read reading;
                        for (std::size_t i = next++; i < units.size(); i = next++)
                          space.copy(units[i].to, units[i].from, units[i].bytes);
                      });
}

}  // namespace tensorhub::inline TENSORHUB_MODE
