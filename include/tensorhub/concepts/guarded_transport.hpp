#pragma once
/// \file guarded_transport.hpp
/// Concept `guarded_transport`: a transport whose source can demand a capability from readers.
///
/// The concept is optional. A worker calls `require_capability` right after it has constructed its transport,
/// with a key that only the reference server receives; readers bring capabilities in
/// `transport_address::capability` (types/capability.hpp). A transport that does not model the concept
/// accepts every process that knows its address, and so does one whose `require_capability` was never called.
/// A reader still needs the key of each region that it reads.
///
/// | expression                | type     | means                                                          |
/// |---------------------------|----------|----------------------------------------------------------------|
/// | t.require_capability(key) | void     | from its return on only connections with a capability that     |
/// |                           |          | `capability_check` accepts are let in; earlier ones are        |
/// |                           |          | closed. Others are refused: their `connect` throws             |
/// |                           |          | `transport_failed`, others are not affected. Throws            |
/// |                           |          | `invalid_argument` for a bad key                               |
/// | t.expire_capabilities(    | void     | from its return on a capability of an earlier epoch than       |
/// |     self, epoch)          |          | `epoch` lets nobody in at `self`, one of the incarnations that |
/// |                           |          | this transport serves; other incarnations and connections that |
/// |                           |          | were made before are not affected. Noexcept, any thread        |
/// | t.refused_connections()   | uint64_t | how many were refused for either; noexcept, any thread         |
///
/// A capability is checked when a connection is made. A connection may outlive the lease for which it was
/// made, but not give it more: what it may read is decided by the keys of the memory. It ends when its reader
/// closes it, or by `cut_off`, which bars the reader's incarnation for ever, whatever capability it presents.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

// clang-format off
template <typename T>
concept guarded_transport =
    transport<T> &&
    requires(T& t, const T& ct, std::span<const std::byte> key) {
      { t.require_capability(key) } -> std::same_as<void>;
      { t.expire_capabilities(incarnation{}, std::uint64_t{}) } noexcept -> std::same_as<void>;
      { ct.refused_connections() } noexcept -> std::same_as<std::uint64_t>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
