#pragma once
/// \file options.hpp
/// Options of the verbs transport. The defaults select the best device of the machine; several NICs are used
/// as rails, named by their addresses (see the README beside this folder).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// How `queue::wait` learns of completions.
enum class completion_mode : std::uint8_t {
  events,   ///< sleeps until the device signals: costs an interrupt, no CPU while waiting
  polling,  ///< polls continuously and yields to other threads: lowest latency, one core per queue
};

/// How `revoke` gives a region other keys.
///
/// With memory windows it costs the same for any memory, which is pinned once even if this process reads into
/// it too: hence they are the default. A peer's read takes one more look-up in this process's device. What
/// that costs has not been measured on an adapter; where it is too much, choose `registration`. Soft-RoCE's
/// windows do not keep promise 5 of concepts/transport.hpp (see windows.hpp): they are for tests only.
enum class revocation_mode : std::uint8_t {
  automatic,       ///< memory windows on an adapter that has them, otherwise a registration
  memory_windows,  ///< throws `transport_failed` where there are none
  registration,    ///< the memory is deregistered and registered again
};

struct verbs_options {
  /// One address per rail: IP addresses (or names) of RDMA-capable interfaces. Empty: one rail, the best
  /// available device (active port, routable address, near `near_device`).
  std::vector<std::string> listen_addresses{};
  /// PCI address of a device, such as a GPU: "0000:1b:00.0". A worker with tensors on GPUs fills in that of
  /// the GPU that is current where the worker is made. Empty: the NUMA node of this thread counts.
  std::string near_device{};
  std::uint16_t listen_port = 0;  ///< 0: any free one, a separate one for each rail
  std::string device{};           ///< only this device ("mlx5_0"); empty: any
  std::uint8_t device_port = 0;   ///< only this port of it, from 1; 0: any
  int gid_index = -1;             ///< only the address of this entry of the port's GID table; -1: any

  std::size_t queue_pairs = 1;         ///< per endpoint and rail; work requests alternate between them
  std::size_t queue_pair_depth = 128;  ///< work requests outstanding on each; at most the device's limit
  /// The largest work request, at most the port's limit; larger reads are cut. `peer_timeout` counts a
  /// completed work request as progress.
  std::uint64_t work_request_bytes = 8u << 20;
  std::size_t signal_interval = 16;  ///< work requests per completion, within a read
  completion_mode completions = completion_mode::events;
  bool relaxed_ordering = true;  ///< for all memory, if the device offers it
  revocation_mode revocation = revocation_mode::automatic;

  /// Larger regions are registered in pieces. 0: the device's limit.
  std::uint64_t largest_registration_bytes = 0;

  /// The device repeats a request after 4.096 us * 2^retry_timeout, retry_count times (at most 7). Below 18
  /// the device mistakes a slow peer for a lost packet. Reads end at this limit or at `peer_timeout`,
  /// whichever is earlier.
  std::uint8_t retry_timeout = 18;
  std::uint8_t retry_count = 7;

  /// The maximum number of readers' connections. At the limit a new connection replaces the oldest one, if
  /// that is ten seconds old, but only once in ten seconds; otherwise the new connection is refused.
  std::size_t max_connections = 16384;
  /// Of one incarnation. At this limit a new connection replaces the oldest one of its reader, if that is ten
  /// seconds old; otherwise it is refused.
  std::size_t max_connections_per_reader = 256;

  /// Workers of one process share a transport, and with it a device's protection domain, only if they name
  /// the same one here: a reader of one domain cannot read another, even with a key that it has guessed.
  /// Empty: a worker's model (with a `listen_port`, which only one transport can have: one for all models).
  std::string protection_domain{};

  std::chrono::milliseconds peer_timeout =
      defaults::peer_timeout;  ///< without progress with reads outstanding
  bool operator==(const verbs_options&) const = default;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
