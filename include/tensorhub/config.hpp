#pragma once
/// \file config.hpp
/// Limits and default time-outs, in one place.
///
/// A limit bounds a size that comes from outside (a frame, a name, a layout) before the size is used; a
/// larger size is refused with `errc::limit_exceeded`. The time-outs suit a LAN; each is the default of an
/// option with the same name, or of the `timeout` of calls.

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Bounds on requests of peers.
namespace limits {
inline constexpr std::size_t name_bytes = 512;  ///< model, replica, tensor, datacenter, rack, host, device
inline constexpr std::size_t address_bytes = 1024;        ///< one transport address
inline constexpr std::size_t capability_bytes = 64;       ///< a key for capabilities, or one capability
inline constexpr std::size_t remote_key_bytes = 240;      ///< opaque key of a remote region
inline constexpr std::size_t told_segments = 4;           ///< regions of a shard that control messages name
inline constexpr std::size_t tensors = 1u << 20;          ///< tensors of one shard
inline constexpr std::size_t tensor_dimensions = 16;      ///< dimensions of one tensor
inline constexpr std::uint32_t shards = 1u << 16;         ///< shards of one model
inline constexpr std::uint64_t shard_bytes = 1ull << 46;  ///< flat bytes of one shard (64 TiB)
inline constexpr std::uint64_t chunks = 1ull << 26;       ///< chunks of one shard
inline constexpr std::size_t frame_bytes = 64u << 20;     ///< one control message; to a server 16 MiB
inline constexpr std::size_t text_bytes = 8192;           ///< one sentence in a control message
inline constexpr std::size_t sources = 64;                ///< sources of one reader at a time
/// Versions of a model that are pinned or among the latest retained ones.
inline constexpr std::size_t retained_versions = 64;
inline constexpr std::size_t rollbacks = 256;  ///< of a model, each to a later version than the one before
/// Cut-off readers that one worker reports to a new server.
inline constexpr std::size_t barred_readers = 64;
inline constexpr std::size_t worker_requests_in_flight = 64;  ///< unanswered requests of one worker
/// Of these, questions of its callers: the others are for reports, which must never have to wait.
inline constexpr std::size_t worker_questions = 32;
/// Calls of one worker that its replica has not completed; also updates of one replica.
inline constexpr std::size_t open_calls = 32;
/// Workers beat at least this often, even if a server asks for a longer interval.
inline constexpr std::chrono::milliseconds heartbeat_interval{60'000};

// Defaults for the amount that one reference server stores (service/catalog/bounds.hpp).
inline constexpr std::size_t workers = 1u << 16;           ///< workers joined at one time
inline constexpr std::size_t models = 1024;                ///< models that have workers
inline constexpr std::size_t replicas = 1u << 14;          ///< replicas of one model
inline constexpr std::size_t layout_bytes = 1u << 30;      ///< bytes of all layouts
inline constexpr std::size_t shard_records = 1u << 21;     ///< replicas and versions of each shard of a model
inline constexpr std::size_t workers_of_connection = 256;  ///< workers of one control connection
}  // namespace limits

/// Default time-outs and intervals: of an object's options, and of the calls that take a `timeout`.
namespace defaults {
using namespace std::chrono_literals;
/// Between heartbeats from a worker to the server, which answers each.
inline constexpr std::chrono::milliseconds heartbeat_interval = 500ms;
/// A worker that is silent for this time is declared dead.
inline constexpr std::chrono::milliseconds worker_timeout = 5000ms;
/// A reader without progress for this time loses a credit that another reader waits for.
inline constexpr std::chrono::milliseconds progress_timeout = 10000ms;
/// A control request without an answer is sent again after this time.
inline constexpr std::chrono::milliseconds request_retry = 1000ms;
/// Time-out of connecting to a source.
inline constexpr std::chrono::milliseconds connect_timeout = 5000ms;
/// Silence of a source while reads are outstanding.
inline constexpr std::chrono::milliseconds peer_timeout = 5000ms;
/// Time-out of the reference server's first answer.
inline constexpr std::chrono::milliseconds join_timeout = 30000ms;
/// Time-out of one update, including the wait for the version.
inline constexpr std::chrono::milliseconds update_timeout = 120000ms;
/// Time-out of an unpublish, and of the drain before an update.
inline constexpr std::chrono::milliseconds drain_timeout = 30000ms;
/// A new server waits this long for the workers of its predecessor before it reports anything as missing.
inline constexpr std::chrono::milliseconds recovery_grace = 5000ms;
/// A worker that hears nothing from its server for this time tries the next address of its list.
inline constexpr std::chrono::milliseconds server_timeout = 2000ms;
/// Time within which all shards of a replica must have called.
inline constexpr std::chrono::milliseconds group_timeout = 30000ms;
inline constexpr std::chrono::milliseconds late_shard_timeout = 2000ms;
/// The unit of progress and integrity; it fits a core's L2 cache.
inline constexpr std::uint64_t chunk_bytes = 1u << 20;
}  // namespace defaults

}  // namespace tensorhub::inline TENSORHUB_MODE
