#pragma once
/// \file session.hpp
/// A worker's side of the control protocol, as a pure state machine: calls, messages and time in; messages
/// and actions out.
///
/// The session joins (and joins again when a new server does not know it), keeps the heart beating, repeats
/// requests until they are answered, and takes one publish, unpublish or update at a time through its steps:
///
///     update:  waiting --> draining --> pulling <--> resourcing --> finishing --> done
///                 |  keep      (own old readers)  (another source)   (rest of the group)
///
/// The shell (worker.hpp, or the simulator) performs the actions in their order and reports back. An action
/// is an order, not a request: the session has no way to hear "no". Every call ends in exactly one
/// `session_result` with its ticket, at its deadline at the latest.
///
/// Thread safety: none; the shell serialises.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/service/session/operation.hpp"
#include "tensorhub/service/session/outbox.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub {

class session {
 public:
  /// `shape` is borrowed and must outlive the session.
  session(session_options options, incarnation self, const layout& shape)
      : options_{std::move(options)}, self_{self}, layout_{&shape}, outbox_{self, options_.request_retry} {}

  // ---- calls

  session_ticket join(time_point now, time_point deadline) {
    const session_ticket ticket = new_ticket();
    if (joined_ || fatal_) {
      finish(ticket, fatal_.value_or(messages::status{}));
      return ticket;
    }
    join_ticket_ = ticket;
    join_deadline_ = deadline;
    send_join(now);
    return ticket;
  }

  /// The control block must already show the version at `epoch()`.
  session_ticket publish(time_point now, version_number version, digest128 root, const remote_region& control,
                         time_point deadline) {
    const session_ticket ticket = new_ticket();
    ++counter_.value;
    if (!admit(ticket)) return ticket;
    if (held_) {
      finish(ticket, {errc::busy, "version " + to_string(held_->version) +
                                      " is still published: call unpublish() first"});
      return ticket;
    }
    begin(ticket, step::publishing, deadline);
    operation_->target = {version, epoch_, root, control};
    request(now, messages::publish_request{known_counter(), operation_->target}, purpose::publish);
    return ticket;
  }

  /// Ends when no reader is left, by force at the deadline: then memory is given back all the same, and late
  /// readers fail.
  session_ticket unpublish(time_point now, time_point deadline) {
    const session_ticket ticket = new_ticket();
    if (fatal_ && !operation_) {  // everybody was cut off when the session ended
      finish(ticket, {});
      return ticket;
    }
    if (!admit(ticket)) return ticket;
    if (!held_) {
      finish(ticket, {});
      return ticket;
    }
    begin(ticket, step::unpublishing, deadline);
    request(now, messages::unpublish_request{held_->version, held_->epoch, {}}, purpose::drain);
    return ticket;
  }

  session_ticket update(time_point now, const version_selector& selector, time_point deadline) {
    const session_ticket ticket = new_ticket();
    ++counter_.value;
    if (!admit(ticket)) return ticket;
    begin(ticket, step::waiting, deadline);
    operation_->selector = selector;
    request(now, messages::update_request{known_counter(), selector, milliseconds_until(now, deadline)},
            purpose::update);
    return ticket;
  }

  session_ticket wait(time_point now, const version_selector& selector, time_point deadline) {
    return ask(now, messages::wait_request{selector, milliseconds_until(now, deadline)}, deadline);
  }
  session_ticket list(time_point now, std::string model, time_point deadline) {
    return ask(now, messages::list_request{std::move(model)}, deadline);
  }
  session_ticket describe(time_point now, std::uint32_t shard, time_point deadline) {
    return ask(now, messages::describe_request{options_.model, shard}, deadline);
  }

  /// Nothing may be published any more: call `unpublish` first.
  session_ticket leave(time_point now, time_point deadline) {
    if (joined_ && !operation_ && !held_) leaving_ = true;
    const session_ticket ticket = new_ticket();
    if (!admit(ticket)) return ticket;
    if (held_) {
      finish(ticket, {errc::busy, "version " + to_string(held_->version) +
                                      " is still published: call unpublish() first"});
      return ticket;
    }
    if (!joined_) {
      finish(ticket, {});
      return ticket;
    }
    request(now, messages::leave_request{}, purpose::leave, ticket, deadline);
    return ticket;
  }

