#pragma once
/// \file integrity.hpp
/// Concept `integrity`: how a reader recognises that a chunk's bytes are the published ones.
///
/// A digest is bound to its place: `bind` covers model and shard, and the chunk number is added for each
/// chunk. The same bytes of another model, shard or chunk therefore have another digest; those that did not
/// change from one version to the next keep theirs, so that a publisher need not make it again. What a
/// version is made of is said by the root over all digests of a shard, which is bound to the version too.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Opt-in: `using concept_tag = integrity_tag;`
struct integrity_tag {};

// | expression                      | type           | means                                                |
// |---------------------------------|----------------|------------------------------------------------------|
// | I::concept_tag                  | integrity_tag  | the author has read this table                       |
// | I::name                         | string_view    | compared by the server: workers of one model must    |
// |                                 |                | agree                                                |
// | I::enabled                      | constexpr bool | false: no table is made, sent or checked             |
// | I::bind(model, version, shard)  | digest_seeds   | seeds that stand for "these bytes belong to":        |
// |                                 |                | `chunks` for model and shard, whatever the version,  |
// |                                 |                | `root` for all three; deterministic, noexcept        |
// | I::chunk_digest(seed, chunk, b) | digest128      | digest of the chunk's bytes under seed `chunks`;     |
// |                                 |                | noexcept; never zero if enabled                      |
// | I::root(seed, table)            | digest128      | digest of the table of all chunk digests under seed  |
// |                                 |                | `root`; noexcept, as above                           |
//
// If the chunk digest of a policy is XXH3-128 under a seed, the policy may say so with `I::chunk_seed(seed,
// chunk)`, a std::uint64_t such that chunk_digest is detail::never_zero(xxh3_128(bytes, chunk_seed)). If it
// is BLAKE3 under a key, it may say so with `I::chunk_key(seed, chunk)`, a digest_key such that
// chunk_digest is detail::never_zero of the first half of blake3_keyed_hash(chunk_key, bytes). Devices then
// make the digests of their own memory; chunks of other policies are copied to the host for their digests.
//
// A policy whose digests cannot be met by other bytes that somebody makes on purpose says so with
// `static constexpr bool resists_forgery = true`.
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename I>
concept integrity =
    std::same_as<typename I::concept_tag, integrity_tag> &&
    std::same_as<std::remove_cv_t<decltype(I::enabled)>, bool> &&
    requires(std::string_view model, version_number version, shard_of shard, std::uint64_t seed,
             std::uint64_t chunk, std::span<const std::byte> bytes, std::span<const digest128> table) {
      { I::name } -> std::convertible_to<std::string_view>;
      { I::bind(model, version, shard) } noexcept -> std::same_as<digest_seeds>;
      { I::chunk_digest(seed, chunk, bytes) } noexcept -> std::same_as<digest128>;
      { I::root(seed, table) } noexcept -> std::same_as<digest128>;
    };
// clang-format on

/// True if devices can make this policy's chunk digests, of XXH3 or of keyed BLAKE3.
template <typename I>
concept device_integrity = integrity<I> && requires(std::uint64_t seed, std::uint64_t chunk) {
  { I::chunk_seed(seed, chunk) }
  noexcept->std::same_as<std::uint64_t>;
};
template <typename I>
concept keyed_device_integrity = integrity<I> && requires(std::uint64_t seed, std::uint64_t chunk) {
  { I::chunk_key(seed, chunk) }
  noexcept->std::same_as<digest_key>;
};

/// True if a source that lies on purpose cannot make other bytes with the same digest.
template <typename I>
concept forgery_resistant_integrity = integrity<I> && requires {
  requires I::resists_forgery;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
