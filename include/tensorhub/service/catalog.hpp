#pragma once
/// \file catalog.hpp
/// All decisions of the reference server, as a pure state machine: messages and time in, messages and log
/// lines out.
///
/// The catalog knows who holds which version in place, counts leases, decides one version per group
/// operation, chooses sources through the scheduler and declares silent workers dead. It has no thread,
/// socket or clock; server.hpp runs it over ZeroMQ, tests/support/simulation runs it in virtual time. The
/// decisions are in its parts (service/catalog/; core.hpp lists them); here are the idempotence of requests
/// and the timers.
///
/// Rules it keeps (DESIGN section 2):
///  - A lease counts from its assignment, also while it is only reserved for a shard that has not called yet.
///    An unpublish is answered when no lease is left.
///  - From the decision of an update on, the replica's own old references accept no reader. What its shards
///    receive may be read at once.
///  - Upstreams (the first source of each reader) form no cycle, and end at a worker that has everything.
///  - Nobody has more readers than the scheduler's credits; one reader at most per datacenter, version and
///    shard reads from another datacenter.
///  - A dead reader's lease ends when its source has confirmed the cut-off, or is gone itself.
///  - Under a policy that completes per group, a replica serves a version only when all its shards hold it;
///    after a failed update that changed bytes it is torn and serves nothing until all its shards hold one
///    version again.
///
/// Thread safety: none; one thread at a time. Bad input never throws; it is answered with a status or ignored
/// with a log line.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/membership.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/publishing.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/stuck.hpp"
#include "tensorhub/service/catalog/updates.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent>
class catalog {
 public:
  catalog(catalog_options options, server_epoch epoch,
          Scheduler scheduler = Scheduler{typename Scheduler::options{}},
          Consistency consistency = Consistency{typename Consistency::options{}})
      : parts_{std::make_unique<parts>(std::move(options), epoch, std::move(scheduler),
                                       std::move(consistency))} {}

  /// Any message of any worker; never throws on what it says.
  void receive(time_point now, const messages::envelope& envelope) {
    core().begin(now);
    take_in(envelope);
    retry_handovers();
  }

  /// Timers: deadlines of waiting requests, silent workers, repeated cut-offs. Call at or after
  /// `next_deadline()`.
  void advance(time_point now) {
    core().begin(now);
    if (!recovered_ && !core().recovering()) {
      recovered_ = true;
      parts_->membership.end_recovery();
    }
    if (now >= next_tick_) {
      next_tick_ = now + tick_interval;
      expire_waiting();
    }
    if (now >= next_check_) {
      next_check_ = now + core().options.heartbeat_interval;
      parts_->membership.declare_silent_workers_dead();
      parts_->membership.repeat_cut_offs();
      for (auto& [name, model] : core().models) {
        if (model.keeps.revision > 0) parts_->retention.look_after(model);
      }
    }
    retry_handovers();
  }

  [[nodiscard]] time_point next_deadline() const noexcept {
    const time_point next = recovered_ ? next_check_ : std::min(next_check_, core().recovers_until);
    return somebody_waits() ? std::min(next_tick_, next) : next;
  }

  /// The shell could not send to this worker: its connection is gone, at least for the moment.
  void unreachable(time_point now, incarnation worker) {
    core().begin(now);
    parts_->membership.on_unreachable(worker);
    retry_handovers();
  }

  [[nodiscard]] std::vector<outgoing> take_output() { return std::exchange(core().output, {}); }
  [[nodiscard]] std::vector<log_line> take_log() { return std::exchange(core().log_lines, {}); }
  [[nodiscard]] server_epoch epoch() const noexcept { return core().epoch; }
  /// Of the scheduler.
  [[nodiscard]] source_limits limits() const noexcept { return parts_->leases.limits(); }

