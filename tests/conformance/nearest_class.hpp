#pragma once
/// \file nearest_class.hpp
/// What `nearest_source` promises beyond the rules of every scheduler.

#include <algorithm>
#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/policy_conformance/scheduler.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// To a reader in another datacenter, while there is another source.
[[nodiscard]] inline bool lends_no_more(const source_candidate& c, const source_query& query,
                                        const source_limits& limits) {
  return locality_between(*query.location, *c.location) == locality::other_datacenter &&
         c.leases >= limits.credits - limits.credits / 2;
}

/// A reader that is served on its host gets nobody else. Otherwise a source is chosen whenever a candidate
/// has a credit left, or may be displaced. Of those that may be chosen, none is in a nearer class, but that
/// the last sources of a reader come from outside of its rack where they can; within the class none has a
/// credit while the chosen one has not, and none has fewer leases, a publisher counting behind all others;
/// but on the own host, and from another datacenter, those that have every chunk come first. For a reader in
/// another datacenter, a source that has lent half of its credits comes after the others.
template <scheduler S>
violations nearest_class_is_chosen() {
  violations seen;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    scheduler_call call;
    scheduler_call::fill(call, seed);
    if (call.candidates.empty()) continue;
    S policy{typename S::options{}};
    const source_limits limits = policy.limits();
    const auto is_full = [&](const source_candidate& c) { return c.leases >= limits.credits; };
    const auto is_possible = [&](const source_candidate& c) {
      return !is_full(c) || call.query.may_displace;
    };
    const source_choice choice = policy.choose(call.query, call.candidates);
    if (call.query.served_on_host) {
      seen.require(!choice.index, "a relay was chosen on a host (seed " + std::to_string(seed) + ")");
      continue;
    }
    if (!choice.index) {
      seen.require(std::ranges::none_of(call.candidates, is_possible),
                   "nobody is chosen (seed " + std::to_string(seed) + ")");
      continue;
    }
    const source_candidate& chosen = call.candidates.at(*choice.index);
    const std::uint32_t most = std::min(limits.sources, call.query.sources_useful);
    const bool enough_nearby = call.query.sources_held > 0 && call.query.sources_nearby + 1 >= most;
    const auto distance = [&](const source_candidate& c) {
      const locality nominal = locality_between(*call.query.location, *c.location);
      const bool is_too_near = enough_nearby && nominal < locality::same_datacenter;
      return static_cast<int>(nominal) + (is_too_near ? 10 : 0);
    };
    for (const source_candidate& other : call.candidates) {
      if (!is_possible(other)) continue;
      seen.require(distance(other) >= distance(chosen),
                   "a nearer class was there (seed " + std::to_string(seed) + ")");
      if (distance(other) != distance(chosen)) continue;
      seen.require(is_full(other) || !is_full(chosen),
                   "a free one of the same class was there (seed " + std::to_string(seed) + ")");
      if (is_full(other) != is_full(chosen)) continue;
      const auto keeps_rest = [&](const source_candidate& c) { return lends_no_more(c, call.query, limits); };
      seen.require(keeps_rest(other) || !keeps_rest(chosen),
                   "one as near with more credits was there (seed " + std::to_string(seed) + ")");
      if (keeps_rest(other) != keeps_rest(chosen)) continue;
      const auto lacks_chunks = [&](const source_candidate& c) {
        const locality at = locality_between(*call.query.location, *c.location);
        const bool wants_all = at == locality::same_host || at == locality::other_datacenter;
        return wants_all && c.chunks_held < c.chunks;
      };
      seen.require(lacks_chunks(other) || !lacks_chunks(chosen),
                   "one as near that has everything was there (seed " + std::to_string(seed) + ")");
      if (lacks_chunks(other) != lacks_chunks(chosen)) continue;
      seen.require(other.publisher || !chosen.publisher,
                   "a publisher was not relieved (seed " + std::to_string(seed) + ")");
      seen.require(other.publisher != chosen.publisher || other.leases >= chosen.leases,
                   "a less loaded one of the same class was there (seed " + std::to_string(seed) + ")");
    }
  }
  return seen;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
