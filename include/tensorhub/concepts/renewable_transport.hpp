#pragma once
/// \file renewable_transport.hpp
/// Concept `renewable_transport`: a transport whose process can go on as another incarnation.
///
/// The concept is optional. A worker that the reference server has declared dead (it was stopped, or cut off
/// from the server for a while) keeps its memory and its registrations, and joins again under another name if
/// its transport models the concept. If not, the worker has to be constructed anew.
///
/// | expression    | type | means                                                                         |
/// |---------------|------|-------------------------------------------------------------------------------|
/// | t.renew(self) | void | from its return on this process is `self`: its new connections say so, and    |
/// |               |      | only readers that expect `self` are let in; noexcept, any thread. What it has |
/// |               |      | cut off stays cut off. Earlier connections may stay open: the caller has      |
/// |               |      | revoked their keys, and uses no older endpoint of its own any more            |

#include <concepts>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

// clang-format off
template <typename T>
concept renewable_transport =
    transport<T> &&
    requires(T& t, incarnation self) {
      { t.renew(self) } noexcept -> std::same_as<void>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
