#pragma once
/// \file updates.hpp
/// The course of an update: one decision per operation (decisions.hpp), a source for every shard, and one end
/// for all shards.
///
///     update_request --> waiting --decided--> assigned --finish_request--> finished --all--> closed
///                           |  timed out         |  failed, or another shard did             (or torn)
///
/// From the decision on, the replica's old references accept no reader. A shard that was assigned sources
/// becomes a source itself as soon as no reader of the previous version is left on it.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/decisions.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/retention.hpp"
#include "tensorhub/service/catalog/update_replies.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class updates {
 public:
  updates(core& core, versions& versions, retention& retention, questions& questions, leases& leases,
          operation_table& operations, any_consistency consistency)
      : core_{core},
        versions_{versions},
        retention_{retention},
        questions_{questions},
        leases_{leases},
        table_{operations},
        decisions_{core, std::move(consistency)} {}

  // ---- requests

  void on(worker_state& worker, request_sequence sequence, const messages::update_request& request) {
    if (operation_state* begun = begun_by(worker, sequence)) return give_up_begun(*begun, worker, sequence);
    if (worker.drain || worker.holding == holding::withdrawn) leases_.forget_drain(worker);
    // Two calls at the same time would hold two sets of leases, and with them credits that others need.
    if (table_.is_in_update(worker) || leases_.has_sources(worker)) {
      core_.condemned.emplace_back(worker.id, verdict::unruly);
      return;
    }
    const bool is_new = !worker.past.called;
    alone_state alone = alone_after(table_.failed_without(worker));
    const operation_counter counter = table_.count(worker, request.operation, std::nullopt, request.selector);
    const auto fail = [&](errc code, std::string sentence) {
      core_.answer(worker, sequence, refused({code, std::move(sentence)}, counter));
    };
    if (messages::status room = table_.room_for(worker, counter); !room.ok())
      return core_.answer(worker, sequence, refused(std::move(room), counter));
    operation_state& operation = table_.open(worker, counter, false);
    if (operation.is_publish) {
      return fail(errc::group_failed,
                  "another shard of replica '" + worker.replica->name +
                      "' called publish() in this operation: all shards must make the same calls");
    }
    if (operation.is_closed()) return answer_from_closed(worker, sequence, operation);
    member_state& member = *member_of(operation, worker.shard.index);
    if (member.phase != phase::absent) return fail(errc::busy, "this operation was called already");
    core_.move_to(member.phase, phase::waiting);
    member.sequence = sequence;
    member.called = sequence;
    member.selector = request.selector;
    member.reach = request.reach;
    if (request.shows) member.shows = std::make_shared<const messages::announcement>(*request.shows);
    member.ahead = request.ahead;
    member.deadline = core_.now + std::chrono::milliseconds{request.timeout_ms};
    table_.look_at(operation, member.deadline);
    if (callers_of(operation) == 1)
      operation.alone = std::move(alone);
    else if (!is_new || !lacks_one_that_knows(operation))
      operation.alone = {};
    table_.look_at(operation, operation.alone.until);
    if (resolve_ended(operation)) return;
    if (!operation.is_decided()) return try_decide(operation, member);
    if (!accepts(request.selector, operation.version)) return close_disagreed(operation, worker.shard);
    deliver(operation, worker);
  }

  void on(worker_state& worker, request_sequence sequence, const messages::sources_request& request) {
    operation_state* operation = find_operation(*worker.replica, request.operation, worker.shard.index);
    member_state* member = operation != nullptr ? member_of(*operation, worker.shard.index) : nullptr;
    if (member == nullptr || operation->is_closed() || member->phase != phase::assigned) {
      const messages::status reason =
          operation != nullptr && !operation->failure.ok()
              ? operation->failure
              : messages::status{errc::unavailable, "this operation is no longer known"};
      return core_.answer(worker, sequence, refused(reason));
    }
    if (request.why == messages::sources_wanted::one_failed && lose_source(worker, *member, request)) {
      core_.condemned.emplace_back(worker.id, verdict::earlier);
      return core_.answer(worker, sequence, refused({errc::replaced, "the source has cut this worker off"}));
    }
    worker.as_reader.operation = operation->counter;  // an earlier server may have decided it
    std::vector<messages::assignment> found;
    if (request.why == messages::sources_wanted::all_stalled) leases::note_stall(*operation, worker);
    leases_.grow(*operation, worker, member->excluded, &found);
    if (request.why == messages::sources_wanted::short_of_chunks) {
      if (found.empty()) leases_.exchange(*operation, worker, member->excluded);
    } else if (!find_way_on(*operation, worker, *member, request, found)) {
      return core_.answer(
          worker, sequence,
          refused(no_source_left(*operation, worker, request.reason, request.detail), operation->counter));
    }
    core_.answer(worker, sequence, assigned_to(worker, *operation, std::move(found)));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::receiving_request& request) {
    core_.answer(worker, sequence, messages::status_reply{});
    operation_state* operation = operation_read_by(worker);
    if (operation == nullptr || (request.operation && request.operation != operation->counter)) return;
    show(*operation, worker, request.shows);
    leases_.grow(*operation, worker, member_of(*operation, worker.shard.index)->excluded, nullptr);
  }

  void on(worker_state& worker, request_sequence sequence, const messages::finish_request& request) {
    leases_.end_all_of(worker);
    worker.as_reader.operation = {};
    const reported_call call = find_reported(worker, sequence, request);
    operation_state* const operation = call.operation;
    settle_memory(worker, operation, request);
    member_state* const member = operation != nullptr ? member_of(*operation, worker.shard.index) : nullptr;
    if (member == nullptr || operation->is_closed()) {
      versions_.recompute(*worker.replica);
      const bool is_late = request.result.ok() && operation != nullptr;
      return core_.answer(worker, sequence, messages::status_reply{is_late ? operation->failure : call.room});
    }
    // The worker does not wait for the answer to its call, or to an earlier report, any more.
    if (const request_sequence given_up = std::exchange(member->sequence, {}); given_up)
      worker.requests.answers.erase(given_up.value);
    const messages::status failure = failure_of(worker, *operation, request);
    if (failure.ok())
      finish_member(worker, *operation, *member, sequence, request.version);
    else
      fail_member(worker, *operation, *member, sequence, request, failure);
  }

  // ---- open versions

  /// A version that was open has a root in this shard: those that read it are told.
  void tell_committed(model_state& model, version_number version, std::uint32_t shard) {
    if (!model.operations.users.contains(version)) return;
    const messages::committed_push told{version, model.versions.at(version).roots[shard]};
    for (const worker_state* reader : readers_of(model, version, shard))
      core_.send(reader->id, {}, messages::message{told});
  }
  /// The worker is withdrawn, and does not fill its open version any more. Unless somebody else has that
  /// version, or fills it too, nobody can get all of it.
  void give_up_open(const worker_state& worker, const std::string& why) {
    model_state& model = *worker.model;
    const version_number version = worker.held->version;
    const std::uint32_t shard = worker.shard.index;
    const auto record = model.versions.find(version);
    const bool is_elsewhere =
        record != model.versions.end() && record->second.sources[shard]->complete_count() > 0;
    if (is_elsewhere || versions::is_open(model, version, shard)) return;
    std::vector<operation_state*> failed;  // also those whose shard has not called yet
    for (const auto& [serial, operation] : model.operations.all) {
      const member_state* member = is_update_to(*operation, version) ? member_of(*operation, shard) : nullptr;
      if (member != nullptr && member->phase < phase::finished && !member->keeps) failed.push_back(operation);
    }
    for (operation_state* operation : failed) {
      close_failed(*operation, {errc::unavailable, "version " + to_string(version) + " of model '" +
                                                       model.name + "' was never whole: " + why});
    }
  }

  // ---- what a roll back has made void

  /// Nobody is offered a void version any more; updates that read one, or have not finished one, fail.
  void withdraw_void(model_state& model) {
    for (auto& [version, state] : model.versions) state.ever_complete &= !is_void(model, version);
    forget_void_latest(model, model.latest_ever);
    forget_void_latest(model, model.before.latest);
    for (const auto& [name, replica] : model.replicas) {
      for (worker_state* worker : replica->workers) {
        if (worker == nullptr) continue;
        if (replica->temporary && worker->held && is_void(model, worker->held->version))
          replica->dropping = true;
      }
      versions_.recompute(*replica);
    }
    for (operation_state* operation = void_operation(model); operation != nullptr;
         operation = void_operation(model))
      close_failed(*operation, withdrawn(model, operation->version));
    model.waits_to_let_go = true;
  }

  // ---- entry points for the other parts

  /// Takes over an update that an earlier server decided and that this worker is executing.
  void adopt_update(worker_state& worker, operation_counter counter, version_number version) {
    if (find_operation(*worker.replica, counter, worker.shard.index) == nullptr &&
        core_.policy.decides_per_group && counter <= worker.replica->closed_operation)
      return;
    if (!table_.room_for(worker, counter).ok()) return versions_.begin_overwriting(worker);
    operation_state& operation = table_.open(worker, counter, false);
    const bool is_other = operation.has_version() && operation.version != version;
    if (operation.is_closed() || operation.is_publish || is_other) return;
    member_state& member = *member_of(operation, worker.shard.index);
    if (member.phase == phase::absent) core_.move_to(member.phase, phase::assigned);
    worker.past.called = true;
    go_on_with(operation, version);
    if (is_void(*worker.model, version)) core_.note_void(*worker.model);
  }

  /// A worker joined or reported after its group decided an update. Either it already holds that version, or
  /// its memory will be overwritten.
  void await_decided(worker_state& worker, const operation_state* reported) {
    for (operation_state* operation : worker.replica->open) {
      if (operation == reported || operation->is_publish || !operation->is_decided()) continue;
      member_state* member = member_of(*operation, worker.shard.index);
      if (member == nullptr || member->phase != phase::absent || member->keeps) continue;
      member->keeps = worker.held && worker.held->version == operation->version;
      if (member->keeps)
        leases_.end(std::exchange(member->lease, {}), &drain_state::finished);
      else
        versions_.begin_overwriting(worker);
    }
  }

  /// The open update that this request has begun, and that did not get so far as to answer it; null: none.
  [[nodiscard]] static operation_state* begun_by(const worker_state& worker, request_sequence sequence) {
    const auto is_begun = [&](operation_state* operation) {
      const member_state* member = member_of(*operation, worker.shard.index);
      return member != nullptr && member->called == sequence;
    };
    const auto found = detail::find_if(worker.replica->open, is_begun);
    return found == worker.replica->open.end() ? nullptr : *found;
  }
  void give_up_begun(operation_state& operation, worker_state& worker, request_sequence sequence) {
    member_state& member = *member_of(operation, worker.shard.index);
    if (member.phase == phase::finished)  // it keeps its version
      return core_.answer(worker, sequence, kept(operation.counter, operation.version));
    const messages::status reason{errc::group_failed,
                                  "the server had no memory in the middle of this update: call it again"};
    if (member.phase == phase::assigned) {  // it has not heard of its sources
      leases_.end_all_of(worker);
      worker.as_reader.operation = {};
      versions_.end_writing(worker);
      core_.move_to(member.phase, phase::intact);
      core_.answer(worker, sequence, refused(reason, operation.counter));
    }
    close_failed(operation, reason);  // with an answer, if it waits
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
        close_failed(operation, {errc::group_failed, "shard " + to_string(worker->shard) + " of replica '" +
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
      close_if_finished(operation);
    }
    return true;
  }

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
        leases_.feed(model, version, shard, 1);
    }
    if (changed.credits || !changed.sources.empty()) serve_starved(model);
  }

  /// Ends a group operation with a failure for all its shards. Shards that are still reading are told to
  /// stop, and will report.
  void close_failed(operation_state& operation, messages::status reason) {
    if (operation.is_closed()) return;
    replica_state& replica = *operation.replica;
    const bool changed = detail::any_of(operation.members, [](const member_state& m) {
      return m.phase == phase::assigned || (m.phase == phase::finished && !m.keeps) ||
             m.phase == phase::failed;
    });
    if (core_.policy.completes_per_group && changed && operation.members.size() > 1) {
      replica.torn = true;
      if (reason.code == errc::group_failed) reason.code = errc::torn;
      reason.sentence += "; replica '" + replica.name + "' is torn until its next update";
    }
    operation.failure = reason;
    table_.close(operation);
    log_fields about{.model = replica.model->name, .replica = replica.name, .version = operation.version};
    about.operation = operation.counter;
    about.code = reason.code;
    core_.log(log_level::warning,
              "operation " + std::to_string(operation.counter.value) + " of " + replica.model->name + "/" +
                  replica.name + " failed: " + reason.sentence,
              std::move(about));
    leases_.release_reserved(operation);
    for_each_member(operation, [&](member_state& member, std::uint32_t shard) {
      if (worker_state* worker = replica.workers[shard]) end_member(operation, *worker, member, reason);
    });
    versions_.recompute(replica);
  }

  /// The worker lets go of what it holds: its readers go on elsewhere. Where no other source has room for a
  /// shard that has not called yet, it holds up the worker, and whoever the worker reads from: the shard must
  /// call within `late_shard_timeout`, unless a source has room before that.
  void move_readers(worker_state& source) {
    leases_.move_readers(source);
    for (const lease_id id : source.as_source.readers) {
      const lease_state& lease = core_.leases.at(id);
      operation_state* operation = lease.is_reserved() ? find_operation(*source.model, lease) : nullptr;
      if (operation == nullptr || operation->is_closed()) continue;
      operation->arrival_deadline =
          std::min(operation->arrival_deadline, core_.now + core_.options.late_shard_timeout);
      table_.look_at(*operation, std::min(core_.now + moves_again_after, operation->arrival_deadline));
    }
  }

  /// An exception, for want of memory, has ended an event in the middle: does what it may have left undone.
  void repair(model_state& model) {
    for (const auto& [name, replica] : model.replicas) {
      for (worker_state* worker : replica->workers) {
        if (worker == nullptr) continue;
        versions_.index_anew(*worker);
        leases_.check_drained(*worker);
      }
      versions_.recompute(*replica);
    }
    std::vector<operation_state*> decided;
    for (const auto& [serial, operation] : model.operations.all)
      if (!operation->is_publish && operation->is_decided()) decided.push_back(operation);
    for (operation_state* operation : decided) {
      close_if_finished(*operation);
      const bool waits =
          detail::any_of(operation->members, [](const member_state& m) { return m.phase == phase::waiting; });
      if (!operation->is_closed() && waits) table_.starve(*operation);
    }
  }

  /// The worker's key may not read any more: its calls end.
  void refuse(const worker_state& worker) {
    for (operation_state* operation : std::vector{worker.replica->open}) {
      if (operation->is_closed() || operation->is_publish) continue;
      const member_state* member = member_of(*operation, worker.shard.index);
      if (member == nullptr || (member->phase != phase::waiting && member->phase != phase::assigned))
        continue;
      close_failed(
          *operation,
          {errc::refused,
           "the key of " + who(worker) +
               " may not read any more: its line in the server's allow-list has to name `read`, this "
               "model and this replica"});
    }
  }

  /// Ends operations that have waited for a version, or for a shard, beyond their deadline.
  void expire() {
    while (operation_state* operation = table_.take_due(core_.now)) {
      if (!operation->is_publish) expire(*operation);
    }
  }

 private:
  [[nodiscard]] static messages::status withdrawn(const model_state& model, version_number version) {
    return {errc::unavailable, "version " + to_string(version) + " of model '" + model.name +
                                   "' was withdrawn: its trainer has rolled the model back"};
  }
  /// Before a roll back it was higher.
  static void forget_void_latest(const model_state& model, version_number& latest) {
    if (!is_void(model, latest)) return;
    latest = {};
    for (const auto& [version, state] : model.versions) {
      if (state.ever_complete) latest = std::max(latest, version);
    }
  }
  /// An update of a version that is void now; null: there is none.
  [[nodiscard]] static operation_state* void_operation(const model_state& model) {
    const auto is_wrong = [&](const auto& entry) {
      const operation_state& operation = *entry.second;
      return !operation.is_closed() && !operation.is_publish && operation.has_version() &&
             is_void(model, operation.version);
    };
    const auto found = detail::find_if(model.operations.all, is_wrong);
    return found == model.operations.all.end() ? nullptr : found->second;
  }
  /// Why the operation fails with the end that this shard reports; ok: it does not.
  [[nodiscard]] static messages::status failure_of(const worker_state& worker,
                                                   const operation_state& operation,
                                                   const messages::finish_request& request) {
    const std::string shard =
        "shard " + to_string(worker.shard) + " of replica '" + worker.replica->name + "'";
    if (!request.result.ok()) return {request.result.code, shard + " failed: " + request.result.sentence};
    if (is_void(*worker.model, request.version)) return withdrawn(*worker.model, request.version);
    if (!operation.has_version() || operation.version == request.version) return {};
    return {errc::group_failed, shard + " has version " + to_string(request.version) +
                                    " by the decision of an earlier server, the others are to have version " +
                                    to_string(operation.version)};
  }
  /// The worker is not read into by the operation, which has failed; perhaps by another one.
  void spare(const operation_state& failed, worker_state& worker) {
    for (operation_state* operation : worker.replica->open) {
      const member_state* member = member_of(*operation, worker.shard.index);
      if (operation == &failed || operation->is_publish) continue;
      if (!operation->is_decided() || member == nullptr) continue;
      const bool reads = member->phase == phase::assigned || member->phase == phase::waiting;
      if (reads || (member->phase == phase::absent && !member->keeps)) return;
    }
    versions_.spare(worker);
  }
  /// What a worker's memory holds after its update.
  void note_held(worker_state& worker, const messages::finish_request& request) {
    const bool is_believed =
        request.held && !request.held->open && versions_.may_have_received(worker, *request.held);
    const bool holds_old = !request.held && request.intact && worker.held;
    leases_.end_overwritten(worker, is_believed ? request.held->version
                                    : holds_old ? worker.held->version
                                                : version_number{});
    if (is_believed) {
      versions_.drop(worker);
      versions_.hold(worker, *request.held, false);
      versions_.forget_old(*worker.model);
    } else if (request.held) {
      versions_.disbelieve(worker, request.held->version);
    } else if (!request.intact) {
      versions_.drop(worker);
    }
  }

  /// Decided, for this version, and not ended.
  [[nodiscard]] static bool is_update_to(const operation_state& operation, version_number version) {
    return operation.stage == operation_stage::decided && !operation.is_publish &&
           operation.version == version;
  }
  /// Workers that have sources of this version, in this shard.
  [[nodiscard]] std::vector<const worker_state*> readers_of(const model_state& model, version_number version,
                                                            std::uint32_t shard) const {
    std::vector<const worker_state*> out;
    for (const auto& [serial, operation] : model.operations.all) {
      const member_state* member = is_update_to(*operation, version) ? member_of(*operation, shard) : nullptr;
      const worker_state* reader = operation->replica->workers[shard];
      if (member != nullptr && member->phase == phase::assigned && reader != nullptr) out.push_back(reader);
    }
    return out;
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

  // ---- decision

  [[nodiscard]] static std::ptrdiff_t callers_of(const operation_state& operation) {
    return detail::count_if(operation.members,
                            [](const member_state& each) { return each.phase != phase::absent; });
  }
  [[nodiscard]] alone_state alone_after(const operation_state* failed) const {
    if (failed == nullptr) return {};
    return {core_.now + core_.options.late_shard_timeout, failed->failure, failed->counter};
  }
  /// A worker that is not new has not called: it knows of the failure before.
  [[nodiscard]] static bool lacks_one_that_knows(const operation_state& operation) {
    return detail::any_of(operation.replica->workers, [&operation](const worker_state* each) {
      return each != nullptr && each->past.called && !operation.has_called(each->shard.index);
    });
  }
  /// The callers hear of the failure before, which the other shards know, so that all are in step again.
  void tell_of_failure_before(operation_state& operation) {
    for_each_member(operation, [&](member_state& member, std::uint32_t shard) {
      worker_state* const worker = operation.replica->workers[shard];
      if (member.phase != phase::waiting || worker == nullptr) return;
      core_.answer(*worker, std::exchange(member.sequence, {}),
                   refused(operation.alone.failure, operation.alone.failed));
    });
    table_.cancel(operation);
  }

  void try_decide(operation_state& operation, const member_state& asked) {
    if (operation.alone.until != time_point::never()) return;
    if (operation.has_version()) return start(operation, operation.version);
    const version_decision decision = decisions_.make(operation, asked);
    switch (decision.kind) {
      case version_decision::kind_type::wait:
        return;
      case version_decision::kind_type::refuse:
        return close_failed(operation, {decision.reason, "version " + to_string(decision.version) +
                                                             " of model '" + operation.replica->model->name +
                                                             "' is no longer held by any worker"});
      case version_decision::kind_type::keep:
        return close_kept(operation, decision.version);
      case version_decision::kind_type::take:
        return start(operation, decision.version);
    }
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
      const lease_state* lease = leases_.grant_upstream(operation, shard, worker, {}, true);
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
      if (!accepts(member.selector, version)) return close_disagreed(operation, worker.shard);
      deliver(operation, worker);
    });
  }

  /// No source has a free credit for the operation now: it waits for its turn (`serve_starved`).
  void starve(operation_state& operation) {
    leases_.release_reserved(operation);
    table_.starve(operation);
  }
  /// From now on all shards must call the operation within the group's time-out.
  void expect_all(operation_state& operation) {
    operation.alone = {};
    operation.decided_at = core_.now;
    operation.arrival_deadline = core_.now + core_.options.group_timeout;
    table_.look_at(operation, operation.arrival_deadline);
  }

  /// The lease that was reserved for the shard, or another one; null: no source has a free credit now.
  [[nodiscard]] const lease_state* lease_for(const operation_state& operation, worker_state& worker,
                                             member_state& member) {
    const auto reserved = leases_.find_reserved(member.lease);
    if (reserved != core_.leases.end()) {
      leases_.hand_over(reserved->second, worker);
      return &reserved->second;
    }
    const lease_state* fresh = leases_.grant_upstream(operation, worker.shard.index, &worker, {}, false);
    if (fresh != nullptr) member.lease = fresh->id;
    return fresh;
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
      return close_if_finished(operation);
    }
    versions_.begin_overwriting(worker);
    versions_.recompute(*worker.replica);
    const lease_state* lease = lease_for(operation, worker, member);
    if (lease == nullptr) {
      const bool has_source = may_wait(operation, worker, member) ||
                              versions::is_open(*worker.model, operation.version, worker.shard.index);
      if (!has_source) return close_failed(operation, no_source_left(operation, worker));
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
    leases_.grow(operation, worker, {}, &sources);
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

  /// Of an operation that has failed for this reason.
  void end_member(const operation_state& operation, worker_state& worker, member_state& member,
                  const messages::status& reason) {
    if (worker.holding == holding::pending) core_.move_to(worker.holding, holding::whole);
    leases_.end_drain_of_update(worker, reason);
    const request_sequence sequence = std::exchange(member.sequence, {});
    switch (member.phase) {
      case phase::absent:
        if (operation.is_decided() && !member.keeps) spare(operation, worker);
        return;
      case phase::waiting:
        if (!member.keeps) spare(operation, worker);
        return core_.answer(worker, sequence, refused(reason, operation.counter));
      case phase::assigned:
        return stop_reading(operation, worker, reason);
      case phase::finished:
        if (!sequence) return;
        if (member.keeps) return core_.answer(worker, sequence, refused(reason, operation.counter));
        return core_.answer(worker, sequence, messages::status_reply{reason});
      case phase::failed:
      case phase::intact:
        return;
    }
  }
  void stop_reading(const operation_state& operation, worker_state& worker, const messages::status& reason) {
    core_.send(worker.id, {}, messages::abort_push{operation.counter, reason});
    versions_.end_receiving(worker);
    for (const lease_id id : std::vector<lease_id>{worker.as_source.readers}) {
      if (core_.leases.at(id).version != operation.version) continue;
      leases_.abandon(worker, id, &drain_state::cut_off);
      // The worker may have received every chunk and keep the version, and its readers may read on.
      worker.past.has_old_keys = true;
    }
  }

  struct reported_call {
    operation_state* operation = nullptr;  ///< null: it is not known, or nobody waits for its end
    messages::status room{};  ///< not ok: an earlier server decided it, and there is no room for it
  };
  /// The call whose end the worker reports. Opens it if an earlier server has decided it.
  [[nodiscard]] reported_call find_reported(worker_state& worker, request_sequence sequence,
                                            const messages::finish_request& request) {
    reported_call out;
    // A worker that gives up may not know the number of its operation yet.
    if (!request.result.ok())
      out.operation = unfinished_operation(*worker.replica, worker.shard.index, sequence);
    if (out.operation == nullptr)
      out.operation = find_operation(*worker.replica, request.operation, worker.shard.index);
    if (out.operation == nullptr && request.result.ok()) {
      out.room = table_.room_for(worker, request.operation);
      if (out.room.ok()) out.operation = &adopt_operation(worker, request);
    }
    // Its replica publishes under this number: the worker counts otherwise.
    if (out.operation != nullptr && out.operation->is_publish) out.operation = nullptr;
    return out;
  }
  /// Notes what the worker's memory holds now that a call has ended. `call`: null if that is not known.
  void settle_memory(worker_state& worker, operation_state* call, const messages::finish_request& request) {
    if (const auto found = core_.lingered.find(worker.id);
        found != core_.lingered.end() && request.result.ok() && request.operation > found->second)
      core_.lingered.erase(found);
    versions_.end_writing(worker);
    note_held(worker, request);
    leases_.end_drain_of_update(worker, {});  // the worker may have forced it while the server recovered
    await_decided(worker, call);
    if (call == nullptr && core_.policy.decides_per_group &&
        request.operation > worker.replica->closed_operation) {
      // The call failed at an earlier server: its number is not used again, and the other shards do not wait.
      worker.past.ended_well = false;
      worker.past.ended_before = worker.replica->closed_operation = request.operation;
    }
  }
  void finish_member(worker_state& worker, operation_state& operation, member_state& member,
                     request_sequence sequence, version_number version) {
    core_.move_to(member.phase, phase::finished);
    member.keeps = false;  // what waits for the answer is this report, not the call
    if (core_.policy.completes_per_group) {
      versions_.await_group(worker);
      member.sequence = sequence;
    } else {
      core_.answer(worker, sequence, messages::status_reply{});
    }
    versions_.recompute(*worker.replica);
    go_on_with(operation, version);
    if (!resolve_ended(operation)) close_if_finished(operation);
  }
  void fail_member(worker_state& worker, operation_state& operation, member_state& member,
                   request_sequence sequence, const messages::finish_request& request,
                   const messages::status& failure) {
    const bool is_intact = !request.result.ok() && request.intact;
    core_.move_to(member.phase, is_intact ? phase::intact : phase::failed);
    core_.answer(worker, sequence,
                 messages::status_reply{request.result.ok() ? failure : messages::status{}});
    close_failed(operation, failure);
  }

  /// The reader has lost a source, or its sources have stalled. Adds to what `grow` has `found` a source that
  /// is taken from another reader, or sources that have failed this one before. False: it cannot get every
  /// chunk, and waiting would not help.
  bool find_way_on(operation_state& operation, worker_state& worker, member_state& member,
                   const messages::sources_request& request, std::vector<messages::assignment>& found) {
    const bool has_stalled = request.why == messages::sources_wanted::all_stalled;
    const auto is_lost = [&] {
      return leases_.count_sources(worker) == 0 ||
             (has_stalled && !leases_.leads_to_everything(worker, nullptr));
    };
    if (has_stalled) leases_.relieve(operation, worker, member.excluded, found);
    const bool may_retry = has_stalled || request.reason == errc::source_lost ||
                           request.reason == errc::timed_out || request.reason == errc::unavailable;
    if (is_lost() && may_retry && member.retries < retries_of_one_source) {
      ++member.retries;
      member.excluded.clear();
      leases_.grow(operation, worker, {}, &found);
    }
    return !is_lost() || may_wait(operation, worker, member);
  }

  /// Handles a source that failed. True: an earlier server ordered this source to cut the reader off, so the
  /// source will never serve it.
  bool lose_source(worker_state& worker, member_state& member, const messages::sources_request& request) {
    const auto lease = core_.leases.find(request.lease);
    if (lease == core_.leases.end() || lease->second.reader != worker.id) return false;
    core_.counted.seen.sources_failed.add(request.reason);
    const incarnation failed = lease->second.source;
    log_fields fields = about(worker);
    fields.peer = failed;
    fields.version = lease->second.version;
    fields.operation = request.operation;
    fields.lease = request.lease;
    fields.code = request.reason;
    core_.log(log_level::warning,
              who(worker) + " lost its source " + to_hex(failed) + ": " +
                  std::string{to_string(request.reason)} + " " + request.detail,
              std::move(fields));
    worker_state* const source = core_.find(failed);
    const bool is_barred =
        worker.past.was_elsewhere && source != nullptr && detail::contains(source->past.barred, worker.id);
    if (source != nullptr && !is_barred && request.reason == errc::source_lost) {
      liveness& life = source->signs.life;
      const bool is_reachable = life == liveness::heard || life == liveness::suspect;
      core_.move_to(life, is_reachable ? liveness::suspect : liveness::missing);
      core_.suspects.insert(failed);
      // Sends a message to find out whether the source can be reached.
      core_.send(failed, {}, core_.beat_for(*source->model));
    }
    member.excluded.push_back(failed);
    leases_.end(request.lease, &drain_state::finished);
    return is_barred;
  }

  // ---- end

  void answer_from_closed(worker_state& worker, request_sequence sequence, const operation_state& operation) {
    const bool keeps = operation.failure.ok() && worker.still_has(operation.version);
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

  /// Opens an operation that an earlier server decided.
  operation_state& adopt_operation(worker_state& worker, const messages::finish_request& request) {
    operation_state& operation = table_.open(worker, request.operation, false);
    operation.inherited = true;
    core_.move_to(operation.stage, operation_stage::decided);
    table_.set_version(operation, request.version);
    expect_all(operation);
    if (is_void(*worker.model, request.version)) core_.note_void(*worker.model);
    return operation;
  }

  void close_if_finished(operation_state& operation) {
    if (operation.is_closed()) return;
    if (!operation.is_finished()) return;
    for_each_member(operation, [&](member_state& member, std::uint32_t shard) {
      worker_state* worker = operation.replica->workers[shard];
      if (worker == nullptr) return;
      versions_.end_group(*worker);
      if (!member.sequence) return;
      const request_sequence sequence = std::exchange(member.sequence, {});
      if (member.keeps)
        core_.answer(*worker, sequence, kept(operation.counter, operation.version));
      else
        core_.answer(*worker, sequence, messages::status_reply{});
    });
    // Leases of shards that got their version through an earlier server, and will not ask for it.
    leases_.release_reserved(operation);
    table_.close(operation);
    versions_.recompute(*operation.replica);
  }

  void close_kept(operation_state& operation, version_number version) {
    core_.move_to(operation.stage, operation_stage::decided);
    table_.set_version(operation, version);
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      const member_state& member = operation.members[i];
      const worker_state* worker = operation.replica->workers[operation.only_shard.value_or(i)];
      if (member.phase == phase::waiting && !accepts(member.selector, version))
        return close_disagreed(operation, worker->shard);
    }
    for_each_member(operation, [&](member_state& member, std::uint32_t shard) {
      if (member.phase != phase::waiting) return;
      core_.move_to(member.phase, phase::finished);
      core_.answer(*operation.replica->workers[shard], std::exchange(member.sequence, {}),
                   kept(operation.counter, version));
    });
    table_.close(operation);
  }

  void close_disagreed(operation_state& operation, shard_of shard) {
    close_failed(operation, {errc::group_failed,
                             "shard " + to_string(shard) + " of replica '" + operation.replica->name +
                                 "' asked for another version than the " + to_string(operation.version) +
                                 " that was decided for this operation"});
  }

  void retry_waiting(model_state& model) {
    const auto& open = model.operations.all;
    for (auto at = open.begin(); at != open.end();) {
      const std::uint64_t serial = at->first;
      retry_if_waiting(*at->second);
      at = open.upper_bound(serial);  // the retry may have closed any of them
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
  void retry_if_waiting(operation_state& operation) {
    if (!operation.is_closed() && !operation.is_decided() && operation.starved == 0) retry(operation);
  }
  void retry(operation_state& operation) {
    for (const member_state& member : operation.members) {
      if (member.phase == phase::waiting) return try_decide(operation, member_state{member});
    }
  }

  [[nodiscard]] static messages::status waited_in_vain(const operation_state& operation,
                                                       const member_state& member, std::uint32_t shard) {
    const model_state& model = *operation.replica->model;
    if (operation.is_decided() || operation.starved != 0)
      return {errc::timed_out, "no source of version " + to_string(operation.version) + " of model '" +
                                   model.name + "' became free in time for shard " + std::to_string(shard) +
                                   " of replica '" + operation.replica->name + "'"};
    return {errc::timed_out, "no version (" + to_string(member.selector) + ") of model '" + model.name +
                                 "' became available; " + what_there_is(model, member.selector)};
  }
  [[nodiscard]] messages::status came_too_late(const operation_state& operation, std::uint32_t shard) const {
    std::string out = "shard " + std::to_string(shard) + " of replica '" + operation.replica->name +
                      "' did not call update() within ";
    if (core_.is_held_up(operation))
      out += std::to_string(core_.options.late_shard_timeout.count()) + " ms after the holder of version " +
             to_string(operation.version) +
             " had let go of it, and no other holder has room: call update() in all shards at about the same "
             "time";
    else
      out += std::to_string(core_.options.group_timeout.count()) + " ms of the first one";
    return {errc::group_failed, std::move(out)};
  }
  /// A source may have room by now for the shards that have not called.
  void move_again(operation_state& operation) {
    bool is_held_up = false;
    for_each_member(operation, [&](const member_state& member, std::uint32_t) {
      const auto lease = core_.leases.find(member.lease);
      if (member.phase != phase::absent || lease == core_.leases.end() || !lease->second.is_reserved())
        return;
      worker_state* const source = core_.find(lease->second.source);
      if (source == nullptr || source->as_source.offered != offer::none) return;
      const lease_id id = lease->first;
      leases_.move_reader(*source, id);
      is_held_up = is_held_up || member.lease == id;
    });
    if (!is_held_up) operation.arrival_deadline = operation.decided_at + core_.options.group_timeout;
  }
  void expire(operation_state& operation) {
    if (core_.now >= operation.alone.until) return tell_of_failure_before(operation);
    if (core_.is_held_up(operation)) move_again(operation);
    time_point next = core_.is_held_up(operation) ? core_.now + moves_again_after : time_point::never();
    next = std::min(next, operation.alone.until);
    for_each_member(operation, [&](const member_state& member, std::uint32_t shard) {
      const bool waits = member.phase == phase::waiting;
      const bool is_missing = operation.has_version() && member.phase == phase::absent;
      if (operation.is_closed() || (!waits && !is_missing)) return;
      const time_point deadline = waits ? member.deadline : operation.arrival_deadline;
      if (core_.now < deadline)
        next = std::min(next, deadline);
      else if (waits)
        close_failed(operation, waited_in_vain(operation, member, shard));
      else
        close_failed(operation, came_too_late(operation, shard));
    });
    table_.look_at(operation, next);
  }

  static constexpr std::uint32_t retries_of_one_source = 3;
  static constexpr std::chrono::milliseconds moves_again_after{200};
  static constexpr std::size_t failures_at_once = 4;

  core& core_;
  versions& versions_;
  retention& retention_;
  questions& questions_;
  leases& leases_;
  operation_table& table_;
  decisions decisions_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
