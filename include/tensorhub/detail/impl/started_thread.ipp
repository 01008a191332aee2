#pragma once
/// \file started_thread.ipp
/// Definitions of detail/started_thread.hpp.

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL void refuse_thread(std::string_view owner, std::string_view reason) {
  throw error(errc::system_failed,
              std::string{owner} + ": a thread cannot be started (" + std::string{reason} +
                  "): raise the limit of threads (ulimit -u, or a container's pids.max), "
                  "or of memory, since each has a stack (ulimit -v, ulimit -d)");
}

TENSORHUB_DECL void require_stack(std::string_view owner) {
  pthread_attr_t usual;
  if (::pthread_getattr_default_np(&usual) != 0) return;
  std::size_t guard = 0;  // a page, which is part of the stack
  static_cast<void>(::pthread_attr_getguardsize(&usual, &guard));
  const std::size_t enough = (124u << 10) + guard;
  std::size_t bytes = enough;
  static_cast<void>(::pthread_attr_getstacksize(&usual, &bytes));
  ::pthread_attr_destroy(&usual);
  if (bytes >= enough) return;
  throw error(errc::system_failed, std::string{owner} + ": a thread would have a stack of " +
                                       std::to_string(bytes >> 10) + " KiB only: it needs " +
                                       std::to_string(enough >> 10) +
                                       ": raise the limit of stacks (ulimit -s)");
}

TENSORHUB_DECL void require_threads(std::string_view owner, std::size_t needed) {
  std::vector<pid_t> ids(needed);
  {
    std::mutex all_are_there;
    std::vector<std::jthread> trial;
    trial.reserve(needed);
    const std::lock_guard until_then{all_are_there};
    for (pid_t& id : ids) {
      trial.push_back(started_thread(owner, [&id, &all_are_there] {
        id = static_cast<pid_t>(::syscall(SYS_gettid));
        const std::lock_guard wait{all_are_there};
      }));
    }
  }
  // The kernel counts a thread for a moment after it was joined. No other one has its number so soon.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{1};
  for (const pid_t id : ids) {
    while (::syscall(SYS_tgkill, ::getpid(), id, 0) == 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
