#pragma once
/// \file scheduler.hpp
/// Concept `scheduler`: who reads from whom. Pure: it sees numbers and places, never a socket.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub {

/// Opt-in: `using concept_tag = scheduler_tag;`
struct scheduler_tag {};

/// One reader that needs a source. Borrowed for the call.
struct source_query {
  incarnation reader{};
  const location* place = nullptr;  ///< the reader's
  version_number version{};
  shard_of shard{};
};

/// One worker that could serve it. The catalog offers only workers that hold the version, are alive, accept
/// leases and did not fail this reader before; so every choice is safe and the scheduler decides only what is
/// fast.
struct source_candidate {
  incarnation worker{};
  const location* place = nullptr;
  std::uint32_t leases = 0;       ///< readers that it serves now
  std::uint64_t chunks_held = 0;  ///< of `chunks`
  std::uint64_t chunks = 0;
  bool spot = false;
  bool publisher = false;  ///< published the version itself, rather than having read it
};

/// `index` into the candidates, or empty: nobody now, ask again when something changes. `reason` is static
/// text.
struct source_choice {
  std::optional<std::size_t> index{};
  std::string_view reason{};
};

// | expression                  | type          | means                                                     |
// |-----------------------------|---------------|-----------------------------------------------------------|
// | S::concept_tag              | scheduler_tag | the author has read this table                            |
// | S::name                     | string_view   | shown by `list` and in logs                               |
// | S::options, S{options}      | aggregate     | default-constructible                                     |
// | S                           |               | movable                                                   |
// | s.choose(query, candidates) | source_choice | deterministic in its arguments and earlier calls;         |
// |                             |               | noexcept; an index is inside the candidates; no           |
// |                             |               | candidates: no index                                      |
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename S>
concept scheduler =
    std::same_as<typename S::concept_tag, scheduler_tag> &&
    std::default_initializable<typename S::options> &&
    std::constructible_from<S, typename S::options> &&
    std::movable<S> &&
    requires(S& s, const source_query& query, std::span<const source_candidate> candidates) {
      { S::name } -> std::convertible_to<std::string_view>;
      { s.choose(query, candidates) } noexcept -> std::same_as<source_choice>;
    };
// clang-format on

}  // namespace tensorhub
