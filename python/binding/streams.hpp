#pragma once
/// \file streams.hpp
/// Which streams of CUDA a call waits for before it reads or writes tensors, and the wait.

#include <nanobind/nanobind.h>

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
  explicit stream_order(streams_waiter waiter) noexcept : await_{waiter} {}

  [[nodiscard]] bool has_devices() const noexcept { return await_ != nullptr; }

  /// What a call is to wait for. `stream` is Python's argument: None means torch's current stream on each
  /// device where tensors of torch lie, and the default stream of each where others do; "all_done" nothing.
  /// Throws `invalid_argument` for a stream that is not understood, or that a worker of host memory is given.
  [[nodiscard]] std::vector<device_stream> before(std::span<const kept_tensor> tensors,
                                                  nb::handle stream) const;

  /// `streams_waiter`. Without the interpreter.
  [[nodiscard]] milliseconds await(std::span<const device_stream> streams, milliseconds timeout) const {
    return streams.empty() ? timeout : await_(streams, timeout);
  }

 private:
  streams_waiter await_;
};

}  // namespace tensorhub_python
