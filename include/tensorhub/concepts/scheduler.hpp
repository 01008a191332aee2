#pragma once
/// \file scheduler.hpp
/// Concept `scheduler`: who reads from whom. Pure: it sees numbers and places, never a socket.
///
/// A reader has several sources at once, up to `limits().sources`; the catalog asks for them one by one. The
/// first is its *upstream*: following upstreams from any reader one comes, without a cycle, to somebody who
/// has everything, so that every reader is certain to get every chunk. The others *trade*: two readers may
/// well read from each other, each the chunks that the other one lacks. (Without trade the best that n
/// readers of one source can do is a chain: whatever the first i of them upload is all that these i can get,
/// for every i. With it, S/B + O(log n) chunks is in reach.)

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Opt-in: `using concept_tag = scheduler_tag;`
struct scheduler_tag {};

/// How many leases there may be at both ends. The catalog keeps to them, whatever is chosen. With fewer
/// credits than sources, trade may use all credits up, and newcomers wait until a reader has finished.
struct source_limits {
  std::uint32_t sources = 8;  ///< of one reader at a time
  std::uint32_t credits = 8;  ///< readers of one source at a time; UINT32_MAX: any number
};

/// One reader that needs a source. Borrowed for the call.
struct source_query {
  incarnation reader{};
  const location* place = nullptr;  ///< the reader's
  version_number version{};
  shard_of shard{};
  std::uint32_t sources_held = 0;    ///< zero: its upstream is wanted
  std::uint32_t sources_nearby = 0;  ///< of these, on its host or in its rack
  bool may_displace = false;         ///< the reader can take a place between a source and one of its readers
};

/// One worker that could serve it. The catalog offers only workers that have the version or are receiving it,
/// are alive, accept leases, did not fail this reader before and close no cycle of upstreams; so every choice
/// is safe and the scheduler decides only what is fast. It offers not everybody but a good few: of each
/// locality class the least loaded, and of equally loaded ones some at random.
struct source_candidate {
  incarnation worker{};
  const location* place = nullptr;
  std::uint32_t leases = 0;       ///< readers that it serves now
  std::uint64_t chunks_held = 0;  ///< of `chunks`, as far as it has told
  std::uint64_t chunks = 0;
  bool spot = false;
  bool publisher = false;  ///< published the version itself, rather than having read it
};

/// `index` into the candidates, or empty: nobody now, ask again when something changes. `reason` is static
/// text. `displace`: the candidate has no credit left; one of its readers is to read from the asker instead,
/// which takes its place (only if the query allows it).
struct source_choice {
  std::optional<std::size_t> index{};
  std::string_view reason{};
  bool displace = false;
};

// | expression                  | type          | means                                                     |
// |-----------------------------|---------------|-----------------------------------------------------------|
// | S::concept_tag              | scheduler_tag | the author has read this table                            |
// | S::name                     | string_view   | shown by `list` and in logs                               |
// | S::options, S{options}      | aggregate     | default-constructible                                     |
// | S                           |               | movable                                                   |
// | s.limits()                  | source_limits | the same for all its life, both at least 1; noexcept      |
// | s.choose(query, candidates) | source_choice | deterministic in its arguments and earlier calls;         |
// |                             |               | noexcept; an index is inside the candidates; no           |
// |                             |               | candidates: no index. A candidate without credit is       |
// |                             |               | chosen only with `displace`                               |
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename S>
concept scheduler =
    std::same_as<typename S::concept_tag, scheduler_tag> &&
    std::default_initializable<typename S::options> &&
    std::constructible_from<S, typename S::options> &&
    std::movable<S> &&
    requires(S& s, const S& cs, const source_query& query, std::span<const source_candidate> candidates) {
      { S::name } -> std::convertible_to<std::string_view>;
      { cs.limits() } noexcept -> std::same_as<source_limits>;
      { s.choose(query, candidates) } noexcept -> std::same_as<source_choice>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
