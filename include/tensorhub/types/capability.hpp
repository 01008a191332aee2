#pragma once
/// \file capability.hpp
/// Permission to read, which a source can check without asking any other process.
///
/// Each worker makes a random key and sends it only to the reference server (in its join_request). For each
/// lease the server makes a capability with the key of the source: the epoch of the reference that is read,
/// and a keyed hash over (reader's incarnation, source's incarnation, epoch). It travels to the reader in
/// `transport_address::capability`. The reader's transport presents it when it connects; the source's
/// transport computes it again and compares. A process that knows the address and the keys of the memory but
/// has no lease is therefore refused, and so is a process that presents the capability of another reader or
/// for another source.
///
///     bytes 0-7    epoch of the source's reference, little-endian
///     bytes 8-23   BLAKE2b-128, keyed with the source's key, of {reader, source, epoch}, 8 bytes each
///
/// A capability expires when its source raises its epoch, which it does before it changes the bytes of a
/// version (`guarded_transport::expire_capabilities`). A reader that must not read until then is cut off by
/// its incarnation (concepts/transport.hpp, promise 5). A capability is not encrypted: it can be overheard on
/// a network to which others can listen (transports/README.md says which transports encrypt).
///
/// Thread safety: values and pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wipe.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

inline constexpr std::size_t capability_key_bytes = 32;
inline constexpr std::size_t capability_hash_bytes = 16;
/// The size of every capability; a text of another size is not a capability.
inline constexpr std::size_t capability_bytes = 8 + capability_hash_bytes;

/// The secret key of one source: `capability_key_bytes` random bytes.
[[nodiscard]] std::string random_capability_key();

/// The capability that `reader` presents to `source`. Empty if `key` is empty: the source asks for no
/// capability then.
[[nodiscard]] std::string make_capability(std::string_view key, incarnation reader, incarnation source,
                                          std::uint64_t epoch);

/// What the two ends of an encrypted connection agree upon, and nobody between them (TLS exporter, RFC 9266).
/// Empty: the connection has nothing of that kind.
using channel_binding = std::span<const std::byte>;

/// What a reader shows of its capability: over a connection with a binding, a hash that is worth nothing over
/// another connection. Whoever stands between reader and source, with a certificate that both accept, cannot
/// pass it on. Zeros for a text that is no capability.
[[nodiscard]] std::array<std::byte, capability_bytes> shown_over(std::string_view capability,
                                                                 channel_binding binding) noexcept;

/// What a source answers: only who could make the capability, or was given it, can make this proof.
using source_proof = std::array<std::byte, capability_hash_bytes>;
[[nodiscard]] source_proof proof_of_source(std::string_view capability, channel_binding binding) noexcept;
/// Takes the same time for every wrong proof.
[[nodiscard]] bool is_same(const source_proof& a, const source_proof& b) noexcept;

/// The check that a source applies to its readers. Without a key it accepts every reader.
class capability_check {
 public:
  capability_check() = default;
  capability_check(const capability_check&) = default;
  capability_check& operator=(const capability_check&) = default;
  ~capability_check() { detail::wipe(key_.data(), key_.size()); }

  /// Throws `invalid_argument` for a key of another size.
  void require(std::span<const std::byte> key);
  [[nodiscard]] bool required() const noexcept { return required_; }

  /// Whether this capability lets `reader` read from `source`, and is of `oldest_epoch` or later. Takes the
  /// same time for every wrong capability; never throws, never allocates.
  [[nodiscard]] bool accepts(std::span<const std::byte> shown, incarnation reader, incarnation source,
                             channel_binding binding = {}, std::uint64_t oldest_epoch = 0) const noexcept;
  [[nodiscard]] bool accepts(std::string_view shown, incarnation reader, incarnation source) const noexcept {
    return accepts(std::as_bytes(std::span{shown}), reader, source);
  }
  /// To a reader that was accepted; zeros if none is required.
  [[nodiscard]] source_proof proof_to(std::span<const std::byte> shown, incarnation reader,
                                      incarnation source, channel_binding binding) const noexcept;

 private:
  /// The capability that the server gave, if this is one with that epoch.
  [[nodiscard]] std::array<std::byte, capability_bytes> given(std::span<const std::byte> shown,
                                                              incarnation reader,
                                                              incarnation source) const noexcept;

  std::array<unsigned char, capability_key_bytes> key_{};
  bool required_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/capability.ipp"
#endif