  /// Ends a running update with `cancelled`; any other ticket is ignored.
  void cancel(time_point now, session_ticket ticket) {
    if (operation_ && operation_->ticket == ticket && operation_->at != step::publishing &&
        operation_->at != step::unpublishing) {
      abort(now, {errc::cancelled, "the caller cancelled the update"});
    }
  }

  // ---- reports of the shell

  /// All bytes of the assigned version are there and verified, and the control block shows them at `epoch()`.
  void pull_finished(time_point now, const remote_region& control) {
    if (!operation_ || !operation_->is_pulling()) return;
    if (operation_->abort) {
      raise_epoch();  // it is shown already
      return pull_failed(now, *operation_->abort, false);
    }
    const messages::assignment& source = operation_->source;
    held_ = messages::reference{source.version, epoch_, source.root, control};
    operation_->at = step::finishing;
    request(now, messages::finish_request{counter_, source.version, {}, false, held_, source.lease},
            purpose::finish);
  }

  /// No read is outstanding any more. `intact`: no byte of the weights was written.
  void pull_failed(time_point now, messages::status reason, bool intact) {
    if (!operation_ || !operation_->is_pulling()) return;
    if (operation_->abort) reason = *operation_->abort;
    if (intact && operation_->previous) {
      held_ = operation_->previous;
      held_->epoch = epoch_;
      act(session_actions::restore{*held_});
    }
    report_failure(now, std::move(reason), intact, held_);
  }

  /// The current source cannot be used any more; what was received is kept.
  void source_failed(time_point now, lease_id lease, errc reason, std::string detail) {
    if (!operation_ || operation_->at != step::pulling || operation_->source.lease != lease) return;
    operation_->at = step::resourcing;
    request(now, messages::source_failed_request{counter_, lease, reason, std::move(detail)},
            purpose::source_failed);
  }

  void source_released(time_point now, lease_id lease) {
    request(now, messages::lease_released_request{lease}, purpose::notice);
  }
  void cut_off_done(time_point now, incarnation reader) {
    request(now, messages::cut_off_done_request{reader}, purpose::notice);
  }

  // ---- messages and time

  void receive(time_point now, const messages::envelope& envelope) {
    last_heard_ = now;
    std::visit(
        [&](const auto& body) {
          if constexpr (requires { this->on_push(now, body); }) {
            this->on_push(now, body);
          } else {
            this->on_answer(now, envelope, body);
          }
        },
        envelope.body);
  }

  void advance(time_point now) {
    if (join_ticket_ != 0 && now >= join_deadline_) {
      const session_ticket ticket = std::exchange(join_ticket_, 0);
      finish(ticket, {errc::disconnected, "no answer from the reference server at " + options_.server +
                                              ": is it running there, and is it a TensorHub server?"});
    }
    outbox_.repeat(now, joined_);
    for (const session_ticket ticket : outbox_.take_expired(now)) {
      finish(ticket, late(now, "an answer of the reference server"));
    }
    if (operation_ && now >= operation_->deadline) expire_operation(now);
    if (operation_ && operation_->at == step::draining && now >= operation_->drain_deadline) force_drain(now);
    if (joined_ && now >= next_heartbeat_) {
      next_heartbeat_ = now + heartbeat_interval_;
      outbox_.heartbeat();
    }
  }

  [[nodiscard]] time_point next_deadline() const noexcept {
    time_point next = outbox_.next_deadline(joined_);
    if (joined_) next = std::min(next, next_heartbeat_);
    if (join_ticket_ != 0) next = std::min(next, join_deadline_);
    if (operation_) {
      next = std::min(next, operation_->deadline);
      if (operation_->at == step::draining) next = std::min(next, operation_->drain_deadline);
    }
    return next;
  }

