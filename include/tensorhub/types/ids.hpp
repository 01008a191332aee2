#pragma once
/// \file ids.hpp
/// Numeric identifiers. Each has its own type, so that a lease cannot be passed in place of an incarnation.

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A number with a tag: it can be compared and hashed, and has no arithmetic. Zero means "none".
template <typename Tag>
struct strong_id {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const strong_id&) const = default;
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return value != 0; }
};

/// Random per process start (per `worker` object): a process that replaces another at the same address has
/// another incarnation.
using incarnation = strong_id<struct incarnation_tag>;
/// Random per server start; a worker that sees a new epoch announces its state again. The upper 24 bits are
/// the server's term: zero, or the number that an election has given. Workers ignore a server whose term is
/// lower than one they have seen.
using server_epoch = strong_id<struct server_epoch_tag>;
inline constexpr unsigned server_term_shift = 40;
inline constexpr std::uint64_t server_term_max = (1ull << (64 - server_term_shift)) - 1;
[[nodiscard]] constexpr std::uint64_t term_of(server_epoch epoch) noexcept {
  return epoch.value >> server_term_shift;
}
/// One permission to read one source for one version, unique within a server epoch.
using lease_id = strong_id<struct lease_tag>;
/// Number of a control request within one incarnation; a retry carries the same number.
using request_sequence = strong_id<struct request_sequence_tag>;
/// The number of a group operation within one replica. Every shard counts its own calls; equal numbers name
/// the same operation.
using operation_counter = strong_id<struct operation_tag>;

/// The caller's name for one posted read; its completion carries the same name.
using request_id = std::uint64_t;

/// Shard `index` of `count` of a model. `{0, 1}` is an unsharded model.
struct shard_of {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
  constexpr auto operator<=>(const shard_of&) const = default;
};

[[nodiscard]] inline std::string to_string(shard_of shard) {
  return std::to_string(shard.index) + "/" + std::to_string(shard.count);
}

/// Prints an incarnation as 16 hexadecimal digits.
template <typename Tag>
[[nodiscard]] std::string to_hex(strong_id<Tag> id) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 0; i < 16; ++i) text[static_cast<std::size_t>(15 - i)] = digits[(id.value >> (4 * i)) & 15u];
  return text;
}

}  // namespace tensorhub::inline TENSORHUB_MODE

template <typename Tag>
struct std::hash<tensorhub::strong_id<Tag>> {
  [[nodiscard]] std::size_t operator()(tensorhub::strong_id<Tag> id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
