#pragma once
/// \file session.hpp
/// A worker's side of the control protocol, as a pure state machine: calls, messages and time in; messages
/// and actions out.
///
/// The session joins (and joins again when a new server does not know it), keeps the heart beating, repeats
/// requests until they are answered, and takes one publish, unpublish or update at a time through its steps
/// (session/operations.hpp). session/state.hpp lists its layers.
///
/// The shell (worker.hpp, or the simulator) performs the actions in their order and reports back. An action
/// is an order, not a request: the session has no way to hear "no". Every call ends in exactly one
/// `session_result` with its ticket, at its deadline at the latest.
///
/// Thread safety: none; the shell serialises.

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/barred_readers.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/service/session/joining.hpp"
#include "tensorhub/service/session/operations.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class session : public session_detail::operations {
 public:
  /// `shape` is borrowed and must outlive the session.
  session(session_options options, incarnation self, const layout& shape)
      : operations{std::move(options), self, shape} {}

  session_ticket join(time_point now, time_point deadline) {
    const session_ticket ticket = new_ticket();
    if (joined_ || fatal_) {
      finish(ticket, fatal_.value_or(messages::status{}));
      return ticket;
    }
    if (join_ticket_ != 0) {
      finish(ticket, {errc::busy, "another join of this worker is running"});
      return ticket;
    }
    join_ticket_ = ticket;
    join_deadline_ = deadline;
    asked_since_ = now;
    send_join(now);
    return ticket;
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

  /// Told when it joins: before that a transport may lose a part that does not take the memory.
  void reachable_at(transport_address address) { options_.address = std::move(address); }

  /// For the scheduler: told with each heartbeat.
  void progress(std::uint64_t chunks) noexcept { outbox_.progress(chunks); }

  // ---- messages and time

  void receive(time_point now, const messages::envelope& envelope) {
    speaker_ = server_epoch{envelope.sender};                        // none: the shell's own word
    if (speaker_ && term_of(speaker_) < term_of(believed_)) return;  // of a server that was deposed
    last_heard_ = now;
    if (is_late(envelope.body)) return;
    std::visit([&](const auto& body) { on_body(now, envelope, body); }, envelope.body);
  }

  void advance(time_point now) {
    if (join_ticket_ != 0 && now >= join_deadline_) {
      const session_ticket ticket = std::exchange(join_ticket_, 0);
      finish(ticket, {errc::disconnected, "no answer from the reference server at " + options_.server +
                                              ": is it running there, and is it a TensorHub server?"});
    }
    if (now >= patience()) try_next_server(now);
    outbox_.repeat(now, joined_);
    for (const session_ticket ticket : outbox_.take_expired(now)) {
      finish(ticket, late(now, "an answer of the reference server"));
    }
    advance_operation(now);
    if (joined_ && now >= next_heartbeat_) {
      if (has_stood_still(now)) beats_answered_ = 0;
      next_heartbeat_ = now + heartbeat_interval_;
      outbox_.heartbeat();
    }
  }

  [[nodiscard]] time_point next_deadline() const noexcept {
    time_point next = outbox_.next_deadline(joined_);
    if (joined_) next = std::min(next, next_heartbeat_);
    if (join_ticket_ != 0) next = std::min(next, join_deadline_);
    next = std::min(next, patience());
    return std::min(next, operation_deadline());
  }

 private:
  using purpose = session_detail::purpose;
  using pending_request = session_detail::pending_request;
  using operations::handle;
  using operations::on_push;

  void send_join(time_point now) {
    outbox_.forget({purpose::join});
    messages::join_request join = session_detail::join_request_of(options_, *layout_);
    if (layout_wanted_) join.tensors.assign(layout_->tensors().begin(), layout_->tensors().end());
    join.held = held_;
    join.ended_well = ended_well_;
    join.latest = latest_;
    join.before = server_;
    join.barred = barred_;
    join.peers = counted_workers(now);
    join.keeps = keeps_;
    // A call that the old server has not answered is made again, so it is not finished.
    if (counted_) join.operation = {operation_ ? counter_.value - 1 : counter_.value};
    if (operation_ && operation_->is_decided()) join.decided = operation_->version;
    if (operation_ && operation_->is_pulling()) {
      join.reading = operation_->sources;
      if (operation_->control) {
        join.receiving =
            messages::reference{operation_->version, epoch_, operation_->root, *operation_->control};
      }
    }
    request(now, std::move(join), purpose::join);
  }
  /// Workers of the model; zero: it may be more than this one has heard of. A count is good while one heart
  /// beat after the other is answered: the answer to the first may be older than a standstill, and who was
  /// silent for too long was perhaps declared dead and not told of those who came afterwards.
  [[nodiscard]] std::uint32_t counted_workers(time_point now) const noexcept {
    const bool is_good =
        beats_answered_ >= 2 && !has_stood_still(now) && now - counted_at_ <= worker_timeout_;
    return is_good ? peers_ : 0;
  }
  /// This process was stopped, or starved: its heart should have beaten long ago.
  [[nodiscard]] bool has_stood_still(time_point now) const noexcept {
    return now > next_heartbeat_ + heartbeat_interval_;
  }

  /// Of a server that has ended: this worker had joined it, and then another one. That one does not know what
  /// the first one has answered, and is asked again. What any server may say to anybody is never late. (A
  /// server that was only never heard of before may be the living one: an answer of one that has ended can
  /// overtake it.)
  [[nodiscard]] bool is_late(const messages::message& body) const noexcept {
    if (!speaker_ || std::ranges::find(ended_, speaker_) == ended_.end()) return false;
    return !(std::holds_alternative<messages::join_reply>(body) ||
             std::holds_alternative<messages::goodbye_push>(body) ||
             std::holds_alternative<messages::list_reply>(body) ||
             std::holds_alternative<messages::describe_reply>(body) ||
             std::holds_alternative<messages::why_reply>(body) ||
             std::holds_alternative<messages::stuck_reply>(body));
  }

  /// Another one than the server that this worker has joined says that it is the server.
  void note_end_of_server() {
    if (!server_ || !speaker_ || server_ == speaker_) return;
    if (std::ranges::find(ended_, server_) != ended_.end()) return;
    std::rotate(ended_.begin(), ended_.begin() + 1, ended_.end());
    ended_.back() = server_;
  }

  // ---- answers

  template <typename Body>
  void on_body(time_point now, const messages::envelope& envelope, const Body& body) {
    if constexpr (requires { this->on_push(now, body); })
      on_push(now, body);
    else
      on_answer(now, envelope, body);
  }
  template <typename Body>
  void on_answer(time_point now, const messages::envelope& envelope, const Body& body) {
    if constexpr (requires(const pending_request& pending) { this->handle(now, pending, body); }) {
      if (const auto pending = outbox_.take_answered<Body>(envelope.sequence)) handle(now, *pending, body);
    }
  }

  void handle(time_point now, const pending_request& pending, const messages::join_reply& reply) {
    if (pending.why != purpose::join) return;
    if (reply.wants_layout) {
      layout_wanted_ = true;
      return send_join(now);
    }
    if (!reply.result.ok()) return end(reply.result);
    note_end_of_server();
    server_ = reply.epoch;
    believed_ = speaker_;
    std::ranges::replace(ended_, server_, server_epoch{});
    joined_ = true;
    // The running call keeps its number: its requests and the server's pushes name it.
    operation_counter& closed = operation_ ? closed_meanwhile_ : counter_;
    closed = std::max(closed, reply.operation);
    latest_ = std::max(latest_, reply.latest);
    beats_answered_ = 0;
    worker_timeout_ = std::chrono::milliseconds{reply.worker_timeout_ms};
    heartbeat_interval_ =
        std::chrono::milliseconds{std::clamp<std::uint32_t>(reply.heartbeat_interval_ms, 1, 60'000)};
    next_heartbeat_ = now + heartbeat_interval_;
    if (join_ticket_ != 0) finish(std::exchange(join_ticket_, 0), {});
    outbox_.repeat_all(now, true);
  }

  void handle(time_point now, const pending_request& pending, const messages::status_reply& reply) {
    if (pending.why == purpose::question) return finish(pending.ticket, reply.result);
    if (pending.why != purpose::leave) return operations::handle(now, pending, reply);
    joined_ = false;
    finish(pending.ticket, reply.result);
  }

  // ---- pushes

  void on_push(time_point, const messages::version_push& push) { latest_ = std::max(latest_, push.version); }

  void on_push(time_point now, const messages::heartbeat_reply& reply) {
    latest_ = std::max(latest_, reply.latest);
    beats_answered_ = has_stood_still(now) ? 0 : beats_answered_ + 1;
    peers_ = reply.workers;
    counted_at_ = now;
  }
  void on_push(time_point, const messages::retention_push& push) {
    if (push.keeps.revision > keeps_.revision) keeps_ = push.keeps;
    outbox_.heard_retention(keeps_.revision);
  }
  void on_push(time_point, const messages::offload_push& push) {
    act(session_actions::offload{push.version, push.replica});
  }
  void on_push(time_point, const messages::drop_push&) { act(session_actions::drop{}); }
  void on_push(time_point, const messages::cut_off_push& push) {
    act(session_actions::cut_off_reader{push.reader});
    bar(barred_, push.reader);
  }

  void on_push(time_point now, const messages::goodbye_push& push) {
    if (leaving_) return finish_leaving();  // unknown to the server because it has taken us out already
    if (!push.rejoin) return end(push.reason);
    believed_ = speaker_;
    note_end_of_server();
    if (!joined_) return;  // a join is on its way
    joined_ = false;
    send_join(now);
  }

  /// Until when the server may be silent; never: there is no other one, or nothing to ask.
  [[nodiscard]] time_point patience() const noexcept {
    if (options_.servers < 2 || fatal_ || (!joined_ && outbox_.empty())) return time_point::never();
    return std::max(last_heard_, asked_since_) + options_.server_timeout;
  }
  /// It will not know this worker, and say so.
  void try_next_server(time_point now) {
    asked_since_ = now;
    server_index_ = (server_index_ + 1) % options_.servers;
    act(session_actions::use_server{server_index_});
    if (joined_) outbox_.heartbeat();
    outbox_.repeat_all(now, joined_);
  }

  void finish_leaving() {
    const auto pending = outbox_.take(purpose::leave);
    if (!pending) return;
    joined_ = false;
    finish(pending->ticket, {});
  }

  /// The server does not want this worker (any more): everything ends, nobody may read from it.
  void end(const messages::status& reason) {
    if (fatal_) return;
    fatal_ = reason;
    joined_ = false;
    end_operation(reason);
    if (join_ticket_ != 0) finish(std::exchange(join_ticket_, 0), reason);
    for (const auto& [sequence, request] : outbox_.take_all()) {
      if (request.ticket != 0) finish(request.ticket, reason);
    }
  }

  server_epoch speaker_{};               ///< of the message at hand
  server_epoch believed_{};              ///< whom it has joined, or is about to
  std::array<server_epoch, 4> ended_{};  ///< servers that it had joined; the last few, zero: none
  std::size_t server_index_ = 0;
  time_point asked_since_{};  ///< this server
  bool leaving_ = false;
  std::uint32_t peers_ = 0;           ///< workers of the model, as the server last told
  time_point counted_at_{};           ///< when that was
  std::uint32_t beats_answered_ = 0;  ///< in a row: since it joined, or stood still
  duration worker_timeout_ = defaults::worker_timeout;
  std::vector<incarnation> barred_;  ///< whom it has cut off; the last few
  messages::retention keeps_{};
  bool layout_wanted_ = false;
  time_point next_heartbeat_{};
  duration heartbeat_interval_ = defaults::heartbeat_interval;
  session_ticket join_ticket_ = 0;
  time_point join_deadline_ = time_point::never();
};

}  // namespace tensorhub::inline TENSORHUB_MODE
