#pragma once
/// \file stream_order.hpp
/// Calls in the order of the user's own work on a device.
///
///     optimizer_step(stream);                  // queues kernels that write the weights
///     trainer.publish(step, stream);           // the version is what they have written
///
///     generate(stream);                        // queues kernels that read the weights
///     rollout.update(tensorhub::latest, stream);   // does not write before they have read
///
/// A call first waits until all that the stream holds at that moment is done: this thread sleeps, the stream
/// itself, other streams and the device go on. When the call has returned, its bytes are visible to whatever
/// is queued afterwards, on any stream.
///
/// The library's own work on a device waits for no stream of the user. Where a memory space has streams, a
/// call that reads or writes the tensors therefore takes the stream, or `all_done`:
///
///     cudaDeviceSynchronize();
///     trainer.publish(step, tensorhub::all_done);  // no work on the tensors is queued or running
///
/// Thread safety: as `worker`.

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <type_traits>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/host.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// In the place of a stream: the user's work on the tensors is done.
struct all_done_t {
  explicit all_done_t() = default;
};
inline constexpr all_done_t all_done{};

/// In the place of a stream where the memory space has none: there is no value of it.
struct no_stream {
  no_stream() = delete;
};

namespace detail {
template <typename Memory>
struct stream_of {
  using type = no_stream;
};
template <streaming_memory_space Memory>
struct stream_of<Memory> {
  using type = typename Memory::stream_type;
};
template <typename Memory>
struct offload_space_of {
  using type = host_memory;
};
template <typename Memory>
requires requires {
  typename Memory::offload_space;
}
struct offload_space_of<Memory> {
  using type = typename Memory::offload_space;
};
}  // namespace detail

/// What the user's work is queued on.
template <memory_space Memory>
using stream_of = typename detail::stream_of<Memory>::type;

/// Host memory for copies of what lives in `Memory`.
template <memory_space Memory>
using offload_space_of = typename detail::offload_space_of<Memory>::type;

/// Waits until the work before `mark` is done, and tells what is left of `timeout`. Throws `timed_out`,
/// `cancelled` if `gives_up()` becomes true, or `system_failed` if the work has failed.
template <typename Mark, typename Condition>
std::chrono::milliseconds await_mark(const Mark& mark, std::chrono::milliseconds timeout,
                                     Condition&& gives_up) {
  using clock = std::chrono::steady_clock;
  timeout = detail::bounded(timeout);
  const auto started = clock::now();
  // A stream that is nearly done is not slept for; a sleep is never long against what has passed already.
  auto pause = std::chrono::microseconds{0};
  for (lane_state state = mark.state(); state != lane_state::done; state = mark.state()) {
    if (state == lane_state::failed) {
      std::string why;
      if constexpr (requires { mark.trouble(); }) why = mark.trouble();
      throw error(errc::system_failed, "the work on the given stream has failed: its bytes are no version" +
                                           (why.empty() ? "" : "; " + why));
    }
    const auto waited = clock::now() - started;
    if (waited > timeout) {
      throw error(errc::timed_out, "the work queued on the given stream did not finish within " +
                                       std::to_string(timeout.count()) +
                                       " ms: give the call more time, or queue less before it");
    }
    if (gives_up())
      throw error(errc::cancelled, "the call was interrupted while the given stream still had work");
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    pause = std::min(std::chrono::duration_cast<std::chrono::microseconds>(waited) / 16,
                     std::chrono::microseconds{200});
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - started);
  return std::max(timeout - waited, std::chrono::milliseconds{0});
}

}  // namespace tensorhub::inline TENSORHUB_MODE
