#pragma once
/// \file consistency.hpp
/// Concept `consistency`: which version an update gets, and whether the shards of a replica must agree on it.

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Opt-in: `using concept_tag = consistency_tag;`
struct consistency_tag {};

/// The facts on which a decision is based. "Available" means: some replica is complete and accepts readers.
struct version_view {
  version_number latest_available{};  ///< zero: none
  version_number latest_ever{};       ///< highest version that was ever complete
  version_number held{};  ///< the version that the asking replica (or worker) holds completely; zero: none
  bool wanted_available = false;  ///< for `exactly(v)`: v is available
};

/// The outcome of one decision.
struct version_decision {
  enum class kind_type : std::uint8_t {
    take = 0,    ///< read `version`
    keep = 1,    ///< the held version satisfies the request: nothing is read
    wait = 2,    ///< not now: decide again when versions change, until the deadline
    refuse = 3,  ///< never: answer with `reason`
  };
  kind_type kind = kind_type::wait;
  version_number version{};
  errc reason = errc::ok;
};

// | expression               | type             | means                                                     |
// |--------------------------|------------------|-----------------------------------------------------------|
// | C::concept_tag           | consistency_tag  | the author has read this table                            |
// | C::name                  | string_view      | compared by the server with its own                       |
// | C::options, C{options}   | aggregate        | default-constructible                                     |
// | C                        |                  | movable                                                   |
// | C::decides_per_group     | constexpr bool   | true: the first shard's call decides for all shards of    |
// |                          |                  | the replica                                               |
// | C::completes_per_group   | constexpr bool   | true: an update succeeds for all shards of a replica or   |
// |                          |                  | for none                                                  |
// | c.decide(selector, view) | version_decision | pure, noexcept. `take` names an available version; a      |
// |                          |                  | version that is held is never taken again; `exactly(v)`   |
// |                          |                  | yields v or nothing                                       |
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename C>
concept consistency =
    std::same_as<typename C::concept_tag, consistency_tag> &&
    std::default_initializable<typename C::options> &&
    std::constructible_from<C, typename C::options> &&
    std::movable<C> &&
    std::same_as<std::remove_cv_t<decltype(C::decides_per_group)>, bool> &&
    std::same_as<std::remove_cv_t<decltype(C::completes_per_group)>, bool> &&
    requires(const C& c, const version_selector& selector, const version_view& view) {
      { C::name } -> std::convertible_to<std::string_view>;
      { c.decide(selector, view) } noexcept -> std::same_as<version_decision>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
