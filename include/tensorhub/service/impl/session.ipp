#pragma once
/// \file session.ipp
/// Definitions of session.hpp.

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/barred_readers.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/service/session/joining.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL session_ticket session::join(time_point now, time_point deadline) {
  const session_ticket ticket = new_ticket();
  if (joined_ || fatal_) {
    finish(ticket, fatal_.value_or(messages::status{}));
    return ticket;
  }
  joins_.push_back({ticket, now, deadline});
  if (joins_.size() > 1) return ticket;
  contact_.note_request(now);
  send_join(now);
  return ticket;
}

TENSORHUB_DECL session_ticket session::leave(time_point now, time_point deadline) {
  // The server may know of this worker already.
  const bool is_joining = outbox_.count(purpose::join) > 0 || contact_.rejoins_at != time_point::never();
  if ((joined_ || is_joining) && !operation_ && !held_) leaving_ = true;
  const session_ticket ticket = new_ticket();
  if (fatal_ && std::exchange(returns_, false)) {  // the server has removed this worker already
    finish(ticket, {});
    return ticket;
  }
  if (!admit(ticket)) return ticket;
  if (held_) {
    finish(ticket, still_published());
    return ticket;
  }
  if (!joined_ && !is_joining) {
    finish(ticket, {});
    return ticket;
  }
  request(now, messages::leave_request{}, purpose::leave, ticket, deadline);
  return ticket;
}

TENSORHUB_DECL void session::make_way(time_point now, time_point until) {
  const messages::status reason{errc::cancelled, "this worker leaves its model"};
  finish_joins(reason);
  end_running(now, until, reason);
}

TENSORHUB_DECL void session::interrupt(time_point now) {
  const messages::status reason{errc::cancelled, "the call was interrupted"};
  finish_joins(reason);
  end_running(now, now, reason);
  finish_all(outbox_.take_calls(), reason);
  note_if_idle(now);
}

TENSORHUB_DECL void session::cancel_join(session_ticket ticket, const messages::status& reason) {
  const auto same = [ticket](const session_detail::waiting_join& each) { return each.ticket == ticket; };
  if (std::erase_if(joins_, same) > 0) finish(ticket, reason);
}

TENSORHUB_DECL void session::finish_joins(const messages::status& outcome) {
  for (const session_detail::waiting_join& each : std::exchange(joins_, {})) finish(each.ticket, outcome);
}

TENSORHUB_DECL void session::end_late_joins(time_point now) {
  const std::vector<session_detail::waiting_join> all = joins_;
  for (const session_detail::waiting_join& each : all) {
    if (now < each.deadline) continue;
    const std::string server = "the reference server at " + options_.server;
    const auto waited = session_detail::milliseconds_until(each.began, each.deadline);
    const std::string sentence =
        waited == 0 ? "the time-out left no time to wait for an answer from " + server + ": give a longer one"
                    : "no answer from " + server + " within " + std::to_string(waited) +
                          " ms: is it running there, and is it a TensorHub server?";
    cancel_join(each.ticket, {errc::disconnected, sentence + contact_.refusal});
  }
}

TENSORHUB_DECL void session::abandon(time_point now) {
  if (joined_) request(now, messages::leave_request{}, purpose::leave);
  end({errc::cancelled, "this worker has left its model: construct a new one"});
  returns_ = false;
}

TENSORHUB_DECL void session::receive(time_point now, const messages::envelope& envelope) {
  speaker_ = server_epoch{envelope.sender};  // zero: a message of the shell itself
  if (speaker_ && term_of(speaker_) < term_of(believed_))
    return;  // from a server that another one has replaced
  contact_.heard = now;
  contact_.beat_since = time_point::never();
  if (is_late(envelope.body)) return ask_to_return(now);
  visit([&](const auto& body) { on_body(now, envelope, body); }, envelope.body);
}

TENSORHUB_DECL void session::advance(time_point now) {
  end_late_joins(now);
  if (now >= std::min(patience(), contact_.rejoins_at)) try_next_server(now);
  if (now >= new_connection_at()) ask_for_new_connection(now);
  outbox_.repeat(now, joined_);
  end_late_requests(now);
  advance_operation(now);
  if (joined_ && now >= next_heartbeat_) {
    if (was_paused(now)) beats_answered_ = 0;
    next_heartbeat_ = now + heartbeat_interval_;
    contact_.beat_since = std::min(contact_.beat_since, now);
    outbox_.heartbeat();
  }
}

TENSORHUB_DECL time_point session::next_deadline() const noexcept {
  time_point next = outbox_.next_deadline(joined_);
  if (joined_) next = std::min(next, next_heartbeat_);
  for (const session_detail::waiting_join& each : joins_) next = std::min(next, each.deadline);
  next = std::min({next, patience(), contact_.rejoins_at, new_connection_at()});
  return std::min(next, operation_deadline());
}

