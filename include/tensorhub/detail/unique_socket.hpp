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
#include "tensorhub/detail/unique_fd.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// From now on a forked child gets /dev/null in place of this descriptor (or, where there is no memory to
/// note it, a copy).
TENSORHUB_DECL void keep_from_children(int descriptor) noexcept;
/// Call this before the descriptor is closed.
TENSORHUB_DECL void forget_kept(int descriptor) noexcept;

class unique_socket {
 public:
  unique_socket() = default;
  explicit unique_socket(int descriptor) noexcept : descriptor_{descriptor} {
    if (descriptor_) keep_from_children(descriptor);
  }
  unique_socket(unique_socket&& other) noexcept = default;
  unique_socket& operator=(unique_socket&& other) noexcept {
    if (this == &other) return *this;
    reset();
    descriptor_ = std::move(other.descriptor_);
    return *this;
  }
  ~unique_socket() { reset(); }

  [[nodiscard]] int get() const noexcept { return descriptor_.get(); }
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }
  void reset() noexcept {
    if (descriptor_) forget_kept(get());
    descriptor_.reset();
  }

 private:
  unique_fd descriptor_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/unique_socket.ipp"
#endif
