#pragma once
/// \file streams.hpp
/// Which streams of CUDA a call waits for before it reads or writes tensors, and the wait.

#include <nanobind/nanobind.h>

#include <memory>
#include <span>
#include <vector>

#include "calls.hpp"
#include "tensors.hpp"
#include "transport_module.hpp"

namespace tensorhub_python {

/// Of one worker.
class stream_order {
 public:
  /// Null: a worker of host memory.
  explicit stream_order(streams_marker marker) noexcept : mark_{marker} {}

  [[nodiscard]] bool has_devices() const noexcept { return mark_ != nullptr; }

  /// Marks what a call is to wait for, in the calling thread, whose default stream may be another one than
  /// other threads'. `stream` is Python's argument. None means torch's current stream on each device where
  /// tensors of torch lie, and on its current device for pinned ones; for other tensors the stream that they
  /// name (`__cuda_array_interface__`), or the default stream of their device; "all_done" means nothing.
  /// Throws `invalid_argument` for a stream that is not understood, or that a worker of host memory is given.
  [[nodiscard]] std::unique_ptr<stream_marks> before(std::span<const kept_tensor> tensors,
                                                     nb::handle stream) const;

 private:
  [[nodiscard]] std::vector<device_stream> streams_before(std::span<const kept_tensor> tensors,
                                                          nb::handle stream) const;

  streams_marker mark_;
};

/// Waits for the marks, if there are any, and tells what is left of `timeout`. `worker`, whose interruption
/// ends it, has `interrupts()`. Without the interpreter.
template <typename Worker>
[[nodiscard]] milliseconds await(const std::unique_ptr<stream_marks>& marks, milliseconds timeout,
                                 const Worker& worker) {
  if (!marks) return timeout;
  return marks->await(timeout, [&, before = worker.interrupts()] { return worker.interrupts() != before; });
}

}  // namespace tensorhub_python
