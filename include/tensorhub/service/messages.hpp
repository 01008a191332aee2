#pragma once
/// \file messages.hpp
/// The control protocol: every message between a worker and the reference server, as plain structs. The
/// variant of all messages is in envelope.hpp.
///
/// Requests carry the worker's incarnation and a sequence number and are idempotent: a retry repeats the
/// number and gets the stored answer. Some answers are deferred (marked *later* below): the server answers
/// when it can, and the worker repeats the request at its retry interval meanwhile. Pushes have sequence zero
/// and may be lost with a connection; each push is either repeated until confirmed or implied by a later
/// answer (the tables below say which).
///
/// | worker -> server       | answer          | when                                              |
/// |------------------------|-----------------|---------------------------------------------------|
/// | join_request           | join_reply      | at once; *later* while others are asked for the   |
/// |                        |                 | layout                                            |
/// | publish_request        | status_reply    | at once                                           |
/// | unpublish_request      | drained_reply   | *later*: no lease on the reference is left, and   |
/// |                        |                 | the version is safe elsewhere if it is retained   |
/// | update_request         | update_reply    | *later*: a version was decided and a source found |
/// | receiving_request      | status_reply    | at once                                           |
/// | holding_request        | status_reply    | at once                                           |
/// | sources_request        | update_reply    | at once: other sources, or why there is none      |
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
/// | manage_request         | manage_reply    | at once; from any process                         |
/// | offload_failed_request | status_reply    | at once                                           |
/// | heartbeat_request      | heartbeat_reply | at once; sequence zero, not stored                |
///
/// | server -> worker (push) | means                                                                        |
/// |-------------------------|------------------------------------------------------------------------------|
/// | version_push            | a newer version is available (also in every heartbeat_reply); of version     |
/// |                         | zero: the server lives, and a request of somebody who has not joined waits   |
/// | reassign_push           | read from this source too, or instead of an old one, and then release the    |
/// |                         | lease on the old one (if the push is lost, that lease ends with the update,  |
/// |                         | or with the drain that waits for it)                                         |
/// | cut_off_push            | this reader was declared dead: cut it off, then confirm (repeated until      |
/// |                         | confirmed)                                                                   |
/// | abort_push              | the group operation failed in another shard (if the push is lost, the answer |
/// |                         | to finish_request says so)                                                   |
/// | committed_push          | the version that is being read, and was open, is whole: its root (if the     |
/// |                         | push is lost, the answer to sources_request says so)                         |
/// | retention_push          | which versions are retained and valid; workers announce it to a new server   |
/// |                         | (sent at each change, after a join, and if a heartbeat shows that the worker |
/// |                         | does not know it)                                                            |
/// | offload_push            | copy this version into host memory and show it as a temporary replica        |
/// |                         | (repeated until the replica has joined or the worker reports a failure)      |
/// | drop_push               | this temporary replica is no longer needed (repeated until it leaves)        |
/// | goodbye_push            | the server does not know this incarnation (any more): `rejoin` says whether  |
/// |                         | to announce everything again (new server) or to give up (declared dead, or   |
/// |                         | replaced by a newer process)                                                 |

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/server_reports.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::messages {

using tensorhub::model_entry;
using tensorhub::replica_entry;
using tensorhub::stuck_entry;
using tensorhub::stuck_kind;
using tensorhub::update_reach;

/// Outcome of a request: `ok`, or a code with a sentence for the user.
struct status {
  errc code = errc::ok;
  std::string sentence{};
  [[nodiscard]] bool ok() const noexcept { return code == errc::ok; }
};

/// "Worker W holds shard i of version v, in place": all that the server stores about weights.
struct reference {
  version_number version{};
  std::uint64_t epoch = 0;  ///< the holder's control-block epoch while it holds the version
  digest128 root{};         ///< digest over the chunk digests; zero if integrity is off
  remote_region control{};  ///< the holder's control block
  /// The holder still fills the version: it is not whole, its chunks are shown as they are ready, and its
  /// root is not known.
  bool open = false;
  std::vector<told_region> segments{};  ///< of a version that is whole: as in `readable_memory`

  void name_memory(readable_memory memory) {
    control = memory.control;
    segments = std::move(memory.segments);
  }
};

/// One permission to read: everything that a reader needs to know about its source.
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
  std::vector<told_region> segments{};  ///< as in `reference`; empty of a source that is receiving
  std::uint64_t epoch = 0;
  /// True: the reader's old reference has no lease left, so the reader may overwrite its memory without
  /// asking again.
  bool drained = false;
  /// True: the source is receiving the version itself, or is about to; its chunk map lists the received
  /// chunks.
  bool receiving = false;
  /// Number of this reader among the readers of a source that has every chunk; selects the first chunk.
  std::uint64_t ordinal = 0;
  bool crossing = false;  ///< the source is in another datacenter: this reader is a seed
};

/// How other workers can read a reader while it receives a version, as soon as it has begun.
struct announcement {
  std::uint64_t epoch = 0;
  remote_region control{};
};

