#pragma once
/// \file blake3_128.hpp
/// The integrity policy for workers that may lie: BLAKE3 of 128 bits per chunk (see types/blake3.hpp).
///
///     using hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::blake3_128>;
///
/// All workers of a model must use it. A source cannot serve other bytes than the published ones: it would
/// have to find bytes with a given digest, which takes 2^128 attempts (a second preimage), for each chunk
/// anew, since the key of a digest is made of model, shard and chunk. (Bytes that a chunk had in another
/// version do not pass either, unless they are the same: the table of a version admits one digest per chunk,
/// and its root is bound to the version.) What a reader believes begins with the root, which the reference
/// server tells it: whoever may publish, and the server, can still say what they like.
///
/// Two limits, and why digests are not wider for them. *Collisions* take 2^64 attempts: a publisher could
/// make two sets of bytes with one digest and serve both. It could as well publish either. *Seeds* (`bind`)
/// have 64 bits: two subjects (model and shard) can be found, with 2^32 attempts if one may choose both
/// names, that have the same seed. Equal bytes then have equal digests in both, as if nothing were bound;
/// different bytes still do not, and the root that the server tells for one admits only that one's table.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/blake3.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct blake3_128 {
  using concept_tag = integrity_tag;
  static constexpr std::string_view name = "blake3_128";
  static constexpr bool enabled = true;
  static constexpr bool resists_forgery = true;

  [[nodiscard]] static digest_seeds bind(std::string_view model, version_number version,
                                         shard_of shard) noexcept {
    // The name's length is open, and nothing is allocated here: its own digest stands for it.
    const std::span<const char> text{model.data(), model.size()};
    const detail::blake3_value named =
        detail::blake3_derive_key("TensorHub 2026-11 blake3_128 model", std::as_bytes(text));
    std::uint64_t subject[7]{0, 0, 0, 0, shard.index, shard.count, version.value};
    static_assert(sizeof named == 4 * sizeof *subject);
    std::memcpy(subject, named.words, sizeof named);
    return {key("TensorHub 2026-11 blake3_128 place", std::span{subject}.first(6)).first_half().low,
            key("TensorHub 2026-11 blake3_128 subject", subject).first_half().low};
  }

  [[nodiscard]] static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                              std::span<const std::byte> bytes) noexcept {
    return keyed(std::bit_cast<detail::blake3_value>(chunk_key(seed, chunk)), bytes);
  }
  [[nodiscard]] static digest_key chunk_key(std::uint64_t seed, std::uint64_t chunk) noexcept {
    const std::uint64_t subject[2]{seed, chunk};
    return std::bit_cast<digest_key>(key("TensorHub 2026-11 blake3_128 chunk", subject));
  }

  [[nodiscard]] static digest128 root(std::uint64_t seed, std::span<const digest128> table) noexcept {
    return keyed(key("TensorHub 2026-11 blake3_128 table", {&seed, 1}), std::as_bytes(table));
  }

 private:
  [[nodiscard]] static detail::blake3_value key(std::string_view purpose,
                                                std::span<const std::uint64_t> subject) noexcept {
    return detail::blake3_derive_key(purpose, std::as_bytes(subject));
  }
  [[nodiscard]] static digest128 keyed(const detail::blake3_value& key,
                                       std::span<const std::byte> bytes) noexcept {
    return detail::never_zero(detail::blake3_keyed_hash(key, bytes).first_half());
  }
};
static_assert(keyed_device_integrity<blake3_128> && forgery_resistant_integrity<blake3_128>);

}  // namespace tensorhub::inline TENSORHUB_MODE
