#pragma once
/// \file versions.hpp
/// Which worker holds which version, and which versions are available to readers.
///
/// A worker is offered to readers exactly while it shows a readable version: one that it holds and is neither
/// withdrawing nor overwriting, or one that it is receiving. A version is available while all shards of some
/// replica hold it.

#include <algorithm>
#include <memory>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class versions {
 public:
  explicit versions(core& core) : core_{core} {}

  void hold(worker_state& worker, const messages::reference& reference, bool publisher) {
    count_filling(worker, -1);
    worker.held = reference;
    core_.move_to(worker.holding, reference.open ? holding::open : holding::whole);
    worker.publisher = publisher;
    worker.parting.leaving = false;  // a process that leaves holds nothing anew
    version_state& version = version_of(*worker.model, reference.version);
    version.was_held = true;
    if (!reference.open) version.vouched[worker.shard.index] = true;
    count_filling(worker, 1);
    if (!version.roots[worker.shard.index]) version.roots[worker.shard.index] = reference.root;
    worker.model->latest_seen = std::max(worker.model->latest_seen, reference.version);
    reindex(worker);
  }

  /// The worker is believed what the server cannot check: its key may publish, or there has been no time for
  /// a publisher to come back.
  [[nodiscard]] bool is_trusted(const worker_state& worker) const noexcept {
    return worker.access.may_publish || core_.recovering();
  }
  /// A report of a version's arrival may be believed: others have published it, with this root, or without
  /// one under a policy that makes none. (A trusted worker whose update has failed may go back to an old
  /// version that the server has forgotten, or never knew.)
  [[nodiscard]] bool may_have_received(const worker_state& worker,
                                       const messages::reference& reference) const {
    const model_state& model = *worker.model;
    if (!is_possible(reference.version)) return false;
    if (const digest128 known = known_root(worker, reference.version)) return known == reference.root;
    if (is_open(model, reference.version, worker.shard.index)) return false;
    if (!is_trusted(worker)) return !reference.root && is_vouched(worker, reference.version);
    if (worker.past.was_elsewhere) return true;
    if (reference.root && is_underway(model, reference.version)) return false;
    return reference.version <= model.latest_seen;
  }
  /// What a worker says of its memory when it joins may be believed.
  [[nodiscard]] bool may_bring(const worker_state& worker, const messages::reference& reference) const {
    if (is_trusted(worker)) return is_possible(reference.version) && may_have_root(worker, reference);
    return !reference.open && may_have_received(worker, reference);
  }
  /// Some shards of the version were published, or are being filled, and it has never been available.
  [[nodiscard]] static bool is_underway(const model_state& model, version_number version) {
    const auto record = model.versions.find(version);
    if (record == model.versions.end() || version <= model.latest_ever) return false;
    return record->second.filling > 0 ||
           detail::any_of(record->second.roots, [](const digest128& root) { return bool{root}; });
  }
  /// Nobody has this shard of the version completely, but somebody is filling it.
  [[nodiscard]] static bool is_open(const model_state& model, version_number version, std::uint32_t shard) {
    const auto record = model.versions.find(version);
    return record != model.versions.end() && record->second.sources[shard]->complete_count() == 0 &&
           is_shown_open(model, version, shard);
  }
  /// Somebody is filling this shard of the version; with a datacenter: somebody in it.
  [[nodiscard]] static bool is_shown_open(const model_state& model, version_number version,
                                          std::uint32_t shard, const std::string* datacenter = nullptr) {
    const auto record = model.versions.find(version);
    return record != model.versions.end() && record->second.filling > 0 &&
           detail::any_of(model.replicas, [&](const auto& entry) {
             const worker_state* worker = entry.second->workers[shard];
             return worker != nullptr && worker->shows_open() && worker->held->version == version &&
                    (datacenter == nullptr || worker->location.datacenter == *datacenter);
           });
  }
  /// No root of the version is known, or this one.
  [[nodiscard]] static bool may_have_root(const worker_state& worker, const messages::reference& reference) {
    const digest128 known = known_root(worker, reference.version);
    return !known || known == reference.root;
  }

  /// Records a version that an earlier server decided for a worker. `root`: by its word.
  void know(const worker_state& worker, version_number number, digest128 root) {
    version_state& version = version_of(*worker.model, number);
    if (!is_trusted(worker)) return;
    digest128& known = version.roots[worker.shard.index];
    if (!known) known = root;
    version.vouched[worker.shard.index] = true;
  }

  void drop(worker_state& worker) {
    if (!worker.held) return;
    count_filling(worker, -1);
    worker.held.reset();
    core_.move_to(worker.holding, holding::nothing);
    worker.publisher = false;
    reindex(worker);
  }

  /// Its unpublish has begun, or it is gone: nobody begins to read it.
  void withdraw(worker_state& worker) {
    if (worker.held) core_.move_to(worker.holding, holding::withdrawn);
    reindex(worker);
  }

  /// It has finished an update that other shards have not finished.
  void await_group(worker_state& worker) {
    if (worker.holding == holding::whole) core_.move_to(worker.holding, holding::pending);
    reindex(worker);
  }
  void end_group(worker_state& worker) {
    if (worker.holding == holding::pending) core_.move_to(worker.holding, holding::whole);
    reindex(worker);
  }

  /// An update has been decided that will write into its memory.
  void begin_overwriting(worker_state& worker) {
    if (worker.writing == writing::idle) core_.move_to(worker.writing, writing::overwriting);
    reindex(worker);
  }
  /// That update has failed before the worker heard of it. (It may be in another one.)
  void spare(worker_state& worker) {
    if (worker.writing == writing::overwriting) core_.move_to(worker.writing, writing::idle);
  }

  /// The worker reports a version with another root than the published one.
  void disbelieve(worker_state& worker, version_number reported) {
    core_.log(log_level::warning,
              who(worker) + " reports version " + to_string(reported) +
                  " with a root digest that is not the published one: it counts as holding nothing",
              about(worker));
    drop(worker);
  }

  /// The worker receives this version and can be read meanwhile.
  void receive(worker_state& worker, const messages::reference& shown) {
    worker.receiving = shown;
    core_.move_to(worker.writing, writing::receiving);
    worker.progress.chunks_received = 0;
    update_chain(worker);
    recompute(*worker.replica);  // an earlier server may have decided the update, and not said so here
  }
  /// Readers get no more of it, and the worker has not reported the end of its update.
  void end_receiving(worker_state& worker) {
    if (worker.writing == writing::receiving) core_.move_to(worker.writing, writing::overwriting);
    end_showing(worker);
  }
  void end_writing(worker_state& worker) {
    core_.move_to(worker.writing, writing::idle);
    end_showing(worker);
  }

  /// As what the worker is offered to readers.
  [[nodiscard]] static offer offer_of(const worker_state& worker) {
    const bool is_hidden = (worker.shown() != nullptr && is_void(*worker.model, worker.shown()->version)) ||
                           worker.holding == holding::withdrawn || worker.is_barred_as_source() ||
                           worker.signs.life == liveness::gone;
    if (is_hidden) return offer::none;
    if (worker.receiving) return offer::receiving;
    switch (worker.holding) {
      case holding::nothing:
      case holding::withdrawn:
        return offer::none;
      case holding::open:
        return offer::receiving;
      case holding::pending:  // in a torn replica, only shards that the next update has repaired
        return worker.is_overwritten() ? offer::none : offer::complete;
      case holding::whole:
        return worker.is_overwritten() || worker.replica->torn ? offer::none : offer::complete;
    }
    return offer::none;
  }
  /// Offers the worker to readers if it shows a readable version; withdraws the offer otherwise.
  void reindex(worker_state& worker) {
    const offer wanted = offer_of(worker);
    const version_number version = wanted == offer::none ? version_number{} : worker.shown()->version;
    if (wanted == worker.as_source.offered && version == worker.as_source.version) return;
    if (worker.as_source.offered != offer::none) {
      source_index& old = index_of(worker, worker.as_source.version);
      old.erase(worker.as_source.places, places_of);
      const bool was_complete = std::exchange(worker.as_source.offered, offer::none) == offer::complete;
      if (was_complete && !core_.policy.decides_per_group && old.complete_count() == 0)
        core_.mark_calls(*worker.model);  // as in `count_available`
    }
    worker.as_source.version = version;
    if (wanted == offer::none) return;
    // The record may have been forgotten while the worker was not offered, and is made anew here.
    version_state& record = version_of(*worker.model, version);
    digest128& root = record.roots[worker.shard.index];
    if (!root) root = worker.shown()->root;
    if (wanted == offer::complete) record.vouched[worker.shard.index] = true;
    source_index& index = index_of(worker, version);
    if (wanted == offer::complete) note_gain(worker, version, index);
    core_.mark_source(*worker.model, version, worker.shard.index);
    worker.as_source.offered = wanted;
    index.insert(worker, worker.as_source.places, worker.location, worker.as_source.load,
                 wanted == offer::complete, worker.publisher);
  }
  /// After an exception: the index may have only some of the worker's places.
  void index_anew(worker_state& worker) {
    if (worker.as_source.offered != offer::none)
      index_of(worker, worker.as_source.version).erase(worker.as_source.places, places_of);
    worker.as_source.offered = offer::none;
    reindex(worker);
  }
  /// The number of counted leases on the worker has changed.
  void change_load(worker_state& worker, std::uint32_t load) {
    worker.as_source.load = load;
    if (worker.as_source.offered == offer::none) return;
    index_of(worker, worker.as_source.version).change_load(worker, worker.as_source.places, load, places_of);
  }

  /// The version that all shards of a replica hold; zero: none.
  [[nodiscard]] static version_number complete_of(const replica_state& replica) {
    const worker_state* first = replica.workers.front();
    if (first == nullptr || !first->holds() || is_void(*replica.model, first->held->version)) return {};
    const bool all = detail::all_of(replica.workers, [first](const worker_state* w) {
      return w != nullptr && w->holds() && w->held->version == first->held->version;
    });
    return all ? first->held->version : version_number{};
  }
  /// Recomputes which version all shards of a replica hold.
  void recompute(replica_state& replica) {
    const version_number complete = complete_of(replica);
    if (complete) replica.torn = false;
    // The shards that are left need not wait for a handover any more.
    if (complete != replica.letting_go.version && std::exchange(replica.letting_go, {}).version)
      core_.retention_changed = true;
    count_reliable(replica, complete);
    for (worker_state* worker : replica.workers) {
      if (worker != nullptr) reindex(*worker);
    }
    if (complete != std::exchange(replica.complete, complete)) mark_calls_of(replica);
    count_available(replica);
  }
  /// The replica holds another version now: its own calls may find it, or those of its parts find it no more.
  void mark_calls_of(const replica_state& replica) {
    if (replica.complete) return core_.mark_calls(replica);
    for (const replica_state* each : relatives_of(replica))
      if (!each->open.empty()) core_.mark_calls(*each);
  }

  /// A replica that an earlier server knew: its missing shards may hold this version, as the present ones do,
  /// and that server may have answered them so in the current call.
  [[nodiscard]] static bool may_hold(const replica_state& replica, version_number version) {
    return detail::count(replica.workers, nullptr) > 0 &&
           detail::any_of(replica.workers, [version](const worker_state* w) {
             return w != nullptr && w->past.was_elsewhere && w->held && w->held->version == version;
           });
  }

  /// Deletes version records, except those of versions that are held or in use and of the newest few others
  /// (which `version_conflict` needs). Numbers that were only heard of do not count: anyone may invent them.
  void forget_old(model_state& model) {
    std::size_t others = 0;
    for (auto version = model.versions.end(); version != model.versions.begin();) {
      --version;
      const bool held =
          detail::any_of(version->second.sources, [](const auto& index) { return !index->empty(); });
      if (held || version->second.complete_replicas > 0 || model.operations.users.contains(version->first))
        continue;
      if (is_hearsay(version->second) || ++others > core_.options.retained_versions)
        version = model.versions.erase(version);
    }
  }

 private:
  [[nodiscard]] static bool is_hearsay(const version_state& version) {
    return !version.was_held && detail::all_of(version.roots, [](const digest128& root) { return !root; });
  }
  void end_showing(worker_state& worker) {
    worker.receiving.reset();
    update_chain(worker);
    reindex(worker);
  }
  static void count_filling(const worker_state& worker, int change) {
    if (!worker.held || !worker.held->open) return;
    const auto record = worker.model->versions.find(worker.held->version);
    if (record != worker.model->versions.end()) record->second.filling += static_cast<std::uint32_t>(change);
  }
  [[nodiscard]] static bool is_vouched(const worker_state& worker, version_number version) {
    const auto record = worker.model->versions.find(version);
    return record != worker.model->versions.end() && record->second.vouched[worker.shard.index];
  }
  /// Of the worker's shard; zero: not known.
  [[nodiscard]] static digest128 known_root(const worker_state& worker, version_number version) {
    const auto record = worker.model->versions.find(version);
    return record == worker.model->versions.end() ? digest128{} : record->second.roots[worker.shard.index];
  }

  /// Recounts which version the replica makes available to others. (One that is drained by an order does so
  /// still: its readers wait until it is resumed, or others have the version.)
  void count_available(replica_state& replica) {
    model_state& model = *replica.model;
    const bool is_barred = detail::any_of(
        replica.workers, [](const worker_state* w) { return w != nullptr && !w->access.may_serve; });
    const version_number available = is_barred ? version_number{} : replica.complete;
    if (available == replica.available) return;
    version_state* const fresh = available ? &version_of(model, available) : nullptr;
    // Calls that wait for a local copy of the old version end.
    const bool was_last = replica.available && --version_of(model, replica.available).complete_replicas == 0;
    const bool is_first = fresh != nullptr && fresh->complete_replicas++ == 0;
    replica.available = available;
    if (was_last || is_first) core_.mark_calls(model);
    if (fresh == nullptr) return;
    fresh->ever_complete = true;
    if (available > model.latest_ever) announce(model, available);
  }

  /// Recounts whether the replica is reliable for the version that it holds (retention.hpp).
  void count_reliable(replica_state& replica, version_number complete) {
    const bool reliable = complete && !replica.letting_go.version && !replica.dropping &&
                          detail::none_of(replica.workers, [](const worker_state* w) {
                            return w == nullptr || w->spot || w->parting.leaving || w->is_barred_as_source();
                          });
    const version_number wanted = reliable ? complete : version_number{};
    if (wanted == replica.counts_for) return;
    if (replica.counts_for) version_of(*replica.model, replica.counts_for).reliable_replicas.erase(&replica);
    if (wanted) {
      version_of(*replica.model, wanted).reliable_replicas.insert(&replica);
      replica.model->lost.erase(wanted);  // if it was, it is back
    }
    replica.counts_for = wanted;
    core_.retention_changed = true;
  }

  static source_places& places_of(worker_state& worker) noexcept { return worker.as_source.places; }

  [[nodiscard]] source_index& index_of(const worker_state& worker, version_number version) {
    return *version_of(*worker.model, version).sources[worker.shard.index];
  }

  [[nodiscard]] version_state& version_of(model_state& model, version_number version) {
    if (const auto known = model.versions.find(version); known != model.versions.end()) return known->second;
    version_state fresh;
    fresh.roots.resize(model.shards);
    fresh.vouched.resize(model.shards);
    fresh.hungry.resize(model.shards);
    fresh.seeds.resize(model.shards);
    fresh.next_look.resize(model.shards);
    fresh.ordinals.resize(model.shards);
    for (std::uint32_t shard = 0; shard < model.shards; ++shard)
      fresh.sources.push_back(std::make_unique<source_index>());
    return model.versions.emplace(version, std::move(fresh)).first->second;
  }

  void announce(model_state& model, version_number version) {
    model.latest_ever = version;
    for_each_worker(model, [&](const worker_state& worker) {
      core_.send(worker.id, {}, messages::version_push{version});
    });
  }

  /// The worker is about to be offered as one that has every chunk. Another reader's call can only depend on
  /// it if it is the first one in its datacenter (`prefer_local`), or at all.
  void note_gain(const worker_state& worker, version_number version, const source_index& index) {
    const bool per_worker = !core_.policy.decides_per_group;
    if (per_worker) core_.mark_calls(*worker.replica);
    if (!per_worker && version_of(*worker.model, version).complete_replicas == 0) return;
    if (index.complete_count(worker.location.datacenter) == 0) core_.mark_calls(*worker.model);
  }

  core& core_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
