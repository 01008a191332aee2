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
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

class waiter {
 public:
  explicit waiter(::fid_fabric* fabric) : fabric_{fabric}, event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)} {
    if (!event_)
      throw error(errc::system_failed, std::string{"libfabric: no eventfd: "} + std::strerror(errno));
  }

  /// `has_descriptor`: the queue was opened with FI_WAIT_FD.
  void watch(::fid& object, bool has_descriptor) {
    int descriptor = -1;
    if (has_descriptor && ::fi_control(&object, FI_GETWAIT, &descriptor) == 0 && descriptor >= 0) {
      objects_.push_back(&object);
      descriptors_.push_back(descriptor);
    } else {
      naps_ = true;
    }
    polled_.resize(descriptors_.size() + 1);
  }

  /// False: something is there already. Call it where nobody else drives the queues.
  [[nodiscard]] bool may_sleep() noexcept {
    return objects_.empty() ||
           ::fi_trywait(fabric_, objects_.data(), static_cast<int>(objects_.size())) == FI_SUCCESS;
  }

  /// Sleeps for at most `longest`; where no descriptor tells what comes, for half a millisecond if something
  /// is `expected` and ten else. `nap_only`: the provider had no room and may have some soon.
  void sleep(duration longest, bool expected, bool nap_only) noexcept {
    if (naps_ || nap_only) {
      const duration most = expected || nap_only ? longest_nap : idle_nap;
      const duration nap = std::min(duration{nap_ns_.load(std::memory_order_relaxed)}, most);
      longest = std::min(longest, nap);
      nap_ns_.store(2 * nap.count(), std::memory_order_relaxed);
    }
    longest = std::clamp<duration>(longest, duration::zero(), std::chrono::hours{1});
    const timespec limit{static_cast<time_t>(longest.count() / 1'000'000'000),
                         static_cast<long>(longest.count() % 1'000'000'000)};
    polled_[0] = {event_.get(), POLLIN, 0};
    for (std::size_t i = 0; i < descriptors_.size(); ++i) polled_[i + 1] = {descriptors_[i], POLLIN, 0};
    const int ready = ::ppoll(polled_.data(), polled_.size(), &limit, nullptr);
    if (ready > 0 && (polled_[0].revents & POLLIN) != 0) {
      std::uint64_t signals = 0;
      [[maybe_unused]] const auto taken = ::read(event_.get(), &signals, sizeof signals);
    }
  }
  /// Something came: naps start small again.
  void progress_seen() noexcept { nap_ns_.store(first_nap.count(), std::memory_order_relaxed); }

  void wake() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }

 private:
  static constexpr duration first_nap = std::chrono::microseconds{20};
  static constexpr duration longest_nap = std::chrono::microseconds{500};
  static constexpr duration idle_nap = std::chrono::milliseconds{10};

  ::fid_fabric* fabric_;
  detail::unique_fd event_;
  std::vector<::fid*> objects_;
  std::vector<int> descriptors_;
  std::vector<pollfd> polled_ = std::vector<pollfd>(1);
  bool naps_ = false;
  std::atomic<duration::rep> nap_ns_ = first_nap.count();
};

/// `with_descriptor`: to be waited for by its file descriptor.
[[nodiscard]] inline unique_fid<::fid_cq> open_cq(::fid_domain* domain, std::size_t entries,
                                                  bool with_descriptor, waiter& watched_by,
                                                  const std::string& where) {
  ::fid_cq* cq = nullptr;
  ::fi_cq_attr wanted{};
  wanted.size = entries;
  wanted.format = FI_CQ_FORMAT_MSG;
  wanted.wait_obj = with_descriptor ? FI_WAIT_FD : FI_WAIT_NONE;
  if (const int result = ::fi_cq_open(domain, &wanted, &cq, nullptr); result != 0)
    fail(where + ": no completion queue: " + reason(result));
  unique_fid<::fid_cq> opened{cq};
  watched_by.watch(cq->fid, with_descriptor);
  return opened;
}

[[nodiscard]] inline unique_fid<::fid_eq> open_eq(::fid_fabric* fabric, waiter& watched_by,
                                                  const std::string& where) {
  ::fid_eq* eq = nullptr;
  ::fi_eq_attr wanted{};
  wanted.wait_obj = FI_WAIT_FD;
  if (const int result = ::fi_eq_open(fabric, &wanted, &eq, nullptr); result != 0)
    fail(where + ": no event queue: " + reason(result));
  unique_fid<::fid_eq> opened{eq};
  watched_by.watch(eq->fid, true);
  return opened;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
