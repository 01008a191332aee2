#pragma once
/// \file actions.hpp
/// What a session and its shell say to each other: options in, actions and results out.
///
/// Values; an action is an order, not a request: the session has no way to hear "no".

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/one_of.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct session_options {
  std::string server{};  ///< its address, for sentences
  std::string model{};
  std::string replica{};
  shard_of shard{};
  location place{};
  bool spot = false;
  bool temporary = false;  ///< part of a temporary replica: what another worker's `offload` has made
  std::string transport{};
  std::string consistency{};
  std::string integrity{};
  transport_address address{};
  std::string capability_key{};  ///< types/capability.hpp; empty: the transport knows none
  std::chrono::milliseconds request_retry = defaults::request_retry;
  /// Of the drain that precedes an update.
  std::chrono::milliseconds drain_timeout = defaults::drain_timeout;
  /// Reference servers that may be asked, one at a time: the first, and those that take over from it.
  std::size_t servers = 1;
  std::chrono::milliseconds server_timeout = defaults::server_timeout;  ///< silence: try the next one
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
/// Read the shard from these sources, all at once, beginning at this reader's place. Report `pull_started`
/// when the control block may be read by others.
struct start_pull {
  version_number version{};
  std::vector<messages::assignment> sources{};
  std::uint64_t ordinal = 0;
};
/// Read from this source too. Keep what was received. When no read of the old source is outstanding any more,
/// report `source_released(released)`, if `released` is set.
struct add_source {
  messages::assignment source{};
  lease_id released{};
};
/// Read nothing new from this source; when no read of it is outstanding any more, report
/// `source_released(released)`.
struct release_source {
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
/// Bring this version into host memory and show it there, as a replica of this name; if that cannot be,
/// report `offload_failed`. May come again while it is being done.
struct offload {
  version_number version{};
  std::string replica{};
};
/// This worker is part of a temporary replica that is not needed any more: unpublish, leave, give the memory
/// back.
struct drop {};
/// Talk to this one of the list of servers from now on.
struct use_server {
  std::size_t index = 0;
};
}  // namespace session_actions

using session_action =
    detail::one_of<session_actions::raise_epoch, session_actions::restore, session_actions::start_pull,
                   session_actions::add_source, session_actions::release_source, session_actions::stop_pull,
                   session_actions::cut_off_reader, session_actions::cut_off_all, session_actions::use_server,
                   session_actions::offload, session_actions::drop>;

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
  std::string why{};
  messages::stuck_reply stuck{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE
