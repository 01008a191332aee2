#pragma once
/// \file inherited_leases.hpp
/// Leases that an earlier server granted: their readers announce them when they join this one.

#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/assignments.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/leases.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class inherited_leases {
 public:
  inherited_leases(core& core, leases& leases, assignments& assignments)
      : core_{core}, leases_{leases}, assignments_{assignments} {}

  /// Records the leases of this reader that are still in use.
  void adopt(worker_state& reader, const std::vector<messages::assignment>& reading) {
    for (const messages::assignment& old : reading) adopt(reader, old);
    assignments_.promote(reader, {});
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
        leases::note_places(lease, *reader, source);
      if (lease.lasts()) leases_.charge(lease, true);
      return true;
    });
    for (const lease_id id : misfits) leases_.end(id, &drain_state::finished);
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
        if (assignments_.promote(*reader, {})) leading.push_back(reader);
      }
    }
  }

 private:
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
    lease.id = is_free ? old.lease : leases_.next_lease();
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
      leases::note_places(kept, reader, *source);
      source->as_source.readers.push_back(kept.id);
      leases_.charge(kept, true);
    } else {
      core_.sourceless.insert(kept.id);
    }
  }

  /// What a reader says of its sources is believed only so far: the records of a lease are of one shard.
  [[nodiscard]] static bool is_source_of(const worker_state& source, const worker_state& reader) {
    return source.model == reader.model && source.shard.index == reader.shard.index;
  }

  core& core_;
  leases& leases_;
  assignments& assignments_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
