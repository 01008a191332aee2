#pragma once
/// \file drains.hpp
/// Answers drains: a worker waits until no lease on it is left, or until the update before which it drained
/// is over.

#include <optional>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class drains {
 public:
  drains(core& core, versions& versions) : core_{core}, versions_{versions} {}

  void check_drained(worker_state& worker) {
    if (!worker.drain || !worker.as_source.readers.empty() || core_.recovering(*worker.model)) return;
    const auto drain = *std::exchange(worker.drain, std::nullopt);
    const bool lost = worker.held && worker.model->lost.contains(worker.held->version);
    const auto& refused = worker.as_source.refused;
    // Of an open version nobody knows yet which bytes are the right ones.
    const bool has_refused =
        worker.held && !worker.held->open && refused && refused->version == worker.held->version;
    if (worker.holding == holding::withdrawn) versions_.drop(worker);
    messages::drained_reply reply{{}, drain.finished, drain.moved, drain.cut_off};
    reply.lost = lost;
    if (has_refused) reply.refused = refused->chunk;
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

 private:
  core& core_;
  versions& versions_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
