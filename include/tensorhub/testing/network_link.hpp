#pragma once
/// \file network_link.hpp
/// `network_link`: one direction of a network adapter, or a path that several workers share: a rate and a
/// latency, first come, first served.
///
///     auto atlantic = std::make_shared<testing::network_link>(
///         testing::network_link_options{.bytes_per_second = 125e6, .latency = 50ms});
///     ... fork() ...                       // the children's reads take their places behind each other
///     atlantic->carried_bytes()            // of all of them
///
/// What it knows lies in memory that forked processes share: a link that is made before a fork is *one* link
/// for the parent and its children. The clock is the machine's monotonic one, which they share, too.
///
/// Model: each read takes the time from when the link is free until its bytes have passed at the full rate,
/// and comes after the latency on top (a one-sided read asks and gets its answer: give the round trip). So
/// reads of all processes share the rate in the order in which they were posted; none is lost or overtaken.
/// What a killed process had asked for still passes, as what is on a wire does.
///
/// Thread safety: every member may be used from any thread of any process; no lock is held, so that a process
/// that is killed at any place leaves the link usable.

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
  std::chrono::nanoseconds latency{0};  ///< of each read, on top of its time on the link
};

class network_link {
  using steady = std::chrono::steady_clock;

 public:
  /// Throws `system_failed` where there is no page of shared memory.
  explicit network_link(const network_link_options& how = {}) : how_{how}, shared_{new_state()} {}

  /// Takes the next free time for `bytes`; when they have been carried.
  [[nodiscard]] steady::time_point carry(std::uint64_t bytes, steady::time_point now) noexcept {
    const std::chrono::duration<double> time{static_cast<double>(bytes) / how_.bytes_per_second};
    const auto time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
    std::int64_t free_at_ns = shared_->free_at_ns.load(std::memory_order_relaxed);
    std::int64_t done_ns = 0;
    do {
      done_ns = std::max(free_at_ns, now_ns) + time_ns;
    } while (!shared_->free_at_ns.compare_exchange_weak(free_at_ns, done_ns, std::memory_order_relaxed));
    shared_->carried_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return steady::time_point{
        std::chrono::duration_cast<steady::duration>(std::chrono::nanoseconds{done_ns} + how_.latency)};
  }
  /// All bytes that have asked for their place so far: chunks, and what readers look at besides.
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

  network_link_options how_;
  std::unique_ptr<state, unmap> shared_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
