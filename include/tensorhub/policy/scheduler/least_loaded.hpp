#pragma once
/// \file least_loaded.hpp
/// Chooses the source with the fewest readers, wherever it runs. For flat networks.

#include <tuple>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class least_loaded {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "least_loaded";
  struct options {
    source_limits most{};
  };

  least_loaded() = default;
  explicit least_loaded(options how) noexcept : most_{how.most} {}

  [[nodiscard]] source_limits limits() const noexcept { return most_; }

  [[nodiscard]] source_choice choose(const source_query& query,
                                     std::span<const source_candidate> candidates) noexcept {
    source_choice best{std::nullopt, "no candidate"};
    const auto cost = [](const source_candidate& c) { return std::tuple{c.leases, c.publisher}; };
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const bool is_free = candidates[i].leases < most_.credits;
      if (!is_free && !query.may_displace) continue;
      if (!best.index || cost(candidates[i]) < cost(candidates[*best.index]))
        best = {i, is_free ? "least loaded" : "least loaded; takes the place of one of its readers",
                !is_free};
    }
    return best;
  }

 private:
  source_limits most_{};
};
static_assert(scheduler<least_loaded>);

}  // namespace tensorhub::inline TENSORHUB_MODE
