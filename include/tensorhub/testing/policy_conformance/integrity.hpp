#pragma once
/// \file integrity.hpp
/// Rules for every integrity policy. A policy that is not enabled makes no digests; only that is checked.
///
/// The rules demand different digests for fixed inputs: a good 128-bit digest has no collisions among them,
/// and a policy that fails once always fails.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/policy_conformance/rule.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

template <integrity I>
struct integrity_rules {
  /// Around the block sizes of common digests, and beyond.
  static constexpr std::array<std::size_t, 14> lengths{1,  2,   3,   4,   8,   9,    16,
                                                       17, 128, 129, 240, 241, 1024, 4099};

  /// Equal bytes have equal digests: in a second call, and at any address and alignment.
  static violations deterministic() {
    violations seen;
    for (const std::size_t length : lengths) {
      const std::vector<std::byte> bytes = some_bytes(length, length);
      const digest128 first = I::chunk_digest(some_seed(), 3, bytes);
      for (std::size_t shift = 0; shift < 9; ++shift) {
        std::vector<std::byte> room(length + shift);
        std::copy(bytes.begin(), bytes.end(), room.begin() + static_cast<std::ptrdiff_t>(shift));
        seen.require(I::chunk_digest(some_seed(), 3, std::span{room}.subspan(shift)) == first,
                     "another digest of the same " + std::to_string(length) + " bytes elsewhere");
      }
    }
    const std::vector<digest128> table = some_table(33);
    const std::vector<digest128> copied = table;
    seen.require(I::root(some_root_seed(), table) == I::root(some_root_seed(), copied),
                 "another root of the same table");
    const std::string model = "policy";
    seen.require(I::bind(model, 7, {1, 2}) == I::bind(std::string{"policy"}, 7, {1, 2}),
                 "other seeds for the same model, version and shard");
    return seen;
  }

  /// "Seeds that stand for 'these bytes belong to'": another model, shard or number of shards has other
  /// seeds, and therefore other digests and roots; another version has another root.
  static violations bound_to_model_version_and_shard() {
    violations seen;
    if (!I::enabled) return seen;
    const std::vector<std::byte> bytes = some_bytes(100, 1);
    const std::vector<digest128> table = some_table(5);
    std::map<std::uint64_t, std::string> seeds;
    std::map<digest128, std::string> digests;
    std::map<digest128, std::string> roots;
    const auto note = [&seen](auto& known, const auto& value, const std::string& whose, const char* what) {
      const auto [there, fresh] = known.try_emplace(value, whose);
      seen.require(fresh, std::string{"one "} + what + " for " + there->second + " and " + whose);
    };
    for (const std::string& model : some_models()) {
      for (const shard_of shard : some_shards()) {
        const std::string place = model + " " + to_string(shard);
        const digest_seeds first = I::bind(model, 1, shard);
        note(seeds, first.chunks, place, "seed");
        note(digests, I::chunk_digest(first.chunks, 0, bytes), place, "digest");
        for (const std::uint64_t version : some_versions()) {
          const std::string whose = place + " v" + std::to_string(version);
          const std::uint64_t seed = I::bind(model, version, shard).root;
          note(seeds, seed, whose, "seed");
          note(roots, I::root(seed, table), whose, "root");
        }
      }
    }
    return seen;
  }

  /// "`chunks` for model and shard, whatever the version": a publisher keeps the digests of what has not
  /// changed.
  static violations unchanged_chunks_keep_their_digests() {
    violations seen;
    if (!I::enabled) return seen;
    for (const std::string& model : some_models()) {
      for (const shard_of shard : some_shards()) {
        const std::uint64_t first = I::bind(model, 1, shard).chunks;
        for (const std::uint64_t version : some_versions()) {
          seen.require(I::bind(model, version, shard).chunks == first,
                       "another seed of the chunks of " + model + " " + to_string(shard) + " in version " +
                           std::to_string(version));
        }
      }
    }
    return seen;
  }

  /// "The chunk number is added for each chunk": equal bytes elsewhere in the shard have another digest.
  static violations bound_to_the_chunk() {
    violations seen;
    if (!I::enabled) return seen;
    for (const std::size_t length : lengths) {
      const std::vector<std::byte> bytes = some_bytes(length, 2);
      std::set<digest128> digests;
      std::size_t count = 0;
      for (const std::uint64_t chunk : {0ull, 1ull, 2ull, 3ull, 63ull, 64ull, 65ull, 4096ull, 1ull << 25}) {
        digests.insert(I::chunk_digest(some_seed(), chunk, bytes));
        ++count;
      }
      seen.require(digests.size() == count,
                   "chunks of the same " + std::to_string(length) + " bytes share a digest");
    }
    return seen;
  }

  /// Every bit changes the digest, and so does the length.
  static violations one_flipped_bit_changes_the_digest() {
    violations seen;
    if (!I::enabled) return seen;
    for (const std::size_t length : lengths) {
      std::vector<std::byte> bytes = some_bytes(length, 3);
      const digest128 before = I::chunk_digest(some_seed(), 0, bytes);
      for (std::size_t bit = 0; bit < length * 8; ++bit) {
        const std::byte mask{static_cast<unsigned char>(1u << (bit % 8))};
        bytes[bit / 8] ^= mask;
        seen.require(
            I::chunk_digest(some_seed(), 0, bytes) != before,
            "bit " + std::to_string(bit) + " of " + std::to_string(length) + " bytes does not count");
        bytes[bit / 8] ^= mask;
      }
      seen.require(I::chunk_digest(some_seed(), 0, std::span{bytes}.first(length - 1)) != before,
                   "the last of " + std::to_string(length) + " bytes may be missing");
      const std::vector<std::byte> zeros(length);
      seen.require(I::chunk_digest(some_seed(), 0, zeros) !=
                       I::chunk_digest(some_seed(), 0, std::span{zeros}.first(length - 1)),
                   std::to_string(length) + " zeros and one less have the same digest");
    }
    return seen;
  }

