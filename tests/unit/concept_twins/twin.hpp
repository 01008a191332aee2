#pragma once
/// \file twin.hpp
/// What the broken twins share.
///
/// A twin is a class template over an enumeration of flaws. `twin<flaw::none>` models the concept; every
/// other one differs from it in one place, so it can be refused for that reason only.

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tensorhub::inline TENSORHUB_MODE::testing::twins {

/// `Right`, or `Wrong` in the twin whose flaw this is.
template <bool Flawed, typename Right, typename Wrong = void>
using unless = std::conditional_t<Flawed, Wrong, Right>;

/// Bases that bring one member, or leave it out.
template <int Number = 0>  // different numbers let one class leave out several members
struct nothing {};
template <typename Tag>
struct with_tag {
  using concept_tag = Tag;
};
template <typename Type>
struct with_name {
  static constexpr Type name{};
};
template <typename Options>
struct with_options {
  using options = Options;
};

struct no_text {};
struct some_tag {};
struct plain_options {};
struct demanding_options {
  explicit demanding_options(int);
};

/// Bases of a class that owns something: movable, and in the flawed twins copyable or not even movable.
struct movable_only {
  movable_only() = default;
  movable_only(movable_only&&) = default;
  movable_only& operator=(movable_only&&) = default;
};
struct copyable {};
struct immovable {
  immovable() = default;
  immovable(const immovable&) = delete;
  immovable& operator=(const immovable&) = delete;
};

/// Runs `Refused::check<flaw>` for every flaw after `none`; `Flaw::count` is the last enumerator.
template <typename Flaw, typename Refused>
consteval bool every_flaw_is_refused() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return (Refused::template check<static_cast<Flaw>(I + 1)>() && ...);
  }
  (std::make_index_sequence<static_cast<std::size_t>(Flaw::count) - 1>{});
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::twins
