#pragma once
/// \file xxh3.hpp
/// xxh3 (https://github.com/Cyan4973/xxHash), 64 and 128 bits, over memory.
///
/// With TENSORHUB_XXHASH_DISPATCH (the CMake package sets it if the installed libxxhash supports it), the
/// dispatch of libxxhash picks the widest vectors of the processor at run time: 2.5 times the speed of the
/// portable form on AVX-512. Without it the header-only form is compiled in. Both make the same digests.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

[[nodiscard]] digest128 xxh3_128(std::span<const std::byte> bytes, std::uint64_t seed) noexcept;

[[nodiscard]] std::uint64_t xxh3_64(std::string_view text, std::uint64_t seed) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/xxh3.ipp"
#endif
