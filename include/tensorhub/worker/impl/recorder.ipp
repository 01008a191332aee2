#pragma once
/// \file recorder.ipp
/// What worker/recorder.hpp declares.

#include <mutex>
#include <string>
#include <utility>

#include "tensorhub/worker/recorder.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL void worker_recorder::transferred(const pull_progress& transfer) {
  unchanged_bytes_.add(transfer.unchanged_bytes);
  for (const source_progress& source : transfer.sources) {
    chunks_.add(source.chunks);
    received(source.path.substr(0, source.path.find(' ')), source.far, source.bytes);
  }
}

TENSORHUB_DECL void worker_recorder::received(std::string path, bool crossing, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock{mutex_};
  for (path_bytes& known : received_) {
    if (known.path == path && known.crossing == crossing) {
      known.bytes += bytes;
      return;
    }
  }
  received_.push_back({std::move(path), crossing, bytes});
}

TENSORHUB_DECL worker_statistics worker_recorder::values(const worker_options& whose,
                                                         const registration_cost& registration) const {
  worker_statistics out;
  out.model = whose.model;
  out.replica = whose.replica;
  out.shard = whose.shard.index;
  out.publishes = publishes_.values();
  out.unpublishes = unpublishes_.values();
  out.updates = updates_.values();
  out.updates_kept = updates_kept_.value();
  out.updates.by_code[outcome_counts::index_of(errc::ok)] += out.updates_kept;
  out.drains_forced = drains_forced_.value();
  out.readers_moved = readers_moved_.value();
  out.readers_cut_off = readers_cut_off_.value();
  out.sources_failed = sources_failed_.values();
  out.stalls = stalls_.value();
  out.chunks = chunks_.value();
  out.unchanged_bytes = unchanged_bytes_.value();
  out.digested_chunks = digested_chunks_;
  out.publish = publish_.values();
  out.digest = digest_.values();
  out.unpublish = unpublish_.values();
  out.update = update_.values();
  out.wait = wait_.values();
  out.pull = pull_.values();
  const std::lock_guard lock{mutex_};
  out.registration = registration;
  out.received = received_;
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
