#pragma once
/// \file cuda_timer.hpp
/// What work on a lane costs in the device's own time, without what the host needs to queue it.

#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <tensorhub/memory/cuda.hpp>

namespace bench {

using cuda_device = tensorhub::cuda_device<tensorhub::cuda_driver>;

/// The reason that there is nothing to measure; empty with a device.
[[nodiscard]] inline std::string no_gpu() {
  try {
    static_cast<void>(tensorhub::cuda_driver::functions());
    return {};
  } catch (const tensorhub::error& e) {
    return e.sentence();
  }
}

inline void done(tensorhub::device_lane& lane, tensorhub::lane_ticket ticket) {
  if (lane.wait(ticket, std::chrono::minutes{1}) != tensorhub::lane_state::done)
    throw std::runtime_error("the device has failed: " + lane.trouble());
}

/// A lane between two events that take the time. The device is kept busy first, with a filling of memory that
/// takes longer than the host needs to queue the work: so the time between the events has no gap.
class cuda_timer {
 public:
  explicit cuda_timer(cuda_device& device)
      : device_{&device},
        cuda_{&device.functions()},
        lane_{device.open_cuda_lane()},
        ballast_{device, ballast_bytes} {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    elapsed_ = reinterpret_cast<elapsed_time>(::dlsym(driver, "cuEventElapsedTime"));
    const tensorhub::detail::cuda_scope scope{*cuda_, device.context()};
    check(cuda_->event_create(&before_, CU_EVENT_DEFAULT));
    check(cuda_->event_create(&after_, CU_EVENT_DEFAULT));
  }
  cuda_timer(const cuda_timer&) = delete;
  cuda_timer& operator=(const cuda_timer&) = delete;
  ~cuda_timer() {
    const tensorhub::detail::cuda_scope scope{*cuda_, device_->context()};
    static_cast<void>(cuda_->event_destroy(before_));
    static_cast<void>(cuda_->event_destroy(after_));
  }

  /// `work(lane)` queues something and gives its ticket.
  template <typename Work>
  [[nodiscard]] double seconds(Work&& work, int ballast_rounds = 10) {
    {
      const tensorhub::detail::cuda_scope scope{*cuda_, device_->context()};
      for (int i = 0; i < ballast_rounds; ++i) {
        check(cuda_->memory_fill_async(tensorhub::detail::cuda_address(ballast_.data()), 0, ballast_bytes,
                                       lane_->stream()));
      }
      check(cuda_->event_record(before_, lane_->stream()));
    }
    const tensorhub::lane_ticket last = work(*lane_);
    {
      const tensorhub::detail::cuda_scope scope{*cuda_, device_->context()};
      check(cuda_->event_record(after_, lane_->stream()));
    }
    done(*lane_, last);
    done(*lane_, lane_->copy(nullptr, nullptr, 0));  // behind the second event
    float milliseconds = 0;
    check(elapsed_(&milliseconds, before_, after_));
    return static_cast<double>(milliseconds) * 1e-3;
  }
  [[nodiscard]] cuda_device::lane_type& lane() noexcept { return *lane_; }

 private:
  using elapsed_time = CUresult (*)(float*, CUevent, CUevent);
  static constexpr std::uint64_t ballast_bytes = 1u << 30;
  void check(CUresult result) const {
    tensorhub::detail::cuda_check(*cuda_, result, "the driver", "no time was taken");
  }

  cuda_device* device_;
  const tensorhub::cuda_functions* cuda_;
  std::unique_ptr<cuda_device::lane_type> lane_;
  tensorhub::cuda_memory::allocation ballast_;
  elapsed_time elapsed_ = nullptr;
  CUevent before_ = nullptr;
  CUevent after_ = nullptr;
};

}  // namespace bench