/// One time that a model's trainer went back to a checkpoint (service/rollbacks.hpp).
struct rollback {
  std::uint32_t line = 0;  ///< of the versions that were published after it
  std::uint64_t to = 0;    ///< the last number of earlier lines that stays valid
  bool operator==(const rollback&) const = default;
};

/// The retained versions of a model (DESIGN 2.4): the latest few, and the pinned ones; and the valid ones.
struct retention {
  std::uint64_t revision = 0;  ///< counts changes: the highest one is valid
  std::uint32_t keep_latest = 0;
  std::vector<version_number> pinned{};  ///< ascending; without lines
  std::vector<rollback> rollbacks{};     ///< ascending in both fields
  bool operator==(const retention&) const = default;
};

/// What all workers of a shard must have in common. The policies are names.
struct form {
  std::string transport{};
  std::string consistency{};
  std::string integrity{};
  digest128 layout_digest{};
  std::uint64_t chunk_bytes = 0;
  std::uint64_t chunk_count = 0;
  std::vector<tensor_spec> tensors{};  ///< only when the server asked for it (join_reply::wants_layout)
};

/// What a worker has, and knows, from the servers that it joined before.
struct past {
  server_epoch server{};  ///< the one that it joined last; zero: none
  bool moved = false;     ///< that server is at another address of its list, and may still run
  /// An earlier incarnation of it was declared dead. A process that has taken its place meanwhile keeps it.
  bool returns = false;
  std::optional<reference> held{};       ///< announced again to a new server
  operation_counter operation{};         ///< highest operation this worker has called; zero at first
  std::vector<assignment> reading{};     ///< leases of an earlier server that are still in use
  std::optional<reference> receiving{};  ///< the reference that is shown meanwhile
  bool ended_well = true;                ///< the last call that has ended succeeded
  version_number decided{};              ///< running call: the version that an earlier server decided
  version_number latest{};               ///< the newest version that this worker knows of
  /// Workers of the model, as counted by an earlier server; zero: not known. The count must be recent and
  /// complete: a count that is too low ends the grace of the next server too early.
  std::uint32_t peers = 0;
  retention keeps{};  ///< as an earlier server told it
  /// Readers that this worker has cut off by order of earlier servers and will never admit again, the latest
  /// last. Some of them may not know that they were declared dead.
  std::vector<incarnation> barred{};
};

struct join_request {
  std::string model{};
  std::string replica{};
  shard_of shard{};
  tensorhub::location location{};
  bool spot = false;
  bool temporary = false;  ///< part of a temporary replica (offload_push)
  transport_address address{};
  std::string capability_key{};  ///< key for capabilities of its readers; empty: none are required
  digest128
      proof{};  ///< that the incarnation is this key's (types/incarnation_proof.hpp); zero without security
  messages::form form{};
  past before{};
};
struct join_reply {
  status result{};
  server_epoch epoch{};
  bool wants_layout = false;  ///< the worker has not joined: send again with `tensors`
  std::uint32_t heartbeat_interval_ms = 0;
  std::uint32_t worker_timeout_ms = 0;
  std::uint32_t group_timeout_ms = 0;
  operation_counter operation{};  ///< the replica's last finished operation: continue numbering from it
  version_number latest{};
  std::uint32_t workers = 0;  ///< workers of the model
};

/// A zero in `operation` of this and the following requests: the worker does not know the numbers of its
/// calls yet, and the server assigns the number.
/// A publisher sends this request twice for an open version: when it opens the version, and when the
/// version is whole. Only the second request counts as a call of the replica.
struct publish_request {
  operation_counter operation{};
  reference held{};
};
struct unpublish_request {
  version_number version{};
  std::uint64_t epoch = 0;  ///< of the reference, so that a late repetition does not withdraw a later one
  operation_counter operation{};  ///< set: the drain before that update; the reference is already hidden
  bool leaving = false;           ///< the process is about to end: hand a retained version over elsewhere
};
struct drained_reply {
  status result{};
  std::uint32_t finished = 0;  ///< readers that finished by themselves since the call
  std::uint32_t moved = 0;     ///< readers that were given another source
  std::uint32_t cut_off = 0;   ///< readers that were cut off
  /// An earlier server may have assigned readers that this server does not know: all keys must be
  /// invalidated.
  bool revoke = false;
  bool lost = false;  ///< the last reliable copy of a retained version, which could not be handed over
  /// A chunk that a reader has refused (`errc::corrupt`), the first one of this version: has it been changed?
  std::optional<std::uint64_t> refused{};
};