  [[nodiscard]] std::vector<messages::envelope> take_output() { return outbox_.take_output(); }
  [[nodiscard]] std::vector<session_action> take_actions() { return std::exchange(actions_, {}); }
  [[nodiscard]] std::vector<session_result> take_results() { return std::exchange(results_, {}); }

  // ---- state

  [[nodiscard]] bool joined() const noexcept { return joined_; }
  [[nodiscard]] incarnation self() const noexcept { return self_; }
  [[nodiscard]] const session_options& options() const noexcept { return options_; }
  /// Epoch of the control block. Whoever raises it is this session (action `raise_epoch`).
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] const std::optional<messages::reference>& held() const noexcept { return held_; }
  [[nodiscard]] version_number latest() const noexcept { return latest_; }
  [[nodiscard]] server_epoch server() const noexcept { return server_; }
  /// Set once the server has declared this worker dead, or refused it: nothing works any more.
  [[nodiscard]] const std::optional<messages::status>& fatal() const noexcept { return fatal_; }
  [[nodiscard]] bool busy() const noexcept { return operation_.has_value(); }
  /// Joined, and the server has answered all that this worker has ever told it: both know the same.
  [[nodiscard]] bool at_rest() const noexcept { return joined_ && !operation_ && outbox_.empty(); }

 private:
  using step = session_detail::step;
  using purpose = session_detail::purpose;
  using running = session_detail::running;
  using pending_request = session_detail::pending_request;

  // ---- requests

  void request(time_point now, messages::message body, purpose why, session_ticket ticket = 0,
               time_point deadline = time_point::never()) {
    outbox_.request(now, joined_, std::move(body), why, ticket, deadline);
  }

  session_ticket ask(time_point now, messages::message body, time_point deadline) {
    const session_ticket ticket = new_ticket();
    if (fatal_)
      finish(ticket, *fatal_);
    else
      request(now, std::move(body), purpose::question, ticket, deadline);
    return ticket;
  }

  void send_join(time_point now) {
    outbox_.forget({purpose::join});
    messages::join_request join;
    join.model = options_.model;
    join.replica = options_.replica;
    join.shard = options_.shard;
    join.place = options_.place;
    join.spot = options_.spot;
    join.transport = options_.transport;
    join.consistency = options_.consistency;
    join.integrity = options_.integrity;
    join.address = options_.address;
    join.layout_digest = layout_->digest();
    join.chunk_bytes = layout_->chunk_bytes();
    join.chunk_count = layout_->chunk_count();
    if (layout_wanted_) join.tensors.assign(layout_->tensors().begin(), layout_->tensors().end());
    join.held = held_;
    // A call that the old server has not answered is made again, so it is not finished.
    if (counted_) join.operation = {operation_ ? counter_.value - 1 : counter_.value};
    if (operation_ && operation_->is_pulling()) join.reading = operation_->source;
    request(now, std::move(join), purpose::join);
  }

  // ---- answers

  template <typename Body>
  void on_answer(time_point now, const messages::envelope& envelope, const Body& body) {
    if constexpr (requires(const pending_request& pending) { this->handle(now, pending, body); }) {
      if (const auto pending = outbox_.take(envelope.sequence)) handle(now, *pending, body);
    }
  }

  void handle(time_point now, const pending_request& pending, const messages::join_reply& reply) {
    if (pending.why != purpose::join) return;
    if (reply.wants_layout) {
      layout_wanted_ = true;
      return send_join(now);
    }
    if (!reply.result.ok()) return end(reply.result);
    server_ = reply.epoch;
    joined_ = true;
    counter_ = std::max(counter_, reply.operation);
    latest_ = std::max(latest_, reply.latest);
    heartbeat_interval_ =
        std::chrono::milliseconds{std::clamp<std::uint32_t>(reply.heartbeat_interval_ms, 1, 60'000)};
    next_heartbeat_ = now + heartbeat_interval_;
    if (join_ticket_ != 0) finish(std::exchange(join_ticket_, 0), {});
    outbox_.repeat_all(now);
  }

  void handle(time_point now, const pending_request& pending, const messages::status_reply& reply) {
    switch (pending.why) {
      case purpose::publish:
        if (!operation_ || operation_->at != step::publishing) return;
        learn_counter(reply.operation);
        if (reply.result.ok()) {
          held_ = operation_->target;
          latest_ = std::max(latest_, held_->version);
        } else {
          raise_epoch();
        }
        return conclude(reply.result, operation_->target.version);
      case purpose::finish:
        if (!operation_) return;
        if (operation_->at == step::failing) return conclude(operation_->failure, {});
        if (operation_->at == step::finishing)
          return conclude(reply.result, held_ ? held_->version : version_number{});
        return;
      case purpose::leave:
        joined_ = false;
        return finish(pending.ticket, reply.result);
      default:
        (void)now;
        return;
    }
  }

  void handle(time_point now, const pending_request& pending, const messages::drained_reply& reply) {
    if (!operation_ || pending.why != purpose::drain) return;
    if (operation_->at == step::unpublishing) {
      raise_epoch();
      held_.reset();
      session_result result;
      result.outcome = reply.result;
      result.drained = reply;
      conclude(std::move(result));
    } else if (operation_->at == step::draining) {
      if (!reply.result.ok()) return abort(now, reply.result);
      start_pull(now);
    }
  }

  void handle(time_point now, const pending_request& pending, const messages::update_reply& reply) {
    if (!operation_) return;
    const bool first = pending.why == purpose::update && operation_->at == step::waiting;
    const bool next = pending.why == purpose::source_failed && operation_->at == step::resourcing;
    if (!first && !next) return;
    learn_counter(reply.operation);
    if (!reply.result.ok()) {
      if (first) return conclude(reply.result, {});
      operation_->at = step::pulling;
      operation_->abort = reply.result;
      return stop_pull(reply.result);
    }
    if (reply.keep) return first ? conclude_kept(reply.version) : void();
    if (!reply.source)
      return first ? conclude({errc::protocol_mismatch, "the server's answer names no source"}, {}) : void();
    operation_->source = *reply.source;
    if (next) {
      operation_->at = step::pulling;
      act(session_actions::switch_source{*reply.source, {}});
      return;
    }
    operation_->previous = held_;
    if (held_ && !reply.source->drained) {
      operation_->at = step::draining;
      operation_->drain_deadline = now + options_.drain_timeout;
      request(now, messages::unpublish_request{held_->version, held_->epoch, counter_}, purpose::drain);
      return;
    }
    start_pull(now);
  }

  void handle(time_point, const pending_request& pending, const messages::version_reply& reply) {
    session_result result;
    result.ticket = pending.ticket;
    result.outcome = reply.result;
    result.version = reply.version;
    results_.push_back(std::move(result));
  }
  void handle(time_point, const pending_request& pending, const messages::list_reply& reply) {
    session_result result;
    result.ticket = pending.ticket;
    result.outcome = reply.result;
    result.list = reply;
    results_.push_back(std::move(result));
  }
  void handle(time_point, const pending_request& pending, const messages::describe_reply& reply) {
    session_result result;
    result.ticket = pending.ticket;
    result.outcome = reply.result;
    result.description = reply;
    results_.push_back(std::move(result));
  }

  // ---- pushes

  void on_push(time_point, const messages::version_push& push) { latest_ = std::max(latest_, push.version); }

  void on_push(time_point, const messages::heartbeat_reply& reply) {
    latest_ = std::max(latest_, reply.latest);
  }

  void on_push(time_point now, const messages::reassign_push& push) {
    const bool mine = operation_ && operation_->at == step::pulling && !operation_->abort &&
                      operation_->source.lease == push.old_lease;
    if (!mine) return source_released(now, push.source.lease);
    operation_->source = push.source;
    act(session_actions::switch_source{push.source, push.old_lease});
  }

  void on_push(time_point, const messages::cut_off_push& push) {
    act(session_actions::cut_off_reader{push.reader});
  }

  void on_push(time_point now, const messages::abort_push& push) {
    if (operation_ && push.operation == counter_) abort(now, push.reason);
  }

  void on_push(time_point now, const messages::goodbye_push& push) {
    if (leaving_) return finish_leaving();  // unknown to the server because it has taken us out already
    if (!push.rejoin) return end(push.reason);
    if (!joined_) return;  // a join is on its way
    joined_ = false;
    send_join(now);
  }

  void finish_leaving() {
    const auto pending = outbox_.take(purpose::leave);
    if (!pending) return;
    joined_ = false;
    finish(pending->ticket, {});
  }

  // ---- steps of an operation

  [[nodiscard]] bool admit(session_ticket ticket) {
    if (fatal_)
      finish(ticket, *fatal_);
    else if (operation_)
      finish(ticket, {errc::busy, "another publish, unpublish or update of this worker is running"});
    return !fatal_ && !operation_;
  }
  void begin(session_ticket ticket, step at, time_point deadline) {
    operation_.emplace();
    operation_->ticket = ticket;
    operation_->at = at;
    operation_->deadline = deadline;
  }

  /// In place: moving a temporary variant makes g++ 12 see uninitialised members that are not there.
  template <typename Action>
  void act(Action action) {
    actions_.emplace_back(std::in_place_type<Action>, std::move(action));
  }

  void raise_epoch() { act(session_actions::raise_epoch{++epoch_}); }

  void start_pull(time_point) {
    if (held_) raise_epoch();
    held_.reset();
    operation_->at = step::pulling;
    act(session_actions::start_pull{operation_->source});
  }
  void stop_pull(const messages::status& reason) {
    operation_->at = step::stopping;
    act(session_actions::stop_pull{reason});
  }

  /// Readers that did not end in time lose their permission here and now.
  void force_drain(time_point now) {
    outbox_.make_notice(purpose::drain);
    act(session_actions::cut_off_all{});
    cut_off_done(now, {});
    if (operation_->at == step::draining) start_pull(now);
  }

  /// Ends an update early: by the caller, the group, or the deadline.
  void abort(time_point now, messages::status reason) {
    switch (operation_->at) {
      case step::pulling:
      case step::resourcing:
        operation_->abort = reason;
        return stop_pull(reason);
      case step::stopping:
        return;
      case step::waiting:
      case step::draining:
        return report_failure(now, std::move(reason), true, {});
      case step::finishing:
        // What was received stays; only the group has not come to its end. The report of it may be lost.
        return report_failure(now, std::move(reason), false, held_);
      case step::publishing:
      case step::unpublishing:
      case step::failing:
        return;
    }
  }

  /// Tells the server that this shard's update failed; the call ends with its answer. `held`: what the memory
  /// holds now, if the server may think otherwise.
  void report_failure(time_point now, messages::status reason, bool intact,
                      std::optional<messages::reference> held) {
    const messages::assignment& source = operation_->source;
    outbox_.forget({purpose::update, purpose::drain, purpose::source_failed, purpose::finish});
    operation_->failure = reason;
    operation_->at = step::failing;
    operation_->deadline =
        std::max(operation_->deadline, now + options_.request_retry + options_.request_retry);
    request(now,
            messages::finish_request{known_counter(), source.version, std::move(reason), intact,
                                     std::move(held), source.lease},
            purpose::finish);
  }

  void expire_operation(time_point now) {
    switch (operation_->at) {
      case step::publishing:
        outbox_.forget({purpose::publish});
        raise_epoch();
        request(now, messages::unpublish_request{operation_->target.version, operation_->target.epoch, {}},
                purpose::notice);
        return conclude(late(now, "the server's answer to publish()"), {});
      case step::unpublishing: {
        force_drain(now);
        raise_epoch();
        held_.reset();
        session_result result;
        result.forced = true;
        return conclude(std::move(result));
      }
      case step::failing:
        outbox_.make_notice(purpose::finish);
        return conclude(operation_->failure, {});
      case step::stopping:
        operation_->deadline = time_point::never();
        return;  // the shell is about to report
      case step::waiting:
        return abort(now, late(now, "a version (" + to_string(operation_->selector) + ")"));
      case step::draining:
        return abort(now, late(now, "the readers of the version held before"));
      case step::pulling:
      case step::resourcing:
        return abort(
            now, late(now, "the bytes of version " + to_string(operation_->source.version) + " from " +
                               operation_->source.source_replica + " at " + operation_->source.address.text));
      case step::finishing:
        return abort(now, late(now, "the other shards of the replica"));
    }
  }

  [[nodiscard]] messages::status late(time_point now, const std::string& what) const {
    const bool silent = now - last_heard_ > std::chrono::nanoseconds{4 * options_.request_retry} || !joined_;
    if (silent) {
      return {errc::disconnected, "the deadline passed while waiting for " + what +
                                      ", and the reference server at " + options_.server +
                                      " does not answer"};
    }
    return {errc::timed_out, "the deadline passed while waiting for " + what};
  }

  /// The running call ends.
  void conclude(session_result result) {
    result.ticket = operation_->ticket;
    result.operation = known_counter();
    operation_.reset();
    results_.push_back(std::move(result));
  }
  void conclude(messages::status outcome, version_number version) {
    session_result result;
    result.outcome = std::move(outcome);
    result.version = version;
    conclude(std::move(result));
  }
  void conclude_kept(version_number version) {
    session_result result;
    result.version = version;
    result.kept = true;
    conclude(std::move(result));
  }

  /// The server does not want this worker (any more): everything ends, nobody may read from it.
  void end(const messages::status& reason) {
    if (fatal_) return;
    fatal_ = reason;
    joined_ = false;
    if (operation_ && operation_->is_pulling()) {
      act(session_actions::stop_pull{reason});
    }
    if (held_ || operation_) {
      act(session_actions::cut_off_all{});
      raise_epoch();
    }
    held_.reset();
    if (operation_) conclude(operation_->at == step::unpublishing ? messages::status{} : reason, {});
    if (join_ticket_ != 0) finish(std::exchange(join_ticket_, 0), reason);
    for (const auto& [sequence, request] : outbox_.take_all()) {
      if (request.ticket != 0) finish(request.ticket, reason);
    }
  }

  /// The number of the running call; zero while the server has not told what it counts as.
  [[nodiscard]] operation_counter known_counter() const noexcept {
    return counted_ ? counter_ : operation_counter{};
  }
  void learn_counter(operation_counter number) noexcept {
    if (!number) return;
    counter_ = number;
    counted_ = true;
  }

  [[nodiscard]] session_ticket new_ticket() noexcept { return ++last_ticket_; }
  void finish(session_ticket ticket, messages::status outcome) {
    session_result result;
    result.ticket = ticket;
    result.outcome = std::move(outcome);
    results_.push_back(std::move(result));
  }
  [[nodiscard]] static std::uint32_t milliseconds_until(time_point now, time_point deadline) noexcept {
    const std::int64_t left = deadline > now ? (deadline.nanoseconds - now.nanoseconds) / 1'000'000 : 0;
    return static_cast<std::uint32_t>(std::min<std::int64_t>(left, UINT32_MAX));
  }

  session_options options_;
  incarnation self_;
  const layout* layout_;

  bool joined_ = false;
  bool leaving_ = false;
  bool layout_wanted_ = false;
  std::optional<messages::status> fatal_;
  server_epoch server_{};
  time_point last_heard_{};
  time_point next_heartbeat_{};
  duration heartbeat_interval_ = defaults::heartbeat_interval;
  session_ticket join_ticket_ = 0;
  time_point join_deadline_ = time_point::never();

  session_detail::outbox outbox_;
  std::uint64_t last_ticket_ = 0;

  operation_counter counter_{};
  bool counted_ = false;  ///< `counter_` is what the server counts: some call was answered
  std::optional<running> operation_;
  std::optional<messages::reference> held_;
  version_number latest_{};
  std::uint64_t epoch_ = 1;

  std::vector<session_action> actions_;
  std::vector<session_result> results_;
};

}  // namespace tensorhub
