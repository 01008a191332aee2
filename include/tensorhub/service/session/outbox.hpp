#pragma once
/// \file outbox.hpp
/// A worker's open requests: numbered, repeated until they are answered, and acknowledged each.
///
/// A request that is not answered within the retry interval is sent again under its number, so the server can
/// distinguish a repetition from a second call. Before the worker has joined, only requests that the server
/// answers to any process are sent (join, questions, orders); the others wait here. A new publish or update
/// also waits until the server has answered all reports of earlier calls, because it must decide on the
/// current state. The report of a call's end, or that a version is being received, waits for the reports of
/// earlier ends, and for the report that all readers were cut off, which must not end the leases of later
/// readers.
///
/// Thread safety: none.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

/// The step or call that a request belongs to, and that handles the answer.
enum class purpose : std::uint8_t {
  join,
  publish,
  drain,
  update,
  sources,
  finish,
  notice,    ///< a report that the server must receive; no call waits for the answer
  question,  ///< wait, list, describe
  leave
};

struct pending_request {
  messages::message body{};
  purpose why = purpose::notice;
  session_ticket ticket = 0;  ///< of the call that consists of this request alone; zero: none
  time_point next_send{};
  time_point deadline = time_point::never();  ///< deadline of that call
  bool without_joining = false;
};

class outbox {
 public:
  outbox(incarnation self, duration retry) : self_{self}, retry_{retry} {}

  /// Numbers the requests after those of another outbox, whose answers may still come.
  void number_after(const outbox& before) noexcept { last_sequence_ = before.last_sequence_; }

  void request(time_point now, bool joined, messages::message body, purpose why, session_ticket ticket,
               time_point deadline);
  /// Sends a heartbeat, which has no number and is not repeated.
  void heartbeat();
  /// Sets the revision of the retention that the worker knows.
  void heard_retention(std::uint64_t revision) noexcept { retention_ = revision; }
  /// Sets the number of received chunks that the heartbeats report.
  void progress(std::uint64_t chunks) noexcept { chunks_ = chunks; }

  /// Sends the requests again whose retry interval has passed.
  void repeat(time_point now, bool joined);
  /// Sends all requests after a join: some have waited for it, others may be unknown to a new server.
  void repeat_all(time_point now, bool joined);

  /// Removes the request with this number; empty: no such request is open.
  [[nodiscard]] std::optional<pending_request> take(request_sequence sequence);
  /// Removes the request that this message answers. An answer that does not fit is ignored: the request is
  /// repeated, or ends at its deadline.
  [[nodiscard]] std::optional<pending_request> take_answered(const messages::envelope& answer);
  /// Removes the oldest request with this purpose.
  [[nodiscard]] std::optional<pending_request> take(purpose why);
  /// Removes the requests whose deadline has passed, and returns their tickets.
  [[nodiscard]] std::vector<session_ticket> take_expired(time_point now);
  /// Removes the requests that a call consists of, and returns their tickets.
  [[nodiscard]] std::vector<session_ticket> take_calls();
  /// Removes all requests.
  [[nodiscard]] std::map<request_sequence, pending_request> take_all() { return std::exchange(open_, {}); }

  void forget(std::initializer_list<purpose> reasons);
  /// Removes the reports that all readers were cut off: a new server knows of no reader of before, and they
  /// would end the leases of later ones.
  void forget_cut_offs();
  /// Turns requests into notices: no call waits for the answer, but the server must still receive them.
  void make_notice(purpose why);

  [[nodiscard]] time_point next_deadline(bool joined) const noexcept;

  /// How many open requests have this purpose.
  [[nodiscard]] std::size_t count(purpose why) const noexcept;
  /// Such a sources_request is not answered yet.
  [[nodiscard]] bool wants_sources(messages::sources_wanted why) const noexcept;
  /// Every request was answered.
  [[nodiscard]] bool empty() const noexcept { return open_.empty(); }
  [[nodiscard]] std::vector<messages::envelope> take_output() { return std::exchange(output_, {}); }

 private:
  /// Removes the requests that `which` is true of, and returns their tickets.
  template <typename Which>
  [[nodiscard]] std::vector<session_ticket> take_tickets(Which&& which) {
    std::vector<session_ticket> tickets;
    std::erase_if(open_, [&](const auto& entry) {
      const bool taken = which(entry.second);
      if (taken) tickets.push_back(entry.second.ticket);
      return taken;
    });
    return tickets;
  }
  [[nodiscard]] bool may_send(request_sequence sequence, const pending_request& pending,
                              bool joined) const noexcept;
  void transmit(time_point now, request_sequence sequence, pending_request& pending);

  /// Puts the header of a frame around the body: sequence zero for a heartbeat.
  void put_out(request_sequence sequence, messages::message body);

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
