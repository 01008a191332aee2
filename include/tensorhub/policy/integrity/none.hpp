#pragma once
/// \file none.hpp
/// No digests, for trusted links and memories. The control block still guards against changed bytes.

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct no_integrity {
  using concept_tag = integrity_tag;
  static constexpr std::string_view name = "none";
  static constexpr bool enabled = false;

  [[nodiscard]] static digest_seeds bind(std::string_view, version_number, shard_of) noexcept { return {}; }
  [[nodiscard]] static digest128 chunk_digest(std::uint64_t, std::uint64_t,
                                              std::span<const std::byte>) noexcept {
    return {};
  }
  [[nodiscard]] static digest128 root(std::uint64_t, std::span<const digest128>) noexcept { return {}; }
};
static_assert(integrity<no_integrity>);

}  // namespace tensorhub::inline TENSORHUB_MODE
