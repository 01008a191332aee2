#pragma once
/// \file scheduler.hpp
/// Concept `scheduler`: which reader reads from which source. It is pure: it sees numbers and locations,
/// never a socket.
///
/// A reader has several sources at once, up to `limits().sources`; the catalog asks for them one by one. The
/// first is its *upstream*: from any reader, upstreams lead without a cycle to a worker that has all chunks,
/// so that every reader is certain to get every chunk. The other sources *trade*: two readers may read from
/// each other the chunks that they lack. (Without trade the best result for n readers of one source is a
/// chain: the first i readers can get no more than the first i of them upload, for every i. With trade, S/B +
/// O(log n) chunks is in reach.)

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

/// The bounds on leases at both ends. The catalog keeps to them, whatever the scheduler chooses. With fewer
/// credits than sources, trade may use up all credits, and new readers wait until another reader has
/// finished.
struct source_limits {
  std::uint32_t sources = 8;  ///< of one reader at a time
  std::uint32_t credits = 8;  ///< readers of one source at a time; UINT32_MAX: any number
};

/// One reader that needs a source. Borrowed for the call.
struct source_query {
  incarnation reader{};
  const tensorhub::location* location = nullptr;  ///< the reader's
  version_number version{};
  shard_of shard{};
  /// Zero: the query is for its upstream. (In an exchange it is not, though the source becomes the upstream.)
  std::uint32_t sources_held = 0;
  std::uint32_t sources_nearby = 0;  ///< how many of these are on its host or in its rack
  /// One of these is on its host and has every chunk, and the reader has not run out of new chunks.
  bool served_on_host = false;
  /// How many sources it can use, of those that `limits` allows: one more than its shard has chunks, unless
  /// it has run out of new chunks.
  std::uint32_t sources_useful = UINT32_MAX;
  bool may_displace = false;  ///< the reader may displace another reader of a source
};

/// One worker that could serve the reader. The catalog offers only workers that hold or are receiving the
/// version, are alive, accept leases, have not failed this reader before and close no cycle of upstreams.
/// Every choice is therefore safe, and the scheduler decides only which one is fast. The catalog offers a
/// good few of all such workers: the least loaded of each locality class, and of equally loaded ones some at
/// random.
struct source_candidate {
  incarnation worker{};
  const tensorhub::location* location = nullptr;
  std::uint32_t leases = 0;       ///< the number of readers that it serves now
  std::uint64_t chunks_held = 0;  ///< of `chunks`, as last reported
  std::uint64_t chunks = 0;
  bool spot = false;
  bool publisher = false;  ///< the worker published the version itself and did not read it
};

/// `index` is an index into the candidates. Empty: no candidate is good now; ask again when something
/// changes. `reason` is static text. `displace`: the candidate has no credit left; one of its readers is to
/// read from the new reader instead, which takes that reader's lease (only if the query allows it). In an
/// exchange (a reader gives a source for one that has every chunk) that reader gets the source that is given.
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
// |                             |               | chosen only with `displace`. A reader without a source    |
// |                             |               | gets the only candidate, if that is the publisher and has |
// |                             |               | every chunk and a credit                                  |
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
