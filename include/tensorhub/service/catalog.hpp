#pragma once
/// \file catalog.hpp
/// All decisions of the reference server, as a pure state machine: messages and time in, messages and log
/// lines out.
///
/// The catalog knows who holds which version in place, counts leases, decides one version per group
/// operation, chooses sources through the scheduler and declares silent workers dead. It has no thread,
/// socket or clock; service/server.hpp runs it over ZeroMQ, testing/simulation runs it in virtual time. The
/// decisions are in its parts (service/catalog/; core.hpp lists them); here are the idempotence of requests
/// and the timers.
///
/// Rules it keeps (DESIGN section 2):
///  - A lease counts from its assignment, also while it is only reserved for a shard that has not called yet.
///    An unpublish is answered when no lease is left.
///  - From the decision of an update on, the replica's own old references accept no reader. A lease is
///    therefore only ever given on a worker that reads from nobody, and leases can form no cycle.
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
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/membership.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/publishing.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/updates.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub {

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
    core().now = now;
    const incarnation from{envelope.sender};
    if (!from) return;
    if (const auto* join = std::get_if<messages::join_request>(&envelope.body))
      return parts_->membership.on_join(from, envelope.sequence, *join);
    if (const auto* list = std::get_if<messages::list_request>(&envelope.body))
      return parts_->questions.on_list(from, envelope.sequence, *list);
    if (const auto* ask = std::get_if<messages::describe_request>(&envelope.body))
      return parts_->questions.on_describe(from, envelope.sequence, *ask);
    worker_state* worker = core().find(from);
    if (worker == nullptr) return parts_->membership.say_goodbye(from);
    worker->last_heard = now;
    forget_answers(*worker, envelope.acknowledged.value);
    if (std::holds_alternative<messages::heartbeat_request>(envelope.body))
      return core().send(from, {}, messages::heartbeat_reply{core().epoch, worker->model->latest_ever});
    if (!envelope.sequence || envelope.sequence.value <= worker->acknowledged) return;
    if (worker->answers.size() >= limits::worker_requests_in_flight &&
        !worker->answers.contains(envelope.sequence.value)) {
      return core().log(log_level::warning,
                        who(*worker) + " has too many requests in flight; one was dropped");
    }
    const auto [answer, fresh] = worker->answers.try_emplace(envelope.sequence.value, std::nullopt);
    if (!fresh) {
      if (answer->second) core().send(from, envelope.sequence, *answer->second);
      return;
    }
    dispatch(*worker, envelope.sequence, envelope.body);
  }

  /// Timers: deadlines of waiting requests, silent workers, repeated cut-offs. Call at or after
  /// `next_deadline()`.
  void advance(time_point now) {
    core().now = now;
    if (now >= next_tick_) {
      next_tick_ = now + tick_interval;
      expire_waiting();
    }
    if (now >= next_check_) {
      next_check_ = now + core().options.heartbeat_interval;
      parts_->membership.declare_silent_workers_dead();
      parts_->membership.repeat_cut_offs();
    }
  }

  [[nodiscard]] time_point next_deadline() const noexcept {
    return somebody_waits() ? std::min(next_tick_, next_check_) : next_check_;
  }

  [[nodiscard]] std::vector<outgoing> take_output() { return std::exchange(core().output, {}); }
  [[nodiscard]] std::vector<log_line> take_log() { return std::exchange(core().log_lines, {}); }
  [[nodiscard]] server_epoch epoch() const noexcept { return core().epoch; }

  /// Every lease, for checks of the contract (the simulator's, and `stuck` queries).
  template <typename Visitor>
  void for_each_lease(Visitor&& visit) const {
    for (const auto& [id, lease] : core().leases) visit(lease);
  }
  [[nodiscard]] std::size_t worker_count() const noexcept { return core().workers.size(); }
  /// What is believed of a worker, for the same checks; null: not joined.
  [[nodiscard]] const catalog_detail::worker_state* record_of(incarnation worker) const {
    return core().find(worker);
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
          questions{core},
          leases{core, versions, std::move(scheduler)},
          updates{core, versions, questions, leases, operations, std::move(consistency)},
          publishing{core, versions, leases, operations, updates},
          membership{core, versions, questions, leases, operations, updates} {}
    parts(const parts&) = delete;
    parts& operator=(const parts&) = delete;

    catalog_detail::core core;
    catalog_detail::versions<Consistency> versions;
    catalog_detail::questions questions;
    catalog_detail::leases<Scheduler, Consistency> leases;
    catalog_detail::operation_table<Consistency> operations;
    catalog_detail::updates<Scheduler, Consistency> updates;
    catalog_detail::publishing<Scheduler, Consistency> publishing;
    catalog_detail::membership<Scheduler, Consistency> membership;
  };

  [[nodiscard]] catalog_detail::core& core() noexcept { return parts_->core; }
  [[nodiscard]] const catalog_detail::core& core() const noexcept { return parts_->core; }

  /// To the part that has an `on` for this request.
  void dispatch(worker_state& worker, request_sequence sequence, const messages::message& body) {
    std::visit(
        [&](const auto& request) {
          if constexpr (requires { parts_->updates.on(worker, sequence, request); }) {
            parts_->updates.on(worker, sequence, request);
          } else if constexpr (requires { parts_->publishing.on(worker, sequence, request); }) {
            parts_->publishing.on(worker, sequence, request);
          } else if constexpr (requires { parts_->membership.on(worker, sequence, request); }) {
            parts_->membership.on(worker, sequence, request);
          } else if constexpr (requires { parts_->questions.on(worker, sequence, request); }) {
            parts_->questions.on(worker, sequence, request);
          } else {
            worker.answers.erase(sequence.value);
            core().log(log_level::warning,
                       who(worker) + " sent a message that only a server sends; it was ignored");
          }
        },
        body);
  }

  /// The worker waits for none of these any more: it has their answers, or has given them up.
  static void forget_answers(worker_state& worker, std::uint64_t acknowledged) {
    if (acknowledged <= worker.acknowledged) return;
    worker.acknowledged = acknowledged;
    worker.answers.erase(worker.answers.begin(), worker.answers.upper_bound(acknowledged));
  }

  [[nodiscard]] bool somebody_waits() const noexcept {
    return parts_->operations.open_count() + parts_->questions.waiter_count() > 0;
  }
  void expire_waiting() {
    if (!somebody_waits()) return;
    for (auto& [name, model] : core().models) {
      parts_->updates.expire(model);
      parts_->questions.expire(model);
    }
  }

  std::unique_ptr<parts> parts_;
  time_point next_tick_{};
  time_point next_check_{};
};

}  // namespace tensorhub
