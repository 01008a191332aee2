#pragma once
/// \file questions.ipp
/// Definitions of questions.hpp.

#include <algorithm>

#include "tensorhub/service/session/joining.hpp"
#include "tensorhub/service/session/questions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

TENSORHUB_DECL session_ticket questions::wait(time_point now, const version_selector& selector,
                                              time_point deadline) {
  // The server ends the wait a little earlier: its sentence says what there is.
  const std::chrono::milliseconds left{milliseconds_until(now, deadline)};
  const auto told = static_cast<std::uint32_t>((left - last_part(left)).count());
  return ask(now, messages::wait_request{selector, told}, deadline);
}

TENSORHUB_DECL session_ticket questions::why(time_point now, time_point deadline) {
  return ask(now, messages::why_request{options_.model, options_.replica, options_.shard.index}, deadline);
}

TENSORHUB_DECL session_ticket questions::stuck(time_point now, std::string model,
                                               std::chrono::milliseconds older_than, time_point deadline) {
  const auto least = std::clamp<std::int64_t>(older_than.count(), 0, UINT32_MAX);
  return ask(now, messages::stuck_request{std::move(model), static_cast<std::uint32_t>(least)}, deadline);
}

TENSORHUB_DECL session_result& questions::answer(const pending_request& pending,
                                                 const messages::status& outcome) {
  finish(pending.ticket, outcome);
  return results_.back();
}

TENSORHUB_DECL session_ticket questions::ask(time_point now, messages::message body, time_point deadline) {
  const session_ticket ticket = new_ticket();
  contact_.note_request(now);
  if (fatal_)
    finish(ticket, *fatal_);
  else if (outbox_.count(purpose::question) >= limits::worker_questions)
    finish(ticket, {errc::limit_exceeded,
                    std::to_string(limits::worker_questions) +
                        " questions of this worker wait for their answers: wait for some of them first"});
  else
    request(now, std::move(body), purpose::question, ticket, deadline);
  return ticket;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
