#pragma once
/// \file actions.hpp
/// The values that a session and its shell exchange: options in, actions and results out.
///
/// An action is an order, not a request: the shell cannot refuse it.

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
  std::string server{};  ///< the server's address, for sentences
  std::string model{};
  std::string replica{};
  shard_of shard{};
  tensorhub::location location{};
  bool spot = false;
  bool temporary = false;  ///< part of a temporary replica, made by another worker's `offload`
  bool awaited = false;    ///< an update ends only when the server has its report
  std::string transport{};
  std::string consistency{};
  std::string integrity{};
  transport_address address{};
  digest128 proof{};             ///< that the incarnation is its key's: types/incarnation_proof.hpp
  std::string capability_key{};  ///< types/capability.hpp; empty: the transport has no capabilities
  std::chrono::milliseconds request_retry = defaults::request_retry;
  /// Limit on the drain that precedes an update.
  std::chrono::milliseconds drain_timeout = defaults::drain_timeout;
  /// Number of reference servers in the list: the first, and those that may take over from it.
  std::size_t servers = 1;
  /// The shell can go on as another incarnation (session::successor).
  bool renewable = false;
  /// `cut_off_all` costs nothing: every unpublish ends with it.
  bool revokes_cheaply = false;
  std::chrono::milliseconds server_timeout =
      defaults::server_timeout;  ///< silence after which the next server is tried
};

/// The actions that the shell must perform, in order.
namespace session_actions {
/// Bytes may change from now on: the control block must show `epoch` and no version before this returns.
struct raise_epoch {
  std::uint64_t epoch = 0;
};
/// The bytes of `held.version` are still there, and the control block describes it: show it again, at the
/// (new) epoch in `held`.
struct restore {
  messages::reference held{};
};
/// Read the shard from all these sources at the same time, beginning at the chunk that `ordinal` selects.
/// Report `pull_started` when other workers may read the control block.
struct start_pull {
  version_number version{};
  std::vector<messages::assignment> sources{};
  std::uint64_t ordinal = 0;
  bool open = false;  ///< the version is not whole yet: the transfer ends only after `commit_pull`
};
/// The version that is being read is whole: this is its root (zero: integrity is off).
struct commit_pull {
  digest128 root{};
};
/// Read from this source too, and keep the received chunks. If `released` is set, release that source: when
/// no read of it is outstanding any more, report `source_released(released)`.
struct add_source {
  messages::assignment source{};
  lease_id released{};
};
/// Start no new read of this source; when no read of it is outstanding any more, report
/// `source_released(released)`.
struct release_source {
  lease_id released{};
};
/// Stop reading; report `pull_failed` when no read is outstanding any more.
struct stop_pull {
  messages::status reason{};
};
/// Close this reader's connections and refuse it from now on, then report `cut_off_done`. The session goes on
/// meanwhile, and the order may be repeated while it is being carried out.
struct cut_off_reader {
  incarnation reader{};
};
/// Invalidate all keys given out so far, then report `all_cut_off`: no reader can read any more. The session
/// goes on meanwhile (heartbeats), because a transport may need seconds for large memory. Nothing is shown
/// to readers until then, and there is one such order at a time.
struct cut_off_all {};
/// Copy this version into host memory and show it there, as a replica of this name; if that is not possible,
/// report `offload_failed`. The order may be repeated while it is being carried out.
struct offload {
  version_number version{};
  std::string replica{};
};
/// This worker is part of a temporary replica that is no longer needed: unpublish, leave, and free the
/// memory.
struct drop {};
/// Use the server with this index in the list from now on; the only one, over a new connection.
struct use_server {
  std::size_t index = 0;
};
}  // namespace session_actions

using session_action =
    detail::one_of<session_actions::raise_epoch, session_actions::restore, session_actions::start_pull,
                   session_actions::commit_pull, session_actions::add_source, session_actions::release_source,
                   session_actions::stop_pull, session_actions::cut_off_reader, session_actions::cut_off_all,
                   session_actions::use_server, session_actions::offload, session_actions::drop>;

/// Identifies one call; zero is no call.
using session_ticket = std::uint64_t;

/// How a call ended.
struct session_result {
  session_ticket ticket = 0;
  messages::status outcome{};
  operation_counter operation{};  ///< publish, update: the server's number of the call; zero: not known
  version_number version{};
  bool kept = false;                  ///< update: the version was held already
  bool forced = false;                ///< unpublish: the deadline came and the remaining readers were cut off
  messages::drained_reply drained{};  ///< unpublish; `lost`: of an update, too
  messages::list_reply list{};
  messages::describe_reply description{};
  std::string why{};
  messages::stuck_reply stuck{};
  messages::manage_reply managed{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE
