#pragma once
/// \file digest.hpp
/// A 128-bit digest as a value. The integrity policy (policy/integrity/) makes digests.

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  constexpr auto operator<=>(const digest128&) const = default;
  /// False for zero, which means "no digest": the policy `no_integrity` makes that.
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return (low | high) != 0; }
};

/// What the digests of one version of one shard are bound to. Both ends of a transfer make it with
/// `integrity::bind` (concepts/integrity.hpp).
struct digest_seeds {
  std::uint64_t chunks = 0;  ///< model and shard: the same in all versions
  std::uint64_t root = 0;    ///< and the version
  constexpr bool operator==(const digest_seeds&) const = default;
};

/// The key of a keyed BLAKE3 digest, as eight little-endian words.
using digest_key = std::array<std::uint32_t, 8>;

[[nodiscard]] std::string to_hex(digest128 digest);

namespace detail {

/// What an integrity policy makes of a digest, since zero is reserved for "no digest".
[[nodiscard]] constexpr digest128 never_zero(digest128 digest) noexcept {
  return digest ? digest : digest128{1, 0};
}

}  // namespace detail

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/digest.ipp"
#endif
