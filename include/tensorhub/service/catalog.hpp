#pragma once
/// \file catalog.hpp
/// All decisions of the reference server, as a pure state machine: messages and time in, messages and log
/// lines out.
///
/// The catalog knows who holds which version in place, counts leases, decides one version per group
/// operation, chooses sources through the scheduler and declares silent workers dead. It has no thread,
/// socket or clock; service/server.hpp runs it over ZeroMQ, testing/simulation runs it in virtual time.
///
/// Rules it keeps (DESIGN section 2):
///  - A lease counts from its assignment, also while it is only reserved for a shard that has not called yet.
///  An unpublish is
///    answered when no lease is left.
///  - From the decision of an update on, the replica's own old references accept no reader. A lease is
///  therefore only ever
///    given on a worker that reads from nobody, and leases can form no cycle.
///  - A dead reader's lease ends when its source has confirmed the cut-off, or is gone itself.
///  - Under a policy that completes per group, a replica serves a version only when all its shards hold it;
///  after a failed
///    update that changed bytes it is torn and serves nothing until all its shards hold one version again.
///
/// Thread safety: none; one thread at a time. Bad input never throws; it is answered with a status or ignored
/// with a log line.

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/service/catalog_state.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub {

struct catalog_options {
  std::chrono::milliseconds heartbeat_interval = defaults::heartbeat_interval;
  std::chrono::milliseconds worker_timeout =
      defaults::worker_timeout;  ///< silence after which a worker is dead
  std::chrono::milliseconds group_timeout =
      defaults::group_timeout;         ///< from the decision until all shards have called
  std::size_t retained_versions = 16;  ///< version records (digests) kept beyond those that somebody holds
  std::string transport{};             ///< policy names that workers must have; empty: any
  std::string integrity{};
};

/// A message for one worker.
struct outgoing {
  incarnation to{};
  messages::envelope message{};
};

template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent>
class catalog {
  using worker_state = catalog_detail::worker_state;
  using model_state = catalog_detail::model_state;
  using replica_state = catalog_detail::replica_state;
  using version_state = catalog_detail::version_state;
  using operation_state = catalog_detail::operation_state;
  using member_state = catalog_detail::member_state;
  using lease_state = catalog_detail::lease_state;
  using phase = member_state::phase_type;

 public:
  catalog(catalog_options options, server_epoch epoch,
          Scheduler scheduler = Scheduler{typename Scheduler::options{}},
          Consistency consistency = Consistency{typename Consistency::options{}})
      : options_{std::move(options)},
        epoch_{epoch},
        scheduler_{std::move(scheduler)},
        consistency_{std::move(consistency)} {}

  /// Any message of any worker; never throws on what it says.
  void receive(time_point now, const messages::envelope& envelope) {
    now_ = now;
    const incarnation from{envelope.sender};
    if (!from) return;
    if (const auto* join = std::get_if<messages::join_request>(&envelope.body))
      return on_join(from, envelope.sequence, *join);
    if (const auto* list = std::get_if<messages::list_request>(&envelope.body))
      return on_list(from, envelope.sequence, *list);
    if (const auto* ask = std::get_if<messages::describe_request>(&envelope.body)) {
      return on_describe(from, envelope.sequence, *ask);
    }
    worker_state* worker = find(from);
    if (worker == nullptr) return say_goodbye(from);
    worker->last_heard = now;
    forget_answers(*worker, envelope.acknowledged.value);
    if (std::holds_alternative<messages::heartbeat_request>(envelope.body)) {
      return send(from, {}, messages::heartbeat_reply{epoch_, worker->model->latest_ever});
    }
    if (!envelope.sequence || envelope.sequence.value <= worker->acknowledged) return;
    if (worker->answers.size() >= limits::worker_requests_in_flight &&
        !worker->answers.contains(envelope.sequence.value)) {
      return log(log_level::warning, who(*worker) + " has too many requests in flight; one was dropped");
    }
    const auto [answer, fresh] = worker->answers.try_emplace(envelope.sequence.value, std::nullopt);
    if (!fresh) {
      if (answer->second) send(from, envelope.sequence, *answer->second);
      return;
    }
    dispatch(*worker, envelope.sequence, envelope.body);
  }

  /// Timers: deadlines of waiting requests, silent workers, repeated cut-offs. Call at or after
  /// `next_deadline()`.
  void advance(time_point now) {
    now_ = now;
    if (now >= next_tick_) {
      next_tick_ = now + tick_interval;
      expire_waiting();
    }
    if (now >= next_check_) {
      next_check_ = now + options_.heartbeat_interval;
      declare_silent_workers_dead();
      repeat_cut_offs();
    }
  }

  [[nodiscard]] time_point next_deadline() const noexcept {
    return open_count_ + waiter_count_ > 0 ? std::min(next_tick_, next_check_) : next_check_;
  }

  [[nodiscard]] std::vector<outgoing> take_output() { return std::exchange(output_, {}); }
  [[nodiscard]] std::vector<log_line> take_log() { return std::exchange(log_, {}); }
  [[nodiscard]] server_epoch epoch() const noexcept { return epoch_; }

  /// Every lease, for checks of the contract (the simulator's, and `stuck` queries).
  template <typename Visitor>
  void for_each_lease(Visitor&& visit) const {
    for (const auto& [id, lease] : leases_) visit(lease);
  }
  [[nodiscard]] std::size_t worker_count() const noexcept { return workers_.size(); }
  /// Joined, and neither left nor declared dead.
  [[nodiscard]] bool knows(incarnation worker) const { return workers_.contains(worker); }

 private:
  static constexpr std::chrono::milliseconds tick_interval{20};
  static constexpr std::uint32_t all_shards = UINT32_MAX;
  static constexpr std::uint32_t retries_of_one_source = 3;
  static constexpr std::uint64_t operations_remembered = 16;

  // ---- joining and leaving
  // ------------------------------------------------------------------------------------------

  void on_join(incarnation from, request_sequence sequence, const messages::join_request& join) {
    if (dead_.contains(from)) return say_goodbye(from);
    messages::join_reply reply;
    reply.epoch = epoch_;
    reply.heartbeat_interval_ms = milliseconds(options_.heartbeat_interval);
    reply.worker_timeout_ms = milliseconds(options_.worker_timeout);
    reply.group_timeout_ms = milliseconds(options_.group_timeout);
    reply.result = check_join(join);
    if (reply.result.ok()) reply.result = check_layout(join, reply.wants_layout);
    if (reply.result.ok() && !reply.wants_layout) {
      worker_state& worker = admit(from, join);
      reply.operation = worker.replica->closed_operation;
      reply.latest = worker.model->latest_ever;
    }
    if (!reply.result.ok())
      log(log_level::warning, "refused " + join.model + "/" + join.replica + ": " + reply.result.sentence);
    send(from, sequence, std::move(reply));
  }

  [[nodiscard]] messages::status check_join(const messages::join_request& join) const {
    const auto refuse = [](errc code, std::string sentence) {
      return messages::status{code, std::move(sentence)};
    };
    if (join.model.empty() || join.replica.empty()) {
      return refuse(errc::invalid_argument, "a worker needs the name of a model and of a replica");
    }
    if (join.shard.count == 0 || join.shard.count > limits::shards || join.shard.index >= join.shard.count) {
      return refuse(errc::invalid_argument,
                    "shard " + to_string(join.shard) + " does not exist: the index must be below the count");
    }
    if (join.consistency != Consistency::name) {
      return refuse(errc::policy_mismatch, "this worker uses the consistency policy '" + join.consistency +
                                               "', the server uses '" + std::string{Consistency::name} +
                                               "': build both with the same hub type");
    }
    const auto differs = [](const std::string& wanted, const std::string& given) {
      return !wanted.empty() && wanted != given;
    };
    if (differs(options_.transport, join.transport)) {
      return refuse(errc::policy_mismatch, "this worker uses the transport '" + join.transport +
                                               "', the server asks for '" + options_.transport + "'");
    }
    if (differs(options_.integrity, join.integrity)) {
      return refuse(errc::policy_mismatch, "this worker uses the integrity policy '" + join.integrity +
                                               "', the server asks for '" + options_.integrity + "'");
    }
    const auto model = models_.find(join.model);
    if (model == models_.end()) return {};
    if (model->second.shards != join.shard.count) {
      return refuse(errc::layout_mismatch,
                    "model '" + join.model + "' has " + std::to_string(model->second.shards) +
                        " shards, this worker says " + std::to_string(join.shard.count));
    }
    for (const auto& [name, replica] : model->second.replicas) {
      for (const worker_state* worker : replica->workers) {
        if (worker != nullptr &&
            (worker->integrity != join.integrity || worker->transport != join.transport)) {
          return refuse(errc::policy_mismatch, "the workers of model '" + join.model + "' use '" +
                                                   worker->transport + "' and '" + worker->integrity +
                                                   "', this one '" + join.transport + "' and '" +
                                                   join.integrity + "': all must agree");
        }
        if (worker != nullptr) return {};
      }
    }
    return {};
  }

  /// Sets `wants_layout` if the decision needs the tensors and they were not sent.
  [[nodiscard]] messages::status check_layout(const messages::join_request& join, bool& wants_layout) {
    const auto model = models_.find(join.model);
    const bool known = model != models_.end() && model->second.layouts[join.shard.index].has_value();
    if (known && model->second.layouts[join.shard.index]->digest() == join.layout_digest) return {};
    if (join.tensors.empty()) {
      wants_layout = true;
      return {};
    }
    try {
      layout offered{join.tensors, join.chunk_bytes};
      if (offered.digest() != join.layout_digest || offered.chunk_count() != join.chunk_count) {
        return {errc::layout_mismatch, "the layout does not have the digest that was announced with it"};
      }
      if (known) {
        return {errc::layout_mismatch,
                "the layout differs from that of model '" + join.model + "', shard " + to_string(join.shard) +
                    ", at " + first_difference(offered, *model->second.layouts[join.shard.index])};
      }
      model_state& state = models_[join.model];
      if (state.shards == 0) {
        state.name = join.model;
        state.shards = join.shard.count;
        state.layouts.resize(join.shard.count);
      }
      state.layouts[join.shard.index] = std::move(offered);
    } catch (const error& e) {
      return {e.code(), e.sentence()};
    }
    return {};
  }

  worker_state& admit(incarnation id, const messages::join_request& join) {
    model_state& model = models_.at(join.model);
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
      workers_[id] = std::move(owned);
      replica.workers[join.shard.index] = present;
      ++model.workers;
      for (const auto& [lease, state] : leases_) {
        if (state.source == id) present->readers.push_back(lease);
      }
      log(log_level::info, who(*present) + " joined");
    }
    worker_state& worker = *present;
    worker.place = join.place;
    worker.spot = join.spot;
    worker.transport = join.transport;
    worker.integrity = join.integrity;
    worker.address = join.address;
    worker.last_heard = now_;
    worker.called = worker.called || join.operation.value != 0;
    replica.closed_operation = std::max(replica.closed_operation, join.operation);
    if (join.reading) adopt_lease(worker, *join.reading);
    if (join.held && !worker.held) hold(worker, *join.held, false);
    refresh(replica);
    return worker;
  }

  /// A lease that an earlier server gave and that is still in use.
  void adopt_lease(worker_state& reader, const messages::assignment& old) {
    for (const lease_id known : reader.reading) {
      if (leases_.at(known).source == old.source) return;
    }
    lease_state lease;
    lease.id = next_lease();
    lease.source = old.source;
    lease.reader = reader.id;
    lease.version = old.version;
    lease.replica = reader.replica->name;
    lease.shard = reader.shard.index;
    lease.reserved = false;
    lease.operation = old.operation;
    reader.reading.push_back(lease.id);
    reader.overwriting = true;
    if (worker_state* source = find(old.source)) source->readers.push_back(lease.id);
    leases_.emplace(lease.id, std::move(lease));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::leave_request&) {
    const incarnation id = worker.id;
    log(log_level::info, who(worker) + " left");
    remove(worker, {errc::group_failed, who(worker) + " left"}, true);
    send(id, sequence, messages::status_reply{});
  }

  void declare_dead(worker_state& worker, std::string_view why, bool replaced) {
    const std::string sentence = who(worker) + " " + std::string{why};
    log(log_level::warning, sentence);
    dead_.insert(worker.id);
    const incarnation id = worker.id;
    remove(worker, {errc::group_failed, sentence}, false);
    messages::goodbye_push goodbye;
    goodbye.epoch = epoch_;
    goodbye.reason = {errc::replaced, replaced
                                          ? "a newer process has taken this worker's place"
                                          : "the server did not hear from this worker and declared it dead; "
                                            "construct a new one to join again"};
    send(id, {}, std::move(goodbye));
  }

  void say_goodbye(incarnation id) {
    messages::goodbye_push goodbye;
    goodbye.epoch = epoch_;
    goodbye.rejoin = !dead_.contains(id);
    if (!goodbye.rejoin) {
      goodbye.reason = {errc::replaced,
                        "this worker was declared dead or replaced; construct a new one to join again"};
    }
    send(id, {}, std::move(goodbye));
  }

  /// Takes a worker out of everything. `gone_politely`: it has said itself that it reads nothing any more.
  void remove(worker_state& worker, const messages::status& reason, bool gone_politely) {
    for (const lease_id id : std::vector<lease_id>{worker.reading}) {
      lease_state& lease = leases_.at(id);
      if (gone_politely || lease.reserved || find(lease.source) == nullptr) {
        end_lease(id, &catalog_detail::drain_state::finished);
      } else {
        lease.cutting_off = true;
        send(lease.source, {}, messages::cut_off_push{lease.reader});
      }
    }
    worker.reading.clear();
    worker.withdrawn = true;
    reindex(worker);
    for (const lease_id id : std::vector<lease_id>{worker.readers}) {
      move_reader(worker, id);
      if (leases_.contains(id)) end_lease(id, &catalog_detail::drain_state::moved);
    }
    drop_held(worker);
    replica_state& replica = *worker.replica;
    model_state& model = *worker.model;
    for (auto& [key, operation] : replica.operations) {
      if (operation.closed || operation.is_publish) continue;
      const member_state* member = member_of(operation, worker.shard.index);
      if (member != nullptr && (operation.decided || member->phase != phase::absent))
        close_failed(operation, reason);
    }
    replica.workers[worker.shard.index] = nullptr;
    refresh(replica);
    workers_.erase(worker.id);
    --model.workers;
    if (std::ranges::all_of(replica.workers, [](const worker_state* w) { return w == nullptr; })) {
      for (auto& [key, operation] : replica.operations) {
        if (!operation.closed) close(operation);
      }
    }
    if (model.workers == 0) {
      waiter_count_ -= model.waiters.size();
      models_.erase(std::string{model.name});
    }
  }

  // ---- publishing and draining
  // --------------------------------------------------------------------------------------

  void on(worker_state& worker, request_sequence sequence, const messages::publish_request& request) {
    operation_counter counter = request.operation;
    messages::status result = publish(worker, request, counter);
    answer(worker, sequence, messages::status_reply{std::move(result), counter});
  }

  [[nodiscard]] messages::status publish(worker_state& worker, const messages::publish_request& request,
                                         operation_counter& counter) {
    const version_number version = request.held.version;
    model_state& model = *worker.model;
    if (!version) return {errc::invalid_argument, "version 0 cannot be published: count from 1"};
    if (worker.overwriting) return {errc::busy, "an update of this worker is running"};
    const auto record = model.versions.find(version);
    if (record == model.versions.end() && version <= model.latest_seen) {
      return {errc::version_conflict, "version " + to_string(version) + " goes backwards: version " +
                                          to_string(model.latest_seen) + " was published already"};
    }
    if (record != model.versions.end()) {
      const digest128 root = record->second.roots[worker.shard.index];
      if (root && request.held.root && root != request.held.root) {
        return {errc::version_conflict,
                "version " + to_string(version) + " was published with other bytes in shard " +
                    to_string(worker.shard) + ": the same version has the same bytes for ever"};
      }
    }
    if (const auto agreed = agree_on_publish(worker, request, counter); !agreed.ok()) return agreed;
    model.latest_seen = std::max(model.latest_seen, version);
    forget_drain(worker);
    drop_held(worker);
    hold(worker, request.held, true);
    refresh(*worker.replica);
    forget_old_versions(model);
    return {};
  }

  /// The shards of a replica publish the same version in the same call.
  [[nodiscard]] messages::status agree_on_publish(worker_state& worker,
                                                  const messages::publish_request& request,
                                                  operation_counter& counter) {
    if constexpr (!Consistency::decides_per_group) return {};
    counter = count(worker, request.operation, request.held.version);
    operation_state& operation = operation_for(worker, counter, true);
    member_state& member = *member_of(operation, worker.shard.index);
    if (!operation.is_publish || (operation.decided && operation.version != request.held.version)) {
      return {errc::group_failed,
              "another shard of replica '" + worker.replica->name + "' " +
                  (operation.is_publish ? "published version " + to_string(operation.version)
                                        : std::string{"called update()"}) +
                  " in this operation: all shards must make the same calls in the same order"};
    }
    operation.decided = true;
    operation.version = request.held.version;
    member.phase = phase::finished;
    if (std::ranges::all_of(operation.members,
                            [](const member_state& m) { return m.phase == phase::finished; })) {
      close(operation);
    }
    return {};
  }

  void on(worker_state& worker, request_sequence sequence, const messages::unpublish_request& request) {
    const bool current =
        worker.held && worker.held->version == request.version && worker.held->epoch == request.epoch;
    // The drain before an update does not withdraw anything: the update's decision has hidden the reference,
    // and if the operation has failed meanwhile the worker keeps what it holds.
    const bool before_update = request.operation.value != 0;
    if (!current || (before_update && !is_reading(worker, request.operation))) {
      return answer(worker, sequence, messages::drained_reply{});
    }
    if (worker.drain) {
      return answer(worker, sequence,
                    messages::drained_reply{{errc::busy, "another unpublish() of this worker is running"}});
    }
    if (!before_update) {
      worker.withdrawn = true;
      reindex(worker);
      refresh(*worker.replica);
    }
    worker.drain = catalog_detail::drain_state{.sequence = sequence};
    move_readers(worker);
    check_drained(worker);
  }

  [[nodiscard]] static bool is_reading(const worker_state& worker, operation_counter counter) {
    return std::ranges::any_of(worker.model->open_operations, [&](operation_state* operation) {
      if (operation->replica != worker.replica || operation->counter != counter) return false;
      const member_state* member = member_of(*operation, worker.shard.index);
      return member != nullptr && member->phase == phase::assigned;
    });
  }

  void check_drained(worker_state& worker) {
    if (!worker.drain || !worker.readers.empty()) return;
    const auto drain = *std::exchange(worker.drain, std::nullopt);
    if (worker.withdrawn) {
      drop_held(worker);
      worker.withdrawn = false;
    }
    answer(worker, drain.sequence, messages::drained_reply{{}, drain.finished, drain.moved, drain.cut_off});
  }

  /// A worker that starts something new holds nothing of the old any more: it has cut off its readers itself,
  /// and the message that said so was lost or is late.
  void forget_drain(worker_state& worker) {
    for (const lease_id id : std::vector<lease_id>{worker.readers})
      end_lease(id, &catalog_detail::drain_state::cut_off);
    check_drained(worker);
    worker.withdrawn = false;
  }

  void move_readers(worker_state& source) {
    for (const lease_id id : std::vector<lease_id>{source.readers}) move_reader(source, id);
  }

  /// Gives the reader behind a lease another source, if there is one. A reserved lease moves at once; a
  /// running one stays until its reader has released it.
  void move_reader(worker_state& source, lease_id id) {
    const lease_state old = leases_.at(id);
    if (old.cutting_off || old.moving) return;
    operation_state* operation = find_operation(*source.model, old);
    member_state* member = operation != nullptr ? member_of(*operation, old.shard) : nullptr;
    if (member == nullptr || member->lease != id || operation->closed) return;
    worker_state* reader = operation->replica->workers[old.shard];
    worker_state* target =
        choose_source(*operation->replica, old.version, old.shard, reader, member->excluded, &source);
    if (target == nullptr) return;
    lease_state& lease = grant(*target, *operation, old.shard, reader, old.reserved);
    member->lease = lease.id;
    if (old.reserved) return end_lease(id, &catalog_detail::drain_state::moved);
    leases_.at(id).moving = true;
    send(old.reader, {},
         messages::reassign_push{id, assignment_of(*operation, leases_.at(member->lease), *reader)});
  }

  void on(worker_state& worker, request_sequence sequence, const messages::lease_released_request& request) {
    const auto lease = leases_.find(request.lease);
    if (lease != leases_.end() && lease->second.reader == worker.id) {
      end_lease(request.lease, &catalog_detail::drain_state::moved);
    }
    answer(worker, sequence, messages::status_reply{});
  }

  void on(worker_state& worker, request_sequence sequence, const messages::cut_off_done_request& request) {
    for (const lease_id id : std::vector<lease_id>{worker.readers}) {
      const lease_state& lease = leases_.at(id);
      if (!request.reader || (lease.cutting_off && lease.reader == request.reader)) {
        end_lease(id, &catalog_detail::drain_state::cut_off);
      }
    }
    answer(worker, sequence, messages::status_reply{});
  }

  // ---- group operations
  // ---------------------------------------------------------------------------------------------

  [[nodiscard]] static messages::update_reply refused(messages::status why, operation_counter counter = {}) {
    messages::update_reply reply;
    reply.result = std::move(why);
    reply.operation = counter;
    return reply;
  }
  [[nodiscard]] static messages::update_reply kept(operation_counter counter, version_number version) {
    messages::update_reply reply;
    reply.operation = counter;
    reply.keep = true;
    reply.version = version;
    return reply;
  }
  [[nodiscard]] static messages::update_reply assigned(const operation_state& operation,
                                                       messages::assignment source) {
    messages::update_reply reply;
    reply.operation = operation.counter;
    reply.version = operation.version;
    reply.source = std::move(source);
    return reply;
  }

  void on(worker_state& worker, request_sequence sequence, const messages::update_request& request) {
    const auto fail = [&](errc code, std::string sentence) {
      answer(worker, sequence, refused({code, std::move(sentence)}));
    };
    if (worker.drain || worker.withdrawn) {
      forget_drain(worker);
      drop_held(worker);
    }
    operation_state& operation = operation_for(worker, count(worker, request.operation, std::nullopt), false);
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
    member.selector = request.selector;
    member.deadline = now_ + std::chrono::milliseconds{request.timeout_ms};
    if (!operation.decided) return try_decide(operation, request.selector);
    if (!accepts(request.selector, operation.version)) return close_disagreed(operation, worker.shard);
    deliver(operation, worker);
  }

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
    answer(worker, sequence, std::move(reply));
  }

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
      worker_state* source = choose_source(replica, version, shard, worker, {}, nullptr);
      if (source == nullptr) return release_reserved(operation);
      member.lease = grant(*source, operation, shard, worker, true).id;
    }
    operation.decided = true;
    operation.arrival_deadline = now_ + options_.group_timeout;
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      const std::uint32_t shard = operation.only_shard.value_or(static_cast<std::uint32_t>(i));
      worker_state* worker = replica.workers[shard];
      if (worker == nullptr || operation.members[i].keeps) continue;
      worker->overwriting = true;
      reindex(*worker);
      move_readers(*worker);
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
        answer(worker, std::exchange(member.sequence, {}), kept(operation.counter, operation.version));
      }
      return close_if_finished(operation);
    }
    auto lease = leases_.find(member.lease);
    if (lease == leases_.end()) {
      worker_state* source =
          choose_source(*operation.replica, operation.version, worker.shard.index, &worker, {}, nullptr);
      if (source == nullptr) return close_failed(operation, nobody_left(operation, worker, {}));
      member.lease = grant(*source, operation, worker.shard.index, &worker, false).id;
      lease = leases_.find(member.lease);
    } else {
      if (!lease->second.reader) worker.reading.push_back(lease->first);
      lease->second.reader = worker.id;
      lease->second.reserved = false;
    }
    worker.overwriting = true;
    reindex(worker);
    member.phase = phase::assigned;
    answer(worker, std::exchange(member.sequence, {}),
           assigned(operation, assignment_of(operation, lease->second, worker)));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::source_failed_request& request) {
    operation_state* operation = find_operation(*worker.replica, request.operation, worker.shard.index);
    member_state* member = operation != nullptr ? member_of(*operation, worker.shard.index) : nullptr;
    if (member == nullptr || operation->closed || member->phase != phase::assigned) {
      const messages::status reason =
          operation != nullptr && !operation->failure.ok()
              ? operation->failure
              : messages::status{errc::unavailable, "this operation is not known any more"};
      return answer(worker, sequence, refused(reason));
    }
    incarnation failed{};
    if (const auto lease = leases_.find(request.lease); lease != leases_.end()) failed = lease->second.source;
    log(log_level::warning, who(worker) + " lost its source " + to_hex(failed) + ": " +
                                std::string{to_string(request.reason)} + " " + request.detail);
    if (failed) member->excluded.push_back(failed);
    end_leases_of_reader(worker);
    worker_state* source = choose_source(*operation->replica, operation->version, worker.shard.index, &worker,
                                         member->excluded, nullptr);
    const bool may_retry = request.reason == errc::source_lost || request.reason == errc::timed_out ||
                           request.reason == errc::unavailable;
    if (source == nullptr && may_retry && member->retries < retries_of_one_source) {
      ++member->retries;
      source =
          choose_source(*operation->replica, operation->version, worker.shard.index, &worker, {}, nullptr);
    }
    if (source == nullptr) {
      return answer(worker, sequence,
                    refused(nobody_left(*operation, worker, request.detail), operation->counter));
    }
    lease_state& lease = grant(*source, *operation, worker.shard.index, &worker, false);
    member->lease = lease.id;
    answer(worker, sequence, assigned(*operation, assignment_of(*operation, lease, worker)));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::finish_request& request) {
    end_leases_of_reader(worker);
    operation_state* known = find_operation(*worker.replica, request.operation, worker.shard.index);
    if (known == nullptr && request.result.ok()) known = &adopt_operation(worker, request);
    worker.overwriting = false;
    if (request.held) {
      drop_held(worker);
      hold(worker, *request.held, false);
    } else if (!request.intact) {
      drop_held(worker);
    }
    member_state* member = known != nullptr ? member_of(*known, worker.shard.index) : nullptr;
    if (member == nullptr || known->closed) {
      refresh(*worker.replica);
      const bool failed_group = request.result.ok() && known != nullptr && !known->failure.ok();
      return answer(worker, sequence,
                    messages::status_reply{failed_group ? known->failure : messages::status{}});
    }
    if (!request.result.ok()) {
      member->phase = phase::failed;
      member->intact = request.intact;
      answer(worker, sequence, messages::status_reply{});
      return close_failed(
          *known, {request.result.code, "shard " + to_string(worker.shard) + " of replica '" +
                                            worker.replica->name + "' failed: " + request.result.sentence});
    }
    member->phase = phase::finished;
    if (Consistency::completes_per_group) {
      worker.group_pending = true;
      member->sequence = sequence;
    } else {
      answer(worker, sequence, messages::status_reply{});
    }
    reindex(worker);
    refresh(*worker.replica);
    close_if_finished(*known);
  }

  /// An operation that was decided by an earlier server.
  operation_state& adopt_operation(worker_state& worker, const messages::finish_request& request) {
    operation_state& operation = operation_for(worker, request.operation, false);
    operation.decided = true;
    operation.version = request.version;
    operation.arrival_deadline = now_ + options_.group_timeout;
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
      reindex(worker);
      if (!member.sequence) continue;
      const request_sequence sequence = std::exchange(member.sequence, {});
      if (member.keeps)
        answer(worker, sequence, kept(operation.counter, operation.version));
      else
        answer(worker, sequence, messages::status_reply{});
    }
    close(operation);
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
      answer(worker, std::exchange(member.sequence, {}), kept(operation.counter, version));
    }
    close(operation);
  }

  void close_disagreed(operation_state& operation, shard_of shard) {
    close_failed(operation, {errc::group_failed,
                             "shard " + to_string(shard) + " of replica '" + operation.replica->name +
                                 "' asked for another version than the " + to_string(operation.version) +
                                 " that was decided for this operation"});
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
    close(operation);
    log(log_level::warning, "operation " + std::to_string(operation.counter.value) + " of " +
                                replica.model->name + "/" + replica.name + " failed: " + reason.sentence);
    release_reserved(operation);
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      member_state& member = operation.members[i];
      worker_state* worker = replica.workers[operation.only_shard.value_or(static_cast<std::uint32_t>(i))];
      if (worker == nullptr) continue;
      worker->group_pending = false;
      if (!worker->withdrawn)
        worker->drain.reset();  // the drain before this update is not waited for any more
      const request_sequence sequence = std::exchange(member.sequence, {});
      if (member.phase == phase::waiting || (member.phase == phase::finished && member.keeps && sequence)) {
        if (!member.keeps) worker->overwriting = false;
        answer(*worker, sequence, refused(reason, operation.counter));
      } else if (member.phase == phase::absent) {
        if (operation.decided && !member.keeps) worker->overwriting = false;
      } else if (member.phase == phase::finished && sequence) {
        answer(*worker, sequence, messages::status_reply{reason});
      } else if (member.phase == phase::assigned) {
        send(worker->id, {}, messages::abort_push{operation.counter, reason});
      }
    }
    refresh(replica);
  }

  void close(operation_state& operation) {
    operation.closed = true;
    --open_count_;
    replica_state& replica = *operation.replica;
    replica.closed_operation = std::max(replica.closed_operation, operation.counter);
    std::erase(replica.model->open_operations, &operation);
  }

  void release_reserved(operation_state& operation) {
    for (member_state& member : operation.members) {
      const auto lease = leases_.find(member.lease);
      if (lease != leases_.end() && lease->second.reserved)
        end_lease(lease->first, &catalog_detail::drain_state::finished);
    }
  }

  /// The number of a worker's call. Shards count alike from their start; a process that has taken a dead
  /// one's place does not know how far the others have counted, so its first call is the operation that waits
  /// for its shard, or the next.
  [[nodiscard]] operation_counter count(worker_state& worker, operation_counter asked,
                                        std::optional<version_number> publishes) {
    if (!Consistency::decides_per_group || std::exchange(worker.called, true)) return asked;
    replica_state& replica = *worker.replica;
    operation_counter next = std::max(asked, operation_counter{replica.closed_operation.value + 1});
    for (auto& [key, operation] : replica.operations) {
      const bool waits =
          !operation.closed && member_of(operation, worker.shard.index)->phase == phase::absent;
      const bool fits =
          operation.is_publish == publishes.has_value() && (!publishes || operation.version == *publishes);
      if (waits && fits) return operation.counter;
      next = std::max(next, operation_counter{operation.counter.value + 1});
    }
    return next;
  }

  operation_state& operation_for(worker_state& worker, operation_counter counter, bool is_publish) {
    replica_state& replica = *worker.replica;
    const std::uint32_t scope = Consistency::decides_per_group ? all_shards : worker.shard.index;
    const auto [position, fresh] = replica.operations.try_emplace({counter.value, scope});
    operation_state& operation = position->second;
    if (!fresh) return operation;
    operation.counter = counter;
    operation.replica = &replica;
    operation.is_publish = is_publish;
    if (!Consistency::decides_per_group) operation.only_shard = worker.shard.index;
    operation.members.resize(Consistency::decides_per_group ? replica.workers.size() : 1);
    replica.model->open_operations.push_back(&operation);
    ++open_count_;
    forget_old_operations(replica, counter);
    return operation;
  }

  void forget_old_operations(replica_state& replica, operation_counter newest) {
    while (!replica.operations.empty()) {
      operation_state& oldest = replica.operations.begin()->second;
      if (oldest.counter.value + operations_remembered >= newest.value) return;
      if (!oldest.closed && !oldest.is_publish) return;
      if (!oldest.closed) close(oldest);
      replica.operations.erase(replica.operations.begin());
    }
  }

  [[nodiscard]] static member_state* member_of(operation_state& operation, std::uint32_t shard) {
    if (!operation.only_shard) return &operation.members[shard];
    return *operation.only_shard == shard ? &operation.members.front() : nullptr;
  }

  [[nodiscard]] operation_state* find_operation(replica_state& replica, operation_counter counter,
                                                std::uint32_t shard) {
    const auto found =
        replica.operations.find({counter.value, Consistency::decides_per_group ? all_shards : shard});
    return found == replica.operations.end() ? nullptr : &found->second;
  }
  [[nodiscard]] operation_state* find_operation(model_state& model, const lease_state& lease) {
    const auto replica = model.replicas.find(lease.replica);
    return replica == model.replicas.end() ? nullptr
                                           : find_operation(*replica->second, lease.operation, lease.shard);
  }

  [[nodiscard]] static bool accepts(const version_selector& selector, version_number version) noexcept {
    if (selector.kind == version_selector::kind_type::exactly) return version == selector.version;
    return selector.kind == version_selector::kind_type::latest || version >= selector.version;
  }

  [[nodiscard]] messages::status nobody_left(const operation_state& operation, const worker_state& reader,
                                             const std::string& detail) const {
    return {errc::unavailable, "nobody is left from whom shard " + to_string(reader.shard) + " of version " +
                                   to_string(operation.version) + " could be read" +
                                   (detail.empty() ? std::string{} : " (the last source: " + detail + ")")};
  }

  // ---- leases
  // -------------------------------------------------------------------------------------------------------

  /// Asks the scheduler. `without` and `excluded` are not offered; neither is the reader itself.
  [[nodiscard]] worker_state* choose_source(const replica_state& replica, version_number version,
                                            std::uint32_t shard, const worker_state* reader,
                                            const std::vector<incarnation>& excluded,
                                            const worker_state* without) {
    const auto record = replica.model->versions.find(version);
    if (record == replica.model->versions.end()) return nullptr;
    const auto& holders = record->second.holders[shard];
    candidates_.clear();
    candidate_workers_.clear();
    const auto& known = replica.model->layouts[shard];
    const std::uint64_t chunks = known ? known->chunk_count() : 0;
    for (worker_state* holder : holders) {
      if (holder == reader || holder == without || std::ranges::find(excluded, holder->id) != excluded.end())
        continue;
      candidates_.push_back({holder->id, &holder->place, static_cast<std::uint32_t>(holder->readers.size()),
                             chunks, chunks, holder->spot, holder->publisher});
      candidate_workers_.push_back(holder);
    }
    static const location nowhere{};
    const source_choice choice = scheduler_.choose({reader != nullptr ? reader->id : incarnation{},
                                                    reader != nullptr ? &reader->place : &nowhere,
                                                    version,
                                                    {shard, replica.model->shards}},
                                                   candidates_);
    return choice.index && *choice.index < candidate_workers_.size() ? candidate_workers_[*choice.index]
                                                                     : nullptr;
  }

  lease_state& grant(worker_state& source, const operation_state& operation, std::uint32_t shard,
                     worker_state* reader, bool reserved) {
    const lease_id id = next_lease();
    lease_state& lease = leases_[id];
    lease.id = id;
    lease.source = source.id;
    lease.reader = reader != nullptr ? reader->id : incarnation{};
    lease.version = operation.version;
    lease.replica = operation.replica->name;
    lease.shard = shard;
    lease.reserved = reserved;
    lease.operation = operation.counter;
    source.readers.push_back(id);
    if (reader != nullptr) reader->reading.push_back(id);
    return lease;
  }

  void end_lease(lease_id id, std::uint32_t catalog_detail::drain_state::*counter) {
    const auto found = leases_.find(id);
    if (found == leases_.end()) return;
    const incarnation source_id = found->second.source;
    if (worker_state* reader = find(found->second.reader)) std::erase(reader->reading, id);
    leases_.erase(found);
    worker_state* source = find(source_id);
    if (source == nullptr) return;
    std::erase(source->readers, id);
    if (source->drain) ++((*source->drain).*counter);
    check_drained(*source);
  }

  void end_leases_of_reader(worker_state& reader) {
    for (const lease_id id : std::vector<lease_id>{reader.reading})
      end_lease(id, &catalog_detail::drain_state::finished);
  }

  /// Pre-condition: the lease's source has joined.
  [[nodiscard]] messages::assignment assignment_of(const operation_state& operation, const lease_state& lease,
                                                   const worker_state& reader) {
    const worker_state& source = *find(lease.source);
    messages::assignment out;
    out.operation = operation.counter;
    out.lease = lease.id;
    out.version = lease.version;
    out.root = operation.replica->model->versions.at(lease.version).roots[lease.shard];
    out.source = source.id;
    out.source_replica = source.replica->name;
    out.source_shard = source.shard.index;
    out.address = source.address;
    out.control = source.held->control;
    out.epoch = source.held->epoch;
    out.drained = reader.readers.empty();
    return out;
  }

  // ---- references and versions
  // --------------------------------------------------------------------------------------

  void hold(worker_state& worker, const messages::reference& reference, bool publisher) {
    worker.held = reference;
    worker.publisher = publisher;
    version_state& version = version_of(*worker.model, reference.version);
    if (!version.roots[worker.shard.index]) version.roots[worker.shard.index] = reference.root;
    worker.model->latest_seen = std::max(worker.model->latest_seen, reference.version);
    reindex(worker);
  }

  void drop_held(worker_state& worker) {
    if (!worker.held) return;
    unindex(worker);
    worker.held.reset();
    worker.publisher = false;
  }

  /// Offers the worker to readers exactly if it holds a version that nothing stands against.
  void reindex(worker_state& worker) {
    const bool serves = worker.holds() && !worker.replica->torn;
    if (serves == worker.indexed) return;
    if (!serves) return unindex(worker);
    version_of(*worker.model, worker.held->version).holders[worker.shard.index].push_back(&worker);
    worker.indexed = true;
    if (!Consistency::decides_per_group) changed_ = true;
  }
  void unindex(worker_state& worker) {
    if (!std::exchange(worker.indexed, false)) return;
    std::erase(version_of(*worker.model, worker.held->version).holders[worker.shard.index], &worker);
  }

  [[nodiscard]] version_state& version_of(model_state& model, version_number version) {
    const auto [position, fresh] = model.versions.try_emplace(version);
    if (fresh) {
      position->second.roots.resize(model.shards);
      position->second.holders.resize(model.shards);
    }
    return position->second;
  }

  /// Recomputes what a replica holds completely, and tells those who wait for it.
  void refresh(replica_state& replica) {
    model_state& model = *replica.model;
    version_number complete{};
    const worker_state* first = replica.workers.front();
    if (first != nullptr && first->holds()) {
      const bool all = std::ranges::all_of(replica.workers, [first](const worker_state* w) {
        return w != nullptr && w->holds() && w->held->version == first->held->version;
      });
      if (all) complete = first->held->version;
    }
    if (complete) replica.torn = false;
    for (worker_state* worker : replica.workers) {
      if (worker != nullptr) reindex(*worker);
    }
    if (complete != replica.complete) {
      if (replica.complete) --version_of(model, replica.complete).complete_replicas;
      replica.complete = complete;
      if (complete) {
        version_state& version = version_of(model, complete);
        ++version.complete_replicas;
        version.ever_complete = true;
        changed_ = true;
        if (complete > model.latest_ever) announce(model, complete);
      }
    }
    if (std::exchange(changed_, false)) retry_waiting(model);
  }

  void announce(model_state& model, version_number version) {
    model.latest_ever = version;
    for (const auto& [name, replica] : model.replicas) {
      for (const worker_state* worker : replica->workers) {
        if (worker != nullptr) send(worker->id, {}, messages::version_push{version});
      }
    }
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
    for (std::size_t i = 0; i < model.waiters.size();) {
      if (try_answer_waiter(model, model.waiters[i])) {
        model.waiters[i] = model.waiters.back();
        model.waiters.pop_back();
        --waiter_count_;
      } else {
        ++i;
      }
    }
  }

  /// Keeps the records of versions that somebody holds, and of the newest few others (for
  /// `version_conflict`).
  void forget_old_versions(model_state& model) {
    std::size_t others = 0;
    for (auto version = model.versions.end(); version != model.versions.begin();) {
      --version;
      const bool held =
          std::ranges::any_of(version->second.holders, [](const auto& list) { return !list.empty(); });
      if (held || version->second.complete_replicas > 0 || is_used(model, version->first)) continue;
      if (++others > options_.retained_versions) version = model.versions.erase(version);
    }
  }
  [[nodiscard]] bool is_used(const model_state& model, version_number version) const {
    return std::ranges::any_of(model.open_operations,
                               [&](const operation_state* o) { return o->version == version; });
  }

  // ---- questions
  // ----------------------------------------------------------------------------------------------------

  void on(worker_state& worker, request_sequence sequence, const messages::wait_request& request) {
    catalog_detail::waiter_state waiter{worker.id, sequence, request.selector,
                                        now_ + std::chrono::milliseconds{request.timeout_ms}};
    if (try_answer_waiter(*worker.model, waiter)) return;
    worker.model->waiters.push_back(waiter);
    ++waiter_count_;
  }

  /// True: answered, or the asker is gone.
  [[nodiscard]] bool try_answer_waiter(model_state& model, const catalog_detail::waiter_state& waiter) {
    worker_state* worker = find(waiter.worker);
    if (worker == nullptr || worker->model != &model) return true;
    version_number best{};
    for (const auto& [version, state] : model.versions) {
      if (state.complete_replicas > 0 && accepts(waiter.selector, version)) best = version;
    }
    if (best) {
      answer(*worker, waiter.sequence, messages::version_reply{{}, best});
    } else if (now_ >= waiter.deadline) {
      answer(*worker, waiter.sequence,
             messages::version_reply{
                 {errc::timed_out, "no version (" + to_string(waiter.selector) + ") of model '" + model.name +
                                       "' appeared; the latest was " + to_string(model.latest_ever)},
                 {}});
    } else {
      return false;
    }
    return true;
  }

  void on_list(incarnation from, request_sequence sequence, const messages::list_request& request) {
    messages::list_reply reply;
    for (const auto& [name, model] : models_) {
      if (request.model.empty() || request.model == name) reply.models.push_back(entry_of(model));
    }
    if (!request.model.empty() && reply.models.empty()) {
      reply.result = {errc::not_found, "no worker of a model '" + request.model + "' has joined"};
    }
    send(from, sequence, std::move(reply));
  }

  [[nodiscard]] messages::model_entry entry_of(const model_state& model) const {
    messages::model_entry entry{model.name, model.shards, 0, model.latest_ever, {}, {}};
    for (const auto& known : model.layouts) entry.bytes += known ? known->bytes() : 0;
    for (const auto& [version, state] : model.versions) {
      if (state.complete_replicas > 0) entry.available.push_back(version);
    }
    for (const auto& [name, replica] : model.replicas) {
      messages::replica_entry row{name, 0, replica->complete, replica->torn, false, 0};
      for (const worker_state* worker : replica->workers) {
        if (worker == nullptr) continue;
        ++row.shards_joined;
        row.spot = row.spot || worker->spot;
        row.readers += static_cast<std::uint32_t>(worker->readers.size());
      }
      if (row.shards_joined > 0) entry.replicas.push_back(std::move(row));
    }
    return entry;
  }

  void on_describe(incarnation from, request_sequence sequence, const messages::describe_request& request) {
    messages::describe_reply reply;
    const auto model = models_.find(request.model);
    if (model == models_.end() || request.shard >= model->second.shards ||
        !model->second.layouts[request.shard]) {
      reply.result = {errc::not_found, "the layout of model '" + request.model + "', shard " +
                                           std::to_string(request.shard) +
                                           ", is not known: no worker with it has joined"};
    } else {
      const layout& known = *model->second.layouts[request.shard];
      reply.shards = model->second.shards;
      reply.chunk_bytes = known.chunk_bytes();
      reply.tensors.assign(known.tensors().begin(), known.tensors().end());
    }
    send(from, sequence, std::move(reply));
  }

  // ---- time
  // ---------------------------------------------------------------------------------------------------------

  void expire_waiting() {
    if (open_count_ + waiter_count_ == 0) return;
    for (auto& [name, model] : models_) {
      for (operation_state* operation : std::vector<operation_state*>{model.open_operations}) {
        if (!operation->closed && !operation->is_publish) expire(*operation);
      }
      for (std::size_t i = 0; i < model.waiters.size();) {
        if (now_ >= model.waiters[i].deadline && try_answer_waiter(model, model.waiters[i])) {
          model.waiters[i] = model.waiters.back();
          model.waiters.pop_back();
          --waiter_count_;
        } else {
          ++i;
        }
      }
    }
  }

  void expire(operation_state& operation) {
    for (std::size_t i = 0; i < operation.members.size(); ++i) {
      const member_state& member = operation.members[i];
      const std::string shard = std::to_string(operation.only_shard.value_or(static_cast<std::uint32_t>(i)));
      if (!operation.decided && member.phase == phase::waiting && now_ >= member.deadline) {
        return close_failed(
            operation,
            {errc::timed_out, "no version (" + to_string(member.selector) + ") of model '" +
                                  operation.replica->model->name + "' became available; the latest was " +
                                  to_string(operation.replica->model->latest_ever)});
      }
      if (operation.decided && member.phase == phase::absent && now_ >= operation.arrival_deadline) {
        return close_failed(
            operation, {errc::group_failed, "shard " + shard + " of replica '" + operation.replica->name +
                                                "' did not call update() in time"});
      }
    }
  }

  void declare_silent_workers_dead() {
    std::vector<incarnation> silent;
    for (const auto& [id, worker] : workers_) {
      if (now_ - worker->last_heard > options_.worker_timeout) silent.push_back(id);
    }
    std::ranges::sort(silent);
    for (const incarnation id : silent) {
      if (worker_state* worker = find(id)) declare_dead(*worker, "was silent for too long", false);
    }
    for (auto& [name, model] : models_) {
      std::erase_if(model.replicas, [](const auto& entry) {
        return std::ranges::all_of(entry.second->workers, [](const worker_state* w) { return w == nullptr; });
      });
    }
  }

  void repeat_cut_offs() {
    for (const auto& [id, lease] : leases_) {
      if (lease.cutting_off) send(lease.source, {}, messages::cut_off_push{lease.reader});
    }
  }

  // ---- small things
  // -------------------------------------------------------------------------------------------------

  void dispatch(worker_state& worker, request_sequence sequence, const messages::message& body) {
    std::visit(
        [&](const auto& request) {
          if constexpr (requires { this->on(worker, sequence, request); }) {
            this->on(worker, sequence, request);
          } else {
            worker.answers.erase(sequence.value);
            log(log_level::warning, who(worker) + " sent a message that only a server sends; it was ignored");
          }
        },
        body);
  }

  /// Stores the answer for retries, and sends it.
  void answer(worker_state& worker, request_sequence sequence, messages::message body) {
    const auto slot = worker.answers.find(sequence.value);
    if (slot != worker.answers.end()) slot->second = body;
    send(worker.id, sequence, std::move(body));
  }

  void forget_answers(worker_state& worker, std::uint64_t acknowledged) {
    if (acknowledged <= worker.acknowledged) return;
    worker.acknowledged = acknowledged;
    // Deferred answers stay: a worker cannot have seen them.
    std::erase_if(worker.answers, [acknowledged](const auto& entry) {
      return entry.first <= acknowledged && entry.second.has_value();
    });
  }

  void send(incarnation to, request_sequence sequence, messages::message body) {
    output_.push_back({to, {epoch_.value, sequence, {}, std::move(body)}});
  }
  void log(log_level level, std::string text) { log_.push_back({level, std::move(text)}); }

  [[nodiscard]] worker_state* find(incarnation id) const {
    const auto found = workers_.find(id);
    return found == workers_.end() ? nullptr : found->second.get();
  }
  [[nodiscard]] lease_id next_lease() noexcept { return {++last_lease_}; }

  [[nodiscard]] static std::string who(const worker_state& worker) {
    return "worker " + worker.model->name + "/" + worker.replica->name + "/" + to_string(worker.shard) +
           " (" + to_hex(worker.id) + ")";
  }
  [[nodiscard]] static std::uint32_t milliseconds(std::chrono::milliseconds value) noexcept {
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value.count(), 0, UINT32_MAX));
  }

  catalog_options options_;
  server_epoch epoch_;
  Scheduler scheduler_;
  Consistency consistency_;

  time_point now_{};
  time_point next_tick_{};
  time_point next_check_{};
  std::map<std::string, model_state> models_;
  std::unordered_map<incarnation, std::unique_ptr<worker_state>> workers_;
  std::map<lease_id, lease_state> leases_;
  catalog_detail::dead_list dead_;
  std::uint64_t last_lease_ = 0;
  std::size_t open_count_ = 0;
  std::size_t waiter_count_ = 0;
  bool changed_ = false;

  std::vector<outgoing> output_;
  std::vector<log_line> log_;
  std::vector<source_candidate> candidates_;  ///< scratch of choose_source
  std::vector<worker_state*> candidate_workers_;
};

}  // namespace tensorhub
