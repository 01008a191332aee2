#pragma once
/// \file capability.ipp
/// Making and checking capabilities with libsodium's keyed hash: definitions of types/capability.hpp.

#include "tensorhub/types/capability.hpp"

#include <sodium.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace capability_detail {
/// Lets libsodium pick the fastest hash of this processor, once. Without this call libsodium uses a slower
/// one.
inline bool prepare() noexcept {
  static const bool ready = ::sodium_init() >= 0;
  return ready;
}

[[nodiscard]] inline std::string_view text_of(const std::array<std::byte, capability_bytes>& bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Of a role's word and the connection, under the secret part of the capability.
[[nodiscard]] inline source_proof hash_of(std::string_view capability, std::string_view role,
                                          channel_binding binding) noexcept {
  prepare();
  source_proof out{};
  crypto_generichash_state state;
  static_cast<void>(::crypto_generichash_init(&state,
                                              reinterpret_cast<const unsigned char*>(capability.data()) + 8,
                                              capability_hash_bytes, out.size()));
  static_cast<void>(
      ::crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(role.data()), role.size()));
  static_cast<void>(::crypto_generichash_update(
      &state, reinterpret_cast<const unsigned char*>(binding.data()), binding.size()));
  static_cast<void>(
      ::crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(out.data()), out.size()));
  return out;
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
                                           std::uint64_t epoch) {
  if (key.size() != capability_key_bytes) return {};
  capability_detail::prepare();
  const std::array<std::uint64_t, 3> words{reader.value, source.value, epoch};
  std::string out(capability_bytes, '\0');
  std::memcpy(out.data(), &epoch, 8);
  static_cast<void>(::crypto_generichash(reinterpret_cast<unsigned char*>(out.data()) + 8,
                                         capability_hash_bytes,
                                         reinterpret_cast<const unsigned char*>(words.data()), sizeof words,
                                         reinterpret_cast<const unsigned char*>(key.data()), key.size()));
  return out;
}

TENSORHUB_DECL std::array<std::byte, capability_bytes> shown_over(std::string_view capability,
                                                                  channel_binding binding) noexcept {
  std::array<std::byte, capability_bytes> out{};
  if (capability.size() != out.size()) return out;
  std::memcpy(out.data(), capability.data(), out.size());
  if (binding.empty()) return out;
  const auto hash = capability_detail::hash_of(capability, "reader", binding);
  std::memcpy(out.data() + 8, hash.data(), hash.size());
  return out;
}

TENSORHUB_DECL source_proof proof_of_source(std::string_view capability, channel_binding binding) noexcept {
  return capability.size() == capability_bytes ? capability_detail::hash_of(capability, "source", binding)
                                               : source_proof{};
}

TENSORHUB_DECL bool is_same(const source_proof& a, const source_proof& b) noexcept {
  return ::sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

TENSORHUB_DECL void capability_check::require(std::span<const std::byte> key) {
  if (key.size() != capability_key_bytes) {
    throw error(errc::invalid_argument, "a capability key has " + std::to_string(key.size()) +
                                            " bytes: it must have " + std::to_string(capability_key_bytes));
  }
  std::memcpy(key_.data(), key.data(), key_.size());
  required_ = true;
}

TENSORHUB_DECL std::array<std::byte, capability_bytes> capability_check::given(
    std::span<const std::byte> shown, incarnation reader, incarnation source) const noexcept {
  std::array<std::byte, capability_bytes> out{};
  std::array<std::uint64_t, 3> words{reader.value, source.value, 0};
  std::memcpy(&words[2], shown.data(), 8);
  std::memcpy(out.data(), shown.data(), 8);
  static_cast<void>(::crypto_generichash(
      reinterpret_cast<unsigned char*>(out.data()) + 8, capability_hash_bytes,
      reinterpret_cast<const unsigned char*>(words.data()), sizeof words, key_.data(), key_.size()));
  return out;
}

TENSORHUB_DECL bool capability_check::accepts(std::span<const std::byte> shown, incarnation reader,
                                              incarnation source, channel_binding binding,
                                              std::uint64_t oldest_epoch) const noexcept {
  if (!required_) return true;
  if (shown.size() != capability_bytes) return false;
  std::uint64_t epoch = 0;
  std::memcpy(&epoch, shown.data(), sizeof epoch);
  if (epoch < oldest_epoch) return false;
  const auto expected = shown_over(capability_detail::text_of(given(shown, reader, source)), binding);
  return ::sodium_memcmp(expected.data(), shown.data(), expected.size()) == 0;
}

TENSORHUB_DECL source_proof capability_check::proof_to(std::span<const std::byte> shown, incarnation reader,
                                                       incarnation source,
                                                       channel_binding binding) const noexcept {
  if (!required_ || shown.size() != capability_bytes) return {};
  return proof_of_source(capability_detail::text_of(given(shown, reader, source)), binding);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
