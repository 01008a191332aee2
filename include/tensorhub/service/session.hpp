#pragma once
/// \file session.hpp
/// A worker's side of the control protocol, as a pure state machine: its input is calls, messages and time,
/// its output is messages and actions.
///
/// The session joins (and joins again when a new server does not know it), sends heartbeats, repeats requests
/// until they are answered, and runs one publish, unpublish or update at a time through its steps
/// (session/operations.hpp). session/state.hpp lists its layers.
///
/// The shell (worker.hpp, or the simulator) performs the actions in order and reports back. An action is an
/// order, not a request: the shell cannot refuse it. Every call ends in exactly one `session_result` with its
/// ticket, at its deadline at the latest.
///
/// Thread safety: none; the shell serialises.

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/service/session/operations.hpp"
#include "tensorhub/types/incarnation_proof.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace session_detail {
/// A call of `join` that waits for the server's answer.
struct waiting_join {
  session_ticket ticket = 0;
  time_point began{};
  time_point deadline{};
};
}  // namespace session_detail

class session : public session_detail::operations {
 public:
  /// `shape` is borrowed and must outlive the session.
  session(session_options options, incarnation self, const layout& shape)
      : operations{std::move(options), self, shape} {}

  /// Several may run at once; each ends by its own deadline.
  session_ticket join(time_point now, time_point deadline);

  /// Pre-condition: no version is published; call `unpublish` first. Otherwise it ends with
  /// `still_published`.
  session_ticket leave(time_point now, time_point deadline);

  /// Ends a call of `join` with this reason, if it still runs. The worker may join all the same.
  void cancel_join(session_ticket ticket, const messages::status& reason);

  /// The worker is about to leave: a join or an update that runs ends with `cancelled`, and every running
  /// call by `until`.
  void make_way(time_point now, time_point until);
  /// Every call that runs ends now: an unpublish and a leave as at their deadline, the others as `cancelled`.
  void interrupt(time_point now);

  /// Leaves at once: ends all calls, cuts off all readers, and tells the server so once, without an answer.
  void abandon(time_point now);

  /// The session has ended because the server did not hear from it in time, and its process may go on as
  /// another incarnation.
  [[nodiscard]] bool may_return() const noexcept { return is_returning() && !is_revoking(); }
  /// The session goes on as another incarnation, now or when its readers are cut off.
  [[nodiscard]] bool is_returning() const noexcept { return fatal_ && returns_; }
  /// The session that goes on as `self`; it joins by itself. Tickets and request numbers continue. `memory`:
  /// the worker's, if its control block shows `kept()` at `epoch()`; else nothing is held.
  /// Pre-condition: `may_return()`; the transport says `self` from now on.
  [[nodiscard]] session successor(time_point now, const proven_incarnation& self,
                                  std::optional<readable_memory> memory) const;

  /// Sets the address that the join announces. It is set late because a transport may lose a part that cannot
  /// register the memory.
  void reachable_at(transport_address address) { options_.address = std::move(address); }

  /// The server has told this member nothing for `server_timeout`, nor for three heartbeats.
  [[nodiscard]] bool server_is_silent(time_point now) const noexcept {
    return joined() &&
           now > contact_.heard + std::max<duration>(options_.server_timeout, 3 * heartbeat_interval_);
  }

  /// Received chunks, for the scheduler: each heartbeat reports them.
  void progress(std::uint64_t chunks) noexcept { outbox_.progress(chunks); }

  /// The shell's connection uses this server of the list from now on, because another session has given up
  /// the one before.
  void move_to_server(time_point now, std::size_t index);

  // ---- messages and time

  void receive(time_point now, const messages::envelope& envelope);

  void advance(time_point now);

  [[nodiscard]] time_point next_deadline() const noexcept;

 private:
  using purpose = session_detail::purpose;
  using pending_request = session_detail::pending_request;
  using operations::handle;
  using operations::on_push;

  /// `with_layout`: the server has asked for the tensors.
  void finish_joins(const messages::status& outcome);
  void end_late_joins(time_point now);
  void send_join(time_point now, bool with_layout = false);
  /// Workers of the model, as the server counts them; zero: the count cannot be trusted. The count is trusted
  /// only after two consecutive heartbeats were answered: a single answer may predate a pause of this
  /// process, and a worker that was silent for too long may have been declared dead and may have missed
  /// later counts.
  [[nodiscard]] std::uint32_t counted_workers(time_point now) const noexcept;
  /// This process was stopped or starved of CPU time: its last heartbeat is overdue.
  [[nodiscard]] bool was_paused(time_point now) const noexcept {
    return now > next_heartbeat_ + heartbeat_interval_;
  }

