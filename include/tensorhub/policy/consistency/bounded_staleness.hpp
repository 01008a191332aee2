#pragma once
/// \file bounded_staleness.hpp
/// Group-consistent, except that `update(latest)` keeps the held version while it is at most `max_behind`
/// versions old. Rollouts that tolerate a known staleness save transfers.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/consistency/decide.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class bounded_staleness {
 public:
  using concept_tag = consistency_tag;
  static constexpr std::string_view name = "bounded_staleness";
  static constexpr bool decides_per_group = true;
  static constexpr bool completes_per_group = true;
  struct options {
    std::uint64_t max_behind = 1;  ///< in version numbers; 0 behaves like `group_consistent`
  };

  bounded_staleness() = default;
  explicit bounded_staleness(options chosen) noexcept : options_{chosen} {}

  [[nodiscard]] version_decision decide(const version_selector& selector,
                                        const version_view& view) const noexcept {
    const bool fresh_enough =
        view.held && (view.held >= view.latest_available ||
                      view.latest_available.value - view.held.value <= options_.max_behind);
    if (selector.kind == version_selector::kind_type::latest && fresh_enough) {
      return {version_decision::kind_type::keep, view.held, errc::ok};
    }
    return detail::decide_fresh(selector, view);
  }

 private:
  options options_{};
};
static_assert(consistency<bounded_staleness>);

}  // namespace tensorhub::inline TENSORHUB_MODE
