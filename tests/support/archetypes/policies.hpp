#pragma once
/// \file policies.hpp
/// Archetypes of the three policy concepts: scheduler, consistency, integrity.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Chooses the first candidate that has a credit left; never displaces a reader. Movable, not copyable, not
/// default-constructible.
class scheduler_archetype {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "archetype";
  struct options {};

  explicit scheduler_archetype(options) noexcept {}
  scheduler_archetype(scheduler_archetype&&) noexcept = default;
  scheduler_archetype& operator=(scheduler_archetype&&) noexcept = default;

  source_limits limits() const noexcept { return {2, 3}; }
  source_choice choose(const source_query&, std::span<const source_candidate> candidates) noexcept {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].leases < limits().credits) return {i, "the first"};
    }
    return {};
  }
};
static_assert(scheduler<scheduler_archetype>);
static_assert(!std::copyable<scheduler_archetype> && !std::default_initializable<scheduler_archetype>);

/// Takes the requested version, or the latest, as soon as it is available.
class consistency_archetype {
 public:
  using concept_tag = consistency_tag;
  static constexpr std::string_view name = "archetype";
  static constexpr bool decides_per_group = false;
  static constexpr bool completes_per_group = false;
  struct options {};

  explicit consistency_archetype(options) noexcept {}
  consistency_archetype(consistency_archetype&&) noexcept = default;
  consistency_archetype& operator=(consistency_archetype&&) noexcept = default;

  version_decision decide(const version_selector& selector, const version_view& view) const noexcept {
    using kind = version_decision::kind_type;
    const bool exact = selector.kind == version_selector::kind_type::exactly;
    const version_number best = view.held > view.latest_available ? view.held : view.latest_available;
    const version_number wanted = exact ? selector.version : best;
    const bool there = exact ? view.wanted_available || wanted == view.held
                             : static_cast<bool>(best) && best >= selector.version;
    if (there) return {wanted == view.held ? kind::keep : kind::take, wanted, errc::ok};
    if (exact && wanted <= view.latest_ever) return {kind::refuse, {}, errc::unavailable};
    return {kind::wait, {}, errc::ok};
  }
};
static_assert(consistency<consistency_archetype>);
static_assert(!std::copyable<consistency_archetype> && !std::default_initializable<consistency_archetype>);

/// A byte-wise FNV-1a in two lanes: short, and sufficient to distinguish bytes, chunks and seeds. It has only
/// static members, because an integrity policy has no object.
class integrity_archetype {
 public:
  integrity_archetype() = delete;
  using concept_tag = integrity_tag;
  static constexpr std::string_view name = "archetype";
  static constexpr bool enabled = true;

  static digest_seeds bind(std::string_view model, version_number version, shard_of shard) noexcept {
    std::uint64_t seed = mix(mix(first, shard.index), shard.count);
    for (const char letter : model) seed = mix(seed, static_cast<unsigned char>(letter));
    return {seed, mix(seed, version.value)};
  }
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                std::span<const std::byte> bytes) noexcept {
    digest128 digest{mix(first, seed), mix(mix(first, seed), chunk)};
    for (const std::byte value : bytes) {
      digest.low = mix(digest.low, std::to_integer<unsigned char>(value));
      digest.high = mix(digest.high, digest.low);
    }
    return never_zero(digest);
  }
  static digest128 root(std::uint64_t seed, std::span<const digest128> table) noexcept {
    digest128 digest{mix(first, ~seed), seed};
    for (const digest128& entry : table) {
      digest.low = mix(mix(digest.low, entry.low), entry.high);
      digest.high = mix(digest.high, digest.low);
    }
    return never_zero(digest);
  }

 private:
  static constexpr std::uint64_t first = 0xcbf29ce484222325ull;  // FNV-1a, 64 bit: offset basis
  static constexpr std::uint64_t prime = 0x100000001b3ull;       // and prime

  static constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t value) noexcept {
    return std::rotl((state ^ value) * prime, 23);
  }
  static constexpr digest128 never_zero(digest128 digest) noexcept {
    return digest ? digest : digest128{1, 0};
  }
};
static_assert(integrity<integrity_archetype>);

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
