#pragma once
/// \file network_link.hpp
/// `network_link`: one direction of a network adapter, or a path that several workers share. It has a rate
/// and a latency, and serves reads in the order of posting.
///
///     auto atlantic = std::make_shared<testing::network_link>(
///         testing::network_link_options{.bytes_per_second = 125e6, .latency = 50ms});
///    ... fork() ...                       // reads of the children queue behind each other
///    atlantic->carried_bytes()            // bytes of all of them
///
/// The state of a link lies in memory that forked processes share: a link that is made before a fork is *one*
/// link for the parent and its children. The clock is the machine's monotonic clock, which they share too.
///
/// Model: each read occupies the link from the moment the link is free until the bytes of the read have
/// passed at the full rate, and completes after the latency in addition (a one-sided read is a request and an
/// answer, so the latency should be the round trip). Reads of all processes therefore share the rate in the
/// order of posting; no read is lost or overtakes another. The reads of a killed process still pass, as bytes
/// on a wire do.
///
/// Thread safety: any thread of any process may use every member. No lock is held, so a process that is
/// killed at any point leaves the link usable.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <system_error>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

struct network_link_options {
  double bytes_per_second = std::numeric_limits<double>::infinity();
  std::chrono::nanoseconds latency{0};  ///< of each read, in addition to its time on the link
};

class network_link {
  using steady = std::chrono::steady_clock;

 public:
  /// Throws `system_failed` if there is no shared memory.
  explicit network_link(const network_link_options& options = {}) : options_{options}, shared_{new_state()} {}

  /// Reserves the next free time for `bytes`; returns the time when they have been carried.
  [[nodiscard]] steady::time_point carry(std::uint64_t bytes, steady::time_point now) noexcept {
    const std::chrono::duration<double> time{static_cast<double>(bytes) / options_.bytes_per_second};
    const auto time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
    std::int64_t free_at_ns = shared_->free_at_ns.load(std::memory_order_relaxed);
    std::int64_t done_ns = 0;
    do {
      done_ns = std::max(free_at_ns, now_ns) + time_ns;
    } while (!shared_->free_at_ns.compare_exchange_weak(free_at_ns, done_ns, std::memory_order_relaxed));
    shared_->carried_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return steady::time_point{
        std::chrono::duration_cast<steady::duration>(std::chrono::nanoseconds{done_ns} + options_.latency)};
  }
  /// All bytes that were reserved so far: chunks, and control blocks that readers examine.
  [[nodiscard]] std::uint64_t carried_bytes() const noexcept {
    return shared_->carried_bytes.load(std::memory_order_relaxed);
  }

 private:
  struct state {
    std::atomic<std::int64_t> free_at_ns{std::numeric_limits<std::int64_t>::min()};
    std::atomic<std::uint64_t> carried_bytes{0};
  };
  static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
                std::atomic<std::uint64_t>::is_always_lock_free);
  struct unmap {
    void operator()(state* page) const noexcept { ::munmap(page, sizeof(state)); }
  };
  [[nodiscard]] static state* new_state() {
    void* const page =
        ::mmap(nullptr, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
      throw error(errc::system_failed, "network_link: no shared memory: " +
                                           std::error_code{errno, std::system_category()}.message());
    return new (page) state;
  }

  network_link_options options_;
  std::unique_ptr<state, unmap> shared_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
