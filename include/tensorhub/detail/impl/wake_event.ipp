#pragma once
/// \file wake_event.ipp
/// Definitions of detail/wake_event.hpp.

#include "tensorhub/detail/wake_event.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL wake_event::wake_event(std::string_view owner)
    : descriptor_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)} {
  if (descriptor_) return;
  const int failure = errno;
  std::string sentence{owner};
  if (!owner.empty()) sentence += ": ";
  throw error(errc::system_failed, sentence + "no eventfd: " + std::strerror(failure) +
                                       ": raise the limit of open files (ulimit -n)");
}

TENSORHUB_DECL void wake_event::raise() const noexcept {
  const std::uint64_t one = 1;
  // A full counter (EAGAIN) means that the event is raised already.
  [[maybe_unused]] const auto written = ::write(descriptor_.get(), &one, sizeof one);
}

TENSORHUB_DECL void wake_event::lower() const noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto taken = ::read(descriptor_.get(), &count, sizeof count);
}

TENSORHUB_DECL int wait_for_descriptors(std::span<pollfd> descriptors,
                                        std::chrono::nanoseconds longest) noexcept {
  const auto ns = std::max<std::chrono::nanoseconds::rep>(longest.count(), 0);
  const timespec limit{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  return ::ppoll(descriptors.data(), descriptors.size(), &limit, nullptr);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
