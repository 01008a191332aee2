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
    return (holds_alternative<Request>(request) || ...);
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
               time_point deadline);
  /// Not numbered and not repeated.
  void heartbeat();
  /// Revision of the retention that the worker knows.
  void heard_retention(std::uint64_t revision) noexcept { retention_ = revision; }
  /// What the heartbeats say of the running update.
  void progress(std::uint64_t chunks) noexcept { chunks_ = chunks; }

  /// Sends what is due again.
  void repeat(time_point now, bool joined);
  /// After a join: what has waited for it, and what another server may not have heard.
  void repeat_all(time_point now, bool joined);

  /// Ends the request that an answer belongs to; empty: it is not waited for (any more).
  [[nodiscard]] std::optional<pending_request> take(request_sequence sequence);
  /// The same, if this is an answer to it.
  template <typename Answer>
  [[nodiscard]] std::optional<pending_request> take_answered(request_sequence sequence) {
    const auto found = open_.find(sequence);
    if (found == open_.end() || !is_answer_to<Answer>(found->second.body)) return std::nullopt;
    return take(sequence);
  }
  /// The same for the oldest one with this purpose.
  [[nodiscard]] std::optional<pending_request> take(purpose why);
  /// Tickets of the requests whose deadline has come; they are forgotten.
  [[nodiscard]] std::vector<session_ticket> take_expired(time_point now);
  /// Everything; nothing is repeated any more.
  [[nodiscard]] std::map<request_sequence, pending_request> take_all() { return std::exchange(open_, {}); }

  void forget(std::initializer_list<purpose> reasons);
  /// Nobody waits for the answer any more, but the server must still hear it.
  void make_notice(purpose why);

  [[nodiscard]] time_point next_deadline(bool joined) const noexcept;

  /// No request is without an answer.
  [[nodiscard]] bool empty() const noexcept { return open_.empty(); }
  [[nodiscard]] std::vector<messages::envelope> take_output() { return std::exchange(output_, {}); }

 private:
  [[nodiscard]] bool may_send(request_sequence sequence, const pending_request& pending,
                              bool joined) const noexcept;
  void transmit(time_point now, request_sequence sequence, pending_request& pending);

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

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/outbox.ipp"
#endif
