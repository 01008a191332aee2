#pragma once
/// \file update_ends.hpp
/// How an update ends: once, for all shards of its replica, and the same for each.
///
///     decided --finish_request of all--> ended         undecided --time-out--> abandoned
///             --a shard failed---------> failed, and the replica is torn if bytes of a shard have changed

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/drains.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/reader_moves.hpp"
#include "tensorhub/service/catalog/update_replies.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// Decided, for this version, and not ended.
[[nodiscard]] inline bool is_update_to(const operation_state& operation, version_number version) {
  return operation.stage == operation_stage::decided && !operation.is_publish && operation.version == version;
}

class update_ends {
 public:
  update_ends(core& core, versions& versions, drains& drains, leases& leases, reader_moves& moves,
              operation_table& operations)
      : core_{core},
        versions_{versions},
        drains_{drains},
        leases_{leases},
        moves_{moves},
        table_{operations} {}

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

  /// All shards hold this version already.
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

  /// With success, once all shards have finished.
  void close_if_finished(operation_state& operation) {
    if (operation.is_closed() || !operation.is_finished()) return;
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

  // ---- causes of failures

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

  /// Why an update to a void version fails.
  [[nodiscard]] static messages::status withdrawn(const model_state& model, version_number version) {
    return {errc::unavailable, "version " + to_string(version) + " of model '" + model.name +
                                   "' was withdrawn: its trainer has rolled the model back"};
  }

 private:
  /// Of an operation that has failed for this reason.
  void end_member(const operation_state& operation, worker_state& worker, member_state& member,
                  const messages::status& reason) {
    if (worker.holding == holding::pending) core_.move_to(worker.holding, holding::whole);
    drains_.end_drain_of_update(worker, reason);
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
      moves_.abandon(worker, id, &drain_state::cut_off);
      // The worker may have received every chunk and keep the version, and its readers may read on.
      worker.past.has_old_keys = true;
    }
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

  core& core_;
  versions& versions_;
  drains& drains_;
  leases& leases_;
  reader_moves& moves_;
  operation_table& table_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
