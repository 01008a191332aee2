#pragma once
/// \file waiter.ipp
/// Definitions of waiter.hpp.

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "tensorhub/transports/libfabric/waiter.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL waiter::waiter(::fid_fabric* fabric) : fabric_{fabric} {}

TENSORHUB_DECL void waiter::watch(::fid& object, bool has_descriptor) {
  int descriptor = -1;
  polled_.reserve(descriptors_.size() + 2);
  descriptors_.reserve(descriptors_.size() + 1);
  if (has_descriptor && ::fi_control(&object, FI_GETWAIT, &descriptor) == 0 && descriptor >= 0) {
    objects_.push_back(&object);
    descriptors_.push_back(descriptor);
  } else {
    naps_ = true;
  }
  polled_.resize(descriptors_.size() + 1);
}

TENSORHUB_DECL void waiter::forget(const ::fid& object) noexcept {
  const auto found = std::find(objects_.begin(), objects_.end(), &object);
  if (found == objects_.end()) return;
  descriptors_.erase(descriptors_.begin() + (found - objects_.begin()));
  objects_.erase(found);
  polled_.resize(descriptors_.size() + 1);
}

TENSORHUB_DECL bool waiter::may_sleep() noexcept {
  return objects_.empty() ||
         ::fi_trywait(fabric_, objects_.data(), static_cast<int>(objects_.size())) == FI_SUCCESS;
}

TENSORHUB_DECL void waiter::sleep(duration longest, bool expected, bool nap_only) noexcept {
  if (naps_ || nap_only) {
    const duration most = expected || nap_only ? longest_nap : idle_nap;
    const duration nap = std::min(duration{nap_ns_.load(std::memory_order_relaxed)}, most);
    longest = std::min(longest, nap);
    nap_ns_.store(2 * nap.count(), std::memory_order_relaxed);
  }
  longest = std::clamp<duration>(longest, duration::zero(), std::chrono::hours{1});
  polled_[0] = {event_.descriptor(), POLLIN, 0};
  for (std::size_t i = 0; i < descriptors_.size(); ++i) polled_[i + 1] = {descriptors_[i], POLLIN, 0};
  const int ready = detail::wait_for_descriptors(polled_, longest);
  if (ready > 0 && (polled_[0].revents & POLLIN) != 0) event_.lower();
}

TENSORHUB_DECL void waiter::wake() noexcept {
  event_.raise();
}

TENSORHUB_DECL unique_fid<::fid_cq> open_cq(::fid_domain* domain, std::size_t entries, bool with_descriptor,
                                            waiter& watched_by, const std::string& where) {
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

TENSORHUB_DECL unique_fid<::fid_eq> open_eq(::fid_fabric* fabric, waiter& watched_by,
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
