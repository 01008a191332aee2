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

/// When a region's backing file is given to `sendfile`, which saves the source's copy. On the loopback
/// interface it does not pay: the reader then copies from pages that are in no cache, instead of from the
/// socket's (bench/tcp_transport shows both).
enum class file_sending : std::uint8_t {
  automatic,  ///< to other machines
  always,
  never,
};

/// What a path with a long delay wants: a few streams of a congestion control that does not halve its rate
/// for every lost packet, and buffers that hold what is in flight.
struct tcp_path {
  std::size_t streams = 4;  ///< connections per endpoint; reads are spread over them

  /// A name that the kernel knows; "auto" and empty as in tcp_options. What this kernel does not have, or
  /// does not allow this user, leaves the system's default.
  std::string congestion_control = "bbr";

  /// Of each connection. 16 MiB is 1.3 times what a path of 1 Gbit/s and 100 ms holds (12.5 MB), so that one
  /// stream fills it while the others recover from a loss. It is a limit: memory is used for bytes in flight
  /// only. 0: the kernel tunes it. (What net.core.*mem_max does to it: README.)
  std::size_t send_buffer_bytes = 16u << 20;
  std::size_t receive_buffer_bytes = 16u << 20;  ///< ditto
};

/// `streams`, `congestion_control` and the buffers are those of the path to peers in the same datacenter, or
/// in none that is known.
struct tcp_options {
  std::string listen_host = "127.0.0.1";  ///< interface that peers' reads come in on; "0.0.0.0": all
  std::uint16_t listen_port = 0;          ///< 0: any free one
  std::string advertised_host{};          ///< what peers connect to; empty: listen_host

  std::size_t streams = 1;     ///< connections per endpoint; reads are spread over them
  std::size_t io_threads = 2;  ///< threads that answer peers' reads, whatever the number of peers

  /// "auto": cubic on the loopback interface, the system's default elsewhere. Else a name that the kernel
  /// knows ("bbr"); empty: the system's default.
  std::string congestion_control = "auto";
  std::size_t send_buffer_bytes = 0;     ///< 0: the kernel tunes it. Else 1-2 bandwidth-delay products
  std::size_t receive_buffer_bytes = 0;  ///< ditto

  /// To and from peers in another datacenter. The reader decides, by the source's address, and tells it.
  tcp_path wide_area{};
  location here{};  ///< a worker fills it from its own options where it is empty; the datacenter is used

  file_sending send_from_file = file_sending::automatic;
  /// Of readers, and at most half of the descriptors that the process may have; who says nothing makes room
  /// for the next, others are turned away.
  std::size_t max_connections = 16384;

  std::chrono::milliseconds peer_timeout = defaults::peer_timeout;  ///< silence with reads outstanding
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
