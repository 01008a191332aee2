#pragma once
/// \file options.hpp
/// What a worker is told (`worker_options`) and what its calls tell (the reports). Plain values.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/process.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/transfer/pull_report.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/server_reports.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

inline constexpr update_reach prefer_local = update_reach::prefer_local;

/// For `update` and `stage`: the call is repeated until it succeeds, its time has passed, or it fails with an
/// error that is not `retryable()`. Not for one of several shards.
struct retry_t {
  explicit retry_t() = default;
};
inline constexpr retry_t retry{};

/// Who a worker is and how it behaves. Only the first three have no sensible default.
struct worker_options {
  /// Of the reference server: "tcp://host:port", or several with commas between, which may take over from
  /// each other. With bars between, "tcp://a:5570 | tcp://b:5570", each of these (or of these lists) serves a
  /// share of the models, by their names: all processes have to have the same text here, in the same order.
  std::string server{};
  std::string model{};
  std::string replica{};
  shard_of shard{};                           ///< {index, count}
  tensorhub::location location{};             ///< an empty host becomes the machine's name and identity
  std::optional<client_security> security{};  ///< CURVE with these keys; as the server has it, or not
  /// Host memory in which this worker may keep retained versions for others (worker/offloads.hpp). Each
  /// worker of a process has this limit for itself (one that stages is two, a publisher with snapshots
  /// three); memory that waits a minute for the next order comes on top. A version for which the machine, or
  /// the control group of the process, has no memory available then is refused in any case.
  std::uint64_t offload_limit_bytes = UINT64_MAX;
  bool spot = false;  ///< may vanish: serves, but is never relied upon
  /// The same for all workers of a model: it is part of the layout, and another one is a `layout_mismatch`.
  std::uint64_t chunk_bytes = defaults::chunk_bytes;
  std::size_t lanes = 2;  ///< threads that read during an update and digest during a publish
  /// Reads outstanding per lane; 0: 4, and from quick sources 64 where tensors lie on a device, which copies
  /// and digests in batches.
  std::size_t window_chunks = 0;
  /// The most to a source in another datacenter, of whole chunks; of smaller ones more. A lane begins with a
  /// quarter of it, and then has as much on its way as its path has been measured to hold: about two
  /// bandwidth-delay products. Times `lanes` and `chunk_bytes` it should be two of the fastest path (64 MiB:
  /// 5 Gbit/s x 50 ms). A shard of no more chunks is asked for at once.
  std::size_t far_window_chunks = 32;
  tensorhub::process process{};  ///< whose transport and control connection it shares (process.hpp)
  std::chrono::milliseconds join_timeout = defaults::join_timeout;
  std::chrono::milliseconds drain_timeout = defaults::drain_timeout;      ///< of the drain inside an update
  std::chrono::milliseconds connect_timeout = defaults::connect_timeout;  ///< to a source
  std::chrono::milliseconds request_retry = defaults::request_retry;
  /// Silence after which the next server of the list is tried, or the only one, which has left heartbeats
  /// unanswered, is connected to anew.
  std::chrono::milliseconds server_timeout = defaults::server_timeout;
  /// Called one line at a time, in a thread of the library's; must not call the worker, nor end it. The end
  /// of the worker waits for it.
  std::function<void(const log_line&)> log{};
  /// Every chunk of an update, as it arrives; called from the update's threads, must not call the worker. An
  /// update in which it throws fails as `system_failed`, with what the exception says; of an update in place
  /// the tensors then belong to no version, until the next one succeeds.
  std::function<void(const chunk_event&)> trace{};
};

struct publish_report {
  version_number version{};
  std::uint64_t bytes = 0;
  double digest_seconds = 0;  ///< packing and digesting
  double seconds = 0;         ///< the whole call
};

struct unpublish_report {
  std::uint32_t finished = 0;  ///< readers that ended by themselves during the call
  std::uint32_t moved = 0;     ///< readers that went on with another source
  std::uint32_t cut_off = 0;   ///< readers that the server had declared dead
  bool forced = false;         ///< the deadline came: the remaining readers were cut off
  /// This was the last reliable copy of a retained version, and nobody could take it. With `forced`: or the
  /// server has not said by the deadline that somebody has it.
  bool lost = false;
  /// The name of a tensor whose bytes have changed since `publish`, which readers have noticed; empty: none.
  std::string changed{};
  double seconds = 0;

  /// Adds the report of another worker.
  TENSORHUB_DECL void add(const unpublish_report& other);
};

struct update_report {
  version_number version{};
  bool kept = false;  ///< was held already: nothing was read
  /// What was overwritten was the last reliable copy of a retained version, and nobody could take it.
  bool lost = false;
  std::uint64_t bytes = 0;  ///< that were read
  /// Of the version, that were here already, from an earlier version or from an update that was broken off:
  /// their digests were compared, and they were read from nobody.
  std::uint64_t unchanged_bytes = 0;
  double seconds = 0;                  ///< the whole call
  double wait_seconds = 0;             ///< until the transfer began: a version, the server, own old readers
  double pull_seconds = 0;             ///< from the first connection to the last confirmed chunk
  std::vector<std::string> sources{};  ///< "replica/shard" of everybody who was read from
  std::vector<std::string> paths{};    ///< how each was reached: "tcp", "tcp (same_host: on another machine)"
  std::vector<std::uint64_t> source_bytes{};  ///< what came from each

  /// Adds the figures of one transfer.
  TENSORHUB_DECL void add(const pull_progress& transfer);
};

struct update_progress {
  version_number version{};  ///< zero until a version is decided
  std::uint64_t bytes = 0;
  std::uint64_t total_bytes = 0;
  bool done = false;
  std::vector<source_progress> sources{};  ///< while it runs: what came from whom
};

/// What an `install` of staged weights did (subscriber.hpp).
struct install_report {
  version_number version{};
  bool kept = false;         ///< was live already: nothing was copied
  std::uint64_t bytes = 0;   ///< copied
  double drain_seconds = 0;  ///< the live version's readers ended, or were moved to others
  double copy_seconds = 0;   ///< how long the live bytes were undefined
  double seconds = 0;        ///< the whole call
  bool lost = false;         ///< as at `update_report`
};

/// What a `publish(version, snapshot)` did (worker/snapshots.hpp).
struct snapshot_report {
  version_number version{};
  std::uint64_t bytes = 0;
  bool lost = false;          ///< of the snapshot that was in this memory before: as at `unpublish_report`
  double drain_seconds = 0;   ///< that one's readers; usually none
  double copy_seconds = 0;    ///< of the tensors
  double digest_seconds = 0;  ///< of the copy
  double seconds = 0;         ///< the whole call
};

/// How many reference servers may take over from each other for this worker's model.
[[nodiscard]] TENSORHUB_DECL std::size_t servers_of(const worker_options& options);

/// Where a transport listens and what its peers are told, if a reference server of the list has an address
/// that other machines can use. Unless it is told where, it listens at this machine's address on the route to
/// that server; one that listens at all interfaces tells its peers that address. Throws `disconnected` if the
/// address is not found within `join_timeout`, and `invalid_argument` if only this machine could use it. Of a
/// transport that is told both hosts, or to advertise a loopback address, nothing is asked.
TENSORHUB_DECL void make_reachable(const worker_options& options, std::string& listen_host,
                                   std::string& advertised_host);

/// The options as a worker uses them: an empty host filled in, lanes, windows and time-outs within reason.
/// Throws `invalid_argument` or `limit_exceeded`, with the option's name.
[[nodiscard]] TENSORHUB_DECL worker_options validated(worker_options options);

/// The context of this worker's errors. `version`: what they are about, if it is one.
[[nodiscard]] TENSORHUB_DECL error_context context_of(const worker_options& options,
                                                      version_number version = {});

/// One more worker of the same process and shard, with versions of its own: replica "<replica>@<role>".
[[nodiscard]] TENSORHUB_DECL worker_options beside(worker_options options, std::string_view role);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/options.ipp"
#endif
