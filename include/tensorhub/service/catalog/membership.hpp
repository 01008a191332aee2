#pragma once
/// \file membership.hpp
/// Workers come and go: join (also to a new server, with all they hold), leave, replacement, silence.
///
/// A dead reader's lease ends when its source has confirmed the cut-off, or is gone itself.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/service/catalog/admission.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/updates.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::catalog_detail {

template <scheduler Scheduler, consistency Consistency>
class membership {
 public:
  membership(core& shared, versions<Consistency>& known, questions& asked,
             leases<Scheduler, Consistency>& given, operation_table<Consistency>& table,
             updates<Scheduler, Consistency>& running)
      : core_{shared},
        versions_{known},
        questions_{asked},
        leases_{given},
        table_{table},
        updates_{running},
        admission_{shared, Consistency::name} {}

  void on_join(incarnation from, request_sequence sequence, const messages::join_request& join) {
    if (dead_.contains(from)) return say_goodbye(from);
    messages::join_reply reply;
    reply.epoch = core_.epoch;
    reply.heartbeat_interval_ms = milliseconds(core_.options.heartbeat_interval);
    reply.worker_timeout_ms = milliseconds(core_.options.worker_timeout);
    reply.group_timeout_ms = milliseconds(core_.options.group_timeout);
    reply.result = check_place(from, join);
    if (reply.result.ok()) reply.result = admission_.check_join(join);
    if (reply.result.ok()) reply.result = admission_.check_layout(join, reply.wants_layout);
    if (reply.result.ok() && !reply.wants_layout) {
      worker_state& worker = admit(from, join);
      reply.operation = worker.replica->closed_operation;
      reply.latest = worker.model->latest_ever;
    }
    if (!reply.result.ok())
      core_.log(log_level::warning,
                "refused " + join.model + "/" + join.replica + ": " + reply.result.sentence);
    core_.send(from, sequence, std::move(reply));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::leave_request&) {
    const incarnation id = worker.id;
    core_.log(log_level::info, who(worker) + " left");
    dead_.insert(id);  // for good: a late repetition of its join must not take a successor's place
    remove(worker, {errc::group_failed, who(worker) + " left"}, true);
    core_.send(id, sequence, messages::status_reply{});
  }

  void say_goodbye(incarnation id) {
    messages::goodbye_push goodbye;
    goodbye.epoch = core_.epoch;
    goodbye.rejoin = !dead_.contains(id);
    if (!goodbye.rejoin) {
      goodbye.reason = {errc::replaced,
                        "this worker was declared dead or replaced; construct a new one to join again"};
    }
    core_.send(id, {}, std::move(goodbye));
  }

  void declare_silent_workers_dead() {
    std::vector<incarnation> silent;
    for (const auto& [id, worker] : core_.workers) {
      if (core_.now - worker->last_heard > core_.options.worker_timeout) silent.push_back(id);
    }
    std::ranges::sort(silent);
    for (const incarnation id : silent) {
      if (worker_state* worker = core_.find(id)) declare_dead(*worker, "was silent for too long", false);
    }
    for (auto& [name, model] : core_.models) {
      std::erase_if(model.replicas, [](const auto& entry) {
        return std::ranges::all_of(entry.second->workers, [](const worker_state* w) { return w == nullptr; });
      });
    }
  }

  void repeat_cut_offs() {
    for (const auto& [id, lease] : core_.leases) {
      if (lease.cutting_off) core_.send(lease.source, {}, messages::cut_off_push{lease.reader});
    }
  }

 private:
  /// An incarnation has one place for all its life.
  [[nodiscard]] messages::status check_place(incarnation from, const messages::join_request& join) const {
    const worker_state* present = core_.find(from);
    if (present == nullptr || (present->model->name == join.model && present->replica->name == join.replica &&
                               present->shard == join.shard)) {
      return {};
    }
    return {errc::invalid_argument,
            "this worker has joined already, as " + who(*present) + ": it cannot join as another one too"};
  }