/// A worker makes one call at a time. The next call must wait for the answer that ends the last one (an
/// update_reply with a refusal or `keep`, or the status_reply to its finish_request). A worker that violates
/// this is declared dead.
struct update_request {
  operation_counter operation{};
  version_selector selector{};
  std::uint32_t timeout_ms = 0;  ///< the server answers `timed_out` after this time
  update_reach reach = update_reach::anywhere;
  std::optional<announcement> shows{};  ///< valid if no drain is necessary first
  bool ahead = false;                   ///< rather than wait for a version, read one that is open
};
struct update_reply {
  status result{};
  operation_counter operation{};  ///< the server's number: a restarted worker continues from it
  bool keep = false;              ///< the held version already satisfies the request: `version`
  version_number version{};
  /// The first one is this reader's *upstream*. Empty in the answer to sources_request: continue with the
  /// remaining sources.
  std::vector<assignment> sources{};
  std::uint64_t ordinal = 0;  ///< number of this reader for its version and shard: selects the first chunk
  /// What the update overwrites is the last reliable copy of a retained version, which could not be handed
  /// over.
  bool lost = false;
  bool open = false;  ///< the version is not whole yet, and `root` is not known
  digest128 root{};   ///< of the version and the reader's shard; zero if integrity is off
};
/// The reader receives a version and can be read as `shows` describes.
struct receiving_request {
  operation_counter operation{};
  announcement shows{};
};
/// The worker's memory holds this version, outside of any call of its replica: by a copy of the worker's own,
/// or still, after an unpublish that it has given up.
struct holding_request {
  reference held{};
};
enum class sources_wanted : std::uint8_t {
  one_failed,       ///< a source has failed
  all_stalled,      ///< no source has had a new chunk for long: the reader cannot finish with these
  short_of_chunks,  ///< for a short while: a further source or an exchange (a reassign_push) may help
};
struct sources_request {
  operation_counter operation{};
  sources_wanted why = sources_wanted::one_failed;
  lease_id lease{};                 ///< one_failed: of that source
  errc reason = errc::source_lost;  ///< one_failed: why
  std::string detail{};
  std::optional<std::uint64_t> chunk{};  ///< one_failed: the one that failed, if the fault is of one
};
struct lease_released_request {
  lease_id lease{};
};
struct finish_request {
  operation_counter operation{};
  version_number version{};
  status result{};
  /// Failure: no byte was overwritten, and none was found to be another one: the held version is still held.
  bool intact = false;
  /// The version that the memory holds now: after a success, and after a failure that makes the server's
  /// record wrong.
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
/// Changes which versions are retained, or valid; fields that are not set leave the setting unchanged.
struct retain_request {
  std::optional<std::uint32_t> keep_latest{};
  version_number pin{};
  version_number release{};
  /// All versions above this one become void, unless only versions that were published since the last roll
  /// back to it, and are being published still, are above it: then another shard has called first.
  std::optional<version_number> roll_back_to{};
};
/// An order of a process that is no worker: about a model, or a replica of it.
enum class manage_kind : std::uint8_t {
  retention = 0,  ///< `change`
  evict = 1,      ///< the replica's workers are declared dead, and told so
  drain = 2,      ///< the replica serves nobody: its readers are moved, and new ones are sent elsewhere
  resume = 3,     ///< the end of that
};
struct manage_request {
  manage_kind kind = manage_kind::retention;
  std::string model{};
  std::string replica{};
  retain_request change{};
};
struct manage_reply {
  status result{};
  std::uint32_t workers = 0;  ///< of the replica
  std::uint32_t readers = 0;  ///< that read from it
};
/// Reports that this worker's process cannot take a version into its host memory.
struct offload_failed_request {
  version_number version{};
  status reason{};
};
struct heartbeat_request {
  std::uint64_t chunks = 0;     ///< received and verified chunks of the running update
  std::uint64_t retention = 0;  ///< revision that this worker knows: a newer one is pushed
};
struct heartbeat_reply {
  server_epoch epoch{};
  version_number latest{};
  std::uint32_t workers = 0;  ///< workers of the model; zero: not known yet
};
/// How the sources of a replica's shard were chosen, latest decision last.
struct why_request {
  std::string model{};
  std::string replica{};
  std::uint32_t shard = 0;
};
struct why_reply {
  status result{};
  std::string decisions{};  ///< one line per decision
};
/// Asks what in the whole system is waiting, for what, and since when.
struct stuck_request {
  std::string model{};              ///< empty: all models
  std::uint32_t older_than_ms = 0;  ///< only entries that have waited longer
};
struct stuck_reply {
  status result{};
  std::vector<stuck_entry> entries{};  ///< the oldest first
  std::uint32_t left_out = 0;          ///< entries beyond the reply's limit
};
struct status_reply {
  status result{};
  operation_counter operation{};  ///< publish: the server's number of the call; otherwise zero
};

struct version_push {
  version_number version{};
};
struct reassign_push {
  lease_id old_lease{};  ///< zero: an additional source
  /// Without a lease: the old source is released without a replacement.
  assignment source{};
};
struct cut_off_push {
  incarnation reader{};
};
struct abort_push {
  operation_counter operation{};
  status reason{};
};
struct committed_push {
  version_number version{};
  digest128 root{};  ///< of the receiver's shard
};
struct retention_push {
  retention keeps{};
};
struct offload_push {
  version_number version{};
  std::string replica{};  ///< name of the temporary replica
};
struct drop_push {};
/// A reason of code `disconnected` without `rejoin`: the server did not hear from this incarnation, and has
/// declared it dead. The process may join again as another incarnation.
struct goodbye_push {
  server_epoch epoch{};
  bool rejoin = false;
  status reason{};
  incarnation worker{};  ///< the incarnation that is meant; zero: any (a server that could not read the name)
};

}  // namespace tensorhub::inline TENSORHUB_MODE::messages
