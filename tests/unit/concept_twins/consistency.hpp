#pragma once
/// \file consistency.hpp
/// Broken twins of `consistency`.

#include "tensorhub/concepts/consistency.hpp"
#include "twin.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::twins {

enum class consistency_flaw {
  none,
  no_tag,
  wrong_tag,
  no_name,
  name_is_no_text,
  no_options,
  options_have_no_default,
  not_made_from_options,
  immovable,
  no_decides_per_group,
  decides_per_group_is_a_number,
  no_completes_per_group,
  completes_per_group_is_a_number,
  no_decide,
  decide_gives_a_version,
  decide_may_throw,
  decide_is_not_const,
  decide_changes_the_view,
  count,
};

template <typename Type>
struct with_decides_per_group {
  static constexpr Type decides_per_group{};
};
template <typename Type>
struct with_completes_per_group {
  static constexpr Type completes_per_group{};
};

template <consistency_flaw F>
struct consistency_twin
    : unless<F == consistency_flaw::no_tag,
             with_tag<unless<F == consistency_flaw::wrong_tag, consistency_tag, some_tag>>, nothing<>>,
      unless<F == consistency_flaw::no_name,
             with_name<unless<F == consistency_flaw::name_is_no_text, std::string_view, no_text>>,
             nothing<1>>,
      unless<F == consistency_flaw::no_options,
             with_options<
                 unless<F == consistency_flaw::options_have_no_default, plain_options, demanding_options>>,
             nothing<2>>,
      unless<F == consistency_flaw::no_decides_per_group,
             with_decides_per_group<unless<F == consistency_flaw::decides_per_group_is_a_number, bool, int>>,
             nothing<3>>,
      unless<
          F == consistency_flaw::no_completes_per_group,
          with_completes_per_group<unless<F == consistency_flaw::completes_per_group_is_a_number, bool, int>>,
          nothing<4>>,
      unless<F == consistency_flaw::immovable, movable_only, immovable> {
  using flaw = consistency_flaw;
  explicit consistency_twin(plain_options) requires(F != flaw::not_made_from_options);
  explicit consistency_twin(demanding_options);

  using result = unless<F == flaw::decide_gives_a_version, version_decision, version_number>;
  using view = unless<F == flaw::decide_changes_the_view, const version_view&, version_view&>;
  result decide(const version_selector&, view) const
      noexcept(F != flaw::decide_may_throw) requires(F != flaw::no_decide && F != flaw::decide_is_not_const);
  result decide(const version_selector&, view) noexcept requires(F == flaw::decide_is_not_const);
};

struct consistency_refused {
  template <consistency_flaw F>
  static consteval bool check() {
    static_assert(!consistency<consistency_twin<F>>, "a broken consistency policy was accepted");
    return true;
  }
};
static_assert(consistency<consistency_twin<consistency_flaw::none>>);
static_assert(every_flaw_is_refused<consistency_flaw, consistency_refused>());

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::twins
