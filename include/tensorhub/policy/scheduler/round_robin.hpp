#pragma once
/// \file round_robin.hpp
/// Every source in turn, by incarnation, one for each reader. A baseline: it knows neither place nor load.

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class round_robin {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "round_robin";
  struct options {};

  round_robin() = default;
  explicit round_robin(options) noexcept {}

  [[nodiscard]] source_limits limits() const noexcept { return {1, UINT32_MAX}; }

  [[nodiscard]] source_choice choose(const source_query&,
                                     std::span<const source_candidate> candidates) noexcept {
    // The next incarnation above the last one served, else the lowest of all: fair although the list changes.
    std::optional<std::size_t> next;
    std::optional<std::size_t> lowest;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const incarnation worker = candidates[i].worker;
      if (!lowest || worker < candidates[*lowest].worker) lowest = i;
      if (worker > last_ && (!next || worker < candidates[*next].worker)) next = i;
    }
    if (!next) next = lowest;
    if (!next) return {std::nullopt, "no candidate"};
    last_ = candidates[*next].worker;
    return {next, "next in turn"};
  }

 private:
  incarnation last_{};
};
static_assert(scheduler<round_robin>);

}  // namespace tensorhub::inline TENSORHUB_MODE
