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

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

inline constexpr std::size_t capability_key_bytes = 32;
inline constexpr std::size_t capability_hash_bytes = 16;
/// All of a capability has this size; anything else is none.
inline constexpr std::size_t capability_bytes = 8 + capability_hash_bytes;

namespace capability_detail {
/// Picks the fastest hash of this processor, once; without it there is a slower one.
inline bool prepare() noexcept {
  static const bool ready = ::sodium_init() >= 0;
  return ready;
}
}  // namespace capability_detail

/// The secret of one source: `capability_key_bytes` random bytes.
[[nodiscard]] inline std::string random_capability_key() {
  if (!capability_detail::prepare())
    throw error(errc::system_failed, "libsodium cannot be used: no random numbers");
  std::string key(capability_key_bytes, '\0');
  ::randombytes_buf(key.data(), key.size());
  return key;
}

/// What `reader` shows to `source`. Empty if the key is none: then the source asks for no capability.
[[nodiscard]] inline std::string make_capability(std::string_view key, incarnation reader, incarnation source,
                                                 lease_id lease) {
  if (key.size() != capability_key_bytes) return {};
  capability_detail::prepare();
  const std::array<std::uint64_t, 3> words{reader.value, source.value, lease.value};
  std::string out(capability_bytes, '\0');
  std::memcpy(out.data(), &lease.value, 8);
  static_cast<void>(::crypto_generichash(reinterpret_cast<unsigned char*>(out.data()) + 8,
                                         capability_hash_bytes,
                                         reinterpret_cast<const unsigned char*>(words.data()), sizeof words,
                                         reinterpret_cast<const unsigned char*>(key.data()), key.size()));
  return out;
}

/// A source's side: what it asks of readers. Without key everybody is let in.
class capability_check {
 public:
  /// Throws `invalid_argument` for a key of another size.
  void require(std::span<const std::byte> key) {
    if (key.size() != capability_key_bytes) {
      throw error(errc::invalid_argument, "a capability key has " + std::to_string(key.size()) +
                                              " bytes: it must have " + std::to_string(capability_key_bytes));
    }
    std::memcpy(key_.data(), key.data(), key_.size());
    required_ = true;
  }
  [[nodiscard]] bool required() const noexcept { return required_; }

  /// Whether this lets `reader` read from `source`. Takes the same time for every wrong one; never throws,
  /// never allocates.
  [[nodiscard]] bool accepts(std::span<const std::byte> shown, incarnation reader,
                             incarnation source) const noexcept {
    if (!required_) return true;
    if (shown.size() != capability_bytes) return false;
    std::array<std::uint64_t, 3> words{reader.value, source.value, 0};
    std::memcpy(&words[2], shown.data(), 8);
    std::array<unsigned char, capability_hash_bytes> expected{};
    static_cast<void>(::crypto_generichash(expected.data(), expected.size(),
                                           reinterpret_cast<const unsigned char*>(words.data()), sizeof words,
                                           key_.data(), key_.size()));
    return ::sodium_memcmp(expected.data(), shown.data() + 8, expected.size()) == 0;
  }
  [[nodiscard]] bool accepts(std::string_view shown, incarnation reader, incarnation source) const noexcept {
    return accepts(std::as_bytes(std::span{shown}), reader, source);
  }

 private:
  std::array<unsigned char, capability_key_bytes> key_{};
  bool required_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
