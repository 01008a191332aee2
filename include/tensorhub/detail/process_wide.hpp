#pragma once
/// \file process_wide.hpp
/// The one object of a type in this process, also in a process that is forked from it.
///
/// Thread safety: `process_wide` may be called from any thread.

#include <pthread.h>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// `Object` has a `mutex`, and `in_child()`, which drops what a forked child does not have: its parent's
/// threads, and what is not inherited. The mutex is held across the fork, so that the child finds the object
/// whole; `in_child` may only call what a signal handler may, and `malloc`. Never destroyed: a process may
/// fork while its static objects are being destroyed.
template <typename Object>
[[nodiscard]] Object& process_wide();

/// Makes the object when the program, or the library with this code, is loaded: a fork while another thread
/// makes it would leave the child waiting for that thread.
template <typename Object>
struct made_at_load {
  static inline const bool done = (static_cast<void>(process_wide<Object>()), true);
};

template <typename Object>
Object& process_wide() {
  static_cast<void>(&made_at_load<Object>::done);
  static Object* const only = [] {
    auto* const made = new Object;
    static_cast<void>(::pthread_atfork([] { process_wide<Object>().mutex.lock(); },
                                       [] { process_wide<Object>().mutex.unlock(); },
                                       [] {
                                         process_wide<Object>().in_child();
                                         process_wide<Object>().mutex.unlock();
                                       }));
    return made;
  }();
  return *only;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
