#pragma once
/// \file messages.hpp
/// The control protocol: every message between a worker and the reference server, as plain structs.
///
/// Requests carry the worker's incarnation and a sequence number and are idempotent: a retry repeats the
/// number and gets the stored answer. Some answers are deferred (marked *later* below): the server answers
/// when it can, the worker repeats the request at its retry interval meanwhile. Pushes have sequence zero and
/// may be lost with a connection; each is either repeated until confirmed or implied by a later answer (said
/// at each).
///
/// | worker -> server       | answer          | when                                              |
/// |------------------------|-----------------|---------------------------------------------------|
/// | join_request           | join_reply      | at once                                           |
/// | publish_request        | status_reply    | at once                                           |
/// | unpublish_request      | drained_reply   | *later*: no lease on the reference is left        |
/// | update_request         | update_reply    | *later*: a version was decided and a source found |
/// | source_failed_request  | update_reply    | at once: another source, or why there is none     |
/// | lease_released_request | status_reply    | at once                                           |
/// | finish_request         | status_reply    | *later*: all shards of the replica have finished  |
/// | cut_off_done_request   | status_reply    | at once                                           |
/// | wait_request           | version_reply   | *later*: such a version is available              |
/// | list_request           | list_reply      | at once                                           |
/// | describe_request       | describe_reply  | at once                                           |
/// | leave_request          | status_reply    | at once                                           |
/// | heartbeat_request      | heartbeat_reply | at once; sequence zero, not stored                |
///
/// | server -> worker (push) | means                                                                        |
/// |-------------------------|------------------------------------------------------------------------------|
/// | version_push            | a newer version is available (also in every heartbeat_reply)                 |
/// | reassign_push           | read the rest from another source, then release the old lease (lost: the     |
/// |                         | drain's deadline ends the lease)                                             |
/// | cut_off_push            | this reader was declared dead: cut it off, then confirm (repeated until      |
/// |                         | confirmed)                                                                   |
/// | abort_push              | the group operation failed in another shard (lost: the finish_request is     |
/// |                         | answered so)                                                                 |
/// | goodbye_push            | this incarnation is not (any more) known: `rejoin` says whether to announce  |
/// |                         | everything again (new server) or to give up (declared dead, or replaced by a |
/// |                         | newer process)                                                               |

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tensorhub/error.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::messages {

/// Outcome of a request: `ok`, or a code with the sentence that the user will read.
struct status {
  errc code = errc::ok;
  std::string sentence{};
  [[nodiscard]] bool ok() const noexcept { return code == errc::ok; }
};

/// "Worker W holds shard i of version v, in place": all that the server stores of weights.
struct reference {
  version_number version{};
  std::uint64_t epoch = 0;  ///< the holder's control-block epoch while it holds the version
  digest128 root{};         ///< digest over the chunk digests; zero if integrity is off
  remote_region control{};  ///< the holder's control block
};

/// One permission to read: everything a reader needs to know of its source.
struct assignment {
  operation_counter operation{};
  lease_id lease{};
  version_number version{};
  digest128 root{};
  incarnation source{};
  std::string source_replica{};
  std::uint32_t source_shard = 0;
  transport_address address{};
  remote_region control{};
  std::uint64_t epoch = 0;
  /// True: the reader's own old reference has no lease left, its memory may be overwritten without asking
  /// again.
  bool drained = false;
};

struct join_request {
  std::string model{};
  std::string replica{};
  shard_of shard{};
  location place{};
  bool spot = false;
  std::string transport{};  ///< policy names; the server refuses what does not fit it
  std::string consistency{};
  std::string integrity{};
  transport_address address{};
  digest128 layout_digest{};
  std::uint64_t chunk_bytes = 0;
  std::uint64_t chunk_count = 0;
  std::vector<tensor_spec> tensors{};   ///< only when the server asked for it (join_reply::wants_layout)
  std::optional<reference> held{};      ///< announced again to a new server
  operation_counter operation{};        ///< highest operation this worker has called; zero at first
  std::optional<assignment> reading{};  ///< a lease of an earlier server that is still in use
};
struct join_reply {
  status result{};
  server_epoch epoch{};
  bool wants_layout = false;  ///< nothing was joined: send again with `tensors`
  std::uint32_t heartbeat_interval_ms = 0;
  std::uint32_t worker_timeout_ms = 0;
  std::uint32_t group_timeout_ms = 0;
  operation_counter operation{};  ///< the replica's last finished operation: count on from here
  version_number latest{};
};

/// Zero in `operation` of this and the following: the server has not told yet what this worker's calls count
/// as, and counts this one.
struct publish_request {
  operation_counter operation{};
  reference held{};
};
struct unpublish_request {
  version_number version{};
  std::uint64_t epoch = 0;        ///< of the reference: a late repetition must not hit a later one
  operation_counter operation{};  ///< set: the drain before that update, the reference is hidden already
};
struct drained_reply {
  status result{};
  std::uint32_t finished = 0;  ///< readers that ended by themselves since the call
  std::uint32_t moved = 0;     ///< readers that were given another source
  std::uint32_t cut_off = 0;   ///< readers that were cut off
};

struct update_request {
  operation_counter operation{};
  version_selector selector{};
  std::uint32_t timeout_ms = 0;  ///< the server answers `timed_out` after that
};
struct update_reply {
  status result{};
  operation_counter operation{};  ///< as the server counts it: a restarted worker counts on from here
  bool keep = false;              ///< what is held already satisfies the request: `version`, nothing to read
  version_number version{};
  std::optional<assignment> source{};
};
struct source_failed_request {
  operation_counter operation{};
  lease_id lease{};
  errc reason = errc::source_lost;
  std::string detail{};
};
struct lease_released_request {
  lease_id lease{};
};
struct finish_request {
  operation_counter operation{};
  version_number version{};
  status result{};
  bool intact = false;  ///< of a failure: no byte of the memory was overwritten, what was held is still held
  /// What the memory holds now: of a success, and of a failure that does not leave the server's record right.
  std::optional<reference> held{};
  lease_id lease{};  ///< ends with this message
};
struct cut_off_done_request {
  incarnation reader{};  ///< zero: every reader of this worker
};

struct wait_request {
  version_selector selector{};
  std::uint32_t timeout_ms = 0;
};
struct version_reply {
  status result{};
  version_number version{};
};

struct list_request {
  std::string model{};  ///< empty: all models
};
struct replica_entry {
  std::string name{};
  std::uint32_t shards_joined = 0;
  version_number version{};  ///< held completely; zero: none
  bool torn = false;
  bool spot = false;
  std::uint32_t readers = 0;
};
struct model_entry {
  std::string name{};
  std::uint32_t shards = 0;
  std::uint64_t bytes = 0;  ///< over the shards whose layout is known
  version_number latest{};
  std::vector<version_number> available{};
  std::vector<replica_entry> replicas{};
};
struct list_reply {
  status result{};
  std::vector<model_entry> models{};
};
struct describe_request {
  std::string model{};
  std::uint32_t shard = 0;
};
struct describe_reply {
  status result{};
  std::uint32_t shards = 0;
  std::uint64_t chunk_bytes = 0;
  std::vector<tensor_spec> tensors{};
};

struct leave_request {};
struct heartbeat_request {};
struct heartbeat_reply {
  server_epoch epoch{};
  version_number latest{};
};
struct status_reply {
  status result{};
  operation_counter operation{};  ///< of a publish: as the server counts it; otherwise zero
};

struct version_push {
  version_number version{};
};
struct reassign_push {
  lease_id old_lease{};
  assignment source{};
};
struct cut_off_push {
  incarnation reader{};
};
struct abort_push {
  operation_counter operation{};
  status reason{};
};
struct goodbye_push {
  server_epoch epoch{};
  bool rejoin = false;
  status reason{};
};

/// The index of a type in this list is its number on the wire: append, never reorder.
using message =
    std::variant<join_request, join_reply, publish_request, unpublish_request, drained_reply, update_request,
                 update_reply, source_failed_request, lease_released_request, finish_request,
                 cut_off_done_request, wait_request, version_reply, list_request, list_reply,
                 describe_request, describe_reply, leave_request, heartbeat_request, heartbeat_reply,
                 status_reply, version_push, reassign_push, cut_off_push, abort_push, goodbye_push>;

/// A message with its frame header.
struct envelope {
  std::uint64_t sender = 0;     ///< a worker's incarnation, or the server's epoch
  request_sequence sequence{};  ///< of the request; zero for heartbeats and pushes
  /// Worker -> server: answers up to here have arrived and may be forgotten.
  request_sequence acknowledged{};
  message body{};
};

}  // namespace tensorhub::messages
