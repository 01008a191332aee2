#pragma once
/// \file state.ipp
/// Definitions of state.hpp.

#include <algorithm>

#include "tensorhub/service/session/state.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

TENSORHUB_DECL void state::raise_epoch(std::uint64_t announced) {
  epoch_ = announced > epoch_ ? announced : ++last_epoch_;
  act(session_actions::raise_epoch{epoch_});
}

TENSORHUB_DECL messages::status state::late(time_point now, const std::string& what) const {
  const bool is_new = contact_.heard == time_point{};
  const bool silent = is_new || now - contact_.heard > std::chrono::nanoseconds{4 * options_.request_retry};
  if (silent) {
    return {errc::disconnected, "the deadline passed while waiting for " + what +
                                    ", and the reference server at " + options_.server + " does not answer" +
                                    contact_.refusal};
  }
  return {errc::timed_out, "the deadline passed while waiting for " + what};
}

TENSORHUB_DECL void state::end_late_requests(time_point now) {
  const std::vector<session_ticket> ended = outbox_.take_expired(now);
  for (const session_ticket ticket : ended) finish(ticket, late(now, "an answer of the reference server"));
  if (!ended.empty()) note_if_idle(now);
}

TENSORHUB_DECL time_point state::patience() const noexcept {
  if (options_.servers < 2 || fatal_ || (!joined_ && outbox_.empty())) return time_point::never();
  return std::max(contact_.heard, contact_.asked_since) + options_.server_timeout;
}

TENSORHUB_DECL std::size_t state::order_next_server() {
  const std::size_t next = (contact_.server + 1) % options_.servers;
  act(session_actions::use_server{next});
  return next;
}

TENSORHUB_DECL void state::learn_counter(operation_counter number) noexcept {
  if (!number) return;
  counter_ = number;
  counted_ = true;
}

TENSORHUB_DECL void state::follow(const state& before, const std::optional<messages::reference>& held) {
  last_ticket_ = before.last_ticket_;
  outbox_.number_after(before.outbox_);
  server_ = before.server_;
  contact_.heard = before.contact_.heard;
  versions_ = before.versions_;
  epoch_ = before.epoch_;
  last_epoch_ = before.last_epoch_;
  held_ = held;
  if (held_) held_->epoch = epoch_;
}

TENSORHUB_DECL void state::finish(session_ticket ticket, messages::status outcome) {
  session_result result;
  result.ticket = ticket;
  result.outcome = std::move(outcome);
  results_.push_back(std::move(result));
}

TENSORHUB_DECL void state::finish_all(const std::vector<session_ticket>& tickets,
                                      const messages::status& outcome) {
  for (const session_ticket ticket : tickets) finish(ticket, outcome);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
