#pragma once
/// \file started_thread.hpp
/// A thread of the library's, or an error that says what to do.

#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Throws `system_failed` if the system starts no further thread. `owner` begins the sentence.
template <typename Run>
[[nodiscard]] std::jthread started_thread(std::string_view owner, Run&& run) {
  try {
    return std::jthread{std::forward<Run>(run)};
  } catch (const std::system_error& e) {
    throw error(errc::system_failed,
                std::string{owner} + ": a thread cannot be started (" + e.what() +
                    "): raise the limit of threads (ulimit -u, or a container's pids.max)");
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
