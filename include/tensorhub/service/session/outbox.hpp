#pragma once
/// \file outbox.hpp
/// A worker's requests on their way: numbered, repeated until they are answered, and acknowledged in order.
///
/// A request that is not answered within the retry interval is sent again under its number, so the server can
/// tell a repetition from a second call. Before the worker has joined only what the server answers to anybody
/// is sent (join, list, describe); the rest waits here. A new publish or update also waits until the server
/// has heard all that earlier ones had to report: it must decide on what is true now.
///
/// Thread safety: none.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

/// Why a request was made: who wants its answer.
enum class purpose : std::uint8_t {
  join,
  publish,
  drain,
  update,
  source_failed,
  finish,
  notice,    ///< the server must hear it; nobody waits for the answer
  question,  ///< wait, list, describe
  leave
};

struct pending_request {
  messages::message body{};
  purpose why = purpose::notice;
  session_ticket ticket = 0;  ///< of the call that ends with the answer, if the request alone makes it up
  time_point next_send{};
  time_point deadline = time_point::never();  ///< of that call
  bool without_joining = false;
};

/// Whether an answer of this type can be meant for that request (the table in messages.hpp). Another one is
/// ignored: the request is repeated, or ends at its deadline.
template <typename Answer>
[[nodiscard]] bool is_answer_to(const messages::message& request) noexcept {
  namespace m = messages;
  const auto asks = [&request]<typename... Request>(std::type_identity<Request>...) {
    return (std::holds_alternative<Request>(request) || ...);
  };
  using std::type_identity;
  if (asks(type_identity<m::join_request>{})) return std::is_same_v<Answer, m::join_reply>;
  if (asks(type_identity<m::unpublish_request>{})) return std::is_same_v<Answer, m::drained_reply>;
  if (asks(type_identity<m::update_request>{}, type_identity<m::source_failed_request>{}))
    return std::is_same_v<Answer, m::update_reply>;
  if (asks(type_identity<m::wait_request>{})) return std::is_same_v<Answer, m::version_reply>;
  if (asks(type_identity<m::list_request>{})) return std::is_same_v<Answer, m::list_reply>;
  if (asks(type_identity<m::describe_request>{})) return std::is_same_v<Answer, m::describe_reply>;
  if (asks(type_identity<m::why_request>{})) return std::is_same_v<Answer, m::why_reply>;
  if (asks(type_identity<m::stuck_request>{})) return std::is_same_v<Answer, m::stuck_reply>;
  return std::is_same_v<Answer, m::status_reply>;
}

class outbox {
 public:
  outbox(incarnation self, duration retry) : self_{self}, retry_{retry} {}

  void request(time_point now, bool joined, messages::message body, purpose why, session_ticket ticket,
               time_point deadline) {
    const request_sequence sequence{++last_sequence_};
    pending_request& pending = open_[sequence];
    pending.body = std::move(body);
    pending.why = why;
    pending.ticket = ticket;
    pending.deadline = deadline;
    pending.without_joining = why == purpose::join ||
                              std::holds_alternative<messages::list_request>(pending.body) ||
                              std::holds_alternative<messages::describe_request>(pending.body) ||
                              std::holds_alternative<messages::why_request>(pending.body) ||
                              std::holds_alternative<messages::stuck_request>(pending.body);
    if (may_send(sequence, pending, joined)) transmit(now, sequence, pending);
  }
  /// Not numbered and not repeated.
  void heartbeat() {
    output_.push_back({self_.value, {}, acknowledged(), messages::heartbeat_request{chunks_, retention_}});
  }
  /// Revision of the retention that the worker knows.
  void heard_retention(std::uint64_t revision) noexcept { retention_ = revision; }
  /// What the heartbeats say of the running update.
  void progress(std::uint64_t chunks) noexcept { chunks_ = chunks; }

