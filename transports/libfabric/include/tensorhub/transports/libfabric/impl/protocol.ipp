#pragma once
/// \file protocol.ipp
/// Definitions of protocol.hpp.

#include <cstring>
#include <span>

#include "tensorhub/transports/libfabric/protocol.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL std::uint64_t region_key::compute_seal() const noexcept {
  std::array<std::uint64_t, limits::remote_key_bytes / sizeof(std::uint64_t)> words{};
  std::memcpy(words.data(), this, used_bytes());
  std::uint64_t mixed = 0x9e3779b97f4a7c15u;
  for (std::size_t i = 1; i < used_bytes() / sizeof(std::uint64_t); ++i) {
    mixed = (mixed ^ words[i]) * 0xbf58476d1ce4e5b9u;
    mixed ^= mixed >> 32;
  }
  return mixed;
}

TENSORHUB_DECL remote_key region_key::packed() const noexcept {
  remote_key out;
  out.used_bytes = static_cast<std::uint8_t>(used_bytes());
  std::memcpy(out.bytes.data(), this, used_bytes());
  return out;
}

TENSORHUB_DECL std::optional<region_key> region_key::unpacked(const remote_key& from) noexcept {
  region_key key;
  if (from.used_bytes < 7 * sizeof(std::uint64_t) || from.used_bytes > sizeof key) return std::nullopt;
  std::memcpy(&key, from.bytes.data(), from.used_bytes);
  if (key.key_count > most_keys || key.used_bytes() != from.used_bytes) return std::nullopt;
  if (key.seal != key.compute_seal() || key.part_bytes == 0) return std::nullopt;
  if (key.key_count > 0 && (key.bytes - 1) / key.part_bytes >= key.key_count) return std::nullopt;
  return key;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