TENSORHUB_DECL void session::send_join(time_point now, bool with_layout) {
  contact_.rejoins_at = time_point::never();
  outbox_.forget({purpose::join});
  messages::join_request join = session_detail::join_request_of(options_, *layout_);
  if (with_layout) join.form.tensors.assign(layout_->tensors().begin(), layout_->tensors().end());
  join.before.server = server_;
  join.before.moved = server_ && contact_.server != joined_at_;
  join.before.returns = returns_;
  join.before.held = held_;
  join.before.ended_well = ended_well_;
  join.before.latest = versions_.latest;
  join.before.barred = barred_;
  join.before.peers = counted_workers(now);
  join.before.keeps = versions_.keeps;
  // A call that the old server has not answered is made again, so it is not finished.
  const bool is_called_again = operation_ && !operation_->is_local();
  if (counted_) join.before.operation = {is_called_again ? counter_.value - 1 : counter_.value};
  if (operation_ && operation_->is_decided()) join.before.decided = operation_->version;
  if (operation_ && operation_->is_pulling()) {
    join.before.reading = operation_->sources.current;
    if (operation_->control) {
      join.before.receiving = messages::reference{
          operation_->version, epoch_, operation_->root.value_or(digest128{}), *operation_->control};
    }
  }
  request(now, std::move(join), purpose::join);
}

TENSORHUB_DECL std::uint32_t session::counted_workers(time_point now) const noexcept {
  const bool is_good = beats_answered_ >= 2 && !was_paused(now) && now - counted_at_ <= worker_timeout_;
  return is_good ? peers_ : 0;
}

TENSORHUB_DECL bool session::is_late(const messages::message& body) const noexcept {
  if (!speaker_ || !detail::contains(ended_, speaker_)) return false;
  return !holds_any_of<messages::join_reply, messages::goodbye_push, messages::list_reply,
                       messages::describe_reply, messages::why_reply, messages::stuck_reply>(body);
}

TENSORHUB_DECL void session::ask_to_return(time_point now) {
  if (!joined_ || contact_.server == joined_at_) return;
  joined_ = false;
  send_join(now);
}

TENSORHUB_DECL void session::note_end_of_server() {
  if (!server_ || !speaker_ || server_ == speaker_) return;
  if (detail::contains(ended_, server_)) return;
  std::rotate(ended_.begin(), ended_.begin() + 1, ended_.end());
  ended_.back() = server_;
}

TENSORHUB_DECL void session::handle(time_point now, const pending_request& pending,
                                    const messages::join_reply& reply) {
  if (pending.why != purpose::join) return;
  if (reply.wants_layout) return send_join(now, true);
  if (reply.result.code == errc::unavailable && options_.servers > 1) {
    contact_.refusal = "; another server of the list says: " + reply.result.sentence;
    return go_elsewhere(now);
  }
  if (!reply.result.ok()) return end(reply.result);
  note_end_of_server();
  joined_at_ = contact_.server;
  contact_.refusal.clear();
  if (server_ != reply.epoch) outbox_.forget_cut_offs();
  server_ = reply.epoch;
  believed_ = speaker_;
  std::replace(ended_.begin(), ended_.end(), server_, server_epoch{});
  joined_ = true;
  // The running call keeps its number: its requests and the server's pushes name it.
  operation_counter& closed = operation_ ? closed_meanwhile_ : counter_;
  closed = std::max(closed, reply.operation);
  hear_of(reply.latest);
  beats_answered_ = 0;
  worker_timeout_ = std::chrono::milliseconds{reply.worker_timeout_ms};
  heartbeat_interval_ =
      std::clamp<std::chrono::milliseconds>(std::chrono::milliseconds{reply.heartbeat_interval_ms},
                                            std::chrono::milliseconds{1}, limits::heartbeat_interval);
  next_heartbeat_ = now + heartbeat_interval_;
  finish_joins({});
  outbox_.repeat_all(now, true);
}

TENSORHUB_DECL void session::handle(time_point now, const pending_request& pending,
                                    const messages::status_reply& reply) {
  if (pending.why == purpose::question) return finish(pending.ticket, reply.result);
  if (pending.why != purpose::leave) return operations::handle(now, pending, reply);
  finish_leaving(pending.ticket, reply.result);
}

TENSORHUB_DECL void session::on_push(time_point now, const messages::heartbeat_reply& reply) {
  hear_of(reply.latest);
  beats_answered_ = was_paused(now) ? 0 : beats_answered_ + 1;
  peers_ = reply.workers;
  counted_at_ = now;
}

