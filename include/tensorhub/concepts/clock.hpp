#pragma once
/// \file clock.hpp
/// Concept `clock`: the source of the time that a shell passes to the state machines.

#include <concepts>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Opt-in: `using concept_tag = clock_tag;`
struct clock_tag {};

// | expression     | type       | means                                                                 |
// |----------------|------------|-----------------------------------------------------------------------|
// | C::concept_tag | clock_tag  | the author has read this table                                        |
// | c.now()        | time_point | monotonic, never goes backwards; noexcept; callable from every thread |
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename C>
concept clock =
    std::same_as<typename C::concept_tag, clock_tag> &&
    requires(const C& c) {
      { c.now() } noexcept -> std::same_as<time_point>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