  /// "Never zero if enabled": zero means "no digest". The inputs are those whose plain digest is zero.
  static violations never_zero() {
    violations seen;
    if (!I::enabled) return seen;
    for (const std::uint64_t seed : {std::uint64_t{0}, ~std::uint64_t{0}, some_seed()}) {
      for (const std::uint64_t chunk : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
        for (const std::size_t length : {0u, 1u, 16u, 1024u}) {
          const std::vector<std::byte> zeros(length);
          seen.require(static_cast<bool>(I::chunk_digest(seed, chunk, zeros)),
                       "the digest of " + std::to_string(length) + " zeros is zero");
        }
      }
      for (const std::size_t entries : {0u, 1u, 2u}) {
        const std::vector<digest128> table(entries);
        seen.require(static_cast<bool>(I::root(seed, table)),
                     "the root of a table of " + std::to_string(entries) + " zeros is zero");
      }
    }
    return seen;
  }

  /// The root identifies one table: swapped, changed, dropped or added entries give another root.
  static violations root_depends_on_every_entry_and_their_order() {
    violations seen;
    if (!I::enabled) return seen;
    for (const std::size_t entries : {2u, 3u, 16u, 17u, 100u}) {
      const std::vector<digest128> table = some_table(entries);
      const digest128 root = I::root(some_root_seed(), table);
      const auto differs = [&](const std::vector<digest128>& other, const std::string& how) {
        seen.require(I::root(some_root_seed(), other) != root,
                     "the root of " + std::to_string(entries) + " entries is the same " + how);
      };
      for (std::size_t i = 0; i < entries; ++i) {
        std::vector<digest128> other = table;
        other[i].low ^= 1;
        differs(other, "with another entry");
        other = table;
        other[i].high ^= 1ull << 63;
        differs(other, "with another entry");
        other = table;
        std::swap(other[i], other[(i + 1) % entries]);
        differs(other, "in another order");
      }
      std::vector<digest128> other = table;
      other.pop_back();
      differs(other, "without the last");
      other = table;
      other.push_back({});
      differs(other, "with a zero more");
    }
    return seen;
  }

  /// A disabled policy returns "no digest" everywhere.
  static violations disabled_makes_no_digest() {
    violations seen;
    if (I::enabled) return seen;
    const std::vector<std::byte> bytes = some_bytes(64, 4);
    const std::vector<digest128> table = some_table(3);
    seen.require(!I::chunk_digest(some_seed(), 1, bytes), "a digest although the policy is off");
    seen.require(!I::root(some_root_seed(), table), "a root although the policy is off");
    return seen;
  }

 private:
  static std::uint64_t some_seed() noexcept { return I::bind("policy", 7, {0, 1}).chunks; }
  static std::uint64_t some_root_seed() noexcept { return I::bind("policy", 7, {0, 1}).root; }
  static std::array<std::string, 7> some_models() {
    return {"a", "b", "ab", "ba", "policy", "policy1", "policy-with-a-long-name-0"};
  }
  static std::array<std::uint64_t, 6> some_versions() { return {1, 2, 3, 256, 1ull << 32, 1ull << 63}; }
  static std::array<shard_of, 6> some_shards() {
    return {shard_of{0, 1}, shard_of{0, 2}, shard_of{1, 2}, shard_of{0, 3}, shard_of{1, 3}, shard_of{2, 3}};
  }
  static std::vector<std::byte> some_bytes(std::size_t length, std::uint64_t seed) {
    policy_detail::suite_random random{seed};
    std::vector<std::byte> bytes(length);
    for (std::byte& value : bytes) value = static_cast<std::byte>(random.below(256));
    return bytes;
  }
  static std::vector<digest128> some_table(std::size_t entries) {
    policy_detail::suite_random random{entries};
    std::vector<digest128> table(entries);
    for (digest128& entry : table) entry = {random.next(), random.next()};
    return table;
  }
};

/// Runs all rules.
template <integrity I>
[[nodiscard]] std::vector<rule_result> check_integrity() {
  using rules = integrity_rules<I>;
  std::vector<rule_result> results;
  results.push_back({"deterministic", rules::deterministic()});
  results.push_back({"bound_to_model_version_and_shard", rules::bound_to_model_version_and_shard()});
  results.push_back({"unchanged_chunks_keep_their_digests", rules::unchanged_chunks_keep_their_digests()});
  results.push_back({"bound_to_the_chunk", rules::bound_to_the_chunk()});
  results.push_back({"one_flipped_bit_changes_the_digest", rules::one_flipped_bit_changes_the_digest()});
  results.push_back({"never_zero", rules::never_zero()});
  results.push_back(
      {"root_depends_on_every_entry_and_their_order", rules::root_depends_on_every_entry_and_their_order()});
  results.push_back({"disabled_makes_no_digest", rules::disabled_makes_no_digest()});
  return results;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
