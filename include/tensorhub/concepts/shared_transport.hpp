#pragma once
/// \file shared_transport.hpp
/// Concept `shared_transport`: a transport that serves and reads for several incarnations of one process.
///
/// The concept is optional. With it, all workers of a process use one transport: one listening port, one set
/// of threads (process.hpp), and a worker that the reference server has declared dead keeps its memory
/// and its registrations, and joins again under another name. Without it, each worker has a transport of its
/// own, and a worker that was declared dead has to be constructed anew.
///
/// | expression                        | type        | means                                                |
/// |-----------------------------------|-------------|------------------------------------------------------|
/// | t.admit(self)                     | void        | from its return on this process is `self` too:       |
/// |                                   |             | readers that expect `self` are let in. (It is the    |
/// |                                   |             | constructor's incarnation from the start)            |
/// | t.rename(self, next)              | void        | the process is `next` in the place of `self`:        |
/// |                                   |             | readers that expect `self` are refused; noexcept.    |
/// |                                   |             | What `self` has cut off stays cut off                |
/// | t.dismiss(self)                   | void        | the process is not `self` any more; noexcept         |
/// | t.connect(queue, address, peer,   | T::endpoint | as `connect` of concept `transport`, as `self`:      |
/// |           timeout, self)          |             | `cut_off(self)` at the source ends this connection   |
///
/// `connect` without `self` connects as the incarnation that was admitted first of those that are left.
/// Connections that were made to `self` may end with `rename` and `dismiss`; the caller has revoked the keys
/// of `self`, and uses no endpoint any more that it has connected as `self`. Any thread may call these.

#include <concepts>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

// clang-format off
template <typename T>
concept shared_transport =
    transport<T> &&
    requires(T& t, incarnation self, incarnation next, typename T::queue& queue,
             const transport_address& address, duration timeout) {
      { t.admit(self) } -> std::same_as<void>;
      { t.rename(self, next) } noexcept -> std::same_as<void>;
      { t.dismiss(self) } noexcept -> std::same_as<void>;
      { t.connect(queue, address, next, timeout, self) } -> std::same_as<typename T::endpoint>;
    };
// clang-format on

/// `through.connect(...)` as `self`, which is the transport's only incarnation if it is not shared.
template <transport T>
[[nodiscard]] typename T::endpoint connect_as(incarnation self, T& through, typename T::queue& on,
                                              const transport_address& where, incarnation peer,
                                              duration timeout) {
  if constexpr (shared_transport<T>)
    return through.connect(on, where, peer, timeout, self);
  else
    return through.connect(on, where, peer, timeout);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
