#pragma once
/// \file least_loaded.hpp
/// The source with the fewest readers, wherever it is. For flat networks.

#include <tuple>

#include "tensorhub/concepts/scheduler.hpp"

namespace tensorhub {

class least_loaded {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "least_loaded";
  struct options {};

  least_loaded() = default;
  explicit least_loaded(options) noexcept {}

  [[nodiscard]] source_choice choose(const source_query&,
                                     std::span<const source_candidate> candidates) noexcept {
    source_choice best{std::nullopt, "no candidate"};
    const auto cost = [](const source_candidate& c) {
      return std::tuple{c.leases, c.publisher, c.worker.value};
    };
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (!best.index || cost(candidates[i]) < cost(candidates[*best.index])) best = {i, "least loaded"};
    }
    return best;
  }
};
static_assert(scheduler<least_loaded>);

}  // namespace tensorhub
