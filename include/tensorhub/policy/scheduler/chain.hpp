#pragma once
/// \file chain.hpp
/// Everybody reads from the one before. A baseline: n readers take the time of one, and n chunks more.

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class chain {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "chain";
  struct options {};

  chain() = default;
  explicit chain(options) noexcept {}

  [[nodiscard]] source_limits limits() const noexcept { return {1, 1}; }

  [[nodiscard]] source_choice choose(const source_query&,
                                     std::span<const source_candidate> candidates) noexcept {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].leases == 0) return {i, "the end of the chain"};
    }
    return {std::nullopt, candidates.empty() ? "no candidate" : "the end of the chain is not ready yet"};
  }
};
static_assert(scheduler<chain>);

}  // namespace tensorhub::inline TENSORHUB_MODE
