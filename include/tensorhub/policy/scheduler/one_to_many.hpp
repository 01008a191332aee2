#pragma once
/// \file one_to_many.hpp
/// Everybody reads from whoever published the version. A baseline: it is what point-to-point libraries do,
/// and n readers take n times as long as one.

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class one_to_many {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "one_to_many";
  struct options {};

  one_to_many() = default;
  explicit one_to_many(options) noexcept {}

  [[nodiscard]] source_limits limits() const noexcept { return {1, UINT32_MAX}; }

  [[nodiscard]] source_choice choose(const source_query&,
                                     std::span<const source_candidate> candidates) noexcept {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (!best || rank(candidates[i]) < rank(candidates[*best])) best = i;
    }
    return {best, best ? "it published the version, or has all of it" : "no candidate"};
  }

 private:
  /// Publishers; if there is none any more, whoever has most.
  [[nodiscard]] static std::uint64_t rank(const source_candidate& c) noexcept {
    return c.publisher ? 0 : 1 + c.chunks - c.chunks_held;
  }
};
static_assert(scheduler<one_to_many>);

}  // namespace tensorhub::inline TENSORHUB_MODE
