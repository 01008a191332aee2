#pragma once
/// \file trace.hpp
/// A text form of a worker's messages, for the replay of a history.

#include <string>
#include <variant>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/session.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The text of a worker's message; begins with a space. Empty: the message is not traced.
[[nodiscard]] inline std::string describe_message(const messages::envelope& message) {
  if (const auto* join = get_if<messages::join_request>(&message.body)) {
    return " joins after operation " + std::to_string(join->before.operation.value) +
           (join->before.held ? ", holds " + to_string(join->before.held->version) : std::string{}) +
           (join->before.reading.empty() ? "" : ", reads " + to_string(join->before.reading.front().version));
  }
  if (const auto* publish = get_if<messages::publish_request>(&message.body)) {
    return " publishes " + to_string(publish->held.version) + " in operation " +
           std::to_string(publish->operation.value);
  }
  if (const auto* update = get_if<messages::update_request>(&message.body))
    return " calls update in operation " + std::to_string(update->operation.value);
  if (const auto* finish = get_if<messages::finish_request>(&message.body)) {
    return " finishes operation " + std::to_string(finish->operation.value) +
           (finish->result.ok() ? "" : ": " + finish->result.sentence);
  }
  if (holds_alternative<messages::unpublish_request>(message.body)) return " calls unpublish";
  if (holds_alternative<messages::cut_off_done_request>(message.body)) return " has cut off";
  return {};
}

/// The text of an update's result; begins with a space.
[[nodiscard]] inline std::string describe_end(const session_result& result) {
  return " ends update " + std::to_string(result.operation.value) +
         (!result.outcome.ok()
              ? ": " + result.outcome.sentence
              : (result.kept ? " and keeps version " : " with version ") + to_string(result.version));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
