#pragma once
/// \file started_thread.hpp
/// A thread of the library's, or an error that says what to do; and the question whether this process can
/// start some more threads.
///
/// Thread safety: any thread. All throw `system_failed`; there are no other errors.

#include <cstddef>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Throws `system_failed`: the system starts no further thread, for this reason.
[[noreturn]] void refuse_thread(std::string_view owner, std::string_view reason);

/// Throws `system_failed` if the stack that this process's threads have (RLIMIT_STACK at its start) is too
/// small for the library: it would end by SIGSEGV.
void require_stack(std::string_view owner);

/// Throws `system_failed` if the system starts no further thread, or none with a stack that is large enough.
/// `owner` begins the sentence.
template <typename Run>
[[nodiscard]] std::jthread started_thread(std::string_view owner, Run&& run) {
  require_stack(owner);
  try {
    return std::jthread{std::forward<Run>(run)};
  } catch (const std::system_error& e) {
    refuse_thread(owner, e.what());
  }
}

/// For what ends the process (ZeroMQ does) when it cannot start a thread. Starts so many at once and lets
/// them end: throws `system_failed` if this process cannot have them now. It is a check and no reservation:
/// what starts threads at the same moment, here or elsewhere under the same limit, may still take them.
void require_threads(std::string_view owner, std::size_t needed);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/started_thread.ipp"
#endif
