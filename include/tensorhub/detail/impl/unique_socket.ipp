#pragma once
/// \file unique_socket.ipp
/// What detail/unique_socket.hpp declares.

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "tensorhub/detail/unique_socket.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The sockets of this process.
struct kept_sockets {
  std::mutex mutex;
  std::set<int> open;  ///< guarded by mutex

  kept_sockets() {
    // The mutex is held across the fork, so that the child finds the set whole. The child may only call what
    // a signal handler may.
    static_cast<void>(::pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                                       [] { instance().give_up(); }));
  }
  /// Never destroyed: a process may fork while its static objects are being destroyed.
  [[nodiscard]] static kept_sockets& instance() {
    static auto* const all = new kept_sockets;
    return *all;
  }

 private:
  /// In the child. The numbers stay taken: objects that were copied by the fork may still close them.
  void give_up() noexcept {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int each : open) {
      if (nothing >= 0)
        static_cast<void>(::dup3(nothing, each, O_CLOEXEC));
      else
        ::close(each);
    }
    if (nothing >= 0) ::close(nothing);
    mutex.unlock();
  }
};

TENSORHUB_DECL void keep_from_children(int descriptor) noexcept {
  try {
    kept_sockets& all = kept_sockets::instance();
    const std::lock_guard lock{all.mutex};
    all.open.insert(descriptor);
  } catch (...) {  // no memory
  }
}

TENSORHUB_DECL void forget_kept(int descriptor) noexcept {
  try {
    kept_sockets& all = kept_sockets::instance();
    const std::lock_guard lock{all.mutex};
    all.open.erase(descriptor);
  } catch (...) {  // no memory: nothing was noted
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
