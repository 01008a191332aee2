#pragma once
/// \file choosing.hpp
/// Among whom the scheduler may choose, so that every choice is safe.
///
/// Offered are workers that show the version and accept readers, are not the reader, did not fail it in this
/// operation, and are not its sources already. Beyond that:
///
///  - *Upstream*: following upstreams from the candidate one must come to somebody who has everything, and
///    not to the reader.
///  - *One crossing per datacenter*: a source in another datacenter is offered only as an upstream, only if
///    nobody in the reader's own can be one, and only while no other lease crosses into it: its reader is the
///    seed, and the others follow it.
///  - *Suspects*: who was reported lost, and has not been heard since, is offered only as an upstream, and
///    only if nobody else can be one.
///  - *Credits*: nobody gets more readers than the scheduler's limit. Who has none left is offered only to a
///    reader that may take the place of one of his readers, which then reads from the newcomer.
///
/// Every choice is recorded with its reason (`why`).

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/core.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// Who needs a source. `reader` is null for a shard that has not joined.
struct asker {
  const replica_state* replica = nullptr;
  version_number version{};
  std::uint32_t shard = 0;
  worker_state* reader = nullptr;
  const location* place = nullptr;
  std::uint32_t sources_held = 0;
  std::uint32_t sources_nearby = 0;
  operation_counter operation{};
};

class choosing {
 public:
  choosing(core& shared, any_scheduler scheduler) : core_{shared}, scheduler_{std::move(scheduler)} {}

  struct choice {
    worker_state* source = nullptr;  ///< null: nobody now
    lease_id displaced{};            ///< set: the lease whose place is to be taken
  };

  [[nodiscard]] source_limits limits() const noexcept { return scheduler_.limits(); }

  /// `without` is not offered. `upstream`: what is wanted is one. `crosses`: the reader is the seed of its
  /// datacenter now, and may stay it.
  [[nodiscard]] choice choose(const asker& who, const std::vector<incarnation>& excluded,
                              const worker_state* without, bool may_displace, bool upstream = true,
                              bool crosses = false) {
    const auto record = who.replica->model->versions.find(who.version);
    if (record == who.replica->model->versions.end()) return {};
    const source_index& index = *record->second.sources[who.shard];
    forget_candidates();
    ++stamp_;
    const auto& known = who.replica->model->layouts[who.shard];
    const std::uint64_t chunks = known ? known->chunk_count() : 0;
    const auto offer_one = [&](worker_state& worker, bool may_cross) {
      if (worker.mark == stamp_) return false;
      worker.mark = stamp_;
      if (&worker == who.reader || &worker == without || contains(excluded, worker.id)) return false;
      if (!may_cross && worker.place.datacenter != who.place->datacenter) return false;
      if (who.reader != nullptr && reads_from(*who.reader, worker.id, who.operation)) return false;
      const std::uint64_t held = worker.offered == offer::complete ? chunks : worker.chunks_received;
      (worker.suspect ? suspects_ : candidates_)
          .push_back({worker.id, &worker.place, worker.load, std::min(held, chunks), chunks, worker.spot,
                      worker.publisher});
      (worker.suspect ? suspect_workers_ : workers_).push_back(&worker);
      return !worker.suspect;
    };
    index.visit_near(*who.place, of_each_group, random(),
                     [&](worker_state& worker) { return offer_one(worker, false); });
    const bool may_cross = upstream && (crosses || crossings_into(record->second, who).empty());
    if (may_cross && !somebody_leads(who)) {
      ++stamp_;
      forget_candidates();
      index.visit_far(*who.place, of_each_group, random(),
                      [&](worker_state& worker) { return offer_one(worker, true); });
    }
    const choice chosen = ask(who, may_displace, upstream);
    if (chosen.source != nullptr || suspects_.empty() || !upstream) return chosen;
    candidates_.swap(suspects_);
    workers_.swap(suspect_workers_);
    return ask(who, may_displace, upstream);
  }

  /// Following upstreams from `source` one comes to somebody who has everything, without passing `without`.
  [[nodiscard]] bool leads_to_everything(const worker_state& source, const worker_state* without) const {
    const worker_state* at = &source;
    for (std::size_t steps = 0; steps < longest_path; ++steps) {
      if (at == without) return false;
      if (!at->receiving) return at->held.has_value();
      if (at->upstream == nullptr) return false;
      at = at->upstream;
    }
    return false;
  }

  /// Leases of the asker's version and shard that cross into its datacenter.
  [[nodiscard]] static std::set<lease_id> crossings_into(const version_state& version, const asker& who) {
    const auto& crossings = version.crossings[who.shard];
    const auto found = crossings.find(who.place->datacenter);
    return found == crossings.end() ? std::set<lease_id>{} : found->second;
  }

