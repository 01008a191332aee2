#pragma once
/// \file updates.hpp
/// The course of an update: one decision per operation, a source for every shard, and one end for all of
/// them.
///
///     update_request --> waiting --decided--> assigned --finish_request--> finished --all--> closed
///                           |  timed out         |  failed, or another shard did             (or torn)
///
/// From the decision on, the replica's own old references accept no reader. A lease is therefore only ever
/// given on a worker that reads from nobody, and leases can form no cycle.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::catalog_detail {

[[nodiscard]] inline messages::update_reply refused(messages::status why, operation_counter counter = {}) {
  messages::update_reply reply;
  reply.result = std::move(why);
  reply.operation = counter;
  return reply;
}
[[nodiscard]] inline messages::update_reply kept(operation_counter counter, version_number version) {
  messages::update_reply reply;
  reply.operation = counter;
  reply.keep = true;
  reply.version = version;
  return reply;
}
[[nodiscard]] inline messages::update_reply assigned(const operation_state& operation,
                                                     messages::assignment source) {
  messages::update_reply reply;
  reply.operation = operation.counter;
  reply.version = operation.version;
  reply.source = std::move(source);
  return reply;
}

template <scheduler Scheduler, consistency Consistency>
class updates {
 public:
  updates(core& shared, versions<Consistency>& known, questions& asked, leases<Scheduler, Consistency>& given,
          operation_table<Consistency>& table, Consistency consistency)
      : core_{shared},
        versions_{known},
        questions_{asked},
        leases_{given},
        table_{table},
        consistency_{std::move(consistency)} {}

  // ---- requests

  void on(worker_state& worker, request_sequence sequence, const messages::update_request& request) {
    if (worker.drain || worker.withdrawn) {
      leases_.forget_drain(worker);
      versions_.drop(worker);
    }
    const operation_counter counter = table_.count(worker, request.operation, std::nullopt);
    const auto fail = [&](errc code, std::string sentence) {
      core_.answer(worker, sequence, refused({code, std::move(sentence)}, counter));
    };
    operation_state& operation = table_.open(worker, counter, false);
    member_state& member = *member_of(operation, worker.shard.index);
    if (operation.is_publish) {
      return fail(errc::group_failed,
                  "another shard of replica '" + worker.replica->name +
                      "' called publish() in this operation: all shards must make the same calls");
    }
    if (operation.closed) return answer_from_closed(worker, sequence, operation);
    if (member.phase != phase::absent) return fail(errc::busy, "this operation was called already");
    member.phase = phase::waiting;
    member.sequence = sequence;
    member.called = sequence;
    member.selector = request.selector;
    member.deadline = core_.now + std::chrono::milliseconds{request.timeout_ms};
    if (!operation.decided) return try_decide(operation, request.selector);
    if (!accepts(request.selector, operation.version)) return close_disagreed(operation, worker.shard);
    deliver(operation, worker);
  }

