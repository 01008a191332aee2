#pragma once
/// \file assignments.hpp
/// Decides which sources each reader has: grants leases to readers that need sources, and takes some back for
/// others.
///
/// The scheduler chooses sources, one lease at a time (choosing.hpp selects the candidates). The first lease
/// of a reader is its upstream at first. Upstreams form no cycle and end at a worker that has every chunk. A
/// reader that loses its upstream gets another, or promotes one of its other sources.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/choosing.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/idle_leases.hpp"
#include "tensorhub/service/catalog/leases.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class assignments {
 public:
  assignments(core& core, choosing& choosing, leases& leases)
      : core_{core}, choosing_{choosing}, leases_{leases}, idle_{core, choosing, leases} {}

  /// Grants the lease through which the shard is certain to get every chunk; null: no source has a free
  /// credit now. `reserved`: the reader is not told about the lease yet.
  lease_state* grant_upstream(const operation_state& operation, std::uint32_t shard, worker_state* reader,
                              const std::vector<incarnation>& excluded, bool reserved) {
    const asker asking = asker_of(operation, shard, reader);
    const choosing::conditions on{.excluded = excluded, .may_displace = may_place(reader)};
    auto chosen = choosing_.choose(asking, on);
    if (chosen.source == nullptr && idle_.take_back_for(asking)) chosen = choosing_.choose(asking, on);
    if (chosen.source == nullptr) return nullptr;
    return grant_chosen(chosen, operation,
                        {.shard = shard, .reader = reader, .reserved = reserved, .upstream = true});
  }

  /// Gives the reader further sources, up to `most_sources`. Each one is appended to `told`, or sent
  /// to the reader as a push if `told` is null. A reader that could use more is remembered as hungry, and one
  /// that lacks an upstream keeps a place for it.
  /// `released`: a lease that has been taken back from the reader; the first push says so, too. Returns
  /// `released`, or zero if a push has said so.
  lease_id grow(const operation_state& operation, worker_state& reader,
                const std::vector<incarnation>& excluded, std::vector<messages::assignment>* told,
                lease_id released = {}) {
    while (count_sources(reader) < most_sources(operation, reader)) {
      if (reader.as_reader.upstream == nullptr && !promote(reader, {}))
        demote_lost_seed(operation, reader, excluded);
      const asker asking = asker_of(operation, reader.shard.index, &reader);
      choosing::conditions on{.excluded = excluded,
                              .may_displace = may_place(&reader),
                              .upstream = reader.as_reader.upstream == nullptr};
      auto chosen = choosing_.choose(asking, on);
      const std::uint32_t most_beside = std::min(asking.sources_useful, choosing_.limits().sources - 1);
      if (chosen.source == nullptr && on.upstream && asking.sources_held < most_beside) {
        on.upstream = false;
        chosen = choosing_.choose(asking, on);
      }
      if (chosen.source == nullptr) break;
      const lease_state* lease = grant_chosen(
          chosen, operation, {.shard = reader.shard.index, .reader = &reader, .upstream = on.upstream});
      if (lease == nullptr) break;
      if (told != nullptr)
        told->push_back(leases_.assignment_of(operation, *lease, reader));
      else
        leases_.push_source(operation, *lease, reader, std::exchange(released, {}));
    }
    if (reader.as_reader.hungry_for != operation.version &&
        count_sources(reader) < most_sources(operation, reader))
      wait_for_sources(reader, operation.version);
    return released;
  }

  /// The reader's sources have no new chunks for it: the nearest ones are not enough for this version.
  static void note_stall(const operation_state& operation, worker_state& reader) noexcept {
    reader.as_reader.stalled_for = operation.version;
  }

  /// Helps a reader whose sources have no new chunks for it: if `grow` has found none (`told` is empty),
  /// takes a source back from a reader without progress and grants it to this one.
  void relieve(const operation_state& operation, worker_state& reader,
               const std::vector<incarnation>& excluded, std::vector<messages::assignment>& told) {
    if (!told.empty() || idle_.has_paused(reader.progress.progressed)) return;
    if (count_sources(reader) >= most_sources(operation, reader)) return;
    if (idle_.take_back_for(asker_of(operation, reader.shard.index, &reader)))
      grow(operation, reader, excluded, &told);
  }

  /// The reader has reported a shortage. Exchanges one of its sources for one that has every chunk. If that
  /// source has no credit left, the reader that has read from it the longest gets the source that is given.
  /// So readers take turns at a source that all of them need. No reader gets more sources, no source gets
  /// more readers than its credits, and no worker's report about another is believed.
  void exchange(const operation_state& operation, worker_state& reader,
                const std::vector<incarnation>& excluded) {
    const auto found = choosing_.find_exchange(asker_of(operation, reader.shard.index, &reader), excluded);
    if (found.source == nullptr) return;
    ++core_.counted.seen.shortages.exchanged;
    worker_state* const other = found.takes ? core_.find(core_.leases.at(found.takes).reader) : nullptr;
    worker_state* const given = core_.find(core_.leases.at(found.gives).source);
    leases_.withdraw(core_.leases.at(found.gives), reader);
    if (other != nullptr) leases_.withdraw(core_.leases.at(found.takes), *other);
    leases_.push_source(operation,
                        leases_.grant(*found.source, operation,
                                      {.shard = reader.shard.index, .reader = &reader, .upstream = true}),
                        reader, found.gives);
    if (other == nullptr) return;
    const operation_state& theirs = *operation_read_by(*other);
    leases_.push_source(
        theirs,
        leases_.grant(*given, theirs,
                      {.shard = other->shard.index, .reader = other, .upstream = found.gives_upstream}),
        *other, found.takes);
  }

  /// `sources` new ones have become readable: tries again to give more of them to a few hungry readers each.
  void feed(model_state& model, version_number version, std::uint32_t shard, std::size_t sources) {
    const auto record = model.versions.find(version);
    if (record == model.versions.end()) return;
    auto& hungry = record->second.hungry[shard];
    std::size_t left = fed_at_once * sources;
    // `grow` may put a reader back behind those that are here now, and may shorten the queue.
    for (std::size_t i = hungry.size(); i > 0 && left > 0 && !hungry.empty(); --i) {
      worker_state* reader = core_.find(hungry.front());
      hungry.pop_front();
      if (reader == nullptr) continue;
      end_hunger(*reader, version);
      operation_state* operation = operation_read_by(*reader);
      if (operation == nullptr || operation->version != version) continue;
      grow(*operation, *reader, member_of(*operation, shard)->excluded, nullptr);
      --left;
    }
  }

  /// Makes one of the reader's other sources its upstream. False: none of them can be.
  bool promote(worker_state& reader, lease_id without) {
    for (const lease_id id : reader.as_reader.leases) {
      lease_state& lease = core_.leases.at(id);
      worker_state* source = core_.find(lease.source);
      if (id == without || !lease.lasts() || source == nullptr) continue;
      if (!choosing_.leads_to_everything(*source, &reader)) continue;
      leases_.set_upstream(reader, lease);
      return true;
    }
    return false;
  }

  /// Counts the sources of the reader's running update, without those that the reader must release.
  [[nodiscard]] std::uint32_t count_sources(const worker_state& reader) const {
    return static_cast<std::uint32_t>(detail::count_if(reader.as_reader.leases, [this, &reader](lease_id id) {
      const lease_state& lease = core_.leases.at(id);
      return lease.operation == reader.as_reader.operation && lease.lasts();
    }));
  }

  [[nodiscard]] asker asker_of(const operation_state& operation, std::uint32_t shard,
                               worker_state* reader) const {
    asker out{operation.replica, operation.version, shard, reader};
    out.operation = operation.counter;
    const auto& known = operation.replica->model->layouts[shard];
    out.chunks = known ? known->chunk_count() : 0;
    out.sources_useful = useful_sources(operation, shard, reader);
    out.location = reader != nullptr ? &reader->location : leases::location_of(*operation.replica);
    if (reader == nullptr) return out;
    for (const lease_id id : reader->as_reader.leases) {
      const lease_state& lease = core_.leases.at(id);
      if (!lease.lasts() || lease.operation != operation.counter) continue;
      ++out.sources_held;
      const worker_state* source = core_.find(lease.source);
      if (source == nullptr) continue;
      const locality distance = locality_between(*out.location, source->location);
      if (distance < locality::same_datacenter) ++out.sources_nearby;
      if (distance == locality::same_host && source->as_source.offered == offer::complete &&
          reader->as_reader.stalled_for != operation.version)
        out.served_on_host = true;
    }
    return out;
  }

 private:
  /// How many sources a reader of this shard can use at a time: one for each chunk, and one that can take the
  /// place of a slow one. If all that it has had ran out of new chunks, more than those are of use.
  [[nodiscard]] std::uint32_t useful_sources(const operation_state& operation, std::uint32_t shard,
                                             const worker_state* reader) const {
    const std::uint32_t allowed = choosing_.limits().sources;
    const auto& known = operation.replica->model->layouts[shard];
    const bool has_stalled = reader != nullptr && reader->as_reader.stalled_for == operation.version;
    if (!known || has_stalled) return allowed;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(allowed, known->chunk_count() + 1));
  }
  /// How many it may have: one that lacks an upstream gets that beside those.
  [[nodiscard]] std::uint32_t most_sources(const operation_state& operation,
                                           const worker_state& reader) const {
    return reader.as_reader.upstream != nullptr ? useful_sources(operation, reader.shard.index, &reader)
                                                : choosing_.limits().sources;
  }
  /// A reader that can be read itself, and has a free credit, may be inserted between a source and its
  /// reader.
  [[nodiscard]] bool may_place(const worker_state* reader) const noexcept {
    return reader != nullptr && reader->as_source.offered == offer::receiving &&
           reader->as_source.load < choosing_.limits().credits;
  }

  /// Null: the reader that was to be displaced cannot move.
  lease_state* grant_chosen(const choosing::choice& chosen, const operation_state& operation,
                            const leases::grantee& to) {
    if (chosen.displaced == lease_id{}) return &leases_.grant(*chosen.source, operation, to);
    lease_state& old = core_.leases.at(chosen.displaced);
    worker_state& moved = *core_.find(old.reader);
    operation_state* theirs = operation_read_by(moved);
    if (theirs == nullptr) return nullptr;
    const bool was_upstream = old.upstream;
    leases_.move_to(old, lease_stage::moving);
    if (was_upstream) leases_.forget_upstream(moved);
    const std::uint64_t ordinal = old.ordinal;
    lease_state& lease = leases_.grant(*chosen.source, operation, to);
    lease.ordinal = ordinal;
    const lease_state& next =
        leases_.grant(*to.reader, *theirs, {.shard = to.shard, .reader = &moved, .upstream = was_upstream});
    leases_.push_source(*theirs, next, moved, chosen.displaced);
    return &lease;
  }

  /// The reader has lost the seed of its datacenter, which may not have been declared dead yet. Takes the
  /// crossing lease from the seed. If the seed is alive, it continues with its other sources.
  void demote_lost_seed(const operation_state& operation, worker_state& reader,
                        const std::vector<incarnation>& excluded) {
    const auto record = reader.model->versions.find(operation.version);
    if (record == reader.model->versions.end()) return;
    const asker asking = asker_of(operation, reader.shard.index, &reader);
    for (const lease_id id : choosing::seeds_of(record->second, asking)) {
      lease_state& lease = core_.leases.at(id);
      worker_state* seed = core_.find(lease.reader);
      if (lease.is_reserved() || seed == nullptr || seed == &reader || !detail::contains(excluded, seed->id))
        continue;
      leases_.take_back(lease, *seed);
      if (seed->as_reader.hungry_for != lease.version) wait_for_sources(*seed, lease.version);
    }
  }

  /// The reader is given further sources of this version when there are some (`feed`).
  void wait_for_sources(worker_state& reader, version_number version) {
    auto& hungry = reader.model->versions.at(version).hungry[reader.shard.index];
    if (hungry.size() > 2 * std::size_t{reader.model->workers}) forget_gone(hungry, version);
    reader.as_reader.hungry_for = version;
    if (!detail::contains(hungry, reader.id)) hungry.push_back(reader.id);
  }
  /// Those that have left, or do not read this version any more.
  void forget_gone(std::deque<incarnation>& hungry, version_number version) {
    std::erase_if(hungry, [&](incarnation id) {
      worker_state* reader = core_.find(id);
      if (reader == nullptr) return true;
      const operation_state* operation = operation_read_by(*reader);
      if (operation != nullptr && operation->version == version) return false;
      end_hunger(*reader, version);
      return true;
    });
  }
  static void end_hunger(worker_state& reader, version_number version) noexcept {
    if (reader.as_reader.hungry_for == version) reader.as_reader.hungry_for = {};
  }

  static constexpr std::size_t fed_at_once = 4;

  core& core_;
  choosing& choosing_;
  leases& leases_;
  idle_leases idle_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
