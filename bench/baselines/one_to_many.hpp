#pragma once
/// \file one_to_many.hpp
/// A scheduler to compare with: every reader reads from the publisher of the version, as with a
/// point-to-point library. n readers take n times as long as one reader.

#include "tensorhub/concepts/scheduler.hpp"

namespace baselines {

class one_to_many {
 public:
  using concept_tag = tensorhub::scheduler_tag;
  static constexpr std::string_view name = "one_to_many";
  struct options {};

  one_to_many() = default;
  explicit one_to_many(options) noexcept {}

  [[nodiscard]] tensorhub::source_limits limits() const noexcept { return {1, UINT32_MAX}; }

  [[nodiscard]] tensorhub::source_choice choose(
      const tensorhub::source_query&, std::span<const tensorhub::source_candidate> candidates) noexcept {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (!best || rank(candidates[i]) < rank(candidates[*best])) best = i;
    }
    return {best, best ? "it published the version, or has all of it" : "no candidate"};
  }

 private:
  /// The publisher first. Without a publisher, the source that has the most chunks.
  [[nodiscard]] static std::uint64_t rank(const tensorhub::source_candidate& c) noexcept {
    return c.publisher ? 0 : 1 + c.chunks - c.chunks_held;
  }
};
static_assert(tensorhub::scheduler<one_to_many>);

}  // namespace baselines
