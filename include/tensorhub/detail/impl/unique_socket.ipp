#pragma once
/// \file unique_socket.ipp
/// What detail/unique_socket.hpp declares.

#include <fcntl.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "tensorhub/detail/process_wide.hpp"
#include "tensorhub/detail/unique_socket.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The sockets of this process.
struct kept_sockets {
  std::mutex mutex;
  std::set<int> open;  ///< guarded by mutex

  /// The numbers stay taken: objects that were copied by the fork may still close them.
  void in_child() noexcept {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int each : open) {
      if (nothing >= 0)
        static_cast<void>(::dup3(nothing, each, O_CLOEXEC));
      else
        ::close(each);
    }
    if (nothing >= 0) ::close(nothing);
  }
};

TENSORHUB_DECL void keep_from_children(int descriptor) noexcept {
  try {
    auto& all = process_wide<kept_sockets>();
    const std::lock_guard lock{all.mutex};
    all.open.insert(descriptor);
  } catch (...) {  // no memory
  }
}

TENSORHUB_DECL void close_kept(int descriptor) noexcept {
  try {
    auto& all = process_wide<kept_sockets>();
    const std::lock_guard lock{all.mutex};
    all.open.erase(descriptor);
    ::close(descriptor);
  } catch (...) {  // no memory: nothing was noted
    ::close(descriptor);
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
