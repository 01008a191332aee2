#pragma once
/// \file thread_name.hpp
/// Names of the library's threads, for `top -H`, profilers and debuggers.

#include <pthread.h>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Names the calling thread, in at most 15 characters. (A thread begins with the name of the one that starts
/// it.)
inline void name_thread(const char* name) noexcept {
  static_cast<void>(::pthread_setname_np(::pthread_self(), name));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
