#pragma once
/// \file telling_transport.hpp
/// Concept `telling_transport`: a guarded transport that says why it refuses readers, and what has become of
/// its own certificate.
///
/// The concept is optional. A worker writes both into its log: the reason behind the count of refused
/// connections, and each renewal as a line of its own. An operator reaches no other part of a transport.
///
/// | expression       | type              | means                                                     |
/// |------------------|-------------------|-----------------------------------------------------------|
/// | t.refusal_told() | transport_refusal | the latest refused connection for which a reason is known |
/// | t.renewal_told() | transport_renewal | the latest change of the transport's own certificate      |
///
/// Both may be called from any thread, and wait for no connection and no file.

#include <concepts>
#include <cstdint>
#include <string>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct transport_refusal {
  std::uint64_t count = 0;  ///< refused connections with a reason, so far
  std::string why{};        ///< peer and reason of the latest

  /// Of two transports together.
  transport_refusal& operator+=(const transport_refusal& other) {
    count += other.count;
    why += (why.empty() || other.why.empty() ? "" : "; ") + other.why;
    return *this;
  }
};

/// Of files that have changed while the transport was in use.
struct transport_renewal {
  std::uint64_t count = 0;  ///< renewals so far, those that failed included; a failure that lasts is one
  bool failed = false;      ///< the latest: the files cannot be used, and the old certificate stays in use
  std::string text{};       ///< what is in use now, or why the files are not

  /// Of two transports together.
  transport_renewal& operator+=(const transport_renewal& other) {
    count += other.count;
    failed = failed || other.failed;
    text += (text.empty() || other.text.empty() ? "" : "; ") + other.text;
    return *this;
  }
};

// clang-format off
template <typename T>
concept telling_transport =
    guarded_transport<T> &&
    requires(const T& ct) {
      { ct.refusal_told() } -> std::same_as<transport_refusal>;
      { ct.renewal_told() } -> std::same_as<transport_renewal>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
