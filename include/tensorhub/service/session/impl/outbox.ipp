#pragma once
/// \file outbox.ipp
/// Definitions of outbox.hpp.

#include <algorithm>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/session/outbox.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

TENSORHUB_DECL void outbox::request(time_point now, bool joined, messages::message body, purpose why,
                                    session_ticket ticket, time_point deadline) {
  const request_sequence sequence{++last_sequence_};
  pending_request& pending = open_[sequence];
  pending.body = std::move(body);
  pending.why = why;
  pending.ticket = ticket;
  pending.deadline = deadline;
  pending.without_joining = why == purpose::join || messages::is_question(pending.body) ||
                            holds_alternative<messages::manage_request>(pending.body);
  if (may_send(sequence, pending, joined)) transmit(now, sequence, pending);
}

TENSORHUB_DECL void outbox::heartbeat() {
  put_out({}, messages::heartbeat_request{chunks_, retention_});
}

TENSORHUB_DECL void outbox::repeat(time_point now, bool joined) {
  for (auto& [sequence, pending] : open_) {
    if (now >= pending.next_send && may_send(sequence, pending, joined)) transmit(now, sequence, pending);
  }
}

TENSORHUB_DECL void outbox::repeat_all(time_point now, bool joined) {
  for (auto& [sequence, pending] : open_) {
    if (may_send(sequence, pending, joined)) transmit(now, sequence, pending);
  }
}

TENSORHUB_DECL std::optional<pending_request> outbox::take(request_sequence sequence) {
  const auto found = open_.find(sequence);
  if (found == open_.end()) return std::nullopt;
  std::optional<pending_request> out{std::move(found->second)};
  open_.erase(found);
  return out;
}

TENSORHUB_DECL std::optional<pending_request> outbox::take_answered(const messages::envelope& answer) {
  const auto found = open_.find(answer.sequence);
  if (found == open_.end() || !is_answer_to(found->second.body, answer.body)) return std::nullopt;
  return take(answer.sequence);
}

TENSORHUB_DECL std::optional<pending_request> outbox::take(purpose why) {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [why](const auto& entry) { return entry.second.why == why; });
  return found == open_.end() ? std::nullopt : take(found->first);
}

TENSORHUB_DECL std::vector<session_ticket> outbox::take_expired(time_point now) {
  return take_tickets([now](const pending_request& pending) { return now >= pending.deadline; });
}
TENSORHUB_DECL std::vector<session_ticket> outbox::take_calls() {
  return take_tickets([](const pending_request& pending) { return pending.ticket != 0; });
}

TENSORHUB_DECL void outbox::forget(std::initializer_list<purpose> reasons) {
  std::erase_if(open_, [reasons](const auto& entry) {
    return std::find(reasons.begin(), reasons.end(), entry.second.why) != reasons.end();
  });
}

TENSORHUB_DECL void outbox::forget_cut_offs() {
  std::erase_if(open_, [](const auto& entry) {
    const auto* cut_off = get_if<messages::cut_off_done_request>(&entry.second.body);
    return cut_off != nullptr && !cut_off->reader;
  });
}

TENSORHUB_DECL void outbox::make_notice(purpose why) {
  for (auto& [sequence, pending] : open_) {
    if (pending.why == why) pending.why = purpose::notice;
  }
}

TENSORHUB_DECL std::size_t outbox::count(purpose why) const noexcept {
  return static_cast<std::size_t>(
      detail::count_if(open_, [why](const auto& entry) { return entry.second.why == why; }));
}

TENSORHUB_DECL bool outbox::wants_sources(messages::sources_wanted why) const noexcept {
  return detail::any_of(open_, [why](const auto& entry) {
    const auto* request = get_if<messages::sources_request>(&entry.second.body);
    return request != nullptr && request->why == why;
  });
}

TENSORHUB_DECL time_point outbox::next_deadline(bool joined) const noexcept {
  time_point next = time_point::never();
  for (const auto& [sequence, pending] : open_) {
    next = std::min(next, pending.deadline);
    if (may_send(sequence, pending, joined)) next = std::min(next, pending.next_send);
  }
  return next;
}

TENSORHUB_DECL bool outbox::may_send(request_sequence sequence, const pending_request& pending,
                                     bool joined) const noexcept {
  if (!joined && !pending.without_joining) return false;
  // Readers may be sent to what these offer. What is said of the memory, and that all earlier readers are cut
  // off, must have been heard before.
  if (holds_any_of<messages::finish_request, messages::holding_request, messages::receiving_request>(
          pending.body)) {
    return std::none_of(open_.begin(), open_.find(sequence), [](const auto& earlier) {
      const auto* cut_off = get_if<messages::cut_off_done_request>(&earlier.second.body);
      return holds_alternative<messages::finish_request>(earlier.second.body) ||
             (cut_off != nullptr && !cut_off->reader);
    });
  }
  if (holds_alternative<messages::unpublish_request>(pending.body)) {
    // The server must know that the version is held: it would let the worker go before the version's readers
    // otherwise. And a `holding_request` would end the drain that this request begins.
    return std::none_of(open_.begin(), open_.find(sequence), [](const auto& earlier) {
      return holds_any_of<messages::finish_request, messages::holding_request>(earlier.second.body);
    });
  }
  if (pending.why != purpose::publish && pending.why != purpose::update) return true;
  return std::none_of(open_.begin(), open_.find(sequence), [](const auto& earlier) {
    return earlier.second.why == purpose::finish || earlier.second.why == purpose::notice;
  });
}

TENSORHUB_DECL void outbox::transmit(time_point now, request_sequence sequence, pending_request& pending) {
  pending.next_send = now + retry_;
  put_out(sequence, pending.body);
}

TENSORHUB_DECL void outbox::put_out(request_sequence sequence, messages::message body) {
  messages::envelope out{self_.value, sequence, {last_sequence_}, std::move(body), {}};
  for (const auto& [number, pending] : open_) {
    if (number.value == last_sequence_ || out.open.size() == limits::worker_requests_in_flight) {
      out.acknowledged = {number.value - 1};
      break;
    }
    out.open.push_back(number);
  }
  output_.push_back(std::move(out));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