  void on(worker_state& worker, request_sequence sequence, const messages::source_failed_request& request) {
    operation_state* operation = find_operation(*worker.replica, request.operation, worker.shard.index);
    member_state* member = operation != nullptr ? member_of(*operation, worker.shard.index) : nullptr;
    if (member == nullptr || operation->closed || member->phase != phase::assigned) {
      const messages::status reason =
          operation != nullptr && !operation->failure.ok()
              ? operation->failure
              : messages::status{errc::unavailable, "this operation is not known any more"};
      return core_.answer(worker, sequence, refused(reason));
    }
    incarnation failed{};
    if (const auto lease = core_.leases.find(request.lease); lease != core_.leases.end())
      failed = lease->second.source;
    core_.log(log_level::warning, who(worker) + " lost its source " + to_hex(failed) + ": " +
                                      std::string{to_string(request.reason)} + " " + request.detail);
    if (failed) member->excluded.push_back(failed);
    leases_.end_all_of(worker);
    worker_state* source = leases_.choose_source(*operation->replica, operation->version, worker.shard.index,
                                                 &worker, member->excluded, nullptr);
    const bool may_retry = request.reason == errc::source_lost || request.reason == errc::timed_out ||
                           request.reason == errc::unavailable;
    if (source == nullptr && may_retry && member->retries < retries_of_one_source) {
      ++member->retries;
      source = leases_.choose_source(*operation->replica, operation->version, worker.shard.index, &worker, {},
                                     nullptr);
    }
    if (source == nullptr) {
      return core_.answer(worker, sequence,
                          refused(nobody_left(*operation, worker, request.detail), operation->counter));
    }
    lease_state& lease = leases_.grant(*source, *operation, worker.shard.index, &worker, false);
    member->lease = lease.id;
    core_.answer(worker, sequence, assigned(*operation, leases_.assignment_of(*operation, lease, worker)));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::finish_request& request) {
    leases_.end_all_of(worker);
    // Who gives up may not have heard what its call was counted as.
    operation_state* known =
        request.result.ok() ? nullptr : unfinished_operation(*worker.replica, worker.shard.index, sequence);
    if (known == nullptr) known = find_operation(*worker.replica, request.operation, worker.shard.index);
    if (known == nullptr && request.result.ok()) known = &adopt_operation(worker, request);
    worker.overwriting = false;
    if (!request.intact)
      leases_.end_overwritten(worker, request.held ? request.held->version : version_number{});
    if (request.held) {
      versions_.drop(worker);
      versions_.hold(worker, *request.held, false);
    } else if (!request.intact) {
      versions_.drop(worker);
    }
    member_state* member = known != nullptr ? member_of(*known, worker.shard.index) : nullptr;
    if (member == nullptr || known->closed) {
      refresh(*worker.replica);
      const bool failed_group = request.result.ok() && known != nullptr && !known->failure.ok();
      return core_.answer(worker, sequence,
                          messages::status_reply{failed_group ? known->failure : messages::status{}});
    }
    if (!request.result.ok()) {
      member->phase = phase::failed;
      member->intact = request.intact;
      core_.answer(worker, sequence, messages::status_reply{});
      return close_failed(
          *known, {request.result.code, "shard " + to_string(worker.shard) + " of replica '" +
                                            worker.replica->name + "' failed: " + request.result.sentence});
    }
    member->phase = phase::finished;
    if (Consistency::completes_per_group) {
      worker.group_pending = true;
      member->sequence = sequence;
    } else {
      core_.answer(worker, sequence, messages::status_reply{});
    }
    versions_.reindex(worker);
    refresh(*worker.replica);
    close_if_finished(*known);
  }

  // ---- what other parts start

  /// Recomputes what a replica holds, and asks those again who wait for a version.
  void refresh(replica_state& replica) {
    if (versions_.recompute(replica)) retry_waiting(*replica.model);
  }

