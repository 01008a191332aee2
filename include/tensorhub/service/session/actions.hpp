#pragma once
/// \file actions.hpp
/// What a session and its shell say to each other: options in, actions and results out.
///
/// Values; an action is an order, not a request: the session has no way to hear "no".

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>

#include "tensorhub/config.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub {

struct session_options {
  std::string server{};  ///< its address, for sentences
  std::string model{};
  std::string replica{};
  shard_of shard{};
  location place{};
  bool spot = false;
  std::string transport{};
  std::string consistency{};
  std::string integrity{};
  transport_address address{};
  std::chrono::milliseconds request_retry = defaults::request_retry;
  /// Of the drain that precedes an update.
  std::chrono::milliseconds drain_timeout = defaults::drain_timeout;
};

/// What the shell must do, in order.
namespace session_actions {
/// Bytes may change from now on: the control block must show `epoch` and no version before this returns.
struct raise_epoch {
  std::uint64_t epoch = 0;
};
/// The bytes of `held.version` are still there: show it again, at the (new) epoch in `held`.
struct restore {
  messages::reference held{};
};
/// Read the shard from this source.
struct start_pull {
  messages::assignment source{};
};
/// Go on with another source. Keep what was received. When no read of the old source is outstanding any more,
/// report `source_released(released)`, if `released` is set.
struct switch_source {
  messages::assignment source{};
  lease_id released{};
};
/// Stop reading; report `pull_failed` when no read is outstanding any more.
struct stop_pull {
  messages::status reason{};
};
/// Close this reader's connections and refuse it from now on, then report `cut_off_done`.
struct cut_off_reader {
  incarnation reader{};
};
/// Make all keys given out so far invalid; nobody may read when this returns.
struct cut_off_all {};
}  // namespace session_actions

using session_action =
    std::variant<session_actions::raise_epoch, session_actions::restore, session_actions::start_pull,
                 session_actions::switch_source, session_actions::stop_pull, session_actions::cut_off_reader,
                 session_actions::cut_off_all>;

/// Names one call; zero is none.
using session_ticket = std::uint64_t;

/// How a call ended.
struct session_result {
  session_ticket ticket = 0;
  messages::status outcome{};
  operation_counter operation{};  ///< publish, update: as the server counts it; zero: it has not told
  version_number version{};
  bool kept = false;    ///< update: the version was held already
  bool forced = false;  ///< unpublish: the deadline came and the remaining readers were cut off
  messages::drained_reply drained{};
  messages::list_reply list{};
  messages::describe_reply description{};
};

}  // namespace tensorhub
