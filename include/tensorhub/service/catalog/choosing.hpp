#pragma once
/// \file choosing.hpp
/// Selects the candidates that are offered to the scheduler, so that every choice is safe.
///
/// A candidate shows the version and accepts readers. It is not the reader itself, did not fail the reader in
/// this operation, and is not one of the reader's sources already. In addition:
///
///  - *Upstream*: the chain of upstreams from the candidate must end at a worker that has every chunk, and
///    must not pass the reader.
///  - *One crossing per datacenter*: a source in another datacenter is offered only as an upstream, only if
///    no worker in the reader's datacenter can be one, and only while no other lease seeds that datacenter.
///    The reader of a crossing lease is the seed, and the others read from the seed, unless it is barred as a
///    source: then waiting for it would save nothing.
///  - *Suspects*: a worker that was reported lost, and has not been heard since, is offered only as an
///    upstream, and only if no other worker can be one.
///  - *Handovers*: a worker that an order has set aside, and that hands its version over (retention.hpp), is
///    offered to the replica that takes the version from it, if nobody else can be one.
///  - *Exchanges*: a reader that gives one of its sources is offered only workers of its datacenter that have
///    every chunk and are no suspects. The reader that loses its lease on such a worker gets the source that
///    is given (`find_exchange`).
///  - *Credits*: no worker gets more readers than the scheduler's limit. A worker without a free credit is
///    offered only to a reader that may displace one of the worker's readers; the displaced reader then reads
///    from the newcomer, or in an exchange from what is given.
///
/// Every choice is recorded with its reason (`why`).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/repeatable_random.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// The shard that needs a source. `reader` is null if its worker has not joined.
struct asker {
  const replica_state* replica = nullptr;
  version_number version{};
  std::uint32_t shard = 0;
  worker_state* reader = nullptr;
  const tensorhub::location* location = nullptr;
  std::uint64_t chunks = 0;  ///< of the shard
  std::uint32_t sources_useful = 0;
  std::uint32_t sources_held = 0;
  std::uint32_t sources_nearby = 0;
  bool served_on_host = false;
  operation_counter operation{};
};

class choosing {
 public:
  choosing(core& core, any_scheduler scheduler) : core_{core}, scheduler_{std::move(scheduler)} {}

  struct choice {
    worker_state* source = nullptr;  ///< null: no worker can be read now
    lease_id displaced{};            ///< set: the lease whose reader is to be displaced
  };

  [[nodiscard]] source_limits limits() const noexcept { return scheduler_.limits(); }

  struct conditions {
    const std::vector<incarnation>& excluded;  ///< are not offered
    const worker_state* without = nullptr;     ///< is not offered either
    bool may_displace = false;  ///< a source without a credit, for the place of one of its readers
    bool upstream = true;       ///< the source will be the reader's upstream
    bool crosses = false;       ///< the reader is the seed of its datacenter and may remain the seed
  };

  [[nodiscard]] choice choose(const asker& asking, const conditions& on) {
    const auto record = asking.replica->model->versions.find(asking.version);
    if (record == asking.replica->model->versions.end()) return {};
    const source_index& index = *record->second.sources[asking.shard];
    forget_candidates();
    pass_over_sources(asking);
    const auto offer_one = [&](worker_state& worker, bool may_cross) {
      if (!is_new_to(asking, worker, on, may_cross)) return false;
      const bool is_suspect = worker.is_suspect();
      const std::uint64_t held =
          worker.as_source.offered == offer::complete ? asking.chunks : worker.progress.chunks_received;
      (is_suspect ? suspects_ : candidates_).push_back(candidate_of(asking, worker, held));
      (is_suspect ? suspect_workers_ : workers_).push_back(&worker);
      return !is_suspect;
    };
    index.visit_near(*asking.location, of_each_group, random_(),
                     [&](worker_state& worker) { return offer_one(worker, false); });
    const bool may_cross = on.upstream && (on.crosses || seeds_of(record->second, asking).empty());
    if (may_cross && !has_certain_candidate(asking)) {
      forget_candidates();
      pass_over_sources(asking);
      index.visit_far(*asking.location, of_each_group, random_(),
                      [&](worker_state& worker) { return offer_one(worker, true); });
    }
    choice chosen = ask(asking, on.may_displace, on.upstream);
    if (chosen.source != nullptr || !on.upstream) return chosen;
    if (!suspects_.empty()) {
      candidates_.swap(suspects_);
      workers_.swap(suspect_workers_);
      chosen = ask(asking, on.may_displace, on.upstream);
    }
    const bool is_left = chosen.source == nullptr && offer_handover(asking, on, may_cross);
    return is_left ? ask(asking, on.may_displace, on.upstream) : chosen;
  }

  /// A source that has every chunk, and what the asker gives for it.
  struct exchange {
    worker_state* source = nullptr;  ///< null: there is none
    lease_id gives{};                ///< of the asker
    lease_id takes{};  ///< on `source`; its reader gets the source of `gives`. Zero: `source` has a credit
    bool gives_upstream = false;  ///< that reader gets it as its upstream
  };

  /// Empty while the server recovers (it does not know all loads yet), or if the asker has such a source or
  /// was given any source within `shortest_turn`. A reader loses no source that it was given within that
  /// time.
  [[nodiscard]] exchange find_exchange(const asker& asking, const std::vector<incarnation>& excluded) {
    const model_state& model = *asking.replica->model;
    const auto known = model.versions.find(asking.version);
    if (known == model.versions.end() || core_.recovering(model) || has_own_turn(asking)) return {};
    forget_candidates();
    pass_over_sources(asking);
    const auto offer_one = [&](worker_state& worker) {
      if (!is_new_to(asking, worker, {.excluded = excluded}, false)) return false;
      if (worker.is_suspect() || worker.as_source.offered != offer::complete) return false;
      candidates_.push_back(candidate_of(asking, worker, asking.chunks));
      workers_.push_back(&worker);
      return true;
    };
    known->second.sources[asking.shard]->visit_near(*asking.location, of_each_group, random_(), offer_one);
    const auto offered = static_cast<std::uint32_t>(candidates_.size());
    while (!candidates_.empty()) {
      const source_choice said = scheduler_.choose(query_of(asking, true, false), candidates_);
      const std::optional<std::size_t> chosen = chosen_of(said);
      if (!chosen) break;
      worker_state& source = *workers_[*chosen];
      if (const exchange found = exchange_for(asking, source, said.displace); found.source != nullptr) {
        const lease_state* taken = found.takes ? &core_.leases.at(found.takes) : nullptr;
        record(asking, {core_.now, asking.version, source.id, "has every chunk; after a shortage", offered,
                        source.as_source.load, locality_between(*asking.location, source.location), true,
                        taken != nullptr ? taken->reader : incarnation{},
                        taken != nullptr ? core_.leases.at(found.gives).source : incarnation{}});
        return found;
      }
      strike(*chosen);
    }
    return {};
  }

  /// The chain of upstreams from `source` ends at a worker that has every chunk, and does not pass `without`.
  [[nodiscard]] bool leads_to_everything(const worker_state& source, const worker_state* without) const {
    const worker_state& last = source.as_reader.chain.end();
    if (last.receiving || !last.held) return false;
    return without == nullptr || !source.as_reader.chain.passes(without->as_reader.chain);
  }

  /// Leases of the asker's version and shard that seed its datacenter.
  [[nodiscard]] static std::set<lease_id> seeds_of(const version_state& version, const asker& asking) {
    const auto& seeds = version.seeds[asking.shard];
    const auto found = seeds.find(asking.location->datacenter);
    return found == seeds.end() ? std::set<lease_id>{} : found->second;
  }

