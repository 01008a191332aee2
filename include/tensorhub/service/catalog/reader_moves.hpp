#pragma once
/// \file reader_moves.hpp
/// Moves readers away from a source that lets go of what they read, is barred, or is gone.

#include <cstdint>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/assignments.hpp"
#include "tensorhub/service/catalog/choosing.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/leases.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class reader_moves {
 public:
  reader_moves(core& core, choosing& choosing, leases& leases, assignments& assignments)
      : core_{core}, choosing_{choosing}, leases_{leases}, assignments_{assignments} {}

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
    if (reader->as_reader.upstream == nullptr) assignments_.promote(*reader, {});  // it may be this one
    if (!core_.leases.at(id).upstream || assignments_.promote(*reader, id)) {
      leases_.withdraw(core_.leases.at(id), *reader);
      if (assignments_.grow(*operation, *reader, member->excluded, nullptr, id)) leases_.tell_taken_back(old);
      return;
    }
    worker_state* const next = source_instead(source, old, *operation, *member, reader);
    if (next == nullptr) return;
    leases_.move_to(core_.leases.at(id), lease_stage::moving);
    leases_.forget_upstream(*reader);
    const lease_state& lease =
        leases_.grant(*next, *operation, {.shard = old.shard, .reader = reader, .upstream = true});
    leases_.push_source(*operation, lease, *reader, id);
  }

  void move_readers(worker_state& source) {
    for (const lease_id id : std::vector<lease_id>{source.as_source.readers}) move_reader(source, id);
  }

  /// Ends a lease on a source that is gone; its reader gets another source if there is one.
  void abandon(worker_state& source, lease_id id, std::uint32_t drain_state::*counter) {
    move_reader(source, id);
    leases_.end(id, counter);
  }

  /// A worker that has overwritten its memory has cut off the readers of the previous version, even if the
  /// message that reports this is late. Leases on `now_there` are not touched.
  void end_overwritten(worker_state& worker, version_number now_there) {
    for (const lease_id id : std::vector<lease_id>{worker.as_source.readers}) {
      if (core_.leases.at(id).version != now_there) abandon(worker, id, &drain_state::cut_off);
    }
  }

  /// The worker is barred as a source: its readers move, and nobody waits for what it reads from afar.
  void bar(worker_state& worker) {
    for (const lease_id id : worker.as_reader.leases) leases_.stop_seeding(core_.leases.at(id));
    move_readers(worker);
  }
  /// Likewise what is reserved for shards of the replica that have not called.
  void bar_reserved(const replica_state& replica) {
    for (const operation_state* operation : replica.open) {
      for (const member_state& member : operation->members) {
        const auto lease = core_.leases.find(member.lease);
        if (lease != core_.leases.end() && lease->second.is_reserved()) leases_.stop_seeding(lease->second);
      }
    }
  }

 private:
  void move_reserved(worker_state& source, const lease_state& old, operation_state& operation,
                     member_state& member, worker_state* reader) {
    if (member.lease != old.id) return;
    leases_.move_to(core_.leases.at(old.id), lease_stage::moving);
    worker_state* const next = source_instead(source, old, operation, member, reader);
    if (next == nullptr) return leases_.move_to(core_.leases.at(old.id), lease_stage::reserved);
    member.lease = leases_
                       .grant(*next, operation,
                              {.shard = old.shard, .reader = reader, .reserved = true, .upstream = true})
                       .id;
    leases_.end(old.id, &drain_state::moved);
  }

  /// Null: there is none. The seed of a datacenter that moves stays the seed, and another one that crosses
  /// costs no more there.
  [[nodiscard]] worker_state* source_instead(const worker_state& source, const lease_state& old,
                                             const operation_state& operation, const member_state& member,
                                             worker_state* reader) {
    const bool crosses = old.seeds || (old.crossing && leases::is_no_seed(reader, *operation.replica));
    return choosing_
        .choose(assignments_.asker_of(operation, old.shard, reader),
                {.excluded = member.excluded, .without = &source, .crosses = crosses})
        .source;
  }

  core& core_;
  choosing& choosing_;
  leases& leases_;
  assignments& assignments_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
