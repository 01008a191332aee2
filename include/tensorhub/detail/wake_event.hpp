#pragma once
/// \file wake_event.hpp
/// Wakes a thread that sleeps in poll, ppoll or epoll_wait; and the ppoll that most of them sleep in.
///
/// Thread safety: `raise` may be called from any thread, the rest by the thread that sleeps. The constructor
/// throws `system_failed` if the process has no free descriptor.

#include <poll.h>

#include <chrono>
#include <span>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class wake_event {
 public:
  /// `owner` is named in the error's sentence.
  explicit wake_event(std::string_view owner = {});

  /// Makes the descriptor readable until the next `lower`.
  void raise() const noexcept;
  void lower() const noexcept;
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  unique_fd descriptor_;
};

/// Sleeps until one of the descriptors is ready, a signal comes, or `longest` is over (at once if it is
/// negative). Returns what ppoll returns.
int wait_for_descriptors(std::span<pollfd> descriptors, std::chrono::nanoseconds longest) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/wake_event.ipp"
#endif
