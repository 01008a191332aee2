#pragma once
/// \file epoll_set.hpp
/// The descriptors that a thread sleeps on by epoll, each with a number of the owner's.
///
/// Thread safety: any thread may add, change and remove; one thread waits.

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class epoll_set {
 public:
  /// `owner` is named in errors. Throws `system_failed` if the process has no free descriptor.
  explicit epoll_set(std::string_view owner);

  /// Throws `system_failed` if the kernel has no room for another descriptor.
  void must_add(int descriptor, std::uint64_t number);
  /// False: the kernel has no room for another descriptor.
  [[nodiscard]] bool add(int descriptor, std::uint32_t events, std::uint64_t number) noexcept;
  /// Pre-condition of both: the descriptor was added. (Closing it removes it, too.)
  void change(int descriptor, std::uint32_t events, std::uint64_t number) noexcept;
  void remove(int descriptor) noexcept;

  /// How many of `events` have come; zero or less: none within `longest`, or a signal.
  [[nodiscard]] int wait(std::span<epoll_event> events, std::chrono::milliseconds longest) noexcept;
  /// Readable while there are events.
  [[nodiscard]] int descriptor() const noexcept { return set_.get(); }

 private:
  std::string owner_;
  unique_fd set_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/epoll_set.ipp"
#endif
