#pragma once
/// \file scheduler.hpp
/// Broken twins of `scheduler`.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tensorhub/concepts/scheduler.hpp"
#include "twin.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::twins {

enum class scheduler_flaw {
  none,
  no_tag,
  wrong_tag,
  no_name,
  name_is_no_text,
  no_options,
  options_have_no_default,
  not_made_from_options,
  immovable,
  no_limits,
  limits_may_throw,
  limits_is_a_number,
  limits_changes_the_policy,
  no_choose,
  choose_gives_an_index,
  choose_may_throw,
  choose_changes_the_candidates,
  choose_changes_the_query,
  count,
};

template <scheduler_flaw F>
struct scheduler_twin
    : unless<F == scheduler_flaw::no_tag,
             with_tag<unless<F == scheduler_flaw::wrong_tag, scheduler_tag, some_tag>>, nothing<>>,
      unless<F == scheduler_flaw::no_name,
             with_name<unless<F == scheduler_flaw::name_is_no_text, std::string_view, no_text>>, nothing<1>>,
      unless<F == scheduler_flaw::no_options,
             with_options<
                 unless<F == scheduler_flaw::options_have_no_default, plain_options, demanding_options>>,
             nothing<2>>,
      unless<F == scheduler_flaw::immovable, movable_only, immovable> {
  using flaw = scheduler_flaw;
  explicit scheduler_twin(plain_options) requires(F != flaw::not_made_from_options);
  explicit scheduler_twin(demanding_options);

  unless<F == flaw::limits_is_a_number, source_limits, std::uint32_t> limits() const
      noexcept(F != flaw::limits_may_throw) requires(F != flaw::no_limits &&
                                                     F != flaw::limits_changes_the_policy);
  source_limits limits() noexcept requires(F == flaw::limits_changes_the_policy);

  using query = unless<F == flaw::choose_changes_the_query, const source_query&, source_query&>;
  using candidates = unless<F == flaw::choose_changes_the_candidates, std::span<const source_candidate>,
                            std::span<source_candidate>>;
  unless<F == flaw::choose_gives_an_index, source_choice, std::optional<std::size_t>> choose(
      query, candidates) noexcept(F != flaw::choose_may_throw) requires(F != flaw::no_choose);
};

struct scheduler_refused {
  template <scheduler_flaw F>
  static consteval bool check() {
    static_assert(!scheduler<scheduler_twin<F>>, "a broken scheduler was accepted");
    return true;
  }
};
static_assert(scheduler<scheduler_twin<scheduler_flaw::none>>);
static_assert(every_flaw_is_refused<scheduler_flaw, scheduler_refused>());

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::twins
