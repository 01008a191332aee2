#pragma once
/// \file chain.hpp
/// A scheduler to compare with: every reader reads from the reader before it. n readers take the time of one
/// reader, and n chunks more.

#include "tensorhub/concepts/scheduler.hpp"

namespace baselines {

class chain {
 public:
  using concept_tag = tensorhub::scheduler_tag;
  static constexpr std::string_view name = "chain";
  struct options {};

  chain() = default;
  explicit chain(options) noexcept {}

  [[nodiscard]] tensorhub::source_limits limits() const noexcept { return {1, 1}; }

  [[nodiscard]] tensorhub::source_choice choose(
      const tensorhub::source_query&, std::span<const tensorhub::source_candidate> candidates) noexcept {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].leases == 0) return {i, "the end of the chain"};
    }
    return {std::nullopt, candidates.empty() ? "no candidate" : "the end of the chain is not ready yet"};
  }
};
static_assert(tensorhub::scheduler<chain>);

}  // namespace baselines
