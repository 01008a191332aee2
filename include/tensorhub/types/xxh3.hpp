#pragma once
/// \file xxh3.hpp
/// XXH3 (https://github.com/Cyan4973/xxHash, specification doc/xxhash_spec.md), compiled inline so that no
/// symbol leaks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#define TENSORHUB_DEFINED_XXH_INLINE_ALL
#endif
#include <xxhash.h>
#ifdef TENSORHUB_DEFINED_XXH_INLINE_ALL
#undef XXH_INLINE_ALL
#undef TENSORHUB_DEFINED_XXH_INLINE_ALL
#endif

#include "tensorhub/types/digest.hpp"

namespace tensorhub::detail {

[[nodiscard]] inline digest128 xxh3_128(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return {hash.low64, hash.high64};
}

/// Zero is reserved for "no digest".
[[nodiscard]] constexpr digest128 never_zero(digest128 digest) noexcept {
  return digest ? digest : digest128{1, 0};
}

[[nodiscard]] inline std::uint64_t xxh3_64(std::string_view text, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace tensorhub::detail
