#pragma once
/// \file telling_transport.hpp
/// Concept `telling_transport`: a guarded transport that says why it refuses readers, and what has become of
/// its own certificate. Concept `composed_transport`: one of several, which says what it does without.
/// Concept `shortage_telling_transport`: one that says that it can let no reader in.
///
/// The concepts are optional. A worker writes all of that into its log: the reason behind the count of
/// refused connections, and the others as lines of their own. An operator reaches no other part of a
/// transport.
///
/// | expression        | type               | means                                                     |
/// |-------------------|--------------------|-----------------------------------------------------------|
/// | t.refusal_told()  | transport_refusal  | the latest refused connection for which a reason is known |
/// | t.renewal_told()  | transport_renewal  | the latest change of the transport's own certificate      |
/// | t.unused_told()   | transport_unused   | the transports that are not used in this process          |
/// | t.shortage_told() | transport_shortage | the latest want of what a reader's connection takes here  |
///
/// Each may be called from any thread, and waits for no connection and no file.

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

/// What a composed transport does not use.
struct transport_unused {
  std::string why{};        ///< each by its name, with the reason; empty: it uses all
  bool is_cut_off = false;  ///< no reader on another machine can reach this process, for that reason
};

/// Of what this process needs for a reader's connection, a descriptor before all; the readers wait meanwhile.
struct transport_shortage {
  std::uint64_t count = 0;  ///< shortages so far; one that comes again within a minute is the same one
  std::string text{};       ///< what was missing, and what to do

  /// Of two transports together.
  transport_shortage& operator+=(const transport_shortage& other) {
    count += other.count;
    text += (text.empty() || other.text.empty() ? "" : "; ") + other.text;
    return *this;
  }
};

// clang-format off
template <typename T>
concept composed_transport =
    transport<T> &&
    requires(const T& ct) {
      { ct.unused_told() } -> std::same_as<transport_unused>;
    };

template <typename T>
concept telling_transport =
    guarded_transport<T> &&
    requires(const T& ct) {
      { ct.refusal_told() } -> std::same_as<transport_refusal>;
      { ct.renewal_told() } -> std::same_as<transport_renewal>;
    };

template <typename T>
concept shortage_telling_transport =
    transport<T> &&
    requires(const T& ct) {
      { ct.shortage_told() } -> std::same_as<transport_shortage>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