 private:
  /// Makes the worker that hands the version over to the asker's replica the only candidate. False: there is
  /// none.
  [[nodiscard]] bool offer_handover(const asker& asking, const conditions& on, bool may_cross) {
    forget_candidates();
    const model_state& model = *asking.replica->model;
    const auto handover = model.handovers.find(asking.version);
    if (handover == model.handovers.end() || handover->second.temporary != asking.replica->name) return false;
    const auto from = model.replicas.find(handover->second.from);
    if (from == model.replicas.end() || from->second->set_aside_as.empty()) return false;
    worker_state* const holder = from->second->workers[asking.shard];
    if (holder == nullptr || holder == on.without || contains(on.excluded, holder->id)) return false;
    if (!may_cross && holder->location.datacenter != asking.location->datacenter) return false;
    if (asking.reader != nullptr && reads_from(*asking.reader, holder->id, asking.operation)) return false;
    if (!holder->access.may_serve || !holder->still_has(asking.version) || holder->is_overwritten())
      return false;
    candidates_.push_back(candidate_of(asking, *holder, asking.chunks));
    workers_.push_back(holder);
    return true;
  }
  /// It was not looked at in this query, and nothing forbids to offer it.
  [[nodiscard]] bool is_new_to(const asker& asking, worker_state& worker, const conditions& on,
                               bool may_cross) const {
    if (std::exchange(worker.as_source.places.mark, stamp_) == stamp_) return false;
    if (&worker == asking.reader || &worker == on.without || contains(on.excluded, worker.id)) return false;
    return may_cross || worker.location.datacenter == asking.location->datacenter;
  }
  [[nodiscard]] static bool contains(const std::vector<incarnation>& list, incarnation id) {
    return detail::contains(list, id);
  }
  /// Begins a query, as if it had visited those that the asker reads from already.
  void pass_over_sources(const asker& asking) {
    ++stamp_;
    if (asking.reader == nullptr) return;
    for (const lease_id id : asking.reader->as_reader.leases) {
      const lease_state& lease = core_.leases.at(id);
      if (lease.operation != asking.operation || lease.stage == lease_stage::cutting_off) continue;
      if (worker_state* source = core_.find(lease.source)) source->as_source.places.mark = stamp_;
    }
  }
  /// Does not count leases of earlier operations whose end has not been reported yet.
  [[nodiscard]] bool reads_from(const worker_state& reader, incarnation source,
                                operation_counter operation) const {
    return detail::any_of(reader.as_reader.leases, [&](lease_id id) {
      const lease_state& lease = core_.leases.at(id);
      return lease.source == source && lease.operation == operation &&
             lease.stage != lease_stage::cutting_off;
    });
  }
  [[nodiscard]] bool has_certain_candidate(const asker& asking) const {
    const auto leads = [&](const worker_state* worker) {
      return leads_to_everything(*worker, asking.reader);
    };
    return detail::any_of(workers_, leads) || detail::any_of(suspect_workers_, leads);
  }
  void forget_candidates() {
    candidates_.clear();
    workers_.clear();
    suspects_.clear();
    suspect_workers_.clear();
  }

