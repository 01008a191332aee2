#pragma once
/// \file inquiry.ipp
/// Definitions of inquiry.hpp.

#include <algorithm>
#include <utility>

#include "tensorhub/service/inquiry.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace inquiry_detail {

TENSORHUB_DECL const layout& no_layout() {
  static const layout none;
  return none;
}

}  // namespace inquiry_detail

TENSORHUB_DECL inquiry::inquiry(session_options options, incarnation self)
    : questions{std::move(options), self, inquiry_detail::no_layout()} {}

TENSORHUB_DECL void inquiry::interrupt() {
  for (const session_ticket ticket : outbox_.take_calls())
    finish(ticket, {errc::cancelled, "the call was interrupted"});
}

TENSORHUB_DECL void inquiry::receive(time_point now, const messages::envelope& envelope) {
  contact_.heard = now;
  if (const auto* goodbye = get_if<messages::goodbye_push>(&envelope.body)) {
    if (goodbye->rejoin || fatal_) return;  // it has not joined, and need not
    fatal_ = goodbye->reason;
    for (const session_ticket ticket : outbox_.take_calls()) finish(ticket, goodbye->reason);
    return;
  }
  visit(
      [&]<typename Body>(const Body& body) {
        if constexpr (requires(const pending_request& pending) { this->handle(now, pending, body); }) {
          if (const auto pending = outbox_.take_answered<Body>(envelope.sequence))
            handle(now, *pending, body);
        }
      },
      envelope.body);
}

TENSORHUB_DECL void inquiry::advance(time_point now) {
  if (now >= patience()) {
    const std::size_t next = (server_index_ + 1) % options_.servers;
    act(session_actions::use_server{next});
    move_to_server(now, next);
  }
  outbox_.repeat(now, false);
  for (const session_ticket ticket : outbox_.take_expired(now))
    finish(ticket, late(now, "an answer of the reference server"));
}

TENSORHUB_DECL time_point inquiry::next_deadline() const noexcept {
  return std::min(outbox_.next_deadline(false), patience());
}

TENSORHUB_DECL void inquiry::move_to_server(time_point now, std::size_t index) {
  if (index == server_index_) return;
  server_index_ = index;
  contact_.asked_since = now;
  outbox_.repeat_all(now, false);
}

TENSORHUB_DECL time_point inquiry::patience() const noexcept {
  if (options_.servers < 2 || fatal_ || outbox_.empty()) return time_point::never();
  return std::max(contact_.heard, contact_.asked_since) + options_.server_timeout;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
