#pragma once
/// \file options.hpp
/// Options of the verbs transport. The defaults take the best device of the machine; several NICs are rails,
/// named by their addresses (see the README beside this folder).

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
  polling,  ///< looks again and again, giving way to other threads: lowest latency, one core per queue
};

struct verbs_options {
  /// One address per rail: IP addresses (or names) of RDMA-capable interfaces. Empty: one rail, the best
  /// device that is there (active port, address that others can route to, same NUMA node as this thread).
  std::vector<std::string> listen_addresses{};
  std::uint16_t listen_port = 0;  ///< 0: any free one, for each rail its own
  std::string device{};           ///< only this device ("mlx5_0"); empty: any
  std::uint8_t device_port = 0;   ///< only this port of it, from 1; 0: any
  int gid_index = -1;             ///< only the address of this entry of the port's GID table; -1: any

  std::size_t queue_pairs = 1;         ///< per endpoint and rail; work requests take turns on them
  std::size_t queue_pair_depth = 128;  ///< work requests outstanding on each; at most what the device takes
  /// Largest work request; reads are cut. At most what the port takes. A completed work request is what
  /// `peer_timeout` sees as progress.
  std::uint64_t work_request_bytes = 8u << 20;
  std::size_t signal_interval = 16;  ///< work requests per completion, within a read
  completion_mode completions = completion_mode::events;
  bool relaxed_ordering = true;  ///< for all memory, where the device offers it

  /// Larger regions are registered in pieces. 0: what the device takes.
  std::uint64_t largest_registration_bytes = 0;

  /// The device repeats a request after 4.096 us * 2^retry_timeout, retry_count times (at most 7). Below 18 a
  /// slow peer is taken for a lost packet. `peer_timeout` ends the reads, whichever is earlier.
  std::uint8_t retry_timeout = 18;
  std::uint8_t retry_count = 7;

  std::size_t max_connections = 16384;  ///< of readers; more are turned away

  std::chrono::milliseconds peer_timeout = defaults::peer_timeout;  ///< no progress with reads outstanding
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
