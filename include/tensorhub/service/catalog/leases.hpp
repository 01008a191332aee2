#pragma once
/// \file leases.hpp
/// Permissions to read, from their assignment to their end, and the drains that wait for that end.
///
/// The source is chosen by the scheduler. A lease counts from its assignment, also while it is only reserved
/// for a shard that has not called yet; a drain is answered when no lease on its worker is left.

#include <algorithm>
#include <utility>
#include <vector>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::catalog_detail {

template <scheduler Scheduler, consistency Consistency>
class leases {
 public:
  leases(core& shared, versions<Consistency>& known, Scheduler scheduler)
      : core_{shared}, versions_{known}, scheduler_{std::move(scheduler)} {}

  // ---- assignment

  /// Asks the scheduler. `without` and `excluded` are not offered; neither is the reader itself.
  [[nodiscard]] worker_state* choose_source(const replica_state& replica, version_number version,
                                            std::uint32_t shard, const worker_state* reader,
                                            const std::vector<incarnation>& excluded,
                                            const worker_state* without) {
    const auto record = replica.model->versions.find(version);
    if (record == replica.model->versions.end()) return nullptr;
    const auto& holders = record->second.holders[shard];
    candidates_.clear();
    candidate_workers_.clear();
    const auto& known = replica.model->layouts[shard];
    const std::uint64_t chunks = known ? known->chunk_count() : 0;
    for (worker_state* holder : holders) {
      if (holder == reader || holder == without || std::ranges::find(excluded, holder->id) != excluded.end())
        continue;
      candidates_.push_back({holder->id, &holder->place, static_cast<std::uint32_t>(holder->readers.size()),
                             chunks, chunks, holder->spot, holder->publisher});
      candidate_workers_.push_back(holder);
    }
    static const location nowhere{};
    const source_choice choice = scheduler_.choose({reader != nullptr ? reader->id : incarnation{},
                                                    reader != nullptr ? &reader->place : &nowhere,
                                                    version,
                                                    {shard, replica.model->shards}},
                                                   candidates_);
    return choice.index && *choice.index < candidate_workers_.size() ? candidate_workers_[*choice.index]
                                                                     : nullptr;
  }

  lease_state& grant(worker_state& source, const operation_state& operation, std::uint32_t shard,
                     worker_state* reader, bool reserved) {
    const lease_id id = next_lease();
    lease_state& lease = core_.leases[id];
    lease.id = id;
    lease.source = source.id;
    lease.reader = reader != nullptr ? reader->id : incarnation{};
    lease.version = operation.version;
    lease.replica = operation.replica->name;
    lease.shard = shard;
    lease.reserved = reserved;
    lease.operation = operation.counter;
    source.readers.push_back(id);
    if (reader != nullptr) reader->reading.push_back(id);
    return lease;
  }

  /// A lease that an earlier server gave and that is still in use.
  void adopt(worker_state& reader, const messages::assignment& old) {
    for (const lease_id known : reader.reading) {
      if (core_.leases.at(known).source == old.source) return;
    }
    lease_state lease;
    lease.id = next_lease();
    lease.source = old.source;
    lease.reader = reader.id;
    lease.version = old.version;
    lease.replica = reader.replica->name;
    lease.shard = reader.shard.index;
    lease.reserved = false;
    lease.operation = old.operation;
    reader.reading.push_back(lease.id);
    reader.overwriting = true;
    if (worker_state* source = core_.find(old.source)) source->readers.push_back(lease.id);
    core_.leases.emplace(lease.id, std::move(lease));
  }

  /// Pre-condition: the lease's source has joined.
  [[nodiscard]] messages::assignment assignment_of(const operation_state& operation, const lease_state& lease,
                                                   const worker_state& reader) {
    const worker_state& source = *core_.find(lease.source);
    messages::assignment out;
    out.operation = operation.counter;
    out.lease = lease.id;
    out.version = lease.version;
    out.root = operation.replica->model->versions.at(lease.version).roots[lease.shard];
    out.source = source.id;
    out.source_replica = source.replica->name;
    out.source_shard = source.shard.index;
    out.address = source.address;
    out.control = source.held->control;
    out.epoch = source.held->epoch;
    out.drained = reader.readers.empty();
    return out;
  }

