#pragma once
/// \file leases.hpp
/// The records of leases, from their grant to their end, and what their readers are told of them.
///
/// A lease counts from its assignment, also while it is only reserved for a shard that has not called yet.
/// When the last lease on a worker ends, its drain is answered. Who reads from whom is decided elsewhere:
/// assignments.hpp gives readers their sources, reader_moves.hpp moves them away from a source.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/drains.hpp"
#include "tensorhub/service/catalog/versions.hpp"
#include "tensorhub/types/capability.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class leases {
 public:
  leases(core& core, versions& versions, drains& drains)
      : core_{core}, versions_{versions}, drains_{drains}, last_lease_{core.epoch.value << 32} {}

  // ---- begin

  struct grantee {
    std::uint32_t shard = 0;
    worker_state* reader = nullptr;  ///< null: it has not joined
    bool reserved = false;           ///< the reader is not told yet
    bool upstream = false;
  };

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

  [[nodiscard]] lease_id next_lease() {
    do {
      ++last_lease_;
    } while (core_.leases.contains(lease_id{last_lease_}));
    return {last_lease_};
  }

  /// The assumed location of a shard that has not joined: that of another shard of its replica.
  [[nodiscard]] static const location* location_of(const replica_state& replica) noexcept {
    static const location nowhere{};
    for (const worker_state* worker : replica.workers) {
      if (worker != nullptr) return &worker->location;
    }
    return &nowhere;
  }
  /// `reader`: null if it has not joined.
  [[nodiscard]] static bool is_no_seed(const worker_state* reader, const replica_state& replica) noexcept {
    return reader != nullptr ? reader->is_barred_as_source() : !replica.set_aside_as.empty();
  }

  // ---- stages, seeds and places

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

  static void note_places(lease_state& lease, const worker_state& reader, const worker_state& source) {
    lease.datacenter = reader.location.datacenter;
    lease.crossing = reader.location.datacenter != source.location.datacenter;
    lease.seeds = lease.crossing && !reader.is_barred_as_source();
  }

  // ---- upstreams

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

  /// The reader must release the source: `push_source` or `tell_taken_back` is to tell it so.
  void withdraw(lease_state& lease, worker_state& reader) {
    move_to(lease, lease_stage::moving);
    if (reader.as_reader.upstream_lease == lease.id) forget_upstream(reader);
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
    drains_.check_drained(*source);
  }

  /// The worker has been given sources and has not reported the end of that update.
  [[nodiscard]] bool has_sources(const worker_state& worker) const {
    return detail::any_of(worker.as_reader.leases,
                          [this](lease_id id) { return !core_.leases.at(id).is_reserved(); });
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

  /// The worker has begun another call, so it no longer holds the old version: it has cut off its readers
  /// itself, and the message that reported this was lost or is late.
  void forget_drain(worker_state& worker) {
    for (const lease_id id : std::vector<lease_id>{worker.as_source.readers}) end(id, &drain_state::cut_off);
    drains_.check_drained(worker);
    versions_.drop(worker);
  }

  // ---- what readers are told

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

  void push_source(const operation_state& operation, const lease_state& lease, const worker_state& reader,
                   lease_id old) {
    core_.send(reader.id, {}, messages::reassign_push{old, assignment_of(operation, lease, reader)});
  }

  /// Tells the reader to release this source.
  void take_back(lease_state& lease, worker_state& reader) {
    withdraw(lease, reader);
    tell_taken_back(lease);
  }
  void tell_taken_back(const lease_state& lease) {
    messages::reassign_push push{lease.id, {}};
    push.source.operation = lease.operation;
    push.source.version = lease.version;
    core_.send(lease.reader, {}, std::move(push));
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

 private:
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

  static constexpr std::size_t most_cut_offs = 1024;

  core& core_;
  versions& versions_;
  drains& drains_;
  std::uint64_t last_lease_;  ///< begins elsewhere at each server: readers keep the numbers of earlier ones
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
