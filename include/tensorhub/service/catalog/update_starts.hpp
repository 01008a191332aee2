#pragma once
/// \file update_starts.hpp
/// How an update gets from its shards' calls to their sources: one decision for the group, a lease reserved
/// for every shard, and an answer to each shard that has called. What cannot be decided or served waits, and
/// is tried again when `settle` is told what has changed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/assignments.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/decisions.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/reader_moves.hpp"
#include "tensorhub/service/catalog/retention.hpp"
#include "tensorhub/service/catalog/update_ends.hpp"
#include "tensorhub/service/catalog/update_replies.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class update_starts {
 public:
  update_starts(core& core, versions& versions, retention& retention, questions& questions, leases& leases,
                assignments& assignments, reader_moves& moves, operation_table& operations, update_ends& ends,
                any_consistency consistency)
      : core_{core},
        versions_{versions},
        retention_{retention},
        questions_{questions},
        leases_{leases},
        assignments_{assignments},
        moves_{moves},
        table_{operations},
        ends_{ends},
        decisions_{core, std::move(consistency)} {}

  /// `asked`: a shard that waits for the decision.
  void try_decide(operation_state& operation, const member_state& asked) {
    if (operation.alone.until != time_point::never()) return;
    if (operation.has_version()) return start(operation, operation.version);
    const decisions::outcome decision = decisions_.make(operation, asked);
    if (!decision.fault.empty())
      return ends_.close_failed(operation, {errc::policy_mismatch, decision.fault});
    switch (decision.kind) {
      case version_decision::kind_type::wait:
        return;
      case version_decision::kind_type::refuse:
        return ends_.close_failed(
            operation,
            {decision.reason, "version " + to_string(decision.version) + " of model '" +
                                  operation.replica->model->name + "' is no longer held by any worker"});
      case version_decision::kind_type::keep:
        return ends_.close_kept(operation, decision.version);
      case version_decision::kind_type::take:
        return start(operation, decision.version);
    }
  }

  /// Continues an operation that an earlier server decided.
  void go_on_with(operation_state& operation, version_number version) {
    if (operation.has_version()) return;
    operation.inherited = true;
    table_.set_version(operation, version);
    if (is_void(*operation.replica->model, version)) return core_.note_void(*operation.replica->model);
    expect_all(operation);
    start(operation, version);
  }

  /// Shards that ended a call at an earlier server do not make that call again; the other shards are told how
  /// it ended.
  void resolve_ended(replica_state& replica) {
    for (operation_state* operation : std::vector{replica.open}) {
      if (!operation->is_closed()) static_cast<void>(resolve_ended(*operation));
    }
    core_.mark_calls(replica);  // a call may have waited to learn what the new shard holds
  }
  /// True: this has changed the state of the operation.
  bool resolve_ended(operation_state& operation) {
    if (operation.only_shard || operation.is_closed()) return false;
    const worker_state* ended = nullptr;
    for (const worker_state* worker : operation.replica->workers) {
      if (worker == nullptr || worker->past.ended_before < operation.counter) continue;
      const std::uint32_t shard = worker->shard.index;
      if (operation.has_called(shard)) continue;
      ended = worker;
      if (operation.is_publish) {
        operation.callers[shard] = true;
        continue;
      }
      member_state& member = *member_of(operation, shard);
      core_.move_to(member.phase, phase::finished);
      member.keeps = true;
      const bool failed = worker->past.ended_before == operation.counter && !worker->past.ended_well;
      const bool fits =
          !failed && worker->held && (!operation.is_decided() || worker->held->version == operation.version);
      if (!fits) {
        ends_.close_failed(operation,
                           {errc::group_failed, "shard " + to_string(worker->shard) + " of replica '" +
                                                    operation.replica->name +
                                                    "' has ended this update without its version"});
        return true;
      }
    }
    if (ended == nullptr) return false;
    if (operation.is_publish) {
      if (operation.is_finished()) table_.close(operation);
    } else {
      go_on_with(operation, ended->held->version);
      ends_.close_if_finished(operation);
    }
    return true;
  }

  /// Answers a waiting shard of a decided operation. If what was reserved for it is gone, and all other
  /// sources are taken, it waits for its turn (`serve_starved`).
  void deliver(operation_state& operation, worker_state& worker) {
    member_state& member = *member_of(operation, worker.shard.index);
    // An installation may have put another version there since the decision.
    member.keeps = member.keeps && worker.still_has(operation.version);
    if (member.keeps) {
      core_.move_to(member.phase, phase::finished);
      if (!core_.policy.completes_per_group) {
        core_.answer(worker, std::exchange(member.sequence, {}), kept(operation.counter, operation.version));
      }
      return ends_.close_if_finished(operation);
    }
    versions_.begin_overwriting(worker);
    versions_.recompute(*worker.replica);
    const lease_state* lease = lease_for(operation, worker, member);
    if (lease == nullptr) {
      const bool has_source = may_wait(operation, worker, member) ||
                              versions::is_open(*worker.model, operation.version, worker.shard.index);
      if (!has_source) return ends_.close_failed(operation, no_source_left(operation, worker));
      table_.starve(operation);
      return;
    }
    worker.as_reader.operation = operation.counter;
    worker.as_reader.stalled_for = {};
    worker.progress.progressed = core_.now;
    worker.progress.most_chunks = 0;
    core_.move_to(member.phase, phase::assigned);
    std::vector<messages::assignment> sources{leases_.assignment_of(operation, *lease, worker)};
    if (member.shows && sources.front().drained) show(operation, worker, *member.shows);
    assignments_.grow(operation, worker, {}, &sources);
    messages::update_reply reply = assigned_to(worker, operation, std::move(sources));
    reply.ordinal = worker.model->versions.at(operation.version).ordinals[worker.shard.index]++;
    reply.lost = worker.held && retention::is_lost(*worker.model, worker.held->version);
    core_.answer(worker, std::exchange(member.sequence, {}), std::move(reply));
  }

  /// Offers the worker to readers while it receives.
  void show(const operation_state& operation, worker_state& worker, const messages::announcement& shows) {
    messages::reference shown;
    shown.version = operation.version;
    shown.epoch = shows.epoch;
    shown.root = worker.model->versions.at(operation.version).roots[worker.shard.index];
    shown.control = shows.control;
    versions_.receive(worker, shown);
  }
  /// The worker lets go of what it holds: its readers go on elsewhere. Where no other source has room for a
  /// shard that has not called yet, it holds up the worker, and whoever the worker reads from: the shard must
  /// call within `late_shard_timeout`, unless a source has room before that.
  void move_readers(worker_state& source) {
    moves_.move_readers(source);
    for (const lease_id id : source.as_source.readers) {
      const lease_state& lease = core_.leases.at(id);
      operation_state* operation = lease.is_reserved() ? find_operation(*source.model, lease) : nullptr;
      if (operation == nullptr || operation->is_closed()) continue;
      operation->arrival_deadline =
          std::min(operation->arrival_deadline, core_.now + core_.options.late_shard_timeout);
      table_.look_at(*operation, std::min(core_.now + moves_again_after, operation->arrival_deadline));
    }
  }

  /// From now on all shards must call the operation within the group's time-out.
  void expect_all(operation_state& operation) {
    operation.alone = {};
    operation.decided_at = core_.now;
    operation.arrival_deadline = core_.now + core_.options.group_timeout;
    table_.look_at(operation, operation.arrival_deadline);
  }

  /// A worker has every chunk, although this reader cannot get a source now: all credits are taken, or the
  /// server does not know yet that a seed is dead. Or a holder may come back within the grace.
  [[nodiscard]] bool may_wait(const operation_state& operation, const worker_state& reader,
                              const member_state& member) const {
    const model_state& model = *reader.model;
    const auto record = model.versions.find(operation.version);
    if (record == model.versions.end()) return false;
    const auto failed = detail::count_if(member.excluded, [&](incarnation id) {
      const worker_state* source = core_.find(id);
      return source != nullptr && source->model == &model && source->shard == reader.shard &&
             source->as_source.offered == offer::complete && source->as_source.version == operation.version;
    });
    return record->second.sources[reader.shard.index]->complete_count() > static_cast<std::size_t>(failed) ||
           decisions_.may_come_back(model, operation.version);
  }

  [[nodiscard]] static messages::update_reply assigned_to(const worker_state& reader,
                                                          const operation_state& operation,
                                                          std::vector<messages::assignment> sources) {
    messages::update_reply reply = assigned(operation, std::move(sources));
    const version_state& version = reader.model->versions.at(operation.version);
    reply.root = version.roots[reader.shard.index];
    reply.open = !reply.root && version.sources[reader.shard.index]->complete_count() == 0;
    return reply;
  }

  // ---- tried again

  /// Tries again what has become possible: waiting calls and questions, hungry readers, starving operations.
  void settle(model_state& model) {
    const unsettled_state changed = std::exchange(model.unsettled, {});
    if (changed.calls) {
      retry_waiting(model);
      questions_.retry(model);
    } else {  // nobody else's decision can depend on these replicas: there are other holders
      for (const std::string& name : changed.replicas) {
        const auto replica = model.replicas.find(name);
        if (replica == model.replicas.end()) continue;
        for (operation_state* operation : std::vector{replica->second->open}) retry_if_waiting(*operation);
      }
    }
    for (const auto& [version, shard] : changed.sources) {
      if (core_.batch.runs)
        core_.put_off(model, version, shard);
      else
        assignments_.feed(model, version, shard, 1);
    }
    if (changed.credits || !changed.sources.empty()) serve_starved(model);
  }

 private:
  /// Decides for `version`: reserves one lease per shard, hides the replica's old version, and answers the
  /// shards that have called.
  void start(operation_state& operation, version_number version) {
    replica_state& replica = *operation.replica;
    // It is tried again after a change.
    if (replica.complete != version && !retention_.may_let_go(replica, false)) return;
    table_.set_version(operation, version);
    bool has_sources = true;
    for_each_member(operation, [&](member_state& member, std::uint32_t shard) {
      worker_state* worker = replica.workers[shard];
      if (!has_sources) return;
      member.keeps = worker != nullptr && worker->holds() && worker->held->version == version;
      if (member.keeps || member.phase == phase::assigned || member.phase == phase::finished) return;
      const lease_state* lease = assignments_.grant_upstream(operation, shard, worker, {}, true);
      has_sources = lease != nullptr;
      if (has_sources) member.lease = lease->id;
    });
    if (!has_sources) return starve(operation);
    core_.move_to(operation.stage, operation_stage::decided);
    table_.end_starving(operation);
    expect_all(operation);
    for_each_member(operation, [&](const member_state& member, std::uint32_t shard) {
      worker_state* worker = replica.workers[shard];
      if (worker == nullptr || member.keeps || member.phase == phase::finished) return;
      versions_.begin_overwriting(*worker);
      move_readers(*worker);
    });
    versions_.recompute(replica);
    for_each_member(operation, [&](const member_state& member, std::uint32_t shard) {
      if (operation.is_closed() || member.phase != phase::waiting) return;
      worker_state& worker = *replica.workers[shard];
      if (!accepts(member.selector, version)) return ends_.close_disagreed(operation, worker.shard);
      deliver(operation, worker);
    });
  }

  /// No source has a free credit for the operation now: it waits for its turn (`serve_starved`).
  void starve(operation_state& operation) {
    leases_.release_reserved(operation);
    table_.starve(operation);
  }

  /// The lease that was reserved for the shard, or another one; null: no source has a free credit now.
  [[nodiscard]] const lease_state* lease_for(const operation_state& operation, worker_state& worker,
                                             member_state& member) {
    const auto reserved = leases_.find_reserved(member.lease);
    if (reserved != core_.leases.end()) {
      leases_.hand_over(reserved->second, worker);
      return &reserved->second;
    }
    const lease_state* fresh = assignments_.grant_upstream(operation, worker.shard.index, &worker, {}, false);
    if (fresh != nullptr) member.lease = fresh->id;
    return fresh;
  }

  void retry_waiting(model_state& model) {
    const auto& open = model.operations.all;
    for (auto at = open.begin(); at != open.end();) {
      const std::uint64_t serial = at->first;
      retry_if_waiting(*at->second);
      at = open.upper_bound(serial);  // the retry may have closed any of them
    }
  }
  void retry_if_waiting(operation_state& operation) {
    if (!operation.is_closed() && !operation.is_decided() && operation.starved == 0) retry(operation);
  }
  void retry(operation_state& operation) {
    for (const member_state& member : operation.members) {
      if (member.phase == phase::waiting) return try_decide(operation, member_state{member});
    }
  }

  /// Retries a few operations that wait for a free credit: there may be thousands.
  void serve_starved(model_state& model) {
    const auto& starved = model.operations.starved;
    for (std::size_t failures = 0; failures < failures_at_once && !starved.empty();) {
      operation_state& operation = *starved.begin()->second;
      table_.end_starving(operation);
      operation.is_decided() ? deliver_late(operation) : retry(operation);
      failures += operation.starved != 0 ? 1 : 0;
    }
    model.unsettled.credits = false;  // what a failure gives back was there before
  }
  void deliver_late(operation_state& operation) {
    for_each_member(operation, [&](const member_state& member, std::uint32_t shard) {
      if (!operation.is_closed() && member.phase == phase::waiting)
        deliver(operation, *operation.replica->workers[shard]);
    });
  }

  static constexpr std::size_t failures_at_once = 4;

  core& core_;
  versions& versions_;
  retention& retention_;
  questions& questions_;
  leases& leases_;
  assignments& assignments_;
  reader_moves& moves_;
  operation_table& table_;
  update_ends& ends_;
  decisions decisions_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