 private:
  [[nodiscard]] static bool contains(const std::vector<incarnation>& list, incarnation id) {
    return std::ranges::find(list, id) != list.end();
  }
  /// Leases of earlier operations, whose end is not reported yet, do not count.
  [[nodiscard]] bool reads_from(const worker_state& reader, incarnation source,
                                operation_counter operation) const {
    return std::ranges::any_of(reader.reading, [&](lease_id id) {
      const lease_state& lease = core_.leases.at(id);
      return lease.source == source && lease.operation == operation && !lease.cutting_off;
    });
  }
  [[nodiscard]] bool somebody_leads(const asker& who) const {
    const auto leads = [&](const worker_state* worker) { return leads_to_everything(*worker, who.reader); };
    return std::ranges::any_of(workers_, leads) || std::ranges::any_of(suspect_workers_, leads);
  }
  void forget_candidates() {
    candidates_.clear();
    workers_.clear();
    suspects_.clear();
    suspect_workers_.clear();
  }

  /// Asks the scheduler, again without its choice if that is not possible.
  [[nodiscard]] choice ask(const asker& who, bool may_displace, bool upstream) {
    source_query query;
    query.reader = who.reader != nullptr ? who.reader->id : incarnation{};
    query.place = who.place;
    query.version = who.version;
    query.shard = {who.shard, who.replica->model->shards};
    query.sources_held = upstream ? 0 : std::max<std::uint32_t>(1, who.sources_held);
    query.sources_nearby = who.sources_nearby;
    query.may_displace = may_displace;
    const auto offered = static_cast<std::uint32_t>(candidates_.size());
    for (std::size_t tries = 0; tries <= offered; ++tries) {
      const source_choice said = scheduler_.choose(query, candidates_);
      if (!said.index || *said.index >= workers_.size()) {
        record(who, {core_.now, who.version, {}, said.reason, offered, 0, {}, upstream, {}});
        return {};
      }
      worker_state* source = workers_[*said.index];
      choice out{source, {}};
      const bool leads = !upstream || leads_to_everything(*source, who.reader);
      const bool has_credit = source->load < scheduler_.limits().credits;
      if (leads && !has_credit && said.displace) out.displaced = place_in(who, *source, upstream);
      if (leads && (has_credit || out.displaced)) {
        const incarnation moved = out.displaced ? core_.leases.at(out.displaced).reader : incarnation{};
        record(who, {core_.now, who.version, source->id, said.reason, offered, source->load,
                     locality_between(*who.place, source->place), upstream, moved});
        return out;
      }
      candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(*said.index));
      workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(*said.index));
    }
    return {};
  }

  /// A lease on `source` whose reader may read from the asker instead; empty: none.
  [[nodiscard]] lease_id place_in(const asker& who, const worker_state& source, bool upstream) {
    const std::size_t count = source.readers.size();
    const std::size_t first = count == 0 ? 0 : random() % count;
    for (std::size_t i = 0; i < count; ++i) {
      const lease_state& lease = core_.leases.at(source.readers[(first + i) % count]);
      const worker_state* moved = core_.find(lease.reader);
      if (lease.moving || lease.cutting_off || lease.reserved || lease.crossing || moved == nullptr) continue;
      if (moved == who.reader || reads_from(*moved, who.reader->id, moved->reading_for) ||
          lease.version != who.version)
        continue;
      if (moved->place.datacenter != who.place->datacenter) continue;
      // The one who makes room keeps its certainty only through the newcomer: who must not depend on it.
      const bool depends = lease.upstream && !upstream && !leads_to_everything(*who.reader, moved);
      if (!depends) return lease.id;
    }
    return {};
  }

  void record(const asker& who, decision_state decision) {
    if (core_.options.log_decisions) core_.log(log_level::debug, core_.describe(who.reader, decision));
    if (who.reader == nullptr) return;
    who.reader->decisions.push_back(decision);
    if (who.reader->decisions.size() > decisions_remembered) who.reader->decisions.pop_front();
  }

  /// Repeatable (xorshift64*, S. Vigna, 2016).
  [[nodiscard]] std::uint64_t random() noexcept {
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    return random_ * 0x2545f4914f6cdd1dull >> 8;
  }

  static constexpr std::size_t of_each_group = 8;
  static constexpr std::size_t longest_path = 1u << 16;
  static constexpr std::size_t decisions_remembered = 16;

  core& core_;
  any_scheduler scheduler_;
  std::uint64_t stamp_ = 0;
  std::uint64_t random_ = 0x9e3779b97f4a7c15ull;
  std::vector<source_candidate> candidates_;  ///< scratch of choose
  std::vector<worker_state*> workers_;
  std::vector<source_candidate> suspects_;  ///< ditto: kept back
  std::vector<worker_state*> suspect_workers_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
