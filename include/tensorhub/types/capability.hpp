#pragma once
/// \file capability.hpp
/// Permission to read, that a source can check without asking anybody.
///
/// Each worker makes a random key and tells it to the reference server alone (in its join_request). For each
/// lease the server makes a capability with the key of the source: the lease's number, and a keyed hash over
/// (reader's incarnation, source's incarnation, lease). It travels to the reader in
/// `transport_address::capability`; the reader's transport shows it when it connects, the source's transport
/// works it out again and compares. So whoever has learned the address and the keys of the memory, but has no
/// lease, is refused, as is who shows the capability of another reader or for another source.
///
///     bytes 0-7    lease, little-endian
///     bytes 8-23   BLAKE2b-128, keyed with the source's key, of {reader, source, lease}, 8 bytes each
///
/// What it is not: the hash does not say how long. A capability works as long as its source's key, which is
/// that of one incarnation; a reader whose lease must not be used any more is cut off by its incarnation
/// (concepts/transport.hpp, promise 5). Nor does it hide anything: on a network that others can listen to it
/// can be overheard (transports/README.md says which transports encrypt).
///
/// Thread safety: values and pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

inline constexpr std::size_t capability_key_bytes = 32;
inline constexpr std::size_t capability_hash_bytes = 16;
/// All of a capability has this size; anything else is none.
inline constexpr std::size_t capability_bytes = 8 + capability_hash_bytes;

/// The secret of one source: `capability_key_bytes` random bytes.
[[nodiscard]] std::string random_capability_key();

/// What `reader` shows to `source`. Empty if the key is none: then the source asks for no capability.
[[nodiscard]] std::string make_capability(std::string_view key, incarnation reader, incarnation source,
                                          lease_id lease);

/// A source's side: what it asks of readers. Without key everybody is let in.
class capability_check {
 public:
  /// Throws `invalid_argument` for a key of another size.
  void require(std::span<const std::byte> key);
  [[nodiscard]] bool required() const noexcept { return required_; }

  /// Whether this lets `reader` read from `source`. Takes the same time for every wrong one; never throws,
  /// never allocates.
  [[nodiscard]] bool accepts(std::span<const std::byte> shown, incarnation reader,
                             incarnation source) const noexcept;
  [[nodiscard]] bool accepts(std::string_view shown, incarnation reader, incarnation source) const noexcept {
    return accepts(std::as_bytes(std::span{shown}), reader, source);
  }

 private:
  std::array<unsigned char, capability_key_bytes> key_{};
  bool required_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/capability.ipp"
#endif
