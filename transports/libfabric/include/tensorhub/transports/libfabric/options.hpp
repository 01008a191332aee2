#pragma once
/// \file options.hpp
/// Options of the libfabric transport. The defaults are provider `tcp` on the loopback interface.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// How processes reach each other.
enum class fabric_endpoint : std::uint8_t {
  automatic,  ///< connected if the provider has such endpoints, otherwise addressed
  connected,  ///< FI_EP_MSG: connections that break when the peer is gone
  addressed,  ///< FI_EP_RDM: an address vector; a dead peer is recognised only by its silence
};

struct libfabric_options {
  std::string provider = "tcp";  ///< as `fi_info -l` names it: "verbs", "tcp;ofi_rxm", "shm", "efa", ...
  std::string fabric{};          ///< empty: the first that fits
  std::string domain{};          ///< network device; empty: the first that fits
  fabric_endpoint endpoint_type = fabric_endpoint::automatic;

  /// The interface for peers' reads and for this process's own reads: an IP address or a name. Providers
  /// without IP addresses (`shm`, `efa`) ignore it. Empty: loopback, but of a worker whose
  /// reference server is on another machine, the interface from which that server is reached.
  std::string listen_host{};
  std::uint16_t listen_port = 0;  ///< 0: any free one
  std::string advertised_host{};  ///< numeric address that peers connect to; empty: as `listen_host`

  /// A posted read travels in pieces of this size (or of the provider's max_msg_size, if that is less); each
  /// endpoint has at most `pieces_in_flight` (and 512) of them in flight.
  std::uint64_t piece_bytes = 512u << 10;
  std::size_t pieces_in_flight = 8;

  /// Regions above it are registered in several parts. 0: the provider's limit.
  std::uint64_t largest_registration_bytes = 0;

  /// Permits regions in device memory (FI_HMEM), if the provider and its build offer that. Off by default,
  /// because some providers then handle host memory differently, and slower.
  bool device_memory = false;

  /// The maximum number of readers' connections; they are at most half of the descriptors that the process
  /// may have. At the limit a new one is refused. It replaces the oldest one instead, but only once in ten
  /// seconds, if that is ten seconds old (with addressed endpoints five minutes).
  std::size_t max_connections = 4096;

  std::chrono::milliseconds peer_timeout = defaults::peer_timeout;  ///< of silence with reads outstanding

  /// False: the provider's addresses are not IP addresses, so it has no use for a host.
  [[nodiscard]] bool has_hosts() const noexcept { return provider != "shm" && !provider.starts_with("efa"); }
  bool operator==(const libfabric_options&) const = default;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