  /// Every lease, for checks of the contract (the simulator's, and `stuck` queries).
  template <typename Visitor>
  void for_each_lease(Visitor&& visit) const {
    for (const lease_id id : core().leases_in_order()) visit(core().leases.at(id));
  }
  /// What has been counted so far, and what there is now.
  [[nodiscard]] catalog_statistics statistics() const {
    catalog_statistics out = core().counted.seen;
    out.workers = core().workers.size();
    out.models = core().models.size();
    for (const auto& [name, model] : core().models) out.replicas += model.replicas.size();
    out.leases = core().leases.size();
    out.operations = parts_->operations.open_count();
    out.cut_offs = core().cut_offs.size();
    return out;
  }
  [[nodiscard]] std::size_t worker_count() const noexcept { return core().workers.size(); }
  /// What is believed of a worker, for the same checks; null: not joined.
  [[nodiscard]] const catalog_detail::worker_state* record_of(incarnation worker) const {
    return core().find(worker);
  }
  /// The same of a model; null: none of its workers has joined.
  [[nodiscard]] const catalog_detail::model_state* record_of_model(const std::string& name) const {
    const auto found = core().models.find(name);
    return found == core().models.end() ? nullptr : &found->second;
  }
  /// Whether the workers have asked that this version of a model is not lost.
  [[nodiscard]] bool retains(const std::string& model, version_number version) const {
    const auto found = core().models.find(model);
    return found != core().models.end() && parts_->retention.is_retained(found->second, version);
  }
  /// ... and nobody has it any more, or its last holder could hand it over to nobody.
  [[nodiscard]] bool has_lost(const std::string& model, version_number version) const {
    const auto found = core().models.find(model);
    return found != core().models.end() && parts_->retention.is_lost(found->second, version);
  }
  /// Joined, and neither left nor declared dead.
  [[nodiscard]] bool knows(incarnation worker) const { return core().workers.contains(worker); }

 private:
  using worker_state = catalog_detail::worker_state;

  static constexpr std::chrono::milliseconds tick_interval{20};

  /// The parts refer to each other: they stay where they are when the catalog is moved.
  struct parts {
    parts(catalog_options options, server_epoch epoch, Scheduler scheduler, Consistency consistency)
        : core{std::move(options), epoch},
          versions{core},
          retention{core, versions},
          questions{core},
          stuck{core},
          leases{core, versions, std::move(scheduler)},
          updates{core, versions, retention, questions, leases, operations, std::move(consistency)},
          publishing{core, versions, retention, leases, operations, updates},
          membership{core, versions, retention, questions, leases, operations, updates} {}
    parts(const parts&) = delete;
    parts& operator=(const parts&) = delete;

    catalog_detail::core core;
    catalog_detail::versions<Consistency> versions;
    catalog_detail::retention<Consistency> retention;
    catalog_detail::questions questions;
    catalog_detail::stuck stuck;
    catalog_detail::leases<Scheduler, Consistency> leases;
    catalog_detail::operation_table<Consistency> operations;
    catalog_detail::updates<Scheduler, Consistency> updates;
    catalog_detail::publishing<Scheduler, Consistency> publishing;
    catalog_detail::membership<Scheduler, Consistency> membership;
  };

  [[nodiscard]] catalog_detail::core& core() noexcept { return parts_->core; }
  [[nodiscard]] const catalog_detail::core& core() const noexcept { return parts_->core; }

