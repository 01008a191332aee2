#pragma once
/// \file state.hpp
/// The layer that all other layers of a session share: the state, and the output of requests, actions and
/// results.
///
/// The layers, each of which uses only those above it:
///
///     state        the worker's identity, held version and open requests
///     questions    wait, list, describe, why
///     operations   publish, unpublish, update: one at a time
///     session      join, leave, the server's pushes, timers (service/session.hpp)

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/rollbacks.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/service/session/operation.hpp"
#include "tensorhub/service/session/outbox.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

/// What a session has heard from servers.
struct contact {
  time_point heard{};      ///< when it last heard from one
  std::size_t server = 0;  ///< the present one, in the list
  /// When the first request was made that the server has left unanswered, and the time without one after it.
  time_point asked_since{};
  time_point idle_since{};  ///< since when no request has been open; zero: one is, or the last was answered
  std::string refusal{};    ///< for sentences: why another server does not take this worker; may be empty
  time_point refused_since{};                   ///< the first of `refusals`, within one server_timeout
  std::size_t refusals = 0;                     ///< of servers that do not take this worker over
  time_point rejoins_at = time_point::never();  ///< all of them have refused: when the next one is asked
  bool has_left = false;  ///< the server has let this worker leave, which sends nothing more
  /// When the first heartbeat since `heard` was sent, or a new connection was asked for; never: neither was.
  time_point beat_since = time_point::never();

  /// The patience with a silent server begins with the first request that it leaves unanswered. Later
  /// requests do not restart it, even if the first call has ended. The time without a request does not count.
  void note_request(time_point now) noexcept {
    if (asked_since <= heard)
      asked_since = now;
    else if (idle_since >= asked_since)
      asked_since = asked_since + (now - idle_since);
    idle_since = {};
  }
  /// No request is open.
  void note_idle(time_point now) noexcept {
    if (idle_since == time_point{}) idle_since = now;
  }
  /// The silence of another server begins anew.
  void turn_to(std::size_t other, time_point now) noexcept {
    server = other;
    asked_since = now;
    idle_since = {};
  }
};

/// What a session has heard of its model's versions.
struct heard_versions {
  messages::retention keeps{};
  server_epoch keeps_from{};  ///< the server that has said so; zero: none
  version_number latest{};    ///< the newest one that is available
};

class state {
 public:
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  [[nodiscard]] incarnation self() const noexcept { return self_; }
  [[nodiscard]] const session_options& options() const noexcept { return options_; }
  /// Epoch of the control block. Only this session raises it (action `raise_epoch`).
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] const std::optional<messages::reference>& held() const noexcept { return held_; }
  /// The version that is held completely, and not rolled back; zero: none.
  [[nodiscard]] version_number valid_version_held() const noexcept {
    return held_ && !held_->open && !is_void(versions_.keeps, held_->version) ? held_->version
                                                                              : version_number{};
  }
  /// `held` is open: published, but not whole yet.
  [[nodiscard]] bool is_open() const noexcept { return held_ && held_->open; }
  [[nodiscard]] version_number latest() const noexcept { return versions_.latest; }
  [[nodiscard]] server_epoch server() const noexcept { return server_; }
  /// Set once the server has declared this worker dead, or refused it: all later calls fail with this status.
  [[nodiscard]] const std::optional<messages::status>& fatal() const noexcept { return fatal_; }
  [[nodiscard]] bool busy() const noexcept { return operation_.has_value(); }
  /// The worker has joined and every request was answered: worker and server agree on the state.
  [[nodiscard]] bool at_rest() const noexcept { return joined_ && !operation_ && outbox_.empty(); }

  [[nodiscard]] std::vector<messages::envelope> take_output() { return outbox_.take_output(); }
  [[nodiscard]] std::vector<session_action> take_actions() { return std::exchange(actions_, {}); }
  [[nodiscard]] std::vector<session_result> take_results() { return std::exchange(results_, {}); }

 protected:
  state(session_options options, incarnation self, const layout& shape)
      : options_{std::move(options)}, self_{self}, layout_{&shape}, outbox_{self, options_.request_retry} {}

  void request(time_point now, messages::message body, purpose why, session_ticket ticket = 0,
               time_point deadline = time_point::never()) {
    outbox_.request(now, joined_, std::move(body), why, ticket, deadline);
  }

  template <typename Action>
  void act(Action action) {
    actions_.emplace_back(std::move(action));
  }

  /// `announced`: the epoch that was announced to readers; zero: none.
  void raise_epoch(std::uint64_t announced = 0);

  [[nodiscard]] messages::status late(time_point now, const std::string& what) const;
  [[nodiscard]] messages::status still_published() const {
    return {errc::still_published,
            "version " + to_string(held_->version) + " is still published: call unpublish() first"};
  }
  /// Ends the calls of one request whose deadline has passed.
  void end_late_requests(time_point now);

  /// After the end of requests, or a move to another server: nothing may be open.
  void note_if_idle(time_point now) noexcept {
    if (!joined_ && outbox_.empty()) contact_.note_idle(now);
  }

  /// The time until which the server may be silent; never: there is no other server, or no open request.
  [[nodiscard]] time_point patience() const noexcept;
  /// Orders the connection to use the next server of the list; the session itself has to move there.
  [[nodiscard]] std::size_t order_next_server();

  /// The number of the running call; zero while the server has not announced it.
  [[nodiscard]] operation_counter known_counter() const noexcept {
    return counted_ ? counter_ : operation_counter{};
  }
  /// A version of the model is available.
  void hear_of(version_number version) noexcept {
    if (!is_void(versions_.keeps, version)) versions_.latest = std::max(versions_.latest, version);
  }
  void learn_counter(operation_counter number) noexcept;

  /// Takes over from a session that has ended. `held`: the version whose bytes are still there, and its
  /// control block; empty: none.
  void follow(const state& before, const std::optional<messages::reference>& held);

  [[nodiscard]] session_ticket new_ticket() noexcept { return ++last_ticket_; }
  void finish(session_ticket ticket, messages::status outcome);
  void finish_all(const std::vector<session_ticket>& tickets, const messages::status& outcome);

  session_options options_;
  incarnation self_;
  const layout* layout_;
  outbox outbox_;

  bool joined_ = false;
  std::optional<messages::status> fatal_;
  server_epoch server_{};
  contact contact_{};

  operation_counter counter_{};
  operation_counter
      closed_meanwhile_{};  ///< the highest call that the group ended while a call was running here
  bool counted_ = false;    ///< `counter_` is the server's number: some call was answered
  bool ended_well_ = true;  ///< the last publish or update succeeded
  std::optional<running> operation_;
  std::optional<messages::reference> held_;
  heard_versions versions_;
  std::uint64_t epoch_ = 1;
  /// The highest epoch that was shown, or announced by a call that failed. None of them is used again,
  /// because readers may still know it.
  std::uint64_t last_epoch_ = 1;

 private:
  std::uint64_t last_ticket_ = 0;
  std::vector<session_action> actions_;

 protected:
  std::vector<session_result> results_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/state.ipp"
#endif
