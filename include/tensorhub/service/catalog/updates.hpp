#pragma once
/// \file updates.hpp
/// The course of an update, and the requests of the workers that take part: one decision per operation, a
/// source for every shard (update_starts.hpp), and one end for all shards (update_ends.hpp).
///
///     update_request --> waiting --decided--> assigned --finish_request--> finished --all--> closed
///                           |  timed out         |  failed, or another shard did             (or torn)
///
/// From the decision on, the replica's old references accept no reader. A shard that was assigned sources
/// becomes a source itself as soon as no reader of the previous version is left on it.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/assignments.hpp"
#include "tensorhub/service/catalog/choosing.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/drains.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/reader_moves.hpp"
#include "tensorhub/service/catalog/update_deadlines.hpp"
#include "tensorhub/service/catalog/update_ends.hpp"
#include "tensorhub/service/catalog/update_replies.hpp"
#include "tensorhub/service/catalog/update_starts.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class updates {
 public:
  updates(core& core, versions& versions, choosing& choosing, drains& drains, leases& leases,
          assignments& assignments, reader_moves& moves, operation_table& operations, update_ends& ends,
          update_starts& starts, update_deadlines& deadlines)
      : core_{core},
        versions_{versions},
        choosing_{choosing},
        drains_{drains},
        leases_{leases},
        assignments_{assignments},
        moves_{moves},
        table_{operations},
        ends_{ends},
        starts_{starts},
        deadlines_{deadlines} {}

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
    const alone_state alone = deadlines_.alone_after(table_.failed_without(worker));
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
    deadlines_.await_company(operation, member, is_new, alone);
    if (starts_.resolve_ended(operation)) return;
    if (!operation.is_decided()) return starts_.try_decide(operation, member);
    if (!accepts(request.selector, operation.version)) return ends_.close_disagreed(operation, worker.shard);
    starts_.deliver(operation, worker);
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
    if (request.why == messages::sources_wanted::all_stalled) assignments::note_stall(*operation, worker);
    assignments_.grow(*operation, worker, member->excluded, &found);
    if (request.why == messages::sources_wanted::short_of_chunks) {
      if (found.empty()) assignments_.exchange(*operation, worker, member->excluded);
    } else if (!find_way_on(*operation, worker, *member, request, found)) {
      return core_.answer(
          worker, sequence,
          refused(no_source_left(*operation, worker, request.reason, last_failure(*member, request)),
                  operation->counter));
    }
    core_.answer(worker, sequence, update_starts::assigned_to(worker, *operation, std::move(found)));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::receiving_request& request) {
    core_.answer(worker, sequence, messages::status_reply{});
    operation_state* operation = operation_read_by(worker);
    if (operation == nullptr || (request.operation && request.operation != operation->counter)) return;
    starts_.show(*operation, worker, request.shows);
    assignments_.grow(*operation, worker, member_of(*operation, worker.shard.index)->excluded, nullptr);
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

  // ---- entry points for the other parts

  /// A version that was open has a root in this shard: those that read it are told.
  void tell_committed(model_state& model, version_number version, std::uint32_t shard) {
    if (!model.operations.users.contains(version)) return;
    const messages::committed_push told{version, model.versions.at(version).roots[shard]};
    for (const worker_state* reader : readers_of(model, version, shard))
      core_.send(reader->id, {}, messages::message{told});
  }

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
    starts_.go_on_with(operation, version);
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

  /// An exception, for want of memory, has ended an event in the middle: does what it may have left undone.
  void repair(model_state& model) {
    for (const auto& [name, replica] : model.replicas) {
      for (worker_state* worker : replica->workers) {
        if (worker == nullptr) continue;
        versions_.index_anew(*worker);
        drains_.check_drained(*worker);
      }
      versions_.recompute(*replica);
    }
    std::vector<operation_state*> decided;
    for (const auto& [serial, operation] : model.operations.all)
      if (!operation->is_publish && operation->is_decided()) decided.push_back(operation);
    for (operation_state* operation : decided) {
      ends_.close_if_finished(*operation);
      const bool waits =
          detail::any_of(operation->members, [](const member_state& m) { return m.phase == phase::waiting; });
      if (!operation->is_closed() && waits) table_.starve(*operation);
    }
  }

 private:
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
    ends_.close_failed(operation, reason);  // with an answer, if it waits
  }

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

  // ---- the end that a shard reports

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

  /// Opens an operation that an earlier server decided.
  operation_state& adopt_operation(worker_state& worker, const messages::finish_request& request) {
    operation_state& operation = table_.open(worker, request.operation, false);
    operation.inherited = true;
    core_.move_to(operation.stage, operation_stage::decided);
    table_.set_version(operation, request.version);
    starts_.expect_all(operation);
    if (is_void(*worker.model, request.version)) core_.note_void(*worker.model);
    return operation;
  }

  /// Notes what the worker's memory holds now that a call has ended. `call`: null if that is not known.
  void settle_memory(worker_state& worker, operation_state* call, const messages::finish_request& request) {
    if (const auto found = core_.lingered.find(worker.id);
        found != core_.lingered.end() && request.result.ok() && request.operation > found->second)
      core_.lingered.erase(found);
    versions_.end_writing(worker);
    note_held(worker, request);
    drains_.end_drain_of_update(worker, {});  // the worker may have forced it while the server recovered
    await_decided(worker, call);
    if (call == nullptr && core_.policy.decides_per_group &&
        request.operation > worker.replica->closed_operation) {
      // The call failed at an earlier server: its number is not used again, and the other shards do not wait.
      worker.past.ended_well = false;
      worker.past.ended_before = worker.replica->closed_operation = request.operation;
    }
  }
  /// What a worker's memory holds after its update.
  void note_held(worker_state& worker, const messages::finish_request& request) {
    const bool is_believed =
        request.held && !request.held->open && versions_.may_have_received(worker, *request.held);
    const bool holds_old = !request.held && request.intact && worker.held;
    moves_.end_overwritten(worker, is_believed ? request.held->version
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

  /// Why the operation fails with the end that this shard reports; ok: it does not.
  [[nodiscard]] static messages::status failure_of(const worker_state& worker,
                                                   const operation_state& operation,
                                                   const messages::finish_request& request) {
    const std::string shard =
        "shard " + to_string(worker.shard) + " of replica '" + worker.replica->name + "'";
    if (!request.result.ok()) return {request.result.code, shard + " failed: " + request.result.sentence};
    if (is_void(*worker.model, request.version))
      return update_ends::withdrawn(*worker.model, request.version);
    if (!operation.has_version() || operation.version == request.version) return {};
    return {errc::group_failed, shard + " has version " + to_string(request.version) +
                                    " by the decision of an earlier server, the others are to have version " +
                                    to_string(operation.version)};
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
    starts_.go_on_with(operation, version);
    if (!starts_.resolve_ended(operation)) ends_.close_if_finished(operation);
  }
  void fail_member(worker_state& worker, operation_state& operation, member_state& member,
                   request_sequence sequence, const messages::finish_request& request,
                   const messages::status& failure) {
    const bool is_intact = !request.result.ok() && request.intact;
    core_.move_to(member.phase, is_intact ? phase::intact : phase::failed);
    core_.answer(worker, sequence,
                 messages::status_reply{request.result.ok() ? failure : messages::status{}});
    ends_.close_failed(operation, failure);
  }

  // ---- sources that have failed

  /// The reader has lost a source, or its sources have stalled. Adds to what `grow` has `found` a source that
  /// is taken from another reader, or sources that have failed this one before. False: it cannot get every
  /// chunk, and waiting would not help.
  bool find_way_on(operation_state& operation, worker_state& worker, member_state& member,
                   const messages::sources_request& request, std::vector<messages::assignment>& found) {
    const bool has_stalled = request.why == messages::sources_wanted::all_stalled;
    const auto is_lost = [&] {
      return assignments_.count_sources(worker) == 0 ||
             (has_stalled && !choosing_.leads_to_everything(worker, nullptr));
    };
    if (has_stalled) assignments_.relieve(operation, worker, member.excluded, found);
    const bool may_retry = has_stalled || request.reason == errc::source_lost ||
                           request.reason == errc::timed_out || request.reason == errc::unavailable;
    if (is_lost() && may_retry && member.retries < retries_of_one_source) {
      ++member.retries;
      member.excluded.clear();
      assignments_.grow(operation, worker, {}, &found);
    }
    return !is_lost() || starts_.may_wait(operation, worker, member);
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
    const auto& shape = worker.model->layouts[worker.shard.index];
    const bool names_chunk = request.chunk && shape && *request.chunk < shape->chunk_count();
    if (source != nullptr && request.reason == errc::corrupt && names_chunk) {
      auto& refused = source->as_source.refused;
      const version_number version = lease->second.version;
      if (!refused || refused->version != version) refused = {version, *request.chunk};
    }
    if (source != nullptr && source->as_source.offered == offer::complete)
      member.failed_whole = request.detail;
    member.excluded.push_back(failed);
    leases_.end(request.lease, &drain_state::finished);
    return is_barred;
  }

  /// Of a source that had every chunk, if one has failed: those that did not may lack chunks for that reason.
  [[nodiscard]] static const std::string& last_failure(const member_state& member,
                                                       const messages::sources_request& request) noexcept {
    const bool is_own = request.reason == errc::system_failed;  // it ends the update, with its own reason
    return is_own || member.failed_whole.empty() ? request.detail : member.failed_whole;
  }

  static constexpr std::uint32_t retries_of_one_source = 3;

  core& core_;
  versions& versions_;
  choosing& choosing_;
  drains& drains_;
  leases& leases_;
  assignments& assignments_;
  reader_moves& moves_;
  operation_table& table_;
  update_ends& ends_;
  update_starts& starts_;
  update_deadlines& deadlines_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