  /// The message comes from a server that has ended: this worker had joined that server, and then another
  /// one.
  /// The new server does not know the answers of the old one, and is asked again. Messages that any server
  /// may send to any worker are never late. (A server that is merely unknown may be the current one: the
  /// answer of an ended server can overtake its first message.)
  [[nodiscard]] bool is_late(const messages::message& body) const noexcept;

  /// A server that this worker had left for another one speaks, and has not forgotten the worker: it has to
  /// say by its answer to a join whether it takes the worker back.
  void ask_to_return(time_point now);

  /// Records the end of the joined server, because another server has answered as the server.
  void note_end_of_server();

  // ---- answers

  template <typename Body>
  void on_body(time_point now, const messages::envelope& envelope, const Body& body) {
    if constexpr (requires { this->on_push(now, body); })
      on_push(now, body);
    else
      on_answer(now, envelope, body);
  }
  template <typename Body>
  void on_answer(time_point now, const messages::envelope& envelope, const Body& body) {
    if constexpr (requires(const pending_request& pending) { this->handle(now, pending, body); }) {
      if (const auto pending = outbox_.take_answered(envelope)) handle(now, *pending, body);
    }
  }

  void handle(time_point now, const pending_request& pending, const messages::join_reply& reply);

  void handle(time_point now, const pending_request& pending, const messages::status_reply& reply);

  // ---- pushes

  void on_push(time_point, const messages::version_push& push) { hear_of(push.version); }

  void on_push(time_point now, const messages::heartbeat_reply& reply);
  void on_push(time_point, const messages::retention_push& push);
  void on_push(time_point, const messages::offload_push& push) {
    act(session_actions::offload{push.version, push.replica});
  }
  void on_push(time_point, const messages::drop_push&) { act(session_actions::drop{}); }
  void on_push(time_point, const messages::cut_off_push& push);

  void on_push(time_point now, const messages::goodbye_push& push);

  /// Switches to the next server of the list. That server does not know this worker and will answer with a
  /// goodbye.
  void try_next_server(time_point now) { move_to_server(now, order_next_server()); }
  /// When the only server has left heartbeats unanswered for so long that their connection may be dead; the
  /// kernel would try it less and less often. Never: it has not.
  [[nodiscard]] time_point new_connection_at() const noexcept {
    const bool waits = joined_ && options_.servers == 1 && contact_.beat_since != time_point::never();
    if (!waits) return time_point::never();
    return contact_.beat_since + std::max(options_.server_timeout, options_.request_retry);
  }
  /// What was sent may be lost with the old connection, so it is sent again.
  void ask_for_new_connection(time_point now);
  /// This server does not take the worker over. Workers of one process share a connection, and each may be
  /// refused where another one belongs: a session that all servers have refused pauses for a server_timeout.
  void go_elsewhere(time_point now);

  void finish_leaving(session_ticket ticket, const messages::status& outcome);
  /// Ends what is still open: it is not sent any more.
  void finish_requests(const messages::status& outcome);

  /// The server has refused this worker or declared it dead: ends all calls and cuts off all readers. Where
  /// there is no memory for all of that, this throws, and nothing has changed: the shell says it again.
  void end(const messages::status& reason);
  void end_at_once(const messages::status& reason);
  /// The server has declared this worker dead because it did not hear from it.
  void end_as_silent(const messages::status& reason);

  server_epoch speaker_{};               ///< sender of the current message
  server_epoch believed_{};              ///< the server that the worker has joined or is joining
  std::array<server_epoch, 4> ended_{};  ///< the last few servers that it had joined; zero: none
  std::size_t joined_at_ = 0;            ///< the index of the server that it joined last
  bool leaving_ = false;
  bool returns_ = false;     ///< an earlier incarnation was declared dead; after the end: so was this one
  std::uint32_t peers_ = 0;  ///< workers of the model, by the server's last count
  time_point counted_at_{};  ///< when `peers_` was received
  std::uint32_t beats_answered_ = 0;  ///< consecutive ones, since the last join or pause
  duration worker_timeout_ = defaults::worker_timeout;
  std::vector<incarnation> barred_;  ///< the last few readers that it has cut off
  time_point next_heartbeat_{};
  duration heartbeat_interval_ = defaults::heartbeat_interval;
  std::vector<session_detail::waiting_join> joins_{};  ///< calls of `join` that run
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/session.ipp"
#endif
