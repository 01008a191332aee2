#pragma once
/// \file versions.hpp
/// Who holds which version, and when a version is there for readers.
///
/// A worker is offered to readers ("indexed") exactly while it holds a version that nothing stands against. A
/// version is available while some replica holds it with all its shards.

#include <algorithm>
#include <utility>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/service/catalog/core.hpp"

namespace tensorhub::catalog_detail {

template <consistency Consistency>
class versions {
 public:
  explicit versions(core& shared) : core_{shared} {}

  void hold(worker_state& worker, const messages::reference& reference, bool publisher) {
    worker.held = reference;
    worker.publisher = publisher;
    version_state& version = version_of(*worker.model, reference.version);
    if (!version.roots[worker.shard.index]) version.roots[worker.shard.index] = reference.root;
    worker.model->latest_seen = std::max(worker.model->latest_seen, reference.version);
    reindex(worker);
  }

  void drop(worker_state& worker) {
    if (!worker.held) return;
    unindex(worker);
    worker.held.reset();
    worker.publisher = false;
  }

  /// Offers the worker to readers exactly if it holds a version that nothing stands against.
  void reindex(worker_state& worker) {
    const bool serves = worker.holds() && !worker.replica->torn;
    if (serves == worker.indexed) return;
    if (!serves) return unindex(worker);
    version_of(*worker.model, worker.held->version).holders[worker.shard.index].push_back(&worker);
    worker.indexed = true;
    if (!Consistency::decides_per_group) changed_ = true;
  }

  /// Recomputes what a replica holds completely. True: something has become available since the last call, so
  /// whoever waits for a version should be asked again.
  [[nodiscard]] bool recompute(replica_state& replica) {
    model_state& model = *replica.model;
    version_number complete{};
    const worker_state* first = replica.workers.front();
    if (first != nullptr && first->holds()) {
      const bool all = std::ranges::all_of(replica.workers, [first](const worker_state* w) {
        return w != nullptr && w->holds() && w->held->version == first->held->version;
      });
      if (all) complete = first->held->version;
    }
    if (complete) replica.torn = false;
    for (worker_state* worker : replica.workers) {
      if (worker != nullptr) reindex(*worker);
    }
    if (complete != replica.complete) {
      if (replica.complete) --version_of(model, replica.complete).complete_replicas;
      replica.complete = complete;
      if (complete) {
        version_state& version = version_of(model, complete);
        ++version.complete_replicas;
        version.ever_complete = true;
        changed_ = true;
        if (complete > model.latest_ever) announce(model, complete);
      }
    }
    return std::exchange(changed_, false);
  }

  /// Keeps the records of versions that somebody holds, and of the newest few others (for
  /// `version_conflict`).
  void forget_old(model_state& model) {
    std::size_t others = 0;
    for (auto version = model.versions.end(); version != model.versions.begin();) {
      --version;
      const bool held =
          std::ranges::any_of(version->second.holders, [](const auto& list) { return !list.empty(); });
      if (held || version->second.complete_replicas > 0 || is_used(model, version->first)) continue;
      if (++others > core_.options.retained_versions) version = model.versions.erase(version);
    }
  }

 private:
  void unindex(worker_state& worker) {
    if (!std::exchange(worker.indexed, false)) return;
    std::erase(version_of(*worker.model, worker.held->version).holders[worker.shard.index], &worker);
  }

  [[nodiscard]] version_state& version_of(model_state& model, version_number version) {
    const auto [position, fresh] = model.versions.try_emplace(version);
    if (fresh) {
      position->second.roots.resize(model.shards);
      position->second.holders.resize(model.shards);
    }
    return position->second;
  }

  void announce(model_state& model, version_number version) {
    model.latest_ever = version;
    for (const auto& [name, replica] : model.replicas) {
      for (const worker_state* worker : replica->workers) {
        if (worker != nullptr) core_.send(worker->id, {}, messages::version_push{version});
      }
    }
  }

  [[nodiscard]] bool is_used(const model_state& model, version_number version) const {
    return std::ranges::any_of(model.open_operations,
                               [&](const operation_state* o) { return o->version == version; });
  }

  core& core_;
  bool changed_ = false;  ///< something may now be available that was not
};

}  // namespace tensorhub::catalog_detail
