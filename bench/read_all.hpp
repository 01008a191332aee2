#pragma once
/// \file read_all.hpp
/// One turn of a transport's benchmark: everything is read from another process, and what it cost both.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tensorhub/concepts/transport.hpp>
#include <utility>

#include "harness.hpp"
#include "support/child_process.hpp"

namespace bench {

/// All of `from` in chunks, `depth` asked for ahead.
template <tensorhub::transport T>
void read_all(typename T::queue& queue, typename T::endpoint& endpoint, const typename T::memory_region& into,
              const tensorhub::remote_region& from, std::uint64_t chunk_bytes, std::size_t depth) {
  const std::uint64_t bytes = into.range().bytes;
  std::uint64_t asked = 0;
  std::uint64_t done = 0;
  std::array<tensorhub::completion, 16> completions;
  while (done < bytes) {
    while (asked < bytes && queue.outstanding() < depth) {
      const std::uint64_t length = std::min(chunk_bytes, bytes - asked);
      static_cast<void>(queue.post_read(endpoint, into, asked, {&from, asked, length}, length));
      asked += length;
    }
    const std::size_t count = queue.poll(completions);
    for (std::size_t i = 0; i < count; ++i) {
      if (completions[i].status != tensorhub::completion_status::ok)
        throw std::runtime_error("a read failed");
      done += completions[i].id;
    }
    if (count == 0) queue.wait(std::chrono::seconds{1});
  }
}

/// Runs `work`, which moves `bytes` out of `source`.
template <typename Work>
[[nodiscard]] figures timed(const processes::child_process& source, std::uint64_t bytes, Work&& work) {
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  const double source_cpu = cpu_of(source);
  const double own_cpu = cpu_seconds();
  const double started = now_seconds();
  std::forward<Work>(work)();
  const double seconds = now_seconds() - started;
  return {{"GB/s", gigabytes / seconds},
          {"source cpu s/GB", (cpu_of(source) - source_cpu) / gigabytes},
          {"reader cpu s/GB", (cpu_seconds() - own_cpu) / gigabytes}};
}

}  // namespace bench
