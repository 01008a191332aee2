#pragma once
/// \file stuck_lanes.hpp
/// The lanes whose device made no progress for `device_lane::patience`, and that nobody waits for any more.
///
/// The device may go on later, and then makes the copies of reads that have ended: into memory that other
/// reads have filled meanwhile. While it has a lane here, transports therefore end all reads into its memory
/// with `local_error`.
///
/// Thread safety: any thread.

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class stuck_lanes {
 public:
  /// Never destroyed: a lane's destructor waits for its device once more.
  [[nodiscard]] static stuck_lanes& all() {
    static auto* const lanes = new stuck_lanes;
    return *lanes;
  }

  /// `owner` has the lane and the memory that its work uses. It is destroyed when the work up to `last` is
  /// over. May throw bad_alloc.
  void keep(const device_access& device, device_lane& lane, lane_ticket last, std::shared_ptr<void> owner) {
    const std::lock_guard lock{mutex_};
    lanes_.push_back({&device, &lane, last, std::move(owner)});
    count_ = lanes_.size();
  }

  /// True: work of such a lane of this device is still to come.
  [[nodiscard]] bool has(const device_access& device) noexcept {
    if (count_ == 0) return false;
    const std::lock_guard lock{mutex_};
    std::erase_if(lanes_, [&](const kept_lane& each) {
      return each.device == &device && each.lane->state(each.last) != lane_state::pending;
    });
    count_ = lanes_.size();
    for (const kept_lane& each : lanes_) {
      if (each.device == &device) return true;
    }
    return false;
  }

 private:
  struct kept_lane {
    const device_access* device = nullptr;
    device_lane* lane = nullptr;
    lane_ticket last = 0;
    std::shared_ptr<void> owner{};
  };

  std::mutex mutex_;
  std::vector<kept_lane> lanes_;
  std::atomic<std::size_t> count_ = 0;  ///< reads ask without the mutex
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
