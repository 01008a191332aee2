#pragma once
/// \file operation_table.hpp
/// Maps the calls of a replica's shards to operations. An operation is opened by the first shard that calls,
/// closed once, and remembered for a while so that late shards learn how it ended.
///
/// All shards number their calls, and calls with the same number belong to the same operation. A replacement
/// process does not know the group's call number. It guesses (`count`) and may be one call ahead or behind,
/// so that every operation of the group would fail. If two consecutive calls turn out to be out of step, or
/// the worker has ended the operation under another number, it is renumbered.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class operation_table {
 public:
  explicit operation_table(core& core) : core_{core}, policy_{core.policy} {}

  /// Returns the number of a worker's call. The shards of a group number their calls alike from their start.
  /// A replacement process does not know the number, so its first call joins the operation that waits for its
  /// shard, or opens the next one. `asked` is zero until the worker has learned the number; `wanted` is what
  /// an update asks for.
  [[nodiscard]] operation_counter count(worker_state& worker, operation_counter asked,
                                        std::optional<version_number> publishes,
                                        const version_selector& wanted = {}) {
    replica_state& replica = *worker.replica;
    const bool counted = std::exchange(worker.past.called, true) || !policy_.decides_per_group;
    if (publishes && policy_.decides_per_group) {
      if (const auto same = waiting_call(worker, publishes)) return same;
    }
    if (counted && asked && !is_out_of_step(worker, asked, wanted) && !has_skipped(worker, asked, publishes))
      return asked;
    // The other shards may have published this version to an earlier server, without this shard.
    const bool may_be_ended = publishes && *publishes == replica.model->before.latest && !asked &&
                              replica.closed_operation && replica.operations.empty();
    if (may_be_ended) return replica.closed_operation;
    if (const auto waiting = waiting_call(worker, publishes)) return waiting;
    operation_counter last = replica.closed_operation;
    if (!replica.operations.empty()) last = std::max(last, replica.operations.rbegin()->second.counter);
    return std::max(asked, operation_counter{last.value + 1});
  }

  /// The last operation of the replica, if it has failed before this worker, which is new, could call it, and
  /// a worker of another shard knows so; null: there is none. Those others will repeat the call, or may have
  /// gone on already. Pre-condition: `count` was not called for this call.
  [[nodiscard]] const operation_state* failed_without(const worker_state& worker) const {
    const replica_state& replica = *worker.replica;
    if (worker.past.called || !policy_.decides_per_group || replica.operations.empty()) return nullptr;
    const operation_state& last = replica.operations.rbegin()->second;
    if (!last.is_closed() || last.failure.ok() || last.is_publish) return nullptr;
    if (core_.now - last.closed_at > core_.options.group_timeout) return nullptr;
    const bool is_known = detail::any_of(replica.workers, [&worker](const worker_state* each) {
      return each != nullptr && each != &worker && each->past.called;
    });
    return is_known ? &last : nullptr;
  }

  /// This worker has called an update, and has not reported its end or heard that the server knows it.
  /// A correct worker makes no other call before that (outbox.hpp).
  [[nodiscard]] bool is_in_update(const worker_state& worker) const {
    for (operation_state* operation : worker.replica->open) {
      const member_state* member = member_of(*operation, worker.shard.index);
      if (operation->is_publish || member == nullptr) continue;
      if (member->phase == phase::waiting || member->phase == phase::assigned) return true;
      const bool is_confirmed = !policy_.completes_per_group || !member->called;
      if (member->phase == phase::finished && !is_confirmed) return true;
    }
    return false;
  }

  /// Fails if so many calls of this worker, or updates of its replica, have not ended that somebody is faulty
  /// or malicious.
  [[nodiscard]] messages::status room_for(const worker_state& worker, operation_counter next) const {
    const std::uint32_t shard = worker.shard.index;
    std::size_t calls = 0;
    std::size_t updates = 0;  // each keeps a list of all shards
    for (operation_state* operation : worker.replica->open) {
      calls += operation->is_of(shard) && operation->has_called(shard) ? 1 : 0;
      updates += operation->only_shard || operation->is_publish ? 0 : 1;
    }
    const bool is_there = find_operation(*worker.replica, next, shard) != nullptr;
    if (calls >= limits::open_calls) return too_many(who(worker), "calls");
    if (is_there || updates < limits::open_calls) return {};
    return too_many("replica " + worker.model->name + "/" + worker.replica->name, "updates");
  }

  operation_state& open(worker_state& worker, operation_counter counter, bool is_publish) {
    replica_state& replica = *worker.replica;
    const std::uint32_t scope = policy_.decides_per_group ? all_shards : worker.shard.index;
    const auto [position, fresh] = replica.operations.try_emplace({counter.value, scope});
    operation_state& operation = position->second;
    if (!fresh) return operation;
    operation.counter = counter;
    operation.replica = &replica;
    operation.is_publish = is_publish;
    if (!policy_.decides_per_group) operation.only_shard = worker.shard.index;
    const std::size_t count = policy_.decides_per_group ? replica.workers.size() : 1;
    operation.serial = ++last_serial_;
    const auto is_before = [](const auto& key, const operation_state* other) { return key < other->key(); };
    try {
      is_publish ? operation.callers.resize(count) : operation.members.resize(count);
      replica.open.insert(
          std::upper_bound(replica.open.begin(), replica.open.end(), operation.key(), is_before), &operation);
      replica.model->operations.all.emplace(operation.serial, &operation);
    } catch (...) {
      std::erase(replica.open, &operation);
      replica.operations.erase(position);
      throw;
    }
    ++open_count_;
    forget_old(replica, counter);
    return operation;
  }

  /// Sets the version that the operation is about.
  static void set_version(operation_state& operation, version_number version) {
    if (!operation.is_closed()) stop_using(operation);
    operation.version = version;
    if (!operation.is_closed() && version) ++operation.replica->model->operations.users[version];
  }

  void close(operation_state& operation) {
    stop_using(operation);
    const bool is_decided = operation.is_decided() || (operation.failure.ok() && operation.is_finished());
    core_.move_to(operation.stage, !is_decided              ? operation_stage::abandoned
                                   : operation.failure.ok() ? operation_stage::ended
                                                            : operation_stage::failed);
    operation.closed_at = core_.now;
    replica_state& replica = *operation.replica;
    replica.closed_operation = std::max(replica.closed_operation, operation.counter);
    leave_lists(operation);
    const auto version = replica.model->versions.find(operation.version);
    if (version != replica.model->versions.end() && version->second.complete_replicas == 0)
      core_.mark_calls(*replica.model);  // they may have waited for it to arrive here
  }

  /// Undoes `open`: the next call opens an operation of the same number. Pre-condition: it is undecided.
  void cancel(operation_state& operation) {
    replica_state& replica = *operation.replica;
    stop_using(operation);
    leave_lists(operation);
    replica.operations.erase(operation.key());
  }

  // ---- operations that wait for a free credit

  /// The operation waits behind the others that do, unless it does so already.
  static void starve(operation_state& operation) {
    if (operation.starved != 0) return;
    auto& starved = operation.replica->model->operations.starved;
    operation.starved = starved.empty() ? 1 : starved.rbegin()->first + 1;
    starved.emplace(operation.starved, &operation);
  }
  static void end_starving(operation_state& operation) {
    if (operation.starved == 0) return;
    operation.replica->model->operations.starved.erase(std::exchange(operation.starved, 0));
  }

  // ---- deadlines

  /// `take_due` returns the operation at this time, or earlier.
  void look_at(operation_state& operation, time_point at) {
    if (operation.is_closed() || at >= operation.looked_at) return;
    deadlines_.emplace(std::pair{at, operation.serial}, &operation);
    deadlines_.erase({operation.looked_at, operation.serial});
    operation.looked_at = at;
  }
  /// An open operation whose deadlines are to be examined now; null: none. Each is returned once per
  /// `look_at`.
  [[nodiscard]] operation_state* take_due(time_point now) {
    if (deadlines_.empty() || deadlines_.begin()->first.first > now) return nullptr;
    operation_state* const operation = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    operation->looked_at = time_point::never();
    return operation;
  }

  [[nodiscard]] std::size_t open_count() const noexcept { return open_count_; }

 private:
  [[nodiscard]] static messages::status too_many(const std::string& of_whom, const std::string& what) {
    return {errc::limit_exceeded, of_whom + " has " + std::to_string(limits::open_calls) + " " + what +
                                      " that not all shards have ended: all shards must make the same calls"};
  }
  void leave_lists(operation_state& operation) {
    --open_count_;
    std::erase(operation.replica->open, &operation);
    operation.replica->model->operations.all.erase(operation.serial);
    end_starving(operation);
    deadlines_.erase({operation.looked_at, operation.serial});
  }
  /// Pre-condition: the operation is open.
  static void stop_using(const operation_state& operation) {
    auto& users = operation.replica->model->operations.users;
    const auto found = users.find(operation.version);
    if (found != users.end() && --found->second == 0) users.erase(found);
  }
  [[nodiscard]] bool is_out_of_step(worker_state& worker, operation_counter asked,
                                    const version_selector& wanted) const {
    replica_state& replica = *worker.replica;
    operation_state* operation = find_operation(replica, asked, worker.shard.index);
    if (operation == nullptr) {
      const bool is_repeated =
          asked.value == worker.past.ended_before.value + 1;  // an earlier server did not answer this call
      return policy_.decides_per_group && asked <= replica.closed_operation && !is_repeated;
    }
    if (!operation->is_closed()) return false;
    if (operation->has_called(worker.shard.index))
      return true;  // the worker has ended it under another number
    if (operation->failure.ok())
      return !worker.still_has(operation->version) || !accepts(wanted, operation->version);
    // A call that arrives just after a failure is still in step. The call counts as missed only if the
    // operation was decided or is more than one behind.
    const bool left_behind = operation->is_decided() || replica.closed_operation.value > asked.value + 1;
    return std::exchange(worker.past.missed, left_behind) && left_behind;
  }
  /// The number of the open operation that waits for this worker's call: a publish of this version, or an
  /// update, whatever number the worker sent; zero: none.
  [[nodiscard]] static operation_counter waiting_call(const worker_state& worker,
                                                      std::optional<version_number> publishes) {
    for (operation_state* operation : worker.replica->open) {
      const std::uint32_t shard = worker.shard.index;
      const bool waits = operation->is_of(shard) && !operation->has_called(shard);
      const bool fits =
          operation->is_publish == publishes.has_value() && (!publishes || operation->version == *publishes);
      if (waits && fits) return operation->counter;
    }
    return {};
  }
  /// A worker publishes a later version than the other shards have done under this number. Either it has
  /// missed one of their calls (it comes from an earlier server), or it has published their version under
  /// another number, or it has failed to publish that version, which the others have let go of.
  [[nodiscard]] bool has_skipped(const worker_state& worker, operation_counter asked,
                                 std::optional<version_number> publishes) const {
    if (!publishes) return false;
    const operation_state* operation = find_operation(*worker.replica, asked, worker.shard.index);
    if (operation == nullptr || !operation->is_publish || operation->version >= *publishes) return false;
    return worker.past.ended_before || worker.past.published >= operation->version ||
           is_let_go(*worker.replica, operation->version);
  }
  [[nodiscard]] bool is_let_go(const replica_state& replica, version_number version) const {
    return !core_.recovering(*replica.model) &&
           detail::none_of(replica.workers, [version](const worker_state* each) {
             return each != nullptr && each->held && each->held->version == version;
           });
  }
  void forget_old(replica_state& replica, operation_counter newest) {
    if (policy_.decides_per_group) {
      for (auto at = replica.operations.rbegin(); at != replica.operations.rend(); ++at) {
        if (!at->second.is_closed() || at->second.is_publish) continue;  // these have none
        if (at->second.members.empty()) break;  // those before it have none either, or will be erased soon
        at->second.forget_members();
      }
    }
    while (!replica.operations.empty()) {
      operation_state& oldest = replica.operations.begin()->second;
      if (oldest.counter >= newest) break;
      if (newest.value - oldest.counter.value <= operations_remembered) break;
      if (!oldest.is_closed() && !oldest.is_publish) break;
      if (!oldest.is_closed()) close(oldest);
      replica.operations.erase(replica.operations.begin());
    }
    // A worker that numbers its calls downwards, or in leaps, must not grow this table.
    const std::size_t most =
        4 * operations_remembered * (policy_.decides_per_group ? 1 : replica.workers.size());
    for (auto at = replica.operations.begin();
         replica.operations.size() > most && at != replica.operations.end();)
      at = at->second.is_closed() ? replica.operations.erase(at) : std::next(at);
  }

  static constexpr std::uint64_t operations_remembered = 16;

  core& core_;
  const consistency_traits& policy_;
  std::size_t open_count_ = 0;
  std::uint64_t last_serial_ = 0;
  /// By the time at which an operation is looked at next, and its serial number.
  std::map<std::pair<time_point, std::uint64_t>, operation_state*> deadlines_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
