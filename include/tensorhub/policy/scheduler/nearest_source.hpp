#pragma once
/// \file nearest_source.hpp
/// The default scheduler: chooses the least loaded source of the nearest class, and a trainer only if no
/// rollout is as good.
///
/// Order of comparison: locality class, has a credit left (in another datacenter: half of them), has every
/// chunk (on the own host, and in another datacenter), publisher last, leases, spot last, fewer missing
/// chunks, then the order of the candidates. If no worker in the nearest class has a credit left, the new
/// reader displaces a reader of a source in that class. The graph of sources and readers therefore stays a
/// random graph in which every worker has `sources` sources and `credits` readers, however the readers
/// arrive; such graphs carry pipelined replication at nearly the full rate of all links (P. Ganesan and M.
/// Seshadri, "On cooperative content distribution and the price of barter", ICDCS 2005).
///
/// At least one source of each reader is outside its rack, if there is one: otherwise few links would feed
/// the whole rack.
///
/// On its own host a reader needs no link of the network: there it reads from a worker that has every
/// chunk, the publisher or not, and from nobody else, because relays would cost processor time and memory
/// bandwidth only. The readers beyond that worker's credits trade with each other, as elsewhere.
///
/// The one reader of a datacenter that reads from another one has one source there. If that source were
/// still receiving, from a third datacenter, its link would slow down both: paths between datacenters have
/// little in common. But a source keeps half of its credits for its own datacenter, as long as there is
/// another one to read from: reads over a wide-area path last long.

#include <algorithm>
#include <tuple>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class nearest_source {
  [[nodiscard]] auto cost(const source_query& query, const source_candidate& c,
                          bool enough_nearby) const noexcept {
    const locality distance = locality_between(*query.location, *c.location);
    const bool is_too_near = enough_nearby && distance < locality::same_datacenter;
    const bool is_full = c.leases >= most_.credits;
    const bool is_far = distance == locality::other_datacenter;
    const bool keeps_rest = is_far && c.leases >= most_.credits - most_.credits / 2;
    const bool wants_all = distance == locality::same_host || is_far;
    const bool lacks_chunks = wants_all && c.chunks_held < c.chunks;
    return std::tuple{is_too_near, distance,     is_full,
                      keeps_rest,  lacks_chunks, c.publisher,
                      c.leases,    c.spot,       c.chunks - c.chunks_held};
  }

 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "nearest_source";
  struct options {
    source_limits most{};
  };

  nearest_source() = default;
  explicit nearest_source(options how) noexcept : most_{how.most} {}

  [[nodiscard]] source_limits limits() const noexcept { return most_; }

  [[nodiscard]] source_choice choose(const source_query& query,
                                     std::span<const source_candidate> candidates) noexcept {
    if (query.served_on_host) return {std::nullopt, "reads from its own host, where no link is scarce"};
    const std::uint32_t most = std::min(most_.sources, query.sources_useful);
    const bool enough_nearby = query.sources_held > 0 && query.sources_nearby + 1 >= most;
    std::optional<std::size_t> best;
    bool best_is_free = false;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const source_candidate& c = candidates[i];
      const bool is_free = c.leases < most_.credits;
      if (!is_free && !query.may_displace) continue;
      if (!best || cost(query, c, enough_nearby) < cost(query, candidates[*best], enough_nearby)) {
        best = i;
        best_is_free = is_free;
      }
    }
    if (!best) return {std::nullopt, candidates.empty() ? "no candidate" : "no source has a credit left"};
    if (best_is_free) return {best, "nearest, then least loaded"};
    return {best, "nearest; takes the place of one of its readers", true};
  }

 private:
  source_limits most_{};
};
static_assert(scheduler<nearest_source>);

}  // namespace tensorhub::inline TENSORHUB_MODE