TENSORHUB_DECL void session::on_push(time_point, const messages::retention_push& push) {
  // Of one server's words a late one may be old; another server knows better than the one before.
  if (push.keeps.revision > versions_.keeps.revision || versions_.keeps_from != speaker_) {
    versions_.keeps = push.keeps;
    versions_.keeps_from = speaker_;
  }
  outbox_.heard_retention(versions_.keeps.revision);
  if (is_void(versions_.keeps, versions_.latest)) versions_.latest = {};
}

TENSORHUB_DECL void session::on_push(time_point, const messages::cut_off_push& push) {
  if (!push.reader) return;  // from a faulty server
  act(session_actions::cut_off_reader{push.reader});
  bar(barred_, push.reader);
}

TENSORHUB_DECL void session::on_push(time_point now, const messages::goodbye_push& push) {
  if (leaving_) {  // the server has already removed this worker
    if (const auto pending = outbox_.take(purpose::leave)) finish_leaving(pending->ticket, {});
    return;
  }
  if (push.worker && push.worker != self_) return;  // to an earlier incarnation of this process
  const bool is_silent = speaker_ && push.reason.code == errc::disconnected;
  if (!push.rejoin) return is_silent ? end_as_silent(push.reason) : end(push.reason);
  believed_ = speaker_;
  note_end_of_server();
  if (!joined_) return;  // a join request is already open
  joined_ = false;
  send_join(now);
}

TENSORHUB_DECL void session::go_elsewhere(time_point now) {
  if (now - contact_.refused_since > options_.server_timeout) {
    contact_.refused_since = now;
    contact_.refusals = 0;
  }
  if (++contact_.refusals >= options_.servers) {
    contact_.rejoins_at = contact_.refused_since + options_.server_timeout;
    return;
  }
  try_next_server(now);
  send_join(now);
}

TENSORHUB_DECL void session::move_to_server(time_point now, std::size_t index) {
  if (index == contact_.server) return;
  contact_.turn_to(index, now);
  if (joined_) outbox_.heartbeat();
  const bool waits = std::exchange(contact_.rejoins_at, time_point::never()) != time_point::never();
  const bool is_joining = waits || outbox_.count(purpose::join) > 0;
  outbox_.forget({purpose::join});  // it said at which server the worker was before
  outbox_.repeat_all(now, joined_);
  if (is_joining) send_join(now);
  note_if_idle(now);
}

TENSORHUB_DECL void session::ask_for_new_connection(time_point now) {
  contact_.beat_since = now;
  act(session_actions::use_server{contact_.server});
  outbox_.heartbeat();
  outbox_.repeat_all(now, joined_);
}

TENSORHUB_DECL void session::finish_leaving(session_ticket ticket, const messages::status& outcome) {
  joined_ = false;
  contact_.has_left = true;
  finish(ticket, outcome);
  finish_requests({errc::cancelled, "this worker has left its model: construct a new one"});
}

TENSORHUB_DECL void session::finish_requests(const messages::status& outcome) {
  for (const auto& [sequence, request] : outbox_.take_all()) {
    if (request.ticket != 0) finish(request.ticket, outcome);
  }
}

static_assert(std::is_nothrow_move_assignable_v<session>);

TENSORHUB_DECL void session::end(const messages::status& reason) {
  if (fatal_) return;
  session ended = *this;
  ended.end_at_once(reason);
  *this = std::move(ended);
}

TENSORHUB_DECL void session::end_at_once(const messages::status& reason) {
  fatal_ = reason;
  returns_ = false;
  joined_ = false;
  contact_.rejoins_at = time_point::never();
  end_operation(reason);
  finish_joins(reason);
  finish_requests(reason);
}

TENSORHUB_DECL void session::end_as_silent(const messages::status& reason) {
  if (options_.renewable)
    end({errc::disconnected, reason.sentence + "; it joins again by itself: repeat the call"});
  else
    end({errc::replaced, reason.sentence + "; construct a new one to join again"});
  returns_ = options_.renewable;
}

TENSORHUB_DECL session session::successor(time_point now, const proven_incarnation& self,
                                          std::optional<readable_memory> memory) const {
  session next{options_, self.id, *layout_};
  next.options_.proof = self.proof;
  std::optional<messages::reference> held;
  if (memory) held = kept();
  if (held) held->name_memory(*std::move(memory));
  next.follow(*this, held);
  next.believed_ = believed_;
  next.ended_ = ended_;
  next.contact_.server = contact_.server;
  next.joined_at_ = joined_at_;
  next.barred_ = barred_;
  next.returns_ = true;
  next.contact_.asked_since = now;
  next.send_join(now);
  return next;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
