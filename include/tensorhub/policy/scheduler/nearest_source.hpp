#pragma once
/// \file nearest_source.hpp
/// The default scheduler: the nearest class of source, in it the least loaded, a trainer only when no rollout
/// is as good.
///
/// Order of comparison: locality class, leases, publisher last, fewer missing chunks, lowest incarnation (so
/// that equal input gives equal output).

#include <tuple>

#include "tensorhub/concepts/scheduler.hpp"

namespace tensorhub {

class nearest_source {
  static auto cost(const source_query& query, const source_candidate& c) noexcept {
    return std::tuple{locality_between(*query.place, *c.place), c.leases, c.publisher,
                      c.chunks - c.chunks_held, c.worker.value};
  }

 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "nearest_source";
  struct options {};

  nearest_source() = default;
  explicit nearest_source(options) noexcept {}

  [[nodiscard]] source_choice choose(const source_query& query,
                                     std::span<const source_candidate> candidates) noexcept {
    source_choice best;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (!best.index || cost(query, candidates[i]) < cost(query, candidates[*best.index])) best.index = i;
    }
    best.reason = best.index ? "nearest, then least loaded" : "no candidate";
    return best;
  }
};
static_assert(scheduler<nearest_source>);

}  // namespace tensorhub
