#pragma once
/// \file options.hpp
/// Options of the TCP transport. The defaults suit one machine or a LAN; a long path wants larger buffers, or
/// a few streams (see the README beside this folder).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorhub/config.hpp"

namespace tensorhub::transports {

/// When a region's backing file is given to `sendfile`, which saves the source's copy. On the loopback
/// interface it does not pay: the reader then copies from pages that are in no cache, instead of from the
/// socket's (bench/tcp_transport shows both).
enum class file_sending : std::uint8_t {
  automatic,  ///< to other machines
  always,
  never,
};

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

  file_sending send_from_file = file_sending::automatic;
  std::size_t max_connections = 16384;  ///< of readers; more are turned away

  std::chrono::milliseconds peer_timeout = defaults::peer_timeout;  ///< silence with reads outstanding
};

}  // namespace tensorhub::transports
