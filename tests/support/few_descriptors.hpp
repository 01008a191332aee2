#pragma once
/// \file few_descriptors.hpp
/// A process that can open only some more descriptors. For a process of its own: every thread feels it.
/// Errors are `std::runtime_error`.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "support/sanitizers.hpp"

namespace shortages {

/// False, with a line that says why: no descriptor at all may be left in this process.
[[nodiscard]] inline bool may_be_total(const char* test) {
  if constexpr (TENSORHUB_UNDER_ADDRESS_SANITIZER != 0)
    std::printf("SKIPPED: %s: no descriptor: UndefinedBehaviorSanitizer needs a pipe to look at an object\n",
                test);
  return TENSORHUB_UNDER_ADDRESS_SANITIZER == 0;
}

}  // namespace shortages

/// While it exists `left` more descriptors can be opened.
class few_descriptors {
 public:
  explicit few_descriptors(std::size_t left) {
    if (::getrlimit(RLIMIT_NOFILE, &before_) != 0) throw std::runtime_error("no limit of descriptors");
    const rlimit low{most, before_.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) throw std::runtime_error("no other limit of descriptors");
    for (int taken = open_one(); taken >= 0; taken = open_one()) taken_.push_back(taken);
    give(left);
  }
  ~few_descriptors() {
    give(taken_.size());
    static_cast<void>(::setrlimit(RLIMIT_NOFILE, &before_));
  }
  few_descriptors(const few_descriptors&) = delete;
  few_descriptors& operator=(const few_descriptors&) = delete;

  /// So many more.
  void give(std::size_t count) {
    for (; count > 0 && !taken_.empty(); --count) {
      ::close(taken_.back());
      taken_.pop_back();
    }
  }

 private:
  static constexpr rlim_t most = 128;  ///< more than a test has open

  [[nodiscard]] static int open_one() noexcept { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

  rlimit before_{};
  std::vector<int> taken_;
};
