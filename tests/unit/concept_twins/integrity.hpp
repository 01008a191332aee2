#pragma once
/// \file integrity.hpp
/// Broken twins of `integrity`.

#include <cstdint>

#include "tensorhub/concepts/integrity.hpp"
#include "twin.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::twins {

enum class integrity_flaw {
  none,
  no_tag,
  wrong_tag,
  no_name,
  name_is_no_text,
  no_enabled,
  enabled_is_a_number,
  no_bind,
  bind_gives_a_digest,
  bind_may_throw,
  bind_needs_an_object,
  bind_ignores_the_shard,
  no_chunk_digest,
  chunk_digest_is_a_number,
  chunk_digest_may_throw,
  chunk_digest_needs_an_object,
  chunk_digest_writes,
  no_root,
  root_is_a_number,
  root_may_throw,
  root_needs_an_object,
  count,
};

template <typename Type>
struct with_enabled {
  static constexpr Type enabled{};
};

template <integrity_flaw F>
struct integrity_twin
    : unless<F == integrity_flaw::no_tag,
             with_tag<unless<F == integrity_flaw::wrong_tag, integrity_tag, some_tag>>, nothing<>>,
      unless<F == integrity_flaw::no_name,
             with_name<unless<F == integrity_flaw::name_is_no_text, std::string_view, no_text>>, nothing<1>>,
      unless<F == integrity_flaw::no_enabled,
             with_enabled<unless<F == integrity_flaw::enabled_is_a_number, bool, int>>, nothing<2>> {
  using flaw = integrity_flaw;

  using seed = unless<F == flaw::bind_gives_a_digest, std::uint64_t, digest128>;
  static seed bind(std::string_view, version_number, shard_of) noexcept(F != flaw::bind_may_throw) requires(
      F != flaw::no_bind && F != flaw::bind_needs_an_object && F != flaw::bind_ignores_the_shard);
  seed bind(std::string_view, version_number, shard_of) noexcept requires(F == flaw::bind_needs_an_object);
  static seed bind(std::string_view, version_number) noexcept requires(F == flaw::bind_ignores_the_shard);

  using chunk_result = unless<F == flaw::chunk_digest_is_a_number, digest128, std::uint64_t>;
  using chunk_bytes =
      unless<F == flaw::chunk_digest_writes, std::span<const std::byte>, std::span<std::byte>>;
  static chunk_result chunk_digest(std::uint64_t, std::uint64_t, chunk_bytes) noexcept(
      F != flaw::chunk_digest_may_throw) requires(F != flaw::no_chunk_digest &&
                                                  F != flaw::chunk_digest_needs_an_object);
  chunk_result chunk_digest(std::uint64_t, std::uint64_t, chunk_bytes) noexcept
      requires(F == flaw::chunk_digest_needs_an_object);

  using root_result = unless<F == flaw::root_is_a_number, digest128, std::uint64_t>;
  static root_result root(std::uint64_t, std::span<const digest128>) noexcept(
      F != flaw::root_may_throw) requires(F != flaw::no_root && F != flaw::root_needs_an_object);
  root_result root(std::uint64_t, std::span<const digest128>) noexcept
      requires(F == flaw::root_needs_an_object);
};

struct integrity_refused {
  template <integrity_flaw F>
  static consteval bool check() {
    static_assert(!integrity<integrity_twin<F>>, "a broken integrity policy was accepted");
    return true;
  }
};
static_assert(integrity<integrity_twin<integrity_flaw::none>>);
static_assert(every_flaw_is_refused<integrity_flaw, integrity_refused>());

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::twins
