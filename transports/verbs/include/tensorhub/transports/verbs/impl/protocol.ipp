#pragma once
/// \file protocol.ipp
/// Definitions of protocol.hpp.

#include <cstring>
#include <span>

#include "tensorhub/transports/verbs/protocol.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL std::uint32_t checksum_of(const region_key& key, incarnation maker) noexcept {
  region_key plain = key;
  plain.head.checksum = 0;
  std::array<std::uint64_t, sizeof(region_key) / 8> words{};
  static_assert(sizeof words == sizeof(region_key));
  std::memcpy(words.data(), &plain, sizeof plain);
  const std::size_t rkeys = std::size_t{plain.head.rails} * plain.head.pieces;
  const std::size_t used = (sizeof(key_head) + rkeys * sizeof(std::uint32_t) + 7) / 8;
  std::uint64_t sum = maker.value * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  for (std::size_t i = 0; i < used && i < words.size(); ++i) {
    sum = (sum ^ words[i]) * 0xbf58476d1ce4e5b9u;
    sum ^= sum >> 29;
  }
  return static_cast<std::uint32_t>(sum >> 32);
}

TENSORHUB_DECL remote_key encode_key(region_key key, incarnation maker) noexcept {
  key.head.checksum = checksum_of(key, maker);
  remote_key out;
  const std::size_t rkey_bytes = std::size_t{key.head.rails} * key.head.pieces * sizeof(std::uint32_t);
  std::memcpy(out.bytes.data(), &key.head, sizeof key.head);
  std::memcpy(out.bytes.data() + sizeof key.head, key.rkeys.data(), rkey_bytes);
  out.used_bytes = static_cast<std::uint8_t>(sizeof key.head + rkey_bytes);
  return out;
}

TENSORHUB_DECL bool decode_key(const remote_key& from, incarnation maker, region_key& out) noexcept {
  if (from.used_bytes < sizeof(key_head) || from.used_bytes > from.bytes.size()) return false;
  std::memcpy(&out.head, from.bytes.data(), sizeof out.head);
  const std::size_t rkeys = std::size_t{out.head.rails} * out.head.pieces;
  if (out.head.format != key_head{}.format || rkeys == 0 || rkeys > most_rkeys) return false;
  if (from.used_bytes != sizeof out.head + rkeys * sizeof(std::uint32_t)) return false;
  out.rkeys.fill(0);
  std::memcpy(out.rkeys.data(), from.bytes.data() + sizeof out.head, rkeys * sizeof(std::uint32_t));
  return out.head.checksum == checksum_of(out, maker);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
