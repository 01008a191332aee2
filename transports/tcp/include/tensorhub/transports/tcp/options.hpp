#pragma once
/// \file options.hpp
/// Options of the TCP transport, per path: peers in the same datacenter, and peers in another one.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/location.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// When a region's backing file is sent by `sendfile`, which saves the source a copy. On the loopback
/// interface `sendfile` is slower: the reader then copies from pages that are in no cache, instead of from
/// the socket's buffers (bench/tcp_transport measures both).
enum class file_sending : std::uint8_t {
  automatic,  ///< to other machines, and containers of this one that have an address of their own
  always,
  never,
};

/// Settings for a path with a long delay: a congestion control that does not halve its rate for every lost
/// packet, and buffers that hold the bytes in flight.
struct tcp_path {
  /// Connections per endpoint; reads are spread over them. A worker has an endpoint for each of its lanes.
  /// With more than one, an update needs a further round trip.
  std::size_t streams = 1;

  /// A name that the kernel knows; "auto" and the empty name mean the same as in tcp_options. If the kernel
  /// does not have the algorithm, or does not permit this user to choose it, the system's default is used.
  std::string congestion_control = "bbr";

  /// The buffer of each connection. 64 MiB is what a path of 5 Gbit/s and 100 ms holds. The size is a limit:
  /// memory is used only for bytes in flight. 0: the kernel tunes the size. (The README describes the effect
  /// of net.core.*mem_max.)
  std::size_t send_buffer_bytes = 64u << 20;
  std::size_t receive_buffer_bytes = 64u << 20;
  bool operator==(const tcp_path&) const = default;
};

/// `streams`, `congestion_control` and the buffers apply to peers in the same datacenter, and to peers whose
/// datacenter is unknown.
struct tcp_options {
  /// The interface on which peers connect; "0.0.0.0": all. Empty: loopback, but of a worker whose
  /// reference server is on another machine, the interface from which that server is reached.
  std::string listen_host{};
  std::uint16_t listen_port = 0;  ///< 0: any free one
  /// What peers connect to. Empty: listen_host; if that is "0.0.0.0", a worker tells its peers the address
  /// from which a reference server on another machine is reached.
  std::string advertised_host{};
  /// False: an address has a number, to which a source resolves a host that it was given by name; a reader
  /// refuses a name, because it could be sent to any host, and to a resolver that does not answer. True:
  /// names are told as they are, and readers resolve them; for peers that resolve them differently.
  bool names_in_addresses = false;

  std::size_t streams = 1;  ///< connections per endpoint; reads are spread over them
  /// Threads that answer peers' reads, whatever the number of peers. 0: 8, also on few processors, which
  /// share their time among threads: with fewer, readers on the source's machine would get most of it, and
  /// would wait for the source (the README has figures).
  std::size_t io_threads = 0;

  /// "auto": cubic on the loopback interface, the system's default elsewhere. Any other text is a name that
  /// the kernel knows ("bbr"). Empty: the system's default.
  std::string congestion_control = "auto";
  /// 0: the kernel tunes it (within one machine 512 KiB to send and 1 MiB to receive, if the kernel permits
  /// these sizes); otherwise 1-2 bandwidth-delay products.
  std::size_t send_buffer_bytes = 0;
  std::size_t receive_buffer_bytes = 0;  ///< as for send_buffer_bytes

  /// Settings for peers in another datacenter. The reader decides, by the source's address, and tells the
  /// source.
  tcp_path wide_area{};
  location here{};  ///< if empty, a worker copies its own location here; only the datacenter is used

  /// To readers in the same datacenter that have one stream per endpoint. The connection ends when the memory
  /// is revoked.
  file_sending send_from_file = file_sending::automatic;
  /// The maximum number of readers' connections; never more than half of the descriptors that the process may
  /// have. At the limit a new connection replaces the oldest one that has not sent its hello, or else the one
  /// that has been idle the longest, for a second at least; if there is none, the new connection is refused.
  std::size_t max_connections = 16384;
  std::size_t max_connections_per_reader = 64;  ///< of one incarnation; further ones are refused

  std::chrono::milliseconds peer_timeout = defaults::peer_timeout;  ///< of silence with reads outstanding
  bool operator==(const tcp_options&) const = default;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
