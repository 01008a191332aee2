#pragma once
/// \file session.hpp
/// A worker's side of the control protocol, as a pure state machine: calls, messages and time in; messages
/// and actions out.
///
/// The session joins (and joins again when a new server does not know it), keeps the heart beating, repeats
/// requests until they are answered, and takes one publish, unpublish or update at a time through its steps
/// (session/operations.hpp). session/state.hpp lists its layers.
///
/// The shell (worker.hpp, or the simulator) performs the actions in their order and reports back. An action
/// is an order, not a request: the session has no way to hear "no". Every call ends in exactly one
/// `session_result` with its ticket, at its deadline at the latest.
///
/// Thread safety: none; the shell serialises.

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/service/session/operations.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class session : public session_detail::operations {
 public:
  /// `shape` is borrowed and must outlive the session.
  session(session_options options, incarnation self, const layout& shape)
      : operations{std::move(options), self, shape} {}

  session_ticket join(time_point now, time_point deadline);

  /// Nothing may be published any more: call `unpublish` first.
  session_ticket leave(time_point now, time_point deadline);

  /// Told when it joins: before that a transport may lose a part that does not take the memory.
  void reachable_at(transport_address address) { options_.address = std::move(address); }

  /// For the scheduler: told with each heartbeat.
  void progress(std::uint64_t chunks) noexcept { outbox_.progress(chunks); }

  // ---- messages and time

  void receive(time_point now, const messages::envelope& envelope);

  void advance(time_point now);

  [[nodiscard]] time_point next_deadline() const noexcept;

 private:
  using purpose = session_detail::purpose;
  using pending_request = session_detail::pending_request;
  using operations::handle;
  using operations::on_push;

  void send_join(time_point now);
  /// Workers of the model; zero: it may be more than this one has heard of. A count is good while one heart
  /// beat after the other is answered: the answer to the first may be older than a standstill, and who was
  /// silent for too long was perhaps declared dead and not told of those who came afterwards.
  [[nodiscard]] std::uint32_t counted_workers(time_point now) const noexcept;
  /// This process was stopped, or starved: its heart should have beaten long ago.
  [[nodiscard]] bool has_stood_still(time_point now) const noexcept {
    return now > next_heartbeat_ + heartbeat_interval_;
  }

  /// Of a server that has ended: this worker had joined it, and then another one. That one does not know what
  /// the first one has answered, and is asked again. What any server may say to anybody is never late. (A
  /// server that was only never heard of before may be the living one: an answer of one that has ended can
  /// overtake it.)
  [[nodiscard]] bool is_late(const messages::message& body) const noexcept;

  /// Another one than the server that this worker has joined says that it is the server.
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
      if (const auto pending = outbox_.take_answered<Body>(envelope.sequence)) handle(now, *pending, body);
    }
  }

  void handle(time_point now, const pending_request& pending, const messages::join_reply& reply);

  void handle(time_point now, const pending_request& pending, const messages::status_reply& reply);

  // ---- pushes

  void on_push(time_point, const messages::version_push& push) { latest_ = std::max(latest_, push.version); }

  void on_push(time_point now, const messages::heartbeat_reply& reply);
  void on_push(time_point, const messages::retention_push& push);
  void on_push(time_point, const messages::offload_push& push) {
    act(session_actions::offload{push.version, push.replica});
  }
  void on_push(time_point, const messages::drop_push&) { act(session_actions::drop{}); }
  void on_push(time_point, const messages::cut_off_push& push);

  void on_push(time_point now, const messages::goodbye_push& push);

  /// Until when the server may be silent; never: there is no other one, or nothing to ask.
  [[nodiscard]] time_point patience() const noexcept;
  /// It will not know this worker, and say so.
  void try_next_server(time_point now);

  void finish_leaving();

  /// The server does not want this worker (any more): everything ends, nobody may read from it.
  void end(const messages::status& reason);

  server_epoch speaker_{};               ///< of the message at hand
  server_epoch believed_{};              ///< whom it has joined, or is about to
  std::array<server_epoch, 4> ended_{};  ///< servers that it had joined; the last few, zero: none
  std::size_t server_index_ = 0;
  time_point asked_since_{};  ///< this server
  bool leaving_ = false;
  std::uint32_t peers_ = 0;           ///< workers of the model, as the server last told
  time_point counted_at_{};           ///< when that was
  std::uint32_t beats_answered_ = 0;  ///< in a row: since it joined, or stood still
  duration worker_timeout_ = defaults::worker_timeout;
  std::vector<incarnation> barred_;  ///< whom it has cut off; the last few
  messages::retention keeps_{};
  bool layout_wanted_ = false;
  time_point next_heartbeat_{};
  duration heartbeat_interval_ = defaults::heartbeat_interval;
  session_ticket join_ticket_ = 0;
  time_point join_deadline_ = time_point::never();
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/session.ipp"
#endif