  void take_in(const messages::envelope& envelope) {
    const incarnation from{envelope.sender};
    if (!from) return;
    if (const auto* join = std::get_if<messages::join_request>(&envelope.body)) {
      parts_->membership.on_join(from, envelope.sequence, *join);
      // What an earlier server has answered may still come, late: it is not to be done again.
      if (worker_state* joined = core().find(from)) forget_answers(*joined, envelope.acknowledged.value);
      return;
    }
    if (const auto* list = std::get_if<messages::list_request>(&envelope.body))
      return parts_->questions.on_list(from, envelope.sequence, *list);
    if (const auto* ask = std::get_if<messages::describe_request>(&envelope.body))
      return parts_->questions.on_describe(from, envelope.sequence, *ask);
    if (const auto* ask = std::get_if<messages::why_request>(&envelope.body))
      return parts_->questions.on_why(from, envelope.sequence, *ask);
    if (const auto* ask = std::get_if<messages::stuck_request>(&envelope.body))
      return parts_->stuck.on_stuck(from, envelope.sequence, *ask);
    worker_state* worker = core().find(from);
    if (worker == nullptr) return parts_->membership.say_goodbye(from);
    worker->last_heard = core().now;
    worker->suspect = worker->unreachable = false;
    forget_answers(*worker, envelope.acknowledged.value);
    if (const auto* beat = std::get_if<messages::heartbeat_request>(&envelope.body)) {
      if (beat->retention < worker->model->keeps.revision)
        core().send(from, {}, messages::retention_push{worker->model->keeps});
      if (beat->chunks > worker->most_chunks) worker->progressed = core().now;
      worker->most_chunks = std::max(worker->most_chunks, beat->chunks);
      worker->chunks_received = beat->chunks;
      return core().send(from, {}, core().beat_for(*worker->model));
    }
    if (!envelope.sequence || envelope.sequence.value <= worker->acknowledged) return;
    if (worker->answers.size() >= limits::worker_requests_in_flight &&
        !worker->answers.contains(envelope.sequence.value)) {
      return core().log(log_level::warning,
                        who(*worker) + " has too many requests in flight; one was dropped", about(*worker));
    }
    const auto [answer, fresh] = worker->answers.try_emplace(envelope.sequence.value);
    if (!fresh) {
      if (answer->second.message) core().send(from, envelope.sequence, *answer->second.message);
      return;
    }
    answer->second.asked = core().now;
    core().counted.asked(*worker, answer->second, envelope.body);
    dispatch(*worker, envelope.sequence, envelope.body);
    parts_->membership.confirm_verdicts();
  }

  /// To the part that has an `on` for this request.
  void dispatch(worker_state& worker, request_sequence sequence, const messages::message& body) {
    std::visit([&](const auto& request) { give(worker, sequence, request); }, body);
  }
  template <typename Request>
  void give(worker_state& worker, request_sequence sequence, const Request& request) {
    if constexpr (requires { parts_->updates.on(worker, sequence, request); }) {
      parts_->updates.on(worker, sequence, request);
    } else if constexpr (requires { parts_->publishing.on(worker, sequence, request); }) {
      parts_->publishing.on(worker, sequence, request);
    } else if constexpr (requires { parts_->membership.on(worker, sequence, request); }) {
      parts_->membership.on(worker, sequence, request);
    } else if constexpr (requires { parts_->retention.on(worker, sequence, request); }) {
      parts_->retention.on(worker, sequence, request);
    } else if constexpr (requires { parts_->questions.on(worker, sequence, request); }) {
      parts_->questions.on(worker, sequence, request);
    } else {
      worker.answers.erase(sequence.value);
      core().log(log_level::warning, who(worker) + " sent a message that only a server sends; it was ignored",
                 about(worker));
    }
  }

  /// The worker waits for none of these any more: it has their answers, or has given them up.
  static void forget_answers(worker_state& worker, std::uint64_t acknowledged) {
    if (acknowledged <= worker.acknowledged) return;
    worker.acknowledged = acknowledged;
    worker.answers.erase(worker.answers.begin(), worker.answers.upper_bound(acknowledged));
  }

  /// Who waits to let go of a retained version is asked again.
  void retry_handovers() {
    for (int rounds = 0; core().retention_changed && rounds < 4; ++rounds) {
      core().retention_changed = false;
      for (auto& [name, model] : core().models) {
        if (model.keeps.revision > 0) parts_->retention.look_after(model);
        if (!std::exchange(model.waits_to_let_go, false)) continue;
        parts_->publishing.retry_parked(model);
        parts_->updates.retry_all(model);
      }
    }
  }

  [[nodiscard]] bool somebody_waits() const noexcept {
    return parts_->operations.open_count() + parts_->questions.waiter_count() + core().suspects.size() > 0;
  }
  void expire_waiting() {
    if (!somebody_waits()) return;
    parts_->membership.judge_suspects();
    for (auto& [name, model] : core().models) {
      parts_->updates.expire(model);
      parts_->questions.expire(model);
    }
  }

  std::unique_ptr<parts> parts_;
  time_point next_tick_{};
  time_point next_check_{};
  bool recovered_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
