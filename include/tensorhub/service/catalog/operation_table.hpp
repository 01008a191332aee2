#pragma once
/// \file operation_table.hpp
/// Which call of a replica's shards is which operation: opened by the first shard that calls, closed once,
/// and remembered for a while so that late shards hear how it ended.
///
/// All shards count their calls, and the same number is the same operation. A process that takes a dead one's
/// place has to guess (`count`), and may be one call ahead or behind then: each operation would fail for want
/// of a shard that takes part in another. So whoever finds twice in a row that the others have gone on
/// without it, or has ended the operation under another number, is counted anew.

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/core.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class operation_table {
 public:
  /// `policy` is borrowed.
  explicit operation_table(const consistency_traits& policy) : policy_{policy} {}

  /// The number of a worker's call. Shards count alike from their start; a process that has taken a dead
  /// one's place does not know how far the others have counted, so its first call is the operation that waits
  /// for its shard, or the next. `asked` is zero as long as it has not heard that number.
  [[nodiscard]] operation_counter count(worker_state& worker, operation_counter asked,
                                        std::optional<version_number> publishes) {
    replica_state& replica = *worker.replica;
    const bool counted = std::exchange(worker.called, true) || !policy_.decides_per_group;
    if (const auto same = waits_for_publish(worker, publishes)) return same;
    if (counted && asked && !is_out_of_step(worker, asked) && !has_skipped(worker, asked, publishes))
      return asked;
    // The others may have published this with an earlier server, without this shard.
    const bool may_be_ended = publishes && *publishes == replica.model->latest_told && !asked &&
                              replica.closed_operation && replica.operations.empty();
    if (may_be_ended) return replica.closed_operation;
    operation_counter next = std::max(asked, operation_counter{replica.closed_operation.value + 1});
    for (auto& [key, operation] : replica.operations) {
      const member_state* member = member_of(operation, worker.shard.index);
      const bool waits = !operation.closed && member != nullptr && member->phase == phase::absent;
      const bool fits =
          operation.is_publish == publishes.has_value() && (!publishes || operation.version == *publishes);
      if (waits && fits) return operation.counter;
      next = std::max(next, operation_counter{operation.counter.value + 1});
    }
    return next;
  }

  /// This worker has called an update whose end it has not reported, or has not been confirmed to it. It does
  /// not make another call before that (outbox.hpp).
  [[nodiscard]] bool is_in_update(const worker_state& worker) const {
    for (auto& [key, operation] : worker.replica->operations) {
      const member_state* member = member_of(operation, worker.shard.index);
      if (operation.closed || operation.is_publish || member == nullptr) continue;
      if (member->phase == phase::waiting || member->phase == phase::assigned) return true;
      const bool is_confirmed = !policy_.completes_per_group || !member->called;
      if (member->phase == phase::finished && !is_confirmed) return true;
    }
    return false;
  }

  /// False: this worker has called so often without an end that it has gone wild, or means harm.
  [[nodiscard]] static bool has_room(const worker_state& worker) {
    std::size_t open_calls = 0;
    for (auto& [key, operation] : worker.replica->operations) {
      if (operation.closed) continue;
      const member_state* member = member_of(operation, worker.shard.index);
      open_calls += member != nullptr && member->phase != phase::absent ? 1 : 0;
    }
    return open_calls < limits::open_calls;
  }
  [[nodiscard]] static messages::status no_room() {
    return {errc::limit_exceeded, "this worker has " + std::to_string(limits::open_calls) +
                                      " calls open that its replica has not ended: wait for their ends"};
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
    operation.members.resize(policy_.decides_per_group ? replica.workers.size() : 1);
    replica.model->open_operations.push_back(&operation);
    ++open_count_;
    forget_old(replica, counter);
    return operation;
  }

  void close(operation_state& operation) {
    operation.closed = true;
    --open_count_;
    replica_state& replica = *operation.replica;
    replica.closed_operation = std::max(replica.closed_operation, operation.counter);
    std::erase(replica.model->open_operations, &operation);
    if (std::exchange(operation.starved, false)) std::erase(replica.model->starved, &operation);
  }

  [[nodiscard]] std::size_t open_count() const noexcept { return open_count_; }

 private:
  [[nodiscard]] bool is_out_of_step(worker_state& worker, operation_counter asked) const {
    replica_state& replica = *worker.replica;
    operation_state* operation = find_operation(replica, asked, worker.shard.index);
    if (operation == nullptr) {
      const bool is_repeated =
          asked.value == worker.ended_before.value + 1;  // an earlier server did not answer
      return policy_.decides_per_group && asked <= replica.closed_operation && !is_repeated;
    }
    if (!operation->closed) return false;
    if (member_of(*operation, worker.shard.index)->phase != phase::absent)
      return true;  // under another number
    if (operation->failure.ok()) return !(worker.holds() && worker.held->version == operation->version);
    // Who calls a moment after a failure is in step: only what had waited for it, or is long over, counts.
    const bool left_behind = operation->decided || replica.closed_operation.value > asked.value + 1;
    return std::exchange(worker.missed, left_behind) && left_behind;
  }
  /// The others' call that publishes the same version, whatever this worker has counted; zero: none.
  [[nodiscard]] operation_counter waits_for_publish(const worker_state& worker,
                                                    std::optional<version_number> publishes) const {
    if (!publishes || !policy_.decides_per_group) return {};
    for (auto& [key, operation] : worker.replica->operations) {
      const member_state* member = member_of(operation, worker.shard.index);
      if (operation.is_publish && !operation.closed && operation.version == *publishes &&
          member->phase == phase::absent)
        return operation.counter;
    }
    return {};
  }
  /// A worker publishes a later version than the others do under this number. If it has seen a server's end
  /// it has missed a call of theirs; if it has published their version it has counted that call otherwise.
  [[nodiscard]] bool has_skipped(const worker_state& worker, operation_counter asked,
                                 std::optional<version_number> publishes) const {
    if (!publishes) return false;
    const operation_state* operation = find_operation(*worker.replica, asked, worker.shard.index);
    if (operation == nullptr || !operation->is_publish || operation->version >= *publishes) return false;
    return worker.ended_before || worker.published >= operation->version;
  }
  void forget_old(replica_state& replica, operation_counter newest) {
    while (!replica.operations.empty()) {
      operation_state& oldest = replica.operations.begin()->second;
      if (oldest.counter >= newest) break;
      if (newest.value - oldest.counter.value <= operations_remembered) break;
      if (!oldest.closed && !oldest.is_publish) break;
      if (!oldest.closed) close(oldest);
      replica.operations.erase(replica.operations.begin());
    }
    // Whoever counts downwards, or in leaps, is not remembered any longer for that.
    const std::size_t most =
        4 * operations_remembered * (policy_.decides_per_group ? 1 : replica.workers.size());
    for (auto at = replica.operations.begin();
         replica.operations.size() > most && at != replica.operations.end();)
      at = at->second.closed ? replica.operations.erase(at) : std::next(at);
  }

  static constexpr std::uint64_t operations_remembered = 16;

  const consistency_traits& policy_;
  std::size_t open_count_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
