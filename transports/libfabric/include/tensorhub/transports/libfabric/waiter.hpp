#pragma once
/// \file waiter.hpp
/// Sleeps until a completion queue or an event queue has an entry, or `wake` is called.
///
/// With connected endpoints the waiter uses poll(2) on the provider's file descriptors (FI_WAIT_FD). With
/// addressed ones it sleeps for 20 microseconds at first and doubles this up to a limit; every completion
/// resets it. The reason: `shm` and `efa` have no descriptors, and fi_trywait of `tcp;ofi_rxm` 1.17 crashes
/// on a queue whose endpoints are opened and closed.
///
/// Thread safety: any thread may call `wake` and `progress_seen`, one thread at a time the rest.

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

class waiter {
 public:
  explicit waiter(::fid_fabric* fabric);

  /// `has_descriptor`: the queue was opened with FI_WAIT_FD.
  void watch(::fid& object, bool has_descriptor);
  /// It is about to be closed.
  void forget(const ::fid& object) noexcept;

  /// False: a queue already has an entry. Call it while no other thread drives the queues.
  [[nodiscard]] bool may_sleep() noexcept;

  /// Sleeps for at most `longest`; without a descriptor to wait for, for at most half a millisecond if
  /// something is `expected` and ten otherwise. `nap_only`: the provider had no free slot and may have one
  /// soon.
  void sleep(duration longest, bool expected, bool nap_only) noexcept;
  /// Something arrived: sleeps start short again.
  void progress_seen() noexcept { nap_ns_.store(first_nap.count(), std::memory_order_relaxed); }

  void wake() noexcept;

 private:
  static constexpr duration first_nap = std::chrono::microseconds{20};
  static constexpr duration longest_nap = std::chrono::microseconds{500};
  static constexpr duration idle_nap = std::chrono::milliseconds{10};

  ::fid_fabric* fabric_;
  detail::wake_event event_{"libfabric"};
  std::vector<::fid*> objects_;
  std::vector<int> descriptors_;
  std::vector<pollfd> polled_ = std::vector<pollfd>(1);
  bool naps_ = false;
  std::atomic<duration::rep> nap_ns_ = first_nap.count();
};

/// `with_descriptor`: the waiter uses the queue's file descriptor.
[[nodiscard]] unique_fid<::fid_cq> open_cq(::fid_domain* domain, std::size_t entries, bool with_descriptor,
                                           waiter& watched_by, const std::string& where);

[[nodiscard]] unique_fid<::fid_eq> open_eq(::fid_fabric* fabric, waiter& watched_by,
                                           const std::string& where);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/waiter.ipp"
#endif
