#pragma once
/// \file config.hpp
/// Limits and default time-outs, in one place.
///
/// A limit bounds a size that comes from outside (a frame, a name, a layout) before it is used; what exceeds
/// it is refused with `errc::limit_exceeded`. Time-outs suit a LAN; each is a default of an option with the
/// same name.

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Bounds on what a peer may ask for.
namespace limits {
inline constexpr std::size_t name_bytes = 512;  ///< model, replica, tensor, datacenter, rack, host, device
inline constexpr std::size_t address_bytes = 1024;            ///< one transport address
inline constexpr std::size_t capability_bytes = 64;           ///< of a key for capabilities, or of one
inline constexpr std::size_t remote_key_bytes = 128;          ///< opaque key of a remote region
inline constexpr std::size_t tensors = 1u << 20;              ///< tensors of one shard
inline constexpr std::size_t tensor_dimensions = 16;          ///< dimensions of one tensor
inline constexpr std::uint32_t shards = 1u << 16;             ///< shards of one model
inline constexpr std::uint64_t shard_bytes = 1ull << 46;      ///< flat bytes of one shard (64 TiB)
inline constexpr std::uint64_t chunks = 1ull << 26;           ///< chunks of one shard
inline constexpr std::size_t frame_bytes = 64u << 20;         ///< one control message
inline constexpr std::size_t text_bytes = 8192;               ///< one sentence in a control message
inline constexpr std::size_t sources = 64;                    ///< of one reader at a time
inline constexpr std::size_t retained_versions = 64;          ///< pinned, and kept as the latest, of a model
inline constexpr std::size_t barred_readers = 64;             ///< that one worker tells a new server of
inline constexpr std::size_t worker_requests_in_flight = 64;  ///< unanswered requests of one worker
inline constexpr std::size_t open_calls = 32;  ///< calls of one worker that its replica has not ended

// Defaults of what one reference server remembers (service/catalog/bounds.hpp).
inline constexpr std::size_t workers = 1u << 16;        ///< joined at one time
inline constexpr std::size_t models = 1024;             ///< that have workers
inline constexpr std::size_t replicas = 1u << 14;       ///< of one model
inline constexpr std::size_t layout_bytes = 1u << 30;   ///< of all layouts
inline constexpr std::size_t shard_records = 1u << 21;  ///< per shard of a model, its replicas and versions
inline constexpr std::size_t workers_of_connection = 256;  ///< that one control connection may speak for
}  // namespace limits

/// Default time-outs and intervals; all are options of the object that uses them.
namespace defaults {
using namespace std::chrono_literals;
/// Worker to server, and its answer.
inline constexpr std::chrono::milliseconds heartbeat_interval = 500ms;
/// Silence after which a worker is declared dead.
inline constexpr std::chrono::milliseconds worker_timeout = 5000ms;
/// A reader that has received nothing for so long keeps no credit that another one waits for.
inline constexpr std::chrono::milliseconds progress_timeout = 10000ms;
/// A control request without answer is sent again.
inline constexpr std::chrono::milliseconds request_retry = 1000ms;
/// Data connection to a source.
inline constexpr std::chrono::milliseconds connect_timeout = 5000ms;
/// No byte from a source with reads outstanding.
inline constexpr std::chrono::milliseconds peer_timeout = 5000ms;
/// First answer of the reference server.
inline constexpr std::chrono::milliseconds join_timeout = 30000ms;
/// One update, waiting for the version included.
inline constexpr std::chrono::milliseconds update_timeout = 120000ms;
/// Unpublish, and the drain before an update.
inline constexpr std::chrono::milliseconds drain_timeout = 30000ms;
/// A new server waits for the workers of an earlier one before it says that something is not there.
inline constexpr std::chrono::milliseconds recovery_grace = 5000ms;
/// Silence of a server after which a worker tries the next address of its list.
inline constexpr std::chrono::milliseconds server_timeout = 2000ms;
/// All shards of a replica must have called.
inline constexpr std::chrono::milliseconds group_timeout = 30000ms;
/// Unit of progress and integrity; fits a core's L2 cache.
inline constexpr std::uint64_t chunk_bytes = 1u << 20;
}  // namespace defaults

}  // namespace tensorhub::inline TENSORHUB_MODE