  worker_state& admit(incarnation id, const messages::join_request& join) {
    model_state& model = core_.models.at(join.model);
    auto& slot = model.replicas[join.replica];
    if (!slot) {
      slot = std::make_unique<replica_state>();
      slot->name = join.replica;
      slot->model = &model;
      slot->workers.resize(model.shards);
    }
    worker_state* present = slot->workers[join.shard.index];
    if (present != nullptr && present->id != id) {
      ++model.workers;  // keeps model and replica while the old worker goes
      declare_dead(*present, "was replaced by a newer process", true);
      --model.workers;
      present = nullptr;
    }
    replica_state& replica = *model.replicas[join.replica];
    if (present == nullptr) {
      auto owned = std::make_unique<worker_state>();
      present = owned.get();
      present->id = id;
      present->model = &model;
      present->replica = &replica;
      present->shard = join.shard;
      core_.workers[id] = std::move(owned);
      replica.workers[join.shard.index] = present;
      ++model.workers;
      for (const auto& [lease, state] : core_.leases) {
        if (state.source == id) present->readers.push_back(lease);
      }
      core_.log(log_level::info, who(*present) + " joined");
    }
    worker_state& worker = *present;
    worker.place = join.place;
    worker.spot = join.spot;
    worker.transport = join.transport;
    worker.integrity = join.integrity;
    worker.address = join.address;
    worker.last_heard = core_.now;
    worker.called = worker.called || join.operation.value != 0;
    replica.closed_operation = std::max(replica.closed_operation, join.operation);
    if (join.reading) leases_.adopt(worker, *join.reading);
    if (join.held && !worker.held) versions_.hold(worker, *join.held, false);
    updates_.refresh(replica);
    return worker;
  }

  void declare_dead(worker_state& worker, std::string_view why, bool replaced) {
    const std::string sentence = who(worker) + " " + std::string{why};
    core_.log(log_level::warning, sentence);
    dead_.insert(worker.id);
    const incarnation id = worker.id;
    remove(worker, {errc::group_failed, sentence}, false);
    messages::goodbye_push goodbye;
    goodbye.epoch = core_.epoch;
    goodbye.reason = {errc::replaced, replaced
                                          ? "a newer process has taken this worker's place"
                                          : "the server did not hear from this worker and declared it dead; "
                                            "construct a new one to join again"};
    core_.send(id, {}, std::move(goodbye));
  }

  /// Takes a worker out of everything. `gone_politely`: it has said itself that it reads nothing any more.
  void remove(worker_state& worker, const messages::status& reason, bool gone_politely) {
    for (const lease_id id : std::vector<lease_id>{worker.reading}) {
      lease_state& lease = core_.leases.at(id);
      if (gone_politely || lease.reserved || core_.find(lease.source) == nullptr) {
        leases_.end(id, &drain_state::finished);
      } else {
        lease.cutting_off = true;
        core_.send(lease.source, {}, messages::cut_off_push{lease.reader});
      }
    }
    worker.reading.clear();
    worker.withdrawn = true;
    versions_.reindex(worker);
    for (const lease_id id : std::vector<lease_id>{worker.readers}) {
      leases_.move_reader(worker, id);
      if (core_.leases.contains(id)) leases_.end(id, &drain_state::moved);
    }
    versions_.drop(worker);
    replica_state& replica = *worker.replica;
    model_state& model = *worker.model;
    for (auto& [key, operation] : replica.operations) {
      if (operation.closed || operation.is_publish) continue;
      const member_state* member = member_of(operation, worker.shard.index);
      if (member != nullptr && (operation.decided || member->phase != phase::absent))
        updates_.close_failed(operation, reason);
    }
    replica.workers[worker.shard.index] = nullptr;
    updates_.refresh(replica);
    core_.workers.erase(worker.id);
    --model.workers;
    if (std::ranges::all_of(replica.workers, [](const worker_state* w) { return w == nullptr; })) {
      for (auto& [key, operation] : replica.operations) {
        if (!operation.closed) table_.close(operation);
      }
    }
    if (model.workers == 0) {
      questions_.forget(model);
      core_.models.erase(std::string{model.name});
    }
  }

  [[nodiscard]] static std::uint32_t milliseconds(std::chrono::milliseconds value) noexcept {
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value.count(), 0, UINT32_MAX));
  }

  core& core_;
  versions<Consistency>& versions_;
  questions& questions_;
  leases<Scheduler, Consistency>& leases_;
  operation_table<Consistency>& table_;
  updates<Scheduler, Consistency>& updates_;
  admission admission_;
  dead_list dead_;
};

}  // namespace tensorhub::catalog_detail