  // ---- end

  void end(lease_id id, std::uint32_t drain_state::*counter) {
    const auto found = core_.leases.find(id);
    if (found == core_.leases.end()) return;
    const incarnation source_id = found->second.source;
    if (worker_state* reader = core_.find(found->second.reader)) std::erase(reader->reading, id);
    core_.leases.erase(found);
    worker_state* source = core_.find(source_id);
    if (source == nullptr) return;
    std::erase(source->readers, id);
    if (source->drain) ++((*source->drain).*counter);
    check_drained(*source);
  }

  void end_all_of(worker_state& reader) {
    for (const lease_id id : std::vector<lease_id>{reader.reading}) end(id, &drain_state::finished);
  }

  void release_reserved(operation_state& operation) {
    for (member_state& member : operation.members) {
      const auto lease = core_.leases.find(member.lease);
      if (lease != core_.leases.end() && lease->second.reserved) end(lease->first, &drain_state::finished);
    }
  }

  // ---- drains

  void check_drained(worker_state& worker) {
    if (!worker.drain || !worker.readers.empty()) return;
    const auto drain = *std::exchange(worker.drain, std::nullopt);
    if (worker.withdrawn) {
      versions_.drop(worker);
      worker.withdrawn = false;
    }
    core_.answer(worker, drain.sequence,
                 messages::drained_reply{{}, drain.finished, drain.moved, drain.cut_off});
  }

  /// A worker that starts something new holds nothing of the old any more: it has cut off its readers itself,
  /// and the message that said so was lost or is late.
  void forget_drain(worker_state& worker) {
    for (const lease_id id : std::vector<lease_id>{worker.readers}) end(id, &drain_state::cut_off);
    check_drained(worker);
    worker.withdrawn = false;
  }

  /// A worker that has overwritten its memory has cut off the readers of what was there before, even if the
  /// message that said so is late. Leases on `now_there` are not touched.
  void end_overwritten(worker_state& worker, version_number now_there) {
    for (const lease_id id : std::vector<lease_id>{worker.readers}) {
      if (core_.leases.at(id).version != now_there) end(id, &drain_state::cut_off);
    }
  }

  void move_readers(worker_state& source) {
    for (const lease_id id : std::vector<lease_id>{source.readers}) move_reader(source, id);
  }

  /// Gives the reader behind a lease another source, if there is one. A reserved lease moves at once; a
  /// running one stays until its reader has released it.
  void move_reader(worker_state& source, lease_id id) {
    const lease_state old = core_.leases.at(id);
    if (old.cutting_off || old.moving) return;
    operation_state* operation = find_operation(*source.model, old);
    member_state* member = operation != nullptr ? member_of(*operation, old.shard) : nullptr;
    if (member == nullptr || member->lease != id || operation->closed) return;
    worker_state* reader = operation->replica->workers[old.shard];
    worker_state* target =
        choose_source(*operation->replica, old.version, old.shard, reader, member->excluded, &source);
    if (target == nullptr) return;
    lease_state& lease = grant(*target, *operation, old.shard, reader, old.reserved);
    member->lease = lease.id;
    if (old.reserved) return end(id, &drain_state::moved);
    core_.leases.at(id).moving = true;
    core_.send(
        old.reader, {},
        messages::reassign_push{id, assignment_of(*operation, core_.leases.at(member->lease), *reader)});
  }

 private:
  [[nodiscard]] lease_id next_lease() noexcept { return {++last_lease_}; }

  core& core_;
  versions<Consistency>& versions_;
  Scheduler scheduler_;
  std::uint64_t last_lease_ = 0;
  std::vector<source_candidate> candidates_;  ///< scratch of choose_source
  std::vector<worker_state*> candidate_workers_;
};

}  // namespace tensorhub::catalog_detail
