#pragma once
/// \file descriptor_shortage.hpp
/// A process that has no descriptor left for a while.

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "support/few_descriptors.hpp"

namespace shortages {

/// Until its end, or for `duration`, this process can open `left` more descriptors.
class of_descriptors {
 public:
  explicit of_descriptors(rlim_t left) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual_) == 0);
    few_ = usual_;
    few_.rlim_cur = first_unused() + left;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few_) == 0);
  }
  of_descriptors(rlim_t left, std::chrono::milliseconds duration) : of_descriptors{left} {
    ending_ = std::jthread{[this, duration] {
      std::this_thread::sleep_for(duration);
      ::setrlimit(RLIMIT_NOFILE, &usual_);
    }};
  }
  ~of_descriptors() { ::setrlimit(RLIMIT_NOFILE, &usual_); }
  of_descriptors(const of_descriptors&) = delete;
  of_descriptors& operator=(const of_descriptors&) = delete;

  [[nodiscard]] rlim_t limit() const noexcept { return few_.rlim_cur; }

 private:
  /// New descriptors are the lowest that are unused, and only numbers below the limit can be opened.
  [[nodiscard]] static rlim_t first_unused() {
    const int next = ::dup(STDERR_FILENO);
    REQUIRE(next >= 0);
    ::close(next);
    return static_cast<rlim_t>(next);
  }

  rlimit usual_{};
  rlimit few_{};
  std::jthread ending_;
};

/// How long `connect` takes when the process has one more descriptor only, for 50 ms: the longest but one of
/// five times, each with another source and reader, which `make` makes.
template <typename Make, typename Connect>
[[nodiscard]] std::chrono::milliseconds time_to_connect_after_shortage(Make&& make, Connect&& connect) {
  std::array<std::chrono::milliseconds, 5> times{};
  for (std::chrono::milliseconds& each : times) {
    auto both = make();
    const of_descriptors shortage{1, std::chrono::milliseconds{50}};
    const auto began = std::chrono::steady_clock::now();
    CHECK(both->source.shortage_told().count == 0);
    connect(*both);
    CHECK(both->source.shortage_told().count == 1);
    each = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
  }
  std::sort(times.begin(), times.end());
  return times[3];
}

}  // namespace shortages
