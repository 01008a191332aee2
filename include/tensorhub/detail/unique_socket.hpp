#pragma once
/// \file unique_socket.hpp
/// Owner of a socket of this process alone.
///
/// A forked child inherits every descriptor. With a copy of a connection there, closing it here would not end
/// it, the death of this process would not be seen by its peers, and the port of a listening socket would
/// stay taken. In a forked child each such descriptor therefore refers to /dev/null instead. (`exec` closes
/// them: they are close-on-exec.)
///
/// Thread safety: as an int; different sockets may be used by different threads, also while one forks.

#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// From now on a forked child gets /dev/null in place of this descriptor (or, where there is no memory to
/// note it, a copy).
TENSORHUB_DECL void keep_from_children(int descriptor) noexcept;
/// Closes such a descriptor. No child is forked meanwhile, which would have a copy of it, or /dev/null in
/// place of what has its number next.
TENSORHUB_DECL void close_kept(int descriptor) noexcept;

class unique_socket {
 public:
  unique_socket() = default;
  explicit unique_socket(int descriptor) noexcept : descriptor_{descriptor} {
    if (*this) keep_from_children(descriptor);
  }
  unique_socket(unique_socket&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
  unique_socket& operator=(unique_socket&& other) noexcept {
    if (this == &other) return *this;
    reset();
    descriptor_ = std::exchange(other.descriptor_, -1);
    return *this;
  }
  ~unique_socket() { reset(); }

  [[nodiscard]] int get() const noexcept { return descriptor_; }
  [[nodiscard]] explicit operator bool() const noexcept { return descriptor_ >= 0; }
  void reset() noexcept {
    if (*this) close_kept(std::exchange(descriptor_, -1));
  }

 private:
  int descriptor_ = -1;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/unique_socket.ipp"
#endif
