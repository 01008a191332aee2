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

TENSORHUB_DECL void inquiry::interrupt(time_point now) {
  finish_all(outbox_.take_calls(), {errc::cancelled, "the call was interrupted"});
  note_if_idle(now);
}

TENSORHUB_DECL void inquiry::receive(time_point now, const messages::envelope& envelope) {
  contact_.heard = now;
  if (const auto* goodbye = get_if<messages::goodbye_push>(&envelope.body)) {
    if (goodbye->rejoin || fatal_) return;  // it has not joined, and need not
    inquiry ended = *this;                  // as in session::end: all or nothing
    ended.fatal_ = goodbye->reason;
    ended.finish_all(ended.outbox_.take_calls(), goodbye->reason);
    *this = std::move(ended);
    return;
  }
  visit(
      [&]<typename Body>(const Body& body) {
        if constexpr (requires(const pending_request& pending) { this->handle(now, pending, body); }) {
          if (const auto pending = outbox_.take_answered(envelope)) handle(now, *pending, body);
        }
      },
      envelope.body);
}

TENSORHUB_DECL void inquiry::advance(time_point now) {
  if (now >= patience()) move_to_server(now, order_next_server());
  outbox_.repeat(now, false);
  end_late_requests(now);
}

TENSORHUB_DECL time_point inquiry::next_deadline() const noexcept {
  return std::min(outbox_.next_deadline(false), patience());
}

TENSORHUB_DECL void inquiry::move_to_server(time_point now, std::size_t index) {
  if (index == contact_.server) return;
  contact_.turn_to(index, now);
  note_if_idle(now);
  outbox_.repeat_all(now, false);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
