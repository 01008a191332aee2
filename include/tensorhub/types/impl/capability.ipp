#pragma once
/// \file capability.ipp
/// Making and checking capabilities with libsodium's keyed hash: definitions of types/capability.hpp.

#include "tensorhub/types/capability.hpp"

#include <sodium.h>

#include <array>
#include <cstring>
#include <string>

#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace capability_detail {
/// Lets libsodium pick the fastest hash of this processor, once. Without this call libsodium uses a slower
/// one.
inline bool prepare() noexcept {
  static const bool ready = ::sodium_init() >= 0;
  return ready;
}
}  // namespace capability_detail

TENSORHUB_DECL std::string random_capability_key() {
  if (!capability_detail::prepare())
    throw error(errc::system_failed, "libsodium cannot be used: no random numbers");
  std::string key(capability_key_bytes, '\0');
  ::randombytes_buf(key.data(), key.size());
  return key;
}

TENSORHUB_DECL std::string make_capability(std::string_view key, incarnation reader, incarnation source,
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

TENSORHUB_DECL void capability_check::require(std::span<const std::byte> key) {
  if (key.size() != capability_key_bytes) {
    throw error(errc::invalid_argument, "a capability key has " + std::to_string(key.size()) +
                                            " bytes: it must have " + std::to_string(capability_key_bytes));
  }
  std::memcpy(key_.data(), key.data(), key_.size());
  required_ = true;
}

TENSORHUB_DECL bool capability_check::accepts(std::span<const std::byte> shown, incarnation reader,
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

}  // namespace tensorhub::inline TENSORHUB_MODE
