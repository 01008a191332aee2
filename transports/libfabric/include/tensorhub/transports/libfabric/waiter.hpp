#pragma once
/// \file waiter.hpp
/// Sleeping until a completion queue or an event queue has something, or somebody calls.
///
/// For connected endpoints this is poll(2) on the provider's file descriptors (FI_WAIT_FD). For addressed
/// ones it is a sleep that starts at 20 microseconds and doubles up to a limit, reset by every sign of life:
/// `shm` and `efa` have no descriptors, and fi_trywait of `tcp;ofi_rxm` 1.17 crashes on a queue whose
/// endpoints come and go.
///
/// Thread safety: `wake` and `progress_seen` are for any thread, the rest for one at a time.

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

  /// False: something is there already. Call it where nobody else drives the queues.
  [[nodiscard]] bool may_sleep() noexcept;

  /// Sleeps for at most `longest`; where no descriptor tells what comes, for half a millisecond if something
  /// is `expected` and ten else. `nap_only`: the provider had no room and may have some soon.
  void sleep(duration longest, bool expected, bool nap_only) noexcept;
  /// Something came: naps start small again.
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

/// `with_descriptor`: to be waited for by its file descriptor.
[[nodiscard]] unique_fid<::fid_cq> open_cq(::fid_domain* domain, std::size_t entries, bool with_descriptor,
                                           waiter& watched_by, const std::string& where);

[[nodiscard]] unique_fid<::fid_eq> open_eq(::fid_fabric* fabric, waiter& watched_by,
                                           const std::string& where);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/waiter.ipp"
#endif