  /// Ends a group operation for all its shards. Those that are still reading are told to stop and will
  /// report.
  void close_failed(operation_state& operation, messages::status reason) {
    if (operation.closed) return;
    replica_state& replica = *operation.replica;
    const bool changed = std::ranges::any_of(operation.members, [](const member_state& m) {
      return m.phase == phase::assigned || (m.phase == phase::finished && !m.keeps) ||
             (m.phase == phase::failed && !m.intact);
    });
    if (Consistency::completes_per_group && changed && operation.members.size() > 1) {
      replica.torn = true;
      if (reason.code == errc::group_failed) reason.code = errc::torn;
      reason.sentence += "; replica '" + replica.name + "' is torn until its next update";
    }
    operation.failure = reason;
    table_.close(operation);
    core_.log(log_level::warning, "operation " + std::to_string(operation.counter.value) + " of " +
                                      replica.model->name + "/" + replica.name +
                                      " failed: " + reason.sentence);
    leases_.release_reserved(operation);
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      member_state& member = operation.members[i];
      worker_state* worker = replica.workers[operation.only_shard.value_or(static_cast<std::uint32_t>(i))];
      if (worker == nullptr) continue;
      worker->group_pending = false;
      if (const auto drain = worker->withdrawn ? std::nullopt : std::exchange(worker->drain, std::nullopt))
        core_.answer(*worker, drain->sequence,
                     messages::drained_reply{reason});  // the one before this update
      const request_sequence sequence = std::exchange(member.sequence, {});
      if (member.phase == phase::waiting || (member.phase == phase::finished && member.keeps && sequence)) {
        if (!member.keeps) worker->overwriting = false;
        core_.answer(*worker, sequence, refused(reason, operation.counter));
      } else if (member.phase == phase::absent) {
        if (operation.decided && !member.keeps) worker->overwriting = false;
      } else if (member.phase == phase::finished && sequence) {
        core_.answer(*worker, sequence, messages::status_reply{reason});
      } else if (member.phase == phase::assigned) {
        core_.send(worker->id, {}, messages::abort_push{operation.counter, reason});
      }
    }
    refresh(replica);
  }

  /// Ends what waits for a version, or for a shard, beyond its deadline.
  void expire(model_state& model) {
    for (operation_state* operation : std::vector<operation_state*>{model.open_operations}) {
      if (!operation->closed && !operation->is_publish) expire(*operation);
    }
  }

 private:
  // ---- decision

  void try_decide(operation_state& operation, const version_selector& selector) {
    const version_view view = view_for(operation, selector);
    const version_decision decision = consistency_.decide(selector, view);
    switch (decision.kind) {
      case version_decision::kind_type::wait:
        return;
      case version_decision::kind_type::refuse:
        return close_failed(operation, {decision.reason, "version " + to_string(selector.version) +
                                                             " of model '" + operation.replica->model->name +
                                                             "' is held by nobody any more"});
      case version_decision::kind_type::keep:
        return close_kept(operation, decision.version);
      case version_decision::kind_type::take:
        return start(operation, decision.version);
    }
  }

  [[nodiscard]] version_view view_for(const operation_state& operation,
                                      const version_selector& selector) const {
    const replica_state& replica = *operation.replica;
    const model_state& model = *replica.model;
    version_view view;
    view.latest_ever = model.latest_ever;
    if (operation.only_shard) {
      const worker_state* worker = replica.workers[*operation.only_shard];
      if (worker != nullptr && worker->holds()) view.held = worker->held->version;
    } else {
      view.held = replica.complete;
    }
    for (const auto& [version, state] : model.versions) {
      if (!is_available(state, operation.only_shard)) continue;
      view.latest_available = version;
      if (selector.kind == version_selector::kind_type::exactly && version == selector.version)
        view.wanted_available = true;
    }
    return view;
  }

  [[nodiscard]] static bool is_available(const version_state& state,
                                         std::optional<std::uint32_t> only_shard) {
    return only_shard ? !state.holders[*only_shard].empty() : state.complete_replicas > 0;
  }

  /// Reads `version`: reserves one lease per shard, hides what the replica held, and tells the shards that
  /// have called.
  void start(operation_state& operation, version_number version) {
    replica_state& replica = *operation.replica;
    operation.version = version;
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      const std::uint32_t shard = operation.only_shard.value_or(static_cast<std::uint32_t>(i));
      member_state& member = operation.members[i];
      worker_state* worker = replica.workers[shard];
      member.keeps = worker != nullptr && worker->holds() && worker->held->version == version;
      if (member.keeps) continue;
      worker_state* source = leases_.choose_source(replica, version, shard, worker, {}, nullptr);
      if (source == nullptr) return leases_.release_reserved(operation);
      member.lease = leases_.grant(*source, operation, shard, worker, true).id;
    }
    operation.decided = true;
    operation.arrival_deadline = core_.now + core_.options.group_timeout;
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      const std::uint32_t shard = operation.only_shard.value_or(static_cast<std::uint32_t>(i));
      worker_state* worker = replica.workers[shard];
      if (worker == nullptr || operation.members[i].keeps) continue;
      worker->overwriting = true;
      versions_.reindex(*worker);
      leases_.move_readers(*worker);
    }
    refresh(replica);
    for (std::size_t i = 0; i < operation.members.size() && !operation.closed; ++i) {
      member_state& member = operation.members[i];
      if (member.phase != phase::waiting) continue;
      worker_state& worker = *replica.workers[operation.only_shard.value_or(static_cast<std::uint32_t>(i))];
      if (!accepts(member.selector, version)) return close_disagreed(operation, worker.shard);
      deliver(operation, worker);
    }
  }

  /// Answers a waiting shard of a decided operation.
  void deliver(operation_state& operation, worker_state& worker) {
    member_state& member = *member_of(operation, worker.shard.index);
    if (member.keeps) {
      member.phase = phase::finished;
      if (!Consistency::completes_per_group) {
        core_.answer(worker, std::exchange(member.sequence, {}), kept(operation.counter, operation.version));
      }
      return close_if_finished(operation);
    }
    auto lease = core_.leases.find(member.lease);
    if (lease == core_.leases.end()) {
      worker_state* source = leases_.choose_source(*operation.replica, operation.version, worker.shard.index,
                                                   &worker, {}, nullptr);
      if (source == nullptr) return close_failed(operation, nobody_left(operation, worker, {}));
      member.lease = leases_.grant(*source, operation, worker.shard.index, &worker, false).id;
      lease = core_.leases.find(member.lease);
    } else {
      if (!lease->second.reader) worker.reading.push_back(lease->first);
      lease->second.reader = worker.id;
      lease->second.reserved = false;
    }
    worker.overwriting = true;
    versions_.reindex(worker);
    member.phase = phase::assigned;
    core_.answer(worker, std::exchange(member.sequence, {}),
                 assigned(operation, leases_.assignment_of(operation, lease->second, worker)));
  }

  // ---- end

  void answer_from_closed(worker_state& worker, request_sequence sequence, const operation_state& operation) {
    const bool keeps = operation.failure.ok() && worker.holds() && worker.held->version == operation.version;
    messages::update_reply reply;
    reply.operation = operation.counter;
    reply.version = operation.version;
    reply.keep = keeps;
    if (!keeps) {
      reply.result =
          operation.failure.ok()
              ? messages::status{errc::group_failed, "this operation of the replica has ended already"}
              : operation.failure;
    }
    core_.answer(worker, sequence, std::move(reply));
  }

  /// An operation that was decided by an earlier server.
  operation_state& adopt_operation(worker_state& worker, const messages::finish_request& request) {
    operation_state& operation = table_.open(worker, request.operation, false);
    operation.decided = true;
    operation.version = request.version;
    operation.arrival_deadline = core_.now + core_.options.group_timeout;
    return operation;
  }

  void close_if_finished(operation_state& operation) {
    if (operation.closed) return;
    if (!std::ranges::all_of(operation.members,
                             [](const member_state& m) { return m.phase == phase::finished; }))
      return;
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      member_state& member = operation.members[i];
      worker_state& worker =
          *operation.replica->workers[operation.only_shard.value_or(static_cast<std::uint32_t>(i))];
      worker.group_pending = false;
      versions_.reindex(worker);
      if (!member.sequence) continue;
      const request_sequence sequence = std::exchange(member.sequence, {});
      if (member.keeps)
        core_.answer(worker, sequence, kept(operation.counter, operation.version));
      else
        core_.answer(worker, sequence, messages::status_reply{});
    }
    table_.close(operation);
    refresh(*operation.replica);
  }

  void close_kept(operation_state& operation, version_number version) {
    operation.decided = true;
    operation.version = version;
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      member_state& member = operation.members[i];
      if (member.phase != phase::waiting) continue;
      member.phase = phase::finished;
      worker_state& worker =
          *operation.replica->workers[operation.only_shard.value_or(static_cast<std::uint32_t>(i))];
      core_.answer(worker, std::exchange(member.sequence, {}), kept(operation.counter, version));
    }
    table_.close(operation);
  }

  void close_disagreed(operation_state& operation, shard_of shard) {
    close_failed(operation, {errc::group_failed,
                             "shard " + to_string(shard) + " of replica '" + operation.replica->name +
                                 "' asked for another version than the " + to_string(operation.version) +
                                 " that was decided for this operation"});
  }

  [[nodiscard]] messages::status nobody_left(const operation_state& operation, const worker_state& reader,
                                             const std::string& detail) const {
    return {errc::unavailable, "nobody is left from whom shard " + to_string(reader.shard) + " of version " +
                                   to_string(operation.version) + " could be read" +
                                   (detail.empty() ? std::string{} : " (the last source: " + detail + ")")};
  }

  void retry_waiting(model_state& model) {
    for (operation_state* operation : std::vector<operation_state*>{model.open_operations}) {
      if (operation->closed || operation->decided) continue;
      for (const member_state& member : operation->members) {
        if (member.phase != phase::waiting) continue;
        try_decide(*operation, version_selector{member.selector});
        break;
      }
    }
    questions_.retry(model);
  }

  void expire(operation_state& operation) {
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      const member_state& member = operation.members[i];
      const std::string shard = std::to_string(operation.only_shard.value_or(static_cast<std::uint32_t>(i)));
      if (!operation.decided && member.phase == phase::waiting && core_.now >= member.deadline) {
        return close_failed(
            operation,
            {errc::timed_out, "no version (" + to_string(member.selector) + ") of model '" +
                                  operation.replica->model->name + "' became available; the latest was " +
                                  to_string(operation.replica->model->latest_ever)});
      }
      if (operation.decided && member.phase == phase::absent && core_.now >= operation.arrival_deadline) {
        return close_failed(
            operation, {errc::group_failed, "shard " + shard + " of replica '" + operation.replica->name +
                                                "' did not call update() in time"});
      }
    }
  }

  static constexpr std::uint32_t retries_of_one_source = 3;

  core& core_;
  versions<Consistency>& versions_;
  questions& questions_;
  leases<Scheduler, Consistency>& leases_;
  operation_table<Consistency>& table_;
  Consistency consistency_;
};

}  // namespace tensorhub::catalog_detail
