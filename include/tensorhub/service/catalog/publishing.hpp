#pragma once
/// \file publishing.hpp
/// Requests of a worker about the version that it holds: publish it, withdraw it, and end or move its
/// readers.

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/barred_readers.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/drains.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/retention.hpp"
#include "tensorhub/service/catalog/update_ends.hpp"
#include "tensorhub/service/catalog/update_starts.hpp"
#include "tensorhub/service/catalog/updates.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class publishing {
 public:
  publishing(core& core, versions& versions, retention& retention, drains& drains, leases& leases,
             operation_table& operations, update_ends& ends, update_starts& starts, updates& updates)
      : core_{core},
        versions_{versions},
        retention_{retention},
        drains_{drains},
        leases_{leases},
        table_{operations},
        ends_{ends},
        starts_{starts},
        updates_{updates} {}

  void on(worker_state& worker, request_sequence sequence, const messages::publish_request& request) {
    operation_counter counter = request.operation;
    messages::status result = publish(worker, request, counter);
    core_.answer(worker, sequence, messages::status_reply{std::move(result), counter});
  }

  void on(worker_state& worker, request_sequence sequence, const messages::unpublish_request& request) {
    const bool current =
        worker.held && worker.held->version == request.version && worker.held->epoch == request.epoch;
    // The drain before an update withdraws nothing: the decision of the update has hidden the reference
    // already, and if the operation has failed meanwhile the worker keeps the version that it holds.
    const bool before_update = request.operation.value != 0;
    if (!current || (before_update && !is_reading(worker, request.operation))) {
      // The update has failed meanwhile: the worker must not read anything and keeps the version that it
      // holds.
      const operation_state* ended =
          before_update ? find_operation(*worker.replica, request.operation, worker.shard.index) : nullptr;
      const bool failed = ended != nullptr && ended->is_closed();
      return core_.answer(worker, sequence,
                          messages::drained_reply{failed ? ended->failure : messages::status{}});
    }
    const bool is_parked = worker.parting.parked.has_value();
    if ((worker.drain && worker.drain->sequence != sequence) ||
        (is_parked && worker.parting.sequence != sequence)) {
      return core_.answer(
          worker, sequence,
          messages::drained_reply{{errc::busy, "another unpublish() of this worker is running"}});
    }
    if (!before_update && !is_parked) {
      worker.parting.leaving = worker.parting.leaving || request.leaving;
      if (!retention_.may_let_go(*worker.replica, worker.parting.leaving)) {
        worker.parting.parked = request;
        worker.parting.sequence = sequence;
        return;
      }
    }
    if (!before_update) {
      worker.parting.parked.reset();
      versions_.withdraw(worker);
      if (worker.held->open) ends_.give_up_open(worker, who(worker) + " has taken it back");
      versions_.recompute(*worker.replica);
    }
    worker.drain = drain_state{.sequence = sequence, .begun = core_.now};
    starts_.move_readers(worker);
    drains_.check_drained(worker);
  }

  void on(worker_state& worker, request_sequence sequence, const messages::holding_request& request) {
    core_.answer(worker, sequence, messages::status_reply{hold(worker, request.held)});
  }

  /// Decides again the unpublish requests that wait until a retained version is safe elsewhere.
  void retry_parked(model_state& model) {
    std::vector<worker_state*> parked;
    for_each_worker(model, [&](worker_state& worker) {
      if (worker.parting.parked) parked.push_back(&worker);
    });
    for (worker_state* worker : parked) {
      if (!retention_.may_let_go(*worker->replica, worker->parting.leaving)) continue;
      const messages::unpublish_request request = *worker->parting.parked;
      // `on` asks `may_let_go` again; the answer is the same.
      on(*worker, worker->parting.sequence, request);
    }
  }

  void on(worker_state& worker, request_sequence sequence, const messages::lease_released_request& request) {
    const auto lease = core_.leases.find(request.lease);
    if (lease != core_.leases.end() && lease->second.reader == worker.id) {
      leases_.end(request.lease, &drain_state::moved);
    }
    core_.answer(worker, sequence, messages::status_reply{});
  }

  void on(worker_state& worker, request_sequence sequence, const messages::cut_off_done_request& request) {
    if (!request.reader) {
      judge_remaining(worker);
      worker.past.has_old_keys = false;
    }
    if (request.reader) bar(worker.past.barred, request.reader);
    if (!request.reader && worker.parting.parked) give_up_waiting(worker);
    for (const lease_id id : std::vector<lease_id>{worker.as_source.readers}) {
      const lease_state& lease = core_.leases.at(id);
      if (!request.reader || (lease.stage == lease_stage::cutting_off && lease.reader == request.reader)) {
        leases_.end(id, &drain_state::cut_off);
      }
    }
    core_.answer(worker, sequence, messages::status_reply{});
  }

 private:
  /// The deadline of the worker's drain has passed. Once that may be an accident of a reader's network; a
  /// reader for which a drain is forced again is declared dead, so that it cannot hold up every step; a whole
  /// update in between counts for it (updates.hpp). A drain with a short deadline proves nothing.
  ///
  /// The worker has made all its keys invalid, and has not cut off the remaining readers one by one: that is
  /// for ever (transport.hpp), and a reader that was only slow will read from this worker again.
  void judge_remaining(const worker_state& worker) {
    if (!worker.drain || core_.now - worker.drain->begun < core_.options.worker_timeout) return;
    std::map<incarnation, operation_counter> remaining;
    for (const lease_id id : worker.as_source.readers) {
      const lease_state& lease = core_.leases.at(id);
      if (!lease.is_reserved() && lease.stage != lease_stage::cutting_off &&
          core_.find(lease.reader) != nullptr)
        remaining.emplace(lease.reader, lease.operation);
    }
    for (const auto& [reader, operation] : remaining) {
      if (!core_.lingered.emplace(reader, operation).second)
        core_.condemned.emplace_back(reader, verdict::lingering);
    }
  }

  /// The deadline of the unpublish has passed: the caller gets its memory back even if the version is lost.
  void give_up_waiting(worker_state& worker) {
    worker.parting.parked.reset();
    if (worker.held && worker.held->open) ends_.give_up_open(worker, who(worker) + " has taken it back");
    const version_number version = worker.replica->complete;
    retention_.note_forced(*worker.replica, version);
    messages::drained_reply reply;
    reply.lost = version && retention::is_lost(*worker.model, version);
    versions_.drop(worker);
    versions_.recompute(*worker.replica);
    core_.answer(worker, worker.parting.sequence, std::move(reply));
  }

  [[nodiscard]] messages::status hold(worker_state& worker, const messages::reference& held) {
    if (!held.version) return {errc::invalid_argument, "no worker can hold version 0: count from 1"};
    if (table_.is_in_update(worker)) return {errc::busy, "an update of this worker is running"};
    const messages::drained_reply ended{{errc::cancelled, "this worker has said since what it holds"}};
    if (std::exchange(worker.parting.parked, std::nullopt))
      core_.answer(worker, worker.parting.sequence, ended);
    const bool is_same = worker.held && worker.held->version == held.version &&
                         worker.held->epoch == held.epoch && worker.held->root == held.root;
    if (is_same) {  // its readers go on
      if (const auto drain = std::exchange(worker.drain, std::nullopt))
        core_.answer(worker, drain->sequence, ended);
    } else {
      leases_.forget_drain(worker);
    }
    const bool is_believed = !held.open && versions_.may_have_received(worker, held);
    if (is_believed)
      versions_.hold(worker, held, is_same && worker.publisher);
    else
      versions_.disbelieve(worker, held.version);
    retention::keep_on(*worker.replica);
    versions_.recompute(*worker.replica);
    versions_.forget_old(*worker.model);
    if (is_believed) return {};
    return {errc::version_conflict, "version " + to_string(held.version) + " of shard " +
                                        to_string(worker.shard) +
                                        " has other bytes, or nobody has published it: update this worker"};
  }

  /// This worker may publish this version, whole or open.
  [[nodiscard]] messages::status check_publish(const worker_state& worker, const messages::reference& held) {
    const version_number version = held.version;
    const model_state& model = *worker.model;
    if (!version) return {errc::invalid_argument, "version 0 cannot be published: count from 1"};
    if (is_void(model, version)) {
      // The worker may not have heard of the roll back: it hears of it now, and asks again.
      core_.send(worker.id, {}, messages::retention_push{model.keeps});
      return {errc::version_conflict, "version " + to_string(version) +
                                          " was withdrawn: the model was rolled back to an earlier version"};
    }
    if (worker.is_overwritten()) return {errc::busy, "an update of this worker is running"};
    const auto record = model.versions.find(version);
    // Another shard may have published this version to an earlier server.
    const bool may_be_known = version == model.before.latest;
    if (record == model.versions.end() && version <= model.latest_seen && !may_be_known) {
      return {errc::version_conflict, "version " + to_string(version) + " goes backwards: version " +
                                          to_string(model.latest_seen) +
                                          " was published already; a trainer that begins again at an earlier "
                                          "step calls roll_back_to() first"};
    }
    if (record != model.versions.end()) {
      if (!versions::may_have_root(worker, held)) {
        return {errc::version_conflict,
                "version " + to_string(version) + " was published with other bytes in shard " +
                    to_string(worker.shard) +
                    ": the same version has the same bytes for ever; publish under a new number, or, after a "
                    "restart from an earlier step, call roll_back_to() first"};
      }
    }
    return {};
  }

  /// The first publish since the model had no workers, of which none has come back: a trainer that counts
  /// anew begins a new line, so that what those still hold is never taken for its versions.
  [[nodiscard]] messages::status begin_line(const worker_state& worker, version_number version) {
    model_state& model = *worker.model;
    if (model.before.missing != missing_workers::all || !version) return {};
    model.before.missing = missing_workers::some;
    if (version > model.latest_seen) return {};
    messages::retain_request anew;
    if (model.keeps.keep_latest != 0) anew.keep_latest = 0;  // that was for those that are gone
    anew.roll_back_to = version_number{version.value - 1};
    return retention_.change(model, nullptr, anew, who(worker));
  }

  [[nodiscard]] messages::status publish(worker_state& worker, const messages::publish_request& request,
                                         operation_counter& counter) {
    messages::reference held = request.held;
    if (held.open) held.root = {};
    const version_number version = held.version;
    model_state& model = *worker.model;
    if (const auto begun = begin_line(worker, version); !begun.ok()) return begun;
    if (const auto checked = check_publish(worker, held); !checked.ok()) return checked;
    const bool is_shown =
        worker.shows_open() && worker.held->version == version && worker.held->epoch == request.held.epoch;
    if (!held.open) {
      if (const auto agreed = agree_on_publish(worker, request, counter); !agreed.ok()) return agreed;
      if (!std::exchange(worker.past.published, version)) warn_of_two_trainers(worker);
    }
    model.latest_seen = std::max(model.latest_seen, version);
    if (!is_shown) leases_.forget_drain(worker);  // the readers of an open version read on when it is whole
    versions_.hold(worker, held, true);
    if (!held.open) updates_.tell_committed(model, version, worker.shard.index);
    if (held.open) core_.mark_calls(model);
    if (core_.recovering())
      worker.past.has_old_keys = true;  // an earlier server may have assigned it readers
    versions_.recompute(*worker.replica);
    versions_.forget_old(model);
    return {};
  }

  /// At a worker's first publish: another replica, which has published too, is still here. They may be a
  /// trainer and its successor; but two that both go on would take turns, each with a part of the versions.
  void warn_of_two_trainers(const worker_state& worker) {
    const auto has_published = [](const worker_state* each) {
      return each != nullptr && each->past.published;
    };
    const auto own = relatives_of(*worker.replica);
    for (const auto& [name, replica] : worker.model->replicas) {
      if (detail::contains(own, replica.get()) || detail::none_of(replica->workers, has_published)) continue;
      log_fields fields{.model = worker.model->name, .replica = worker.replica->name};
      fields.version = worker.past.published;
      return core_.log(
          log_level::warning,
          who(worker) + " publishes version " + to_string(worker.past.published) + ", and replica '" + name +
              "', which has published too, is still here: end one of them, or give both the same "
              "replica name, so that the newer process takes the place of the older one",
          std::move(fields));
    }
  }

  /// Checks that the shards of a replica publish the same version in the same call.
  [[nodiscard]] messages::status agree_on_publish(worker_state& worker,
                                                  const messages::publish_request& request,
                                                  operation_counter& counter) {
    if (!core_.policy.decides_per_group) return {};
    counter = table_.count(worker, request.operation, request.held.version);
    if (messages::status room = table_.room_for(worker, counter); !room.ok()) return room;
    operation_state& operation = table_.open(worker, counter, true);
    if (!operation.is_publish || (operation.is_decided() && operation.version != request.held.version)) {
      return {errc::group_failed,
              "another shard of replica '" + worker.replica->name + "' " +
                  (operation.is_publish ? "published version " + to_string(operation.version)
                                        : std::string{"called update()"}) +
                  " in this operation: all shards must make the same calls in the same order"};
    }
    operation.callers[worker.shard.index] = true;
    if (operation.is_closed()) return {};
    if (!operation.is_decided()) operation.decided_at = core_.now;
    core_.move_to(operation.stage, operation_stage::decided);
    operation_table::set_version(operation, request.held.version);
    starts_.resolve_ended(operation);
    if (!operation.is_closed() && operation.is_finished()) table_.close(operation);
    return {};
  }

  [[nodiscard]] static bool is_reading(const worker_state& worker, operation_counter counter) {
    operation_state* operation = find_operation(*worker.replica, counter, worker.shard.index);
    if (operation == nullptr || operation->is_closed()) return false;
    const member_state* member = member_of(*operation, worker.shard.index);
    return member != nullptr && member->phase == phase::assigned;
  }

  core& core_;
  versions& versions_;
  retention& retention_;
  drains& drains_;
  leases& leases_;
  operation_table& table_;
  update_ends& ends_;
  update_starts& starts_;
  updates& updates_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