  /// Sends what is due again.
  void repeat(time_point now, bool joined) {
    for (auto& [sequence, pending] : open_) {
      if (now >= pending.next_send && may_send(sequence, pending, joined)) transmit(now, sequence, pending);
    }
  }
  /// After a join: what has waited for it, and what another server may not have heard.
  void repeat_all(time_point now, bool joined) {
    for (auto& [sequence, pending] : open_) {
      if (may_send(sequence, pending, joined)) transmit(now, sequence, pending);
    }
  }

  /// Ends the request that an answer belongs to; empty: it is not waited for (any more).
  [[nodiscard]] std::optional<pending_request> take(request_sequence sequence) {
    const auto found = open_.find(sequence);
    if (found == open_.end()) return std::nullopt;
    std::optional<pending_request> out{std::move(found->second)};
    open_.erase(found);
    return out;
  }
  /// The same, if this is an answer to it.
  template <typename Answer>
  [[nodiscard]] std::optional<pending_request> take_answered(request_sequence sequence) {
    const auto found = open_.find(sequence);
    if (found == open_.end() || !is_answer_to<Answer>(found->second.body)) return std::nullopt;
    return take(sequence);
  }
  /// The same for the oldest one with this purpose.
  [[nodiscard]] std::optional<pending_request> take(purpose why) {
    const auto found = std::find_if(open_.begin(), open_.end(),
                                    [why](const auto& entry) { return entry.second.why == why; });
    return found == open_.end() ? std::nullopt : take(found->first);
  }
  /// Tickets of the requests whose deadline has come; they are forgotten.
  [[nodiscard]] std::vector<session_ticket> take_expired(time_point now) {
    std::vector<session_ticket> tickets;
    std::erase_if(open_, [&](const auto& entry) {
      if (now < entry.second.deadline) return false;
      tickets.push_back(entry.second.ticket);
      return true;
    });
    return tickets;
  }
  /// Everything; nothing is repeated any more.
  [[nodiscard]] std::map<request_sequence, pending_request> take_all() { return std::exchange(open_, {}); }

  void forget(std::initializer_list<purpose> reasons) {
    std::erase_if(open_, [reasons](const auto& entry) {
      return std::find(reasons.begin(), reasons.end(), entry.second.why) != reasons.end();
    });
  }
  /// Nobody waits for the answer any more, but the server must still hear it.
  void make_notice(purpose why) {
    for (auto& [sequence, pending] : open_) {
      if (pending.why == why) pending.why = purpose::notice;
    }
  }

  [[nodiscard]] time_point next_deadline(bool joined) const noexcept {
    time_point next = time_point::never();
    for (const auto& [sequence, pending] : open_) {
      next = std::min(next, pending.deadline);
      if (may_send(sequence, pending, joined)) next = std::min(next, pending.next_send);
    }
    return next;
  }

  /// No request is without an answer.
  [[nodiscard]] bool empty() const noexcept { return open_.empty(); }
  [[nodiscard]] std::vector<messages::envelope> take_output() { return std::exchange(output_, {}); }

 private:
  [[nodiscard]] bool may_send(request_sequence sequence, const pending_request& pending,
                              bool joined) const noexcept {
    if (!joined && !pending.without_joining) return false;
    if (pending.why != purpose::publish && pending.why != purpose::update) return true;
    return std::none_of(open_.begin(), open_.find(sequence), [](const auto& earlier) {
      return earlier.second.why == purpose::finish || earlier.second.why == purpose::notice;
    });
  }
  void transmit(time_point now, request_sequence sequence, pending_request& pending) {
    pending.next_send = now + retry_;
    output_.push_back({self_.value, sequence, acknowledged(), pending.body});
  }

  /// All answers below the oldest open request have arrived.
  [[nodiscard]] request_sequence acknowledged() const {
    return {open_.empty() ? last_sequence_ : open_.begin()->first.value - 1};
  }

  incarnation self_;
  duration retry_;
  std::uint64_t last_sequence_ = 0;
  std::uint64_t chunks_ = 0;
  std::uint64_t retention_ = 0;
  std::map<request_sequence, pending_request> open_;
  std::vector<messages::envelope> output_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
