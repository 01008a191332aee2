#pragma once
/// \file leases.hpp
/// Permissions to read, from their assignment to their end, and the drains that wait for that end.
///
/// The scheduler chooses sources, one lease at a time (choosing.hpp selects the candidates). A lease counts
/// from its assignment, also while it is only reserved for a shard that has not called yet; a drain is
/// answered when no lease on its worker is left.
///
/// The first lease of a reader is its upstream at first. Upstreams form no cycle and end at a worker that has
/// every chunk. A reader that loses its upstream gets another, or promotes one of its other sources.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/choosing.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/versions.hpp"
#include "tensorhub/types/capability.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class leases {
 public:
  leases(core& core, versions& versions, any_scheduler scheduler)
      : core_{core},
        versions_{versions},
        choosing_{core, std::move(scheduler)},
        last_lease_{core.epoch.value << 32} {}

  // ---- assignment

  /// Grants the lease through which the shard is certain to get every chunk; null: no source has a free
  /// credit now. `reserved`: the reader is not told about the lease yet.
  lease_state* grant_upstream(const operation_state& operation, std::uint32_t shard, worker_state* reader,
                              const std::vector<incarnation>& excluded, bool reserved) {
    const asker asking = asker_of(operation, shard, reader);
    const choosing::conditions on{.excluded = excluded, .may_displace = may_place(reader)};
    auto chosen = choosing_.choose(asking, on);
    if (chosen.source == nullptr && take_back_idle(asking)) chosen = choosing_.choose(asking, on);
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
      const std::uint32_t most_beside = std::min(asking.sources_useful, limits().sources - 1);
      if (chosen.source == nullptr && on.upstream && asking.sources_held < most_beside) {
        on.upstream = false;
        chosen = choosing_.choose(asking, on);
      }
      if (chosen.source == nullptr) break;
      const lease_state* lease = grant_chosen(
          chosen, operation, {.shard = reader.shard.index, .reader = &reader, .upstream = on.upstream});
      if (lease == nullptr) break;
      if (told != nullptr)
        told->push_back(assignment_of(operation, *lease, reader));
      else
        push_source(operation, *lease, reader, std::exchange(released, {}));
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
    if (!told.empty() || has_paused(reader.progress.progressed)) return;
    if (count_sources(reader) >= most_sources(operation, reader)) return;
    if (take_back_idle(asker_of(operation, reader.shard.index, &reader)))
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
    withdraw(core_.leases.at(found.gives), reader);
    if (other != nullptr) withdraw(core_.leases.at(found.takes), *other);
    push_source(
        operation,
        grant(*found.source, operation, {.shard = reader.shard.index, .reader = &reader, .upstream = true}),
        reader, found.gives);
    if (other == nullptr) return;
    const operation_state& theirs = *operation_read_by(*other);
    push_source(theirs,
                grant(*given, theirs,
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

  /// Records a lease that an earlier server granted and that is still in use.
  void adopt(worker_state& reader, const messages::assignment& old) {
    // Only a faulty worker announces itself as its source, or more sources than the limit.
    if (!old.source || old.source == reader.id || reader.as_reader.leases.size() >= limits::sources) return;
    for (const lease_id known : reader.as_reader.leases) {
      if (core_.leases.at(known).source == old.source) return;
    }
    worker_state* const source = core_.find(old.source);
    if (source != nullptr && !is_source_of(*source, reader)) return;
    lease_state lease;
    // The reader goes on under the number that it knows.
    const bool is_free = old.lease && !core_.leases.contains(old.lease);
    lease.id = is_free ? old.lease : next_lease();
    lease.source = old.source;
    lease.reader = reader.id;
    lease.version = old.version;
    lease.replica = reader.replica->name;
    lease.shard = reader.shard.index;
    lease.stage = lease_stage::active;
    lease.inherited = true;
    lease.operation = old.operation;
    lease.given = core_.now;
    reader.as_reader.leases.push_back(lease.id);
    reader.as_reader.operation = old.operation;
    lease_state& kept = core_.leases.emplace(lease.id, std::move(lease)).first->second;
    if (source != nullptr) {
      note_places(kept, reader, *source);
      source->as_source.readers.push_back(kept.id);
      charge(kept, true);
    } else {
      core_.sourceless.insert(kept.id);
    }
  }
  /// Links a worker that has just joined with the leases on it that its readers announced earlier. Those of
  /// workers to which it cannot be a source end.
  void find_source(worker_state& source) {
    std::vector<lease_id> misfits;
    std::erase_if(core_.sourceless, [&](lease_id id) {
      lease_state& lease = core_.leases.at(id);
      if (lease.source != source.id) return false;
      source.as_source.readers.push_back(id);
      const worker_state* reader = core_.find(lease.reader);
      if (reader != nullptr && !is_source_of(source, *reader))
        misfits.push_back(id);
      else if (reader != nullptr)
        note_places(lease, *reader, source);
      if (lease.lasts()) charge(lease, true);
      return true;
    });
    for (const lease_id id : misfits) end(id, &drain_state::finished);
  }

  /// A worker that comes from an earlier server has said what it has: readers that came before it, and theirs
  /// in turn, get an upstream.
  void lead_readers(const worker_state& source) {
    std::vector<const worker_state*> leading{&source};
    while (!leading.empty()) {
      const worker_state& next = *leading.back();
      leading.pop_back();
      for (const lease_id id : next.as_source.readers) {
        const lease_state& lease = core_.leases.at(id);
        worker_state* reader = lease.inherited ? core_.find(lease.reader) : nullptr;
        if (reader == nullptr || reader->as_reader.upstream != nullptr) continue;
        if (promote(*reader, {})) leading.push_back(reader);
      }
    }
  }

  /// Pre-condition: the lease's source has joined and shows its version.
  [[nodiscard]] messages::assignment assignment_of(const operation_state& operation, const lease_state& lease,
                                                   const worker_state& reader) {
    const worker_state& source = *core_.find(lease.source);
    const messages::reference& shown = *source.shown();
    messages::assignment out;
    out.operation = operation.counter;
    out.lease = lease.id;
    out.version = lease.version;
    out.root = operation.replica->model->versions.at(lease.version).roots[lease.shard];
    out.source = source.id;
    out.source_replica = source.replica->name;
    out.source_shard = source.shard.index;
    out.address = source.access.address;
    out.address.capability = make_capability(source.access.capability_key, reader.id, source.id, shown.epoch);
    out.control = shown.control;
    out.epoch = shown.epoch;
    out.drained = reader.as_source.readers.empty() && !reader.past.has_old_keys;
    out.receiving = source.receiving.has_value() || shown.open;
    if (!out.receiving) out.segments = shown.segments;
    out.ordinal = lease.ordinal;
    out.crossing = lease.crossing;
    return out;
  }

  // ---- end

  void end(lease_id id, std::uint32_t drain_state::*counter) {
    const auto found = core_.leases.find(id);
    if (found == core_.leases.end()) return;
    if (found->second.lasts()) charge(found->second, false);
    const incarnation source_id = found->second.source;
    if (worker_state* reader = core_.find(found->second.reader)) {
      std::erase(reader->as_reader.leases, id);
      if (reader->as_reader.upstream_lease == id) forget_upstream(*reader);
    }
    core_.leases.erase(found);
    core_.cut_offs.erase(id);
    core_.sourceless.erase(id);
    worker_state* source = core_.find(source_id);
    if (source == nullptr) return;
    std::erase(source->as_source.readers, id);
    if (source->drain) ++((*source->drain).*counter);
    check_drained(*source);
  }

  /// The reader's call has ended: all leases but what is reserved for its next one.
  void end_all_of(worker_state& reader) {
    for (const lease_id id : std::vector<lease_id>{reader.as_reader.leases})
      if (!core_.leases.at(id).is_reserved()) end(id, &drain_state::finished);
  }

  void release_reserved(operation_state& operation) {
    for (member_state& member : operation.members) {
      const auto lease = core_.leases.find(member.lease);
      if (lease != core_.leases.end() && lease->second.is_reserved())
        end(lease->first, &drain_state::finished);
    }
  }

  /// After an exception: ends what was reserved for shards that do not know of it.
  void end_forgotten() {
    std::vector<lease_id> forgotten;
    for (const auto& [id, lease] : core_.leases) {
      const worker_state* source = core_.find(lease.source);
      if (!lease.is_reserved() || source == nullptr) continue;
      operation_state* operation = find_operation(*source->model, lease);
      const member_state* member = operation != nullptr ? member_of(*operation, lease.shard) : nullptr;
      if (member == nullptr || member->lease != id) forgotten.push_back(id);
    }
    for (const lease_id id : forgotten) end(id, &drain_state::finished);
  }

  /// The reader was declared dead: the lease no longer counts, and ends when its source has cut the reader
  /// off.
  void begin_cut_off(lease_state& lease) {
    lease.cut_off_at = core_.now;
    ++core_.counted.seen.cut_offs_begun;
    core_.cut_offs.insert(lease.id);
    move_to(lease, lease_stage::cutting_off);
    core_.send(lease.source, {}, messages::cut_off_push{lease.reader});
  }

  /// So many of this worker's readers are dead, and it has not confirmed that it has cut them off, that it
  /// never will: the leases must not fill the server's memory.
  [[nodiscard]] bool confirms_nothing(const worker_state& source) const {
    return source.as_source.readers.size() > most_cut_offs &&
           detail::count_if(source.as_source.readers, [this](lease_id id) {
             return core_.leases.at(id).stage == lease_stage::cutting_off;
           }) > static_cast<std::ptrdiff_t>(most_cut_offs);
  }

  /// Finds a reserved lease whose source still shows the version. Ends the lease if the source has dropped
  /// the version meanwhile.
  [[nodiscard]] auto find_reserved(lease_id id) {
    const auto found = core_.leases.find(id);
    if (found == core_.leases.end()) return found;
    const worker_state* source = core_.find(found->second.source);
    const messages::reference* shown = source != nullptr ? source->shown() : nullptr;
    if (shown != nullptr && shown->version == found->second.version) return found;
    end(id, &drain_state::finished);
    return core_.leases.end();
  }

  /// Turns a reserved lease into one that its reader knows.
  void hand_over(lease_state& lease, worker_state& reader) {
    move_to(lease, lease_stage::active);
    if (!lease.reader) {
      reader.as_reader.leases.push_back(lease.id);
      settle_place(lease, reader);
    }
    lease.reader = reader.id;
    if (reader.is_barred_as_source()) stop_seeding(lease);
    set_upstream(reader, lease);
  }

  /// The lease was reserved for a worker that had not joined: its place was guessed.
  void settle_place(lease_state& lease, const worker_state& reader) {
    const worker_state* const source = core_.find(lease.source);
    if (source == nullptr || lease.datacenter == reader.location.datacenter) return;
    charge(lease, false);
    note_places(lease, reader, *source);
    const auto record = source->model->versions.find(lease.version);
    if (record != source->model->versions.end())  // a datacenter has one seed
      lease.seeds = lease.seeds && !record->second.seeds[lease.shard].contains(lease.datacenter);
    charge(lease, true);
  }

  // ---- drains

  void check_drained(worker_state& worker) {
    if (!worker.drain || !worker.as_source.readers.empty() || core_.recovering(*worker.model)) return;
    const auto drain = *std::exchange(worker.drain, std::nullopt);
    const bool lost = worker.held && worker.model->lost.contains(worker.held->version);
    if (worker.holding == holding::withdrawn) versions_.drop(worker);
    messages::drained_reply reply{{}, drain.finished, drain.moved, drain.cut_off};
    reply.lost = lost;
    reply.revoke = std::exchange(worker.past.has_old_keys, false);
    core_.answer(worker, drain.sequence, std::move(reply));
  }

  /// The update before which the worker drained is over: nobody waits for that drain any more. (What an
  /// unpublish has begun goes on.)
  void end_drain_of_update(worker_state& worker, const messages::status& outcome) {
    if (worker.holding == holding::withdrawn) return;
    if (const auto drain = std::exchange(worker.drain, std::nullopt))
      core_.answer(worker, drain->sequence, messages::drained_reply{outcome});
  }

  /// The worker has begun another call, so it no longer holds the old version: it has cut off its readers
  /// itself, and the message that reported this was lost or is late.
  void forget_drain(worker_state& worker) {
    for (const lease_id id : std::vector<lease_id>{worker.as_source.readers}) end(id, &drain_state::cut_off);
    check_drained(worker);
    versions_.drop(worker);
  }

  /// A worker that has overwritten its memory has cut off the readers of the previous version, even if the
  /// message that reports this is late. Leases on `now_there` are not touched.
  void end_overwritten(worker_state& worker, version_number now_there) {
    for (const lease_id id : std::vector<lease_id>{worker.as_source.readers}) {
      if (core_.leases.at(id).version != now_there) abandon(worker, id, &drain_state::cut_off);
    }
  }

  void move_readers(worker_state& source) {
    for (const lease_id id : std::vector<lease_id>{source.as_source.readers}) move_reader(source, id);
  }

  /// The worker is barred as a source: its readers move, and nobody waits for what it reads from afar.
  void bar(worker_state& worker) {
    for (const lease_id id : worker.as_reader.leases) stop_seeding(core_.leases.at(id));
    move_readers(worker);
  }
  /// Likewise what is reserved for shards of the replica that have not called.
  void bar_reserved(const replica_state& replica) {
    for (const operation_state* operation : replica.open) {
      for (const member_state& member : operation->members) {
        const auto lease = core_.leases.find(member.lease);
        if (lease != core_.leases.end() && lease->second.is_reserved()) stop_seeding(lease->second);
      }
    }
  }

  /// Ends a lease on a source that is gone; its reader gets another source if there is one.
  void abandon(worker_state& source, lease_id id, std::uint32_t drain_state::*counter) {
    move_reader(source, id);
    end(id, counter);
  }

  /// Moves the reader of a lease to another source, if there is one. A reserved lease moves at once; an
  /// active lease remains until its reader has released it.
  void move_reader(worker_state& source, lease_id id) {
    const lease_state old = core_.leases.at(id);
    if (!old.lasts()) return;
    operation_state* operation = find_operation(*source.model, old);
    member_state* member = operation != nullptr ? member_of(*operation, old.shard) : nullptr;
    if (member == nullptr || operation->is_closed() || operation->version != old.version) return;
    worker_state* reader = operation->replica->workers[old.shard];
    if (old.is_reserved()) return move_reserved(source, old, *operation, *member, reader);
    if (reader == nullptr || reader->id != old.reader) return;
    if (reader->as_reader.upstream == nullptr) promote(*reader, {});  // it may be this one
    if (!core_.leases.at(id).upstream || promote(*reader, id)) {
      withdraw(core_.leases.at(id), *reader);
      if (grow(*operation, *reader, member->excluded, nullptr, id)) tell_taken_back(old);
      return;
    }
    const auto chosen = choosing_.choose(asker_of(*operation, old.shard, reader),
                                         {.excluded = member->excluded,
                                          .without = &source,
                                          .crosses = may_cross_again(old, reader, *operation->replica)});
    if (chosen.source == nullptr) return;
    move_to(core_.leases.at(id), lease_stage::moving);
    forget_upstream(*reader);
    const lease_state& lease =
        grant(*chosen.source, *operation, {.shard = old.shard, .reader = reader, .upstream = true});
    push_source(*operation, lease, *reader, id);
  }

  /// Makes one of the reader's other sources its upstream. False: none of them can be.
  bool promote(worker_state& reader, lease_id without) {
    for (const lease_id id : reader.as_reader.leases) {
      lease_state& lease = core_.leases.at(id);
      worker_state* source = core_.find(lease.source);
      if (id == without || !lease.lasts() || source == nullptr) continue;
      if (!choosing_.leads_to_everything(*source, &reader)) continue;
      set_upstream(reader, lease);
      return true;
    }
    return false;
  }

  /// The push is about sources of an update whose end the reader has reported since, when it gave all of them
  /// back.
  [[nodiscard]] bool is_moot(const outgoing& message) const {
    const auto* push = get_if<messages::reassign_push>(&message.message.body);
    if (push == nullptr) return false;
    const worker_state* reader = core_.find(message.to);
    const bool reads_on = reader != nullptr && reader->as_reader.operation == push->source.operation;
    return !reads_on && !core_.leases.contains(push->source.lease) && !core_.leases.contains(push->old_lease);
  }

  [[nodiscard]] source_limits limits() const noexcept { return choosing_.limits(); }

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
  /// Counts the sources of the reader's running update, without those that the reader must release.
  [[nodiscard]] std::uint32_t count_sources(const worker_state& reader) const {
    return static_cast<std::uint32_t>(detail::count_if(reader.as_reader.leases, [this, &reader](lease_id id) {
      const lease_state& lease = core_.leases.at(id);
      return lease.operation == reader.as_reader.operation && lease.lasts();
    }));
  }
  /// The worker has been given sources and has not reported the end of that update.
  [[nodiscard]] bool has_sources(const worker_state& worker) const {
    return detail::any_of(worker.as_reader.leases,
                          [this](lease_id id) { return !core_.leases.at(id).is_reserved(); });
  }
  [[nodiscard]] bool leads_to_everything(const worker_state& source, const worker_state* without) const {
    return choosing_.leads_to_everything(source, without);
  }

 private:
  [[nodiscard]] lease_id next_lease() {
    do {
      ++last_lease_;
    } while (core_.leases.contains(lease_id{last_lease_}));
    return {last_lease_};
  }

  [[nodiscard]] asker asker_of(const operation_state& operation, std::uint32_t shard,
                               worker_state* reader) const {
    asker out{operation.replica, operation.version, shard, reader};
    out.operation = operation.counter;
    const auto& known = operation.replica->model->layouts[shard];
    out.chunks = known ? known->chunk_count() : 0;
    out.sources_useful = useful_sources(operation, shard, reader);
    out.location = reader != nullptr ? &reader->location : location_of(*operation.replica);
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
  /// The assumed location of a shard that has not joined: that of another shard of its replica.
  [[nodiscard]] static const location* location_of(const replica_state& replica) noexcept {
    static const location nowhere{};
    for (const worker_state* worker : replica.workers) {
      if (worker != nullptr) return &worker->location;
    }
    return &nowhere;
  }
  /// A reader that can be read itself, and has a free credit, may be inserted between a source and its
  /// reader.
  [[nodiscard]] bool may_place(const worker_state* reader) const noexcept {
    return reader != nullptr && reader->as_source.offered == offer::receiving &&
           reader->as_source.load < choosing_.limits().credits;
  }

  /// The reader of a crossing lease that moves: the seed stays the seed, and another one costs no more there.
  [[nodiscard]] static bool may_cross_again(const lease_state& old, const worker_state* reader,
                                            const replica_state& replica) noexcept {
    return old.seeds || (old.crossing && is_no_seed(reader, replica));
  }
  /// `reader`: null if it has not joined.
  [[nodiscard]] static bool is_no_seed(const worker_state* reader, const replica_state& replica) noexcept {
    return reader != nullptr ? reader->is_barred_as_source() : !replica.set_aside_as.empty();
  }

  struct grantee {
    std::uint32_t shard = 0;
    worker_state* reader = nullptr;  ///< null: it has not joined
    bool reserved = false;           ///< the reader is not told yet
    bool upstream = false;
  };

  /// Null: the reader that was to be displaced cannot move.
  lease_state* grant_chosen(const choosing::choice& chosen, const operation_state& operation,
                            const grantee& to) {
    if (chosen.displaced == lease_id{}) return &grant(*chosen.source, operation, to);
    lease_state& old = core_.leases.at(chosen.displaced);
    worker_state& moved = *core_.find(old.reader);
    operation_state* theirs = operation_read_by(moved);
    if (theirs == nullptr) return nullptr;
    const bool was_upstream = old.upstream;
    move_to(old, lease_stage::moving);
    if (was_upstream) forget_upstream(moved);
    const std::uint64_t ordinal = old.ordinal;
    lease_state& lease = grant(*chosen.source, operation, to);
    lease.ordinal = ordinal;
    const lease_state& next =
        grant(*to.reader, *theirs, {.shard = to.shard, .reader = &moved, .upstream = was_upstream});
    push_source(*theirs, next, moved, chosen.displaced);
    return &lease;
  }

  lease_state& grant(worker_state& source, const operation_state& operation, const grantee& to) {
    worker_state* const reader = to.reader;
    const lease_id id = next_lease();
    lease_state& lease = core_.leases[id];
    lease.id = id;
    lease.source = source.id;
    lease.reader = reader != nullptr ? reader->id : incarnation{};
    lease.version = operation.version;
    lease.replica = operation.replica->name;
    lease.shard = to.shard;
    lease.stage = to.reserved ? lease_stage::reserved : lease_stage::active;
    lease.operation = operation.counter;
    lease.given = core_.now;
    const location& there = reader != nullptr ? reader->location : *location_of(*operation.replica);
    lease.datacenter = there.datacenter;
    lease.crossing = there.datacenter != source.location.datacenter;
    lease.seeds = lease.crossing && !is_no_seed(reader, *operation.replica);
    lease.ordinal = free_ordinal(source);
    try {
      source.as_source.readers.push_back(id);
      if (reader != nullptr) reader->as_reader.leases.push_back(id);
    } catch (...) {
      std::erase(source.as_source.readers, id);
      core_.leases.erase(id);
      throw;
    }
    charge(lease, true);
    if (reader != nullptr && to.upstream && !to.reserved) set_upstream(*reader, lease);
    return lease;
  }

  /// What a reader says of its sources is believed only so far: the records of a lease are of one shard.
  [[nodiscard]] static bool is_source_of(const worker_state& source, const worker_state& reader) {
    return source.model == reader.model && source.shard.index == reader.shard.index;
  }
  static void note_places(lease_state& lease, const worker_state& reader, const worker_state& source) {
    lease.datacenter = reader.location.datacenter;
    lease.crossing = reader.location.datacenter != source.location.datacenter;
    lease.seeds = lease.crossing && !reader.is_barred_as_source();
  }

  /// The lowest ordinal that no counted lease on the source has.
  [[nodiscard]] std::uint64_t free_ordinal(const worker_state& source) const {
    if (source.as_source.readers.size() > limits::sources) return source.as_source.readers.size();
    std::uint64_t taken = 0;
    for (const lease_id id : source.as_source.readers) {
      const lease_state& lease = core_.leases.at(id);
      if (lease.lasts() && lease.ordinal < 64) taken |= 1ull << lease.ordinal;
    }
    return static_cast<std::uint64_t>(std::countr_one(taken));
  }

  void move_reserved(worker_state& source, const lease_state& old, operation_state& operation,
                     member_state& member, worker_state* reader) {
    if (member.lease != old.id) return;
    move_to(core_.leases.at(old.id), lease_stage::moving);
    const auto chosen = choosing_.choose(asker_of(operation, old.shard, reader),
                                         {.excluded = member.excluded,
                                          .without = &source,
                                          .crosses = may_cross_again(old, reader, *operation.replica)});
    if (chosen.source == nullptr) return move_to(core_.leases.at(old.id), lease_stage::reserved);
    member.lease = grant(*chosen.source, operation,
                         {.shard = old.shard, .reader = reader, .reserved = true, .upstream = true})
                       .id;
    end(old.id, &drain_state::moved);
  }

  void push_source(const operation_state& operation, const lease_state& lease, const worker_state& reader,
                   lease_id old) {
    core_.send(reader.id, {}, messages::reassign_push{old, assignment_of(operation, lease, reader)});
  }

  [[nodiscard]] bool has_paused(time_point since) const noexcept {
    return core_.now - since > core_.options.progress_timeout;
  }
  /// Revokes the lease of a reader without progress, so that neither a credit nor a datacenter's only
  /// crossing is blocked by a broken or malicious reader. Returns true if a lease was freed; that reader
  /// will ask again when it resumes.
  bool take_back_idle(const asker& wanting) {
    const auto record = wanting.replica->model->versions.find(wanting.version);
    if (record == wanting.replica->model->versions.end()) return false;
    // Thousands of readers may be waiting and asking repeatedly: limits how often the search runs.
    auto& next_looks = record->second.next_look[wanting.shard];
    const auto next_look = next_looks.find(wanting.location->datacenter);
    if (next_look != next_looks.end() && core_.now < next_look->second) return false;
    const source_index& index = *record->second.sources[wanting.shard];
    lease_state* found = nullptr;
    const auto look_at = [&](lease_id id) {
      lease_state& lease = core_.leases.at(id);
      const worker_state* reader = core_.find(lease.reader);
      if ((reader != nullptr && reader == wanting.reader) || !lease.lasts()) return;
      if (reader == nullptr && !lease.is_reserved()) return;
      const bool has_begun = reader != nullptr && !lease.is_reserved();
      if (has_paused(has_begun ? std::max(lease.given, reader->progress.progressed) : lease.given))
        found = &lease;
    };
    const auto look_at_source = [&](worker_state& source) {
      if (found == nullptr && source.as_source.load >= choosing_.limits().credits)
        for (const lease_id id : source.as_source.readers) look_at(id);
      return false;
    };
    const std::set<lease_id> seeds = choosing::seeds_of(record->second, wanting);
    for (const lease_id id : seeds) look_at(id);
    index.visit_near(*wanting.location, 1, 0, look_at_source);
    if (seeds.empty()) index.visit_far(*wanting.location, 1, 0, look_at_source);
    if (found == nullptr) {
      if (next_looks.size() >= most_next_looks) next_looks.clear();  // names come from workers
      next_looks[wanting.location->datacenter] =
          core_.now + core_.options.progress_timeout / looks_per_timeout;
      return false;
    }
    ++core_.counted.seen.sources_taken_back;
    if (found->is_reserved()) {  // for a shard that has not called: it gets another one when it does
      end(found->id, &drain_state::finished);
      return true;
    }
    worker_state& reader = *core_.find(found->reader);
    log_fields fields = about(reader);
    fields.peer = found->source;
    fields.version = found->version;
    fields.lease = found->id;
    core_.log(log_level::warning,
              who(reader) + " has received nothing of version " + to_string(found->version) + " for " +
                  std::to_string(core_.options.progress_timeout.count()) + " ms: its source " +
                  to_hex(found->source) + " is given to another one that waits (look at its network)",
              std::move(fields));
    take_back(*found, reader);
    return true;
  }

  /// Tells the reader to release this source.
  void take_back(lease_state& lease, worker_state& reader) {
    withdraw(lease, reader);
    tell_taken_back(lease);
  }
  void withdraw(lease_state& lease, worker_state& reader) {
    move_to(lease, lease_stage::moving);
    if (reader.as_reader.upstream_lease == lease.id) forget_upstream(reader);
  }
  void tell_taken_back(const lease_state& lease) {
    messages::reassign_push push{lease.id, {}};
    push.source.operation = lease.operation;
    push.source.version = lease.version;
    core_.send(lease.reader, {}, std::move(push));
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
      take_back(lease, *seed);
      if (seed->as_reader.hungry_for != lease.version) wait_for_sources(*seed, lease.version);
    }
  }

  void set_upstream(worker_state& reader, lease_state& lease) {
    forget_upstream(reader);
    lease.upstream = true;
    reader.as_reader.upstream = core_.find(lease.source);
    reader.as_reader.upstream_lease = lease.id;
    update_chain(reader);
  }
  void forget_upstream(worker_state& reader) {
    if (const auto old = core_.leases.find(reader.as_reader.upstream_lease); old != core_.leases.end())
      old->second.upstream = false;
    reader.as_reader.upstream = nullptr;
    reader.as_reader.upstream_lease = {};
    update_chain(reader);
  }

  void move_to(lease_state& lease, lease_stage next) {
    const bool lasted = lease.lasts();
    core_.move_to(lease.stage, next);
    if (lease.lasts() != lasted) charge(lease, !lasted);
  }
  /// Adds a lease to the load of its source and, if it seeds, to the seeds; or takes it away.
  void charge(const lease_state& lease, bool counts) {
    worker_state* source = core_.find(lease.source);
    if (source == nullptr) return;
    if (!counts) core_.mark_credits(*source->model);
    versions_.change_load(*source, counts ? source->as_source.load + 1 : source->as_source.load - 1);
    if (!lease.seeds) return;
    const auto record = source->model->versions.find(lease.version);
    if (record == source->model->versions.end()) return;
    auto& seeds = record->second.seeds[lease.shard];
    auto& here = seeds[lease.datacenter];
    if (counts)
      here.insert(lease.id);
    else
      here.erase(lease.id);
    if (here.empty()) seeds.erase(lease.datacenter);
  }

  void stop_seeding(lease_state& lease) {
    if (!lease.seeds) return;
    if (lease.lasts()) charge(lease, false);
    lease.seeds = false;
    if (lease.lasts()) charge(lease, true);
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
  static constexpr std::size_t most_cut_offs = 1024;
  static constexpr int looks_per_timeout = 64;
  static constexpr std::size_t most_next_looks = 64;

  core& core_;
  versions& versions_;
  choosing choosing_;
  std::uint64_t last_lease_;  ///< begins elsewhere at each server: readers keep the numbers of earlier ones
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
