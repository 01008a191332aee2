#pragma once
/// \file messages.hpp
/// The control protocol: every message between a worker and the reference server, as plain structs. The
/// variant of all messages is in envelope.hpp.
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
/// | unpublish_request      | drained_reply   | *later*: no lease on the reference is left, and   |
/// |                        |                 | the version is safe elsewhere if it is retained   |
/// | update_request         | update_reply    | *later*: a version was decided and a source found |
/// | receiving_request      | status_reply    | at once                                           |
/// | source_failed_request  | update_reply    | at once: other sources, or why there is none      |
/// | lease_released_request | status_reply    | at once                                           |
/// | finish_request         | status_reply    | *later*: all shards of the replica have finished  |
/// | cut_off_done_request   | status_reply    | at once                                           |
/// | wait_request           | version_reply   | *later*: such a version is available              |
/// | list_request           | list_reply      | at once                                           |
/// | describe_request       | describe_reply  | at once                                           |
/// | why_request            | why_reply       | at once                                           |
/// | stuck_request          | stuck_reply     | at once                                           |
/// | leave_request          | status_reply    | at once                                           |
/// | retain_request         | status_reply    | at once                                           |
/// | offload_failed_request | status_reply    | at once                                           |
/// | heartbeat_request      | heartbeat_reply | at once; sequence zero, not stored                |
///
/// | server -> worker (push) | means                                                                        |
/// |-------------------------|------------------------------------------------------------------------------|
/// | version_push            | a newer version is available (also in every heartbeat_reply)                 |
/// | reassign_push           | read from this source too, or instead of an old one, whose lease is to be    |
/// |                         | released then (lost: the lease ends with the update, or with the drain that  |
/// |                         | waits for it)                                                                |
/// | cut_off_push            | this reader was declared dead: cut it off, then confirm (repeated until      |
/// |                         | confirmed)                                                                   |
/// | abort_push              | the group operation failed in another shard (lost: the finish_request is     |
/// |                         | answered so)                                                                 |
/// | retention_push          | which versions are retained; to be told to a new server (sent at each        |
/// |                         | change, and after a join)                                                    |
/// | offload_push            | bring this version into host memory and show it as a temporary replica       |
/// |                         | (repeated until that has joined, or cannot)                                  |
/// | drop_push               | to a temporary replica: it is not needed any more (repeated until it leaves) |
/// | goodbye_push            | this incarnation is not (any more) known: `rejoin` says whether to announce  |
/// |                         | everything again (new server) or to give up (declared dead, or replaced by a |
/// |                         | newer process)                                                               |

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::messages {

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
  /// True: the source is receiving the version itself, or is about to; its chunk map says what it has.
  bool receiving = false;
  /// Number of this reader among those of a source that has everything: where to begin there.
  std::uint64_t ordinal = 0;
  bool crossing = false;  ///< the source is in another datacenter: this reader is the seed of its own
};

/// How a reader will show what it is receiving: it can be read as soon as it has begun.
struct announcement {
  std::uint64_t epoch = 0;
  remote_region control{};
};

/// Where an update may take its version from.
enum class update_reach : std::uint8_t {
  anywhere = 0,
  /// Only a version that is held completely in the reader's datacenter; if none is newer than what the reader
  /// holds it keeps that. A reader that holds nothing takes whatever there is.
  prefer_local = 1,
};

/// Versions that are not to be lost (DESIGN 2.4): the latest few, and those that somebody has pinned.
struct retention {
  std::uint64_t revision = 0;  ///< counts changes: the highest one is true
  std::uint32_t keep_latest = 0;
  std::vector<version_number> pinned{};  ///< ascending
  bool operator==(const retention&) const = default;
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
  std::vector<tensor_spec> tensors{};    ///< only when the server asked for it (join_reply::wants_layout)
  std::optional<reference> held{};       ///< announced again to a new server
  operation_counter operation{};         ///< highest operation this worker has called; zero at first
  std::vector<assignment> reading{};     ///< leases of an earlier server that are still in use
  std::optional<reference> receiving{};  ///< what is shown meanwhile
  bool ended_well = true;                ///< of the call before, the highest one that has ended
  version_number decided{};              ///< of the call that is running: what an earlier server decided
  version_number latest{};               ///< the newest version that this worker has heard of
  /// Workers of the model, as an earlier server last told; zero: not known. Only what was heard lately, and
  /// of a server that had counted all: a count that is too low ends the grace of the next one too early.
  std::uint32_t peers = 0;
  retention keeps{};             ///< as an earlier server told it
  bool temporary = false;        ///< part of a temporary replica (offload_push)
  std::string capability_key{};  ///< for those who are to read from this worker; empty: it asks for none
  server_epoch before{};         ///< of the server that it had joined last; zero: it has never joined any
  /// Readers that it has cut off by order of earlier servers and will never let in again, the latest last.
  /// Some of them may not have heard that they were declared dead.
  std::vector<incarnation> barred{};
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
  std::uint32_t workers = 0;  ///< of the model
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
  bool leaving = false;           ///< the process is about to end: a retained version must go elsewhere
};
struct drained_reply {
  status result{};
  std::uint32_t finished = 0;  ///< readers that ended by themselves since the call
  std::uint32_t moved = 0;     ///< readers that were given another source
  std::uint32_t cut_off = 0;   ///< readers that were cut off
  /// An earlier server may have let others read, of whom this one does not know: all keys must be made
  /// invalid.
  bool revoke = false;
  bool lost = false;  ///< was the last reliable copy of a retained version, and could not be handed over
};

