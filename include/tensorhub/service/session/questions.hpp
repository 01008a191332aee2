#pragma once
/// \file questions.hpp
/// Calls of one request each, which end with the answer or at their deadline.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session/state.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

class questions : public state {
 public:
  /// Changes which versions are retained (messages::retain_request).
  session_ticket retain(time_point now, const messages::retain_request& change, time_point deadline) {
    return ask(now, change, deadline);
  }
  session_ticket wait(time_point now, const version_selector& selector, time_point deadline);
  session_ticket list(time_point now, std::string model, time_point deadline) {
    return ask(now, messages::list_request{std::move(model)}, deadline);
  }
  /// Asks how the sources of this worker were chosen.
  session_ticket why(time_point now, time_point deadline);
  /// Asks what in the system is waiting, and for what. An empty `model` means all models.
  session_ticket stuck(time_point now, std::string model, std::chrono::milliseconds older_than,
                       time_point deadline);
  session_ticket describe(time_point now, std::uint32_t shard, time_point deadline) {
    return ask(now, messages::describe_request{options_.model, shard}, deadline);
  }

 protected:
  using state::state;

  void handle(time_point, const pending_request& pending, const messages::version_reply& reply) {
    answer(pending, reply.result).version = reply.version;
  }
  void handle(time_point, const pending_request& pending, const messages::list_reply& reply) {
    answer(pending, reply.result).list = reply;
  }
  void handle(time_point, const pending_request& pending, const messages::describe_reply& reply) {
    answer(pending, reply.result).description = reply;
  }
  void handle(time_point, const pending_request& pending, const messages::why_reply& reply) {
    answer(pending, reply.result).why = reply.decisions;
  }
  void handle(time_point, const pending_request& pending, const messages::stuck_reply& reply) {
    answer(pending, reply.result).stuck = reply;
  }
  /// Ends a question and returns its result, for the caller to complete.
  session_result& answer(const pending_request& pending, const messages::status& outcome);
  session_ticket ask(time_point now, messages::message body, time_point deadline);
};

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/questions.ipp"
#endif
