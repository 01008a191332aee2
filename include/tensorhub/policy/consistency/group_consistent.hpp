#pragma once
/// \file group_consistent.hpp
/// The default policy: the shards of a replica get one version, decided once, and an update succeeds for all
/// of them or for none.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/consistency/decide.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class group_consistent {
 public:
  using concept_tag = consistency_tag;
  static constexpr std::string_view name = "group_consistent";
  static constexpr bool decides_per_group = true;
  static constexpr bool completes_per_group = true;
  struct options {};

  group_consistent() = default;
  explicit group_consistent(options) noexcept {}

  [[nodiscard]] version_decision decide(const version_selector& selector,
                                        const version_view& view) const noexcept {
    return detail::decide_fresh(selector, view);
  }
};
static_assert(consistency<group_consistent>);

}  // namespace tensorhub::inline TENSORHUB_MODE
