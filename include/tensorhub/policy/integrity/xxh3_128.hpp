#pragma once
/// \file xxh3_128.hpp
/// The default integrity policy: XXH3-128 per chunk (see types/xxh3.hpp).
///
/// XXH3-128 is not a cryptographic digest: it finds torn, mixed and damaged bytes, but no forgeries.

#include <bit>
#include <string>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/xxh3.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct xxh3_128 {
  using concept_tag = integrity_tag;
  static constexpr std::string_view name = "xxh3_128";
  static constexpr bool enabled = true;

  [[nodiscard]] static digest_seeds bind(std::string_view model, version_number version,
                                         shard_of shard) noexcept {
    const std::uint64_t place[3] = {detail::xxh3_64(model, 0), shard.index, shard.count};
    const std::uint64_t chunks = detail::xxh3_128(std::as_bytes(std::span{place}), 0).low;
    return {chunks, detail::xxh3_128(std::as_bytes(std::span{&chunks, 1}), version.value).low};
  }

  /// Multiplication by an odd constant keeps seeds of different chunks different for every seed.
  [[nodiscard]] static constexpr std::uint64_t chunk_seed(std::uint64_t seed, std::uint64_t chunk) noexcept {
    return seed ^ ((chunk + 1) * 0x9e3779b97f4a7c15ull);
  }
  [[nodiscard]] static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                              std::span<const std::byte> bytes) noexcept {
    return detail::never_zero(detail::xxh3_128(bytes, chunk_seed(seed, chunk)));
  }

  [[nodiscard]] static digest128 root(std::uint64_t seed, std::span<const digest128> table) noexcept {
    return detail::never_zero(detail::xxh3_128(std::as_bytes(table), ~seed));
  }
};
static_assert(device_integrity<xxh3_128>);

}  // namespace tensorhub::inline TENSORHUB_MODE
