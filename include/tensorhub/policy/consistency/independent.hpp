#pragma once
/// \file independent.hpp
/// Each worker decides and completes alone: for unsharded models, and for models whose shards need not agree.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/consistency/decide.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class independent {
 public:
  using concept_tag = consistency_tag;
  static constexpr std::string_view name = "independent";
  static constexpr bool decides_per_group = false;
  static constexpr bool completes_per_group = false;
  struct options {};

  independent() = default;
  explicit independent(options) noexcept {}

  [[nodiscard]] version_decision decide(const version_selector& selector,
                                        const version_view& view) const noexcept {
    return detail::decide_fresh(selector, view);
  }
};
static_assert(consistency<independent>);

}  // namespace tensorhub::inline TENSORHUB_MODE
