#pragma once
/// \file idle_leases.hpp
/// Finds leases of readers without progress, and takes them back for readers that wait.

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/choosing.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/leases.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class idle_leases {
 public:
  idle_leases(core& core, choosing& choosing, leases& leases)
      : core_{core}, choosing_{choosing}, leases_{leases} {}

  [[nodiscard]] bool has_paused(time_point since) const noexcept {
    return core_.now - since > core_.options.progress_timeout;
  }
  /// Revokes the lease of a reader without progress, so that neither a credit nor a datacenter's only
  /// crossing is blocked by a broken or malicious reader. Returns true if a lease was freed; that reader
  /// will ask again when it resumes.
  bool take_back_for(const asker& wanting) {
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
      leases_.end(found->id, &drain_state::finished);
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
    leases_.take_back(*found, reader);
    return true;
  }

 private:
  static constexpr int looks_per_timeout = 64;
  static constexpr std::size_t most_next_looks = 64;

  core& core_;
  choosing& choosing_;
  leases& leases_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
