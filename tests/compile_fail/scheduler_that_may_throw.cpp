// expect: constraints not satisfied|does not satisfy|constraint failure|could not convert|no viable
#include "tensorhub/service/any_policies.hpp"

struct first_candidate {
  using concept_tag = tensorhub::scheduler_tag;
  static constexpr std::string_view name = "first_candidate";
  struct options {};
  explicit first_candidate(options) {}
  tensorhub::source_limits limits() const noexcept { return {}; }

#ifdef TENSORHUB_TWIN
  tensorhub::source_choice choose(const tensorhub::source_query&,
                                  std::span<const tensorhub::source_candidate> candidates) noexcept {
#else
  tensorhub::source_choice choose(const tensorhub::source_query&,
                                  std::span<const tensorhub::source_candidate> candidates) {
#endif
      if (candidates.empty()) return {};
  return {0, "the first"};
}
}
;

tensorhub::any_scheduler make() {
  return first_candidate{{}};
}
