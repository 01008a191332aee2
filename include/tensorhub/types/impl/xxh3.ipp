#pragma once
/// \file xxh3.ipp
/// The only file that includes xxHash: definitions of types/xxh3.hpp.

#include "tensorhub/types/xxh3.hpp"

#ifdef TENSORHUB_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
// The macro does not stay defined: a user who includes xxhash.h after this header chooses its mode.
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#define TENSORHUB_DEFINED_XXH_INLINE_ALL
#endif
#include <xxhash.h>
#ifdef TENSORHUB_DEFINED_XXH_INLINE_ALL
#undef XXH_INLINE_ALL
#undef TENSORHUB_DEFINED_XXH_INLINE_ALL
#endif
#endif

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL digest128 xxh3_128(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
#ifdef TENSORHUB_XXHASH_DISPATCH
  const XXH128_hash_t hash = XXH3_128bits_withSeed_dispatch(bytes.data(), bytes.size(), seed);
#else
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
#endif
  return {hash.low64, hash.high64};
}

TENSORHUB_DECL std::uint64_t xxh3_64(std::string_view text, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