/// A worker makes one call at a time: not before the end of the last one was answered (the refusal or `keep`
/// of its update_reply, or the status_reply to its finish_request). Who calls earlier is declared dead.
struct update_request {
  operation_counter operation{};
  version_selector selector{};
  std::uint32_t timeout_ms = 0;  ///< the server answers `timed_out` after that
  update_reach reach = update_reach::anywhere;
  std::optional<announcement> shows{};  ///< as it will be if nothing has to be drained first
};
struct update_reply {
  status result{};
  operation_counter operation{};  ///< as the server counts it: a restarted worker counts on from here
  bool keep = false;              ///< what is held already satisfies the request: `version`, nothing to read
  version_number version{};
  /// The first one is this reader's *upstream*. Empty in the answer to source_failed_request: go on with what
  /// is left.
  std::vector<assignment> sources{};
  std::uint64_t ordinal = 0;  ///< of this reader among those of its version and shard: where to begin
};
/// The reader's memory is being filled, and can be read as `shows` says.
struct receiving_request {
  operation_counter operation{};
  announcement shows{};
};
struct source_failed_request {
  operation_counter operation{};
  lease_id lease{};  ///< zero: no source has failed, but none has had anything new for a while
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
/// Changes what is retained; what is not set stays as it is.
struct retain_request {
  std::optional<std::uint32_t> keep_latest{};
  version_number pin{};
  version_number release{};
};
/// This worker's process cannot take a version into its host memory.
struct offload_failed_request {
  version_number version{};
  status reason{};
};
struct heartbeat_request {
  std::uint64_t chunks = 0;     ///< received and verified, of the update that is running
  std::uint64_t retention = 0;  ///< revision that this worker has heard of: a newer one is pushed
};
struct heartbeat_reply {
  server_epoch epoch{};
  version_number latest{};
  std::uint32_t workers = 0;  ///< of the model; zero: this server does not know yet, some may be on their way
};
/// How the sources of a replica's shard were chosen, latest decision last.
struct why_request {
  std::string model{};
  std::string replica{};
  std::uint32_t shard = 0;
};
struct why_reply {
  status result{};
  std::string decisions{};  ///< a line each
};
/// What in the whole system is waiting for what, and since when.
struct stuck_request {
  std::string model{};              ///< empty: all models
  std::uint32_t older_than_ms = 0;  ///< only what has been waiting for longer
};
enum class stuck_kind : std::uint8_t {
  no_version = 0,        ///< an update, or a wait, for a version that nobody holds completely
  no_credit = 1,         ///< the version is there, but its holders have as many readers as they may have
  absent_shards = 2,     ///< the version is decided; other shards of the replica have not called
  no_progress = 3,       ///< told to read, and no chunk has arrived since
  draining = 4,          ///< an unpublish, or the drain before an update, waits for readers
  unfinished_group = 5,  ///< has received everything; other shards of the replica have not
  cut_off = 6,           ///< a source has not confirmed that it has cut off a reader that was declared dead
  silent_worker = 7,     ///< more than two heartbeats are missing
};
/// Who waits, for what, for whom.
struct stuck_entry {
  stuck_kind kind = stuck_kind::no_version;
  std::string model{};
  std::string replica{};
  std::uint32_t shard = 0;
  incarnation worker{};  ///< zero: one that has gone
  version_number version{};
  operation_counter operation{};  ///< zero: none
  std::uint64_t waited_ms = 0;
  std::uint64_t chunks = 0;  ///< received so far, of the running update
  std::string peers{};       ///< whom it waits for: "replica/shard (incarnation), ..."
  std::string advice{};      ///< what is missing, and what to do about it
};
struct stuck_reply {
  status result{};
  std::vector<stuck_entry> entries{};  ///< the oldest first
  std::uint32_t left_out = 0;          ///< entries beyond the reply's limit
};
struct status_reply {
  status result{};
  operation_counter operation{};  ///< of a publish: as the server counts it; otherwise zero
};

struct version_push {
  version_number version{};
};
struct reassign_push {
  lease_id old_lease{};  ///< zero: one source more
  /// Without lease: none instead of the old one.
  assignment source{};
};
struct cut_off_push {
  incarnation reader{};
};
struct abort_push {
  operation_counter operation{};
  status reason{};
};
struct retention_push {
  retention keeps{};
};
struct offload_push {
  version_number version{};
  std::string replica{};  ///< name of the temporary replica
};
struct drop_push {};
struct goodbye_push {
  server_epoch epoch{};
  bool rejoin = false;
  status reason{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::messages
