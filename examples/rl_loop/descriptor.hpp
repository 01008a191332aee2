#pragma once
/// \file descriptor.hpp
/// File descriptors that close themselves, and waits that end.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace rl_loop {

class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) : fd_{fd} {}
  descriptor(descriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_ = -1;
};

[[noreturn]] inline void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// A point in time that a wait may not pass.
class deadline {
 public:
  explicit deadline(std::chrono::milliseconds from_now) : at_{std::chrono::steady_clock::now() + from_now} {}
  [[nodiscard]] bool passed() const { return std::chrono::steady_clock::now() >= at_; }
  /// What is left, rounded up, as poll() wants it.
  [[nodiscard]] int left_ms() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - std::chrono::steady_clock::now());
    return static_cast<int>(std::max<std::chrono::milliseconds::rep>(0, left.count()));
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

/// Waits until `fd` is ready for any of `events`. Returns what it is ready for; zero after the deadline.
[[nodiscard]] inline short wait_ready(int fd, short events, const deadline& until) {
  for (;;) {
    pollfd one{fd, events, 0};
    const int count = ::poll(&one, 1, until.left_ms());
    if (count > 0) return one.revents;
    if (count == 0 && until.passed()) return 0;
    if (count < 0 && errno != EINTR) fail("poll");
  }
}

}  // namespace rl_loop