  /// Asks the scheduler. If its choice is not possible, removes that candidate and asks again.
  [[nodiscard]] choice ask(const asker& asking, bool may_displace, bool upstream) {
    const source_query query = query_of(asking, may_displace, upstream);
    const auto offered = static_cast<std::uint32_t>(candidates_.size());
    for (std::size_t tries = 0; tries <= offered; ++tries) {
      const source_choice said = scheduler_.choose(query, candidates_);
      const std::optional<std::size_t> chosen = chosen_of(said);
      if (!chosen) {
        record(asking, {core_.now, asking.version, {}, said.reason, offered, 0, {}, upstream, {}});
        return {};
      }
      worker_state* source = workers_[*chosen];
      choice out{source, {}};
      const bool leads = !upstream || leads_to_everything(*source, asking.reader);
      const bool has_credit = source->as_source.load < scheduler_.limits().credits;
      if (leads && !has_credit && said.displace) out.displaced = place_in(asking, *source, upstream);
      if (leads && (has_credit || out.displaced)) {
        const incarnation moved = out.displaced ? core_.leases.at(out.displaced).reader : incarnation{};
        record(asking, {core_.now, asking.version, source->id, said.reason, offered, source->as_source.load,
                        locality_between(*asking.location, source->location), upstream, moved});
        return out;
      }
      strike(*chosen);
    }
    return {};
  }
  /// The index of the candidate that the scheduler has chosen. One that is outside of the candidates is a
  /// fault of the scheduler, and is no choice.
  [[nodiscard]] std::optional<std::size_t> chosen_of(const source_choice& said) {
    if (!said.index || *said.index < workers_.size()) return said.index;
    if (!std::exchange(has_warned_, true))
      core_.log(log_level::warning,
                "scheduler '" + std::string{scheduler_.name()} + "' has chosen index " +
                    std::to_string(*said.index) + " of " + std::to_string(workers_.size()) +
                    " candidates, which counts as no choice: an index must be inside the candidates "
                    "(testing::check_scheduler finds this). It is not logged again");
    return std::nullopt;
  }
  [[nodiscard]] static source_query query_of(const asker& asking, bool may_displace, bool upstream) {
    source_query query;
    query.reader = asking.reader != nullptr ? asking.reader->id : incarnation{};
    query.location = asking.location;
    query.version = asking.version;
    query.shard = {asking.shard, asking.replica->model->shards};
    query.sources_held = upstream ? 0 : std::max<std::uint32_t>(1, asking.sources_held);
    query.sources_useful = asking.sources_useful;
    query.sources_nearby = asking.sources_nearby;
    query.served_on_host = !upstream && asking.served_on_host;
    query.may_displace = may_displace;
    return query;
  }
  [[nodiscard]] static source_candidate candidate_of(const asker& asking, const worker_state& worker,
                                                     std::uint64_t chunks_held) {
    return {worker.id,     &worker.location, worker.as_source.load, std::min(chunks_held, asking.chunks),
            asking.chunks, worker.spot,      worker.publisher};
  }
  void strike(std::size_t candidate) {
    candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(candidate));
    workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(candidate));
  }

  /// The asker has a source that has every chunk, or one that it cannot have read much from yet.
  [[nodiscard]] bool has_own_turn(const asker& asking) const {
    return detail::any_of(asking.reader->as_reader.leases, [&](lease_id id) {
      const lease_state& lease = core_.leases.at(id);
      const worker_state* source = core_.find(lease.source);
      if (!lease.lasts() || lease.operation != asking.operation || source == nullptr) return false;
      return source->as_source.offered == offer::complete || has_just_begun(lease);
    });
  }
  [[nodiscard]] bool has_just_begun(const lease_state& lease) const noexcept {
    return core_.now - lease.given < shortest_turn;
  }

  /// Of the readers of a source without a credit, the one that has read from it the longest loses its lease.
  [[nodiscard]] exchange exchange_for(const asker& asking, worker_state& source, bool may_displace) {
    exchange best;
    if (source.as_source.load < limits().credits) {
      if (const lease_id gives = find_given(asking, source, nullptr, false)) best = {&source, gives, {}};
      return best;
    }
    for (const lease_id id : source.as_source.readers) {
      const lease_state& lease = core_.leases.at(id);
      const worker_state* reader = movable_reader(asking, lease);
      if (!may_displace || reader == nullptr || has_just_begun(lease)) continue;
      if (operation_read_by(*reader) == nullptr) continue;
      if (best.takes && core_.leases.at(best.takes).given <= lease.given) continue;
      if (locality_between(reader->location, source.location) <
          locality_between(*asking.location, source.location))
        continue;
      const bool needs_upstream = lease.upstream || reader->as_reader.upstream == nullptr;
      if (const lease_id gives = find_given(asking, source, reader, needs_upstream))
        best = {&source, gives, id, needs_upstream};
    }
    return best;
  }

  /// A lease of the asker to give for `source`. If a reader gets it (`to` is not null), that reader can read
  /// the lease's source, as its upstream if it needs one; of several, the nearest to that reader. Zero: none.
  [[nodiscard]] lease_id find_given(const asker& asking, const worker_state& source, const worker_state* to,
                                    bool needs_upstream) {
    const std::vector<lease_id>& all = asking.reader->as_reader.leases;
    const std::size_t first = all.empty() ? 0 : static_cast<std::size_t>(random_()) % all.size();
    lease_id best;
    locality best_distance{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const lease_state& lease = core_.leases.at(all[(first + i) % all.size()]);
      const worker_state* given = core_.find(lease.source);
      if (!lease.lasts() || lease.operation != asking.operation || lease.crossing || given == nullptr)
        continue;
      const locality from_asker = locality_between(*asking.location, given->location);
      if (from_asker == locality::same_host &&
          locality_between(*asking.location, source.location) > from_asker)
        continue;
      if (loses_way_out(*asking.location, *given, source)) continue;
      if (to != nullptr && loses_way_out(to->location, source, *given)) continue;
      if (to != nullptr && !can_get(*to, lease, *given, needs_upstream)) continue;
      const locality distance = to == nullptr ? locality{} : locality_between(to->location, given->location);
      if (best && distance >= best_distance) continue;
      best = lease.id;
      best_distance = distance;
    }
    return best;
  }
  /// With `next` instead of `old`, a reader there has one source less outside its rack, or none any more.
  [[nodiscard]] static bool loses_way_out(const location& reader, const worker_state& old,
                                          const worker_state& next) noexcept {
    return locality_between(reader, old.location) >= locality::same_datacenter &&
           locality_between(reader, next.location) < locality::same_datacenter;
  }
  /// The reader can read the source of this lease of another reader.
  [[nodiscard]] bool can_get(const worker_state& reader, const lease_state& lease, const worker_state& source,
                             bool as_upstream) const {
    if (&source == &reader || source.is_suspect() || is_over_credits(lease, source)) return false;
    if (source.as_source.offered == offer::none || source.as_source.version != lease.version) return false;
    if (reads_from(reader, source.id, reader.as_reader.operation) || has_excluded(reader, source.id))
      return false;
    return !as_upstream || leads_to_everything(source, &reader);
  }
  /// The lease is one of those of an earlier server by which the source has more readers than its credits: it
  /// may last, but makes room for no other.
  [[nodiscard]] bool is_over_credits(const lease_state& lease, const worker_state& source) const noexcept {
    return lease.inherited && source.as_source.load > limits().credits;
  }

  /// The source has failed this reader in its running update.
  [[nodiscard]] static bool has_excluded(const worker_state& reader, incarnation source) {
    operation_state* operation = operation_read_by(reader);
    return operation != nullptr && contains(member_of(*operation, reader.shard.index)->excluded, source);
  }

  /// The reader of a lease that may go to the asker; null: the lease stays where it is.
  [[nodiscard]] const worker_state* movable_reader(const asker& asking, const lease_state& lease) const {
    const worker_state* reader = core_.find(lease.reader);
    const worker_state* source = core_.find(lease.source);
    if (!lease.lasts() || lease.is_reserved() || lease.crossing || reader == nullptr) return nullptr;
    if (reader == asking.reader || lease.version != asking.version) return nullptr;
    if (lease.operation != reader->as_reader.operation || is_over_credits(lease, *source)) return nullptr;
    return reader->location.datacenter == asking.location->datacenter ? reader : nullptr;
  }

  /// A lease on `source` whose reader may read from the asker instead; empty: none.
  [[nodiscard]] lease_id place_in(const asker& asking, const worker_state& source, bool upstream) {
    const std::size_t count = source.as_source.readers.size();
    const std::size_t first = count == 0 ? 0 : random_() % count;
    for (std::size_t i = 0; i < count; ++i) {
      const lease_state& lease = core_.leases.at(source.as_source.readers[(first + i) % count]);
      const worker_state* moved = movable_reader(asking, lease);
      if (moved == nullptr || reads_from(*moved, asking.reader->id, moved->as_reader.operation)) continue;
      // The displaced reader will get its missing chunks through the newcomer, so the newcomer must not
      // depend on the displaced reader.
      const bool depends = lease.upstream && !upstream && !leads_to_everything(*asking.reader, moved);
      if (!depends) return lease.id;
    }
    return {};
  }

  void record(const asker& asking, decision_state decision) {
    if (core_.options.log_decisions) core_.log(log_level::debug, core_.describe(asking.reader, decision));
    if (asking.reader == nullptr) return;
    asking.reader->as_reader.decisions.push_back(decision);
    if (asking.reader->as_reader.decisions.size() > decisions_remembered)
      asking.reader->as_reader.decisions.pop_front();
  }

  static constexpr std::size_t of_each_group = 8;
  static constexpr std::size_t decisions_remembered = 16;
  /// An exchange neither takes a source that was given more recently than this, nor helps a reader that was.
  static constexpr duration shortest_turn = std::chrono::milliseconds{100};

  core& core_;
  any_scheduler scheduler_;
  bool has_warned_ = false;  ///< of an index outside of the candidates
  std::uint64_t stamp_ = 0;
  detail::repeatable_random random_{0};
  std::vector<source_candidate> candidates_;  ///< scratch memory of a query
  std::vector<worker_state*> workers_;
  std::vector<source_candidate> suspects_;  ///< scratch memory of `choose`: candidates of last resort
  std::vector<worker_state*> suspect_workers_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
