#pragma once
/// \file xxh3.hpp
/// xxh3 (https://github.com/Cyan4973/xxHash), 64 and 128 bits, over memory.
///
/// With TENSORHUB_XXHASH_DISPATCH (the CMake package sets it where the installed libxxhash can), the
/// library's own dispatch picks the widest vectors of the processor at run time: 2.5 times the speed of the
/// portable form on AVX-512. Without it the header-only form is compiled in. Both give the same digests.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#ifdef TENSORHUB_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
// Not left defined: whoever includes xxhash.h after us gets it as he wants it.
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

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

[[nodiscard]] inline digest128 xxh3_128(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
#ifdef TENSORHUB_XXHASH_DISPATCH
  const XXH128_hash_t hash = XXH3_128bits_withSeed_dispatch(bytes.data(), bytes.size(), seed);
#else
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
#endif
  return {hash.low64, hash.high64};
}

/// Zero is reserved for "no digest".
[[nodiscard]] constexpr digest128 never_zero(digest128 digest) noexcept {
  return digest ? digest : digest128{1, 0};
}

[[nodiscard]] inline std::uint64_t xxh3_64(std::string_view text, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
