#pragma once
/// \file mark.hpp
/// A mark in a stream of the user, which tells whether all work before it is done.
///
/// Thread safety: one thread at a time.

#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/cuda/context.hpp"
#include "tensorhub/memory/cuda/device.hpp"
#include "tensorhub/memory/cuda/functions.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// An event of the driver, recorded into the stream. Movable; a moved-from mark is done. It may be destroyed
/// at any time; the work of the stream continues.
template <typename Driver>
class cuda_mark {
 public:
  /// The stream may belong to any device of the process. The null stream means the legacy stream of the
  /// calling thread's device; a program that was compiled for per-thread default streams must pass
  /// CU_STREAM_PER_THREAD instead. Throws `invalid_argument` while the stream, or for the legacy stream one
  /// that it waits for, is being captured into a graph, and `system_failed` if the event cannot be recorded.
  explicit cuda_mark(CUstream stream) : cuda_{&Driver::functions()} {
    const cuda_functions& cuda = *cuda_;
    const bool of_no_context =
        stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    if (of_no_context) {  // the null stream belongs to the current context
      if (cuda.context_get_current(&context_) != CUDA_SUCCESS || context_ == nullptr)
        context_ = cuda_device<Driver>::current().context();
    } else {
      detail::cuda_check(cuda, cuda.stream_get_context(stream, &context_), "cuStreamGetCtx",
                         "the stream cannot be waited for (was it destroyed?)");
    }
    const detail::cuda_scope scope{cuda, context_};
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cuda.stream_is_capturing(stream, &capture);
    // Work on the legacy stream would end the capture of a stream that it waits for.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
      throw error(errc::invalid_argument,
                  "a stream that the legacy stream waits for is being captured into a graph: give the stream "
                  "that the work is in, or call again when the capture has ended");
    }
    if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE) {
      throw error(errc::invalid_argument,
                  "the stream is being captured into a graph: give the stream that the graph is launched in, "
                  "after the launch");
    }
    result = cuda.event_create(&event_, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) result = cuda.event_record(event_, stream);
    if (result != CUDA_SUCCESS) {
      forget();
      detail::cuda_check(cuda, result, "cuEventRecord", "the stream cannot be waited for");
    }
  }
  cuda_mark(cuda_mark&& other) noexcept { swap(other); }
  cuda_mark& operator=(cuda_mark&& other) noexcept {
    cuda_mark old{std::move(other)};
    swap(old);
    return *this;
  }
  ~cuda_mark() {
    if (event_ == nullptr) return;
    const detail::cuda_scope scope{*cuda_, context_};
    forget();
  }

  /// Never waits. `failed`: the work before the mark failed, or the device did; `trouble` has the reason.
  [[nodiscard]] lane_state state() const noexcept {
    if (event_ == nullptr || state_ != lane_state::pending) return state_;
    const detail::cuda_scope scope{*cuda_, context_};
    result_ = cuda_->event_query(event_);
    if (result_ != CUDA_ERROR_NOT_READY)
      state_ = result_ == CUDA_SUCCESS ? lane_state::done : lane_state::failed;
    return state_;
  }

  /// Empty unless the state is `failed`.
  [[nodiscard]] std::string trouble() const {
    return state_ == lane_state::failed ? detail::cuda_words(*cuda_, "cuEventQuery", result_) : std::string{};
  }

 private:
  void forget() noexcept {
    if (event_ != nullptr) static_cast<void>(cuda_->event_destroy(std::exchange(event_, nullptr)));
  }
  void swap(cuda_mark& other) noexcept {
    std::swap(cuda_, other.cuda_);
    std::swap(context_, other.context_);
    std::swap(event_, other.event_);
    std::swap(result_, other.result_);
    std::swap(state_, other.state_);
    if (other.event_ == nullptr) other.state_ = lane_state::done;
  }

  const cuda_functions* cuda_ = nullptr;
  CUcontext context_ = nullptr;
  CUevent event_ = nullptr;
  mutable CUresult result_ = CUDA_SUCCESS;  // the result of the last query, and the state derived from it
  mutable lane_state state_ = lane_state::pending;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
