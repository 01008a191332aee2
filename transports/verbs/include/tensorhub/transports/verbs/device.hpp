#pragma once
/// \file device.hpp
/// The machine's RDMA devices, the choice of those on which a process listens, and their limits.
///
/// A rail is a port of a device, identified by an IP address of its network interface. The connection manager
/// maps addresses to devices for RoCE, iWARP and InfiniBand (IPoIB) alike, so that users need not specify a
/// GID by number.
///
/// Thread safety: none needed; used while a transport object is constructed.

#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/verbs/handles.hpp"
#include "tensorhub/transports/verbs/options.hpp"
#include "tensorhub/transports/verbs/windows.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

/// The limits of one device, with the options applied.
struct device_limits {
  std::uint64_t work_request_bytes = 0;
  std::uint64_t registration_bytes = 0;
  std::uint32_t queue_pair_depth = 0;
  std::uint8_t reads_out = 0;  ///< RDMA READs that a queue pair has outstanding
  std::uint8_t reads_in = 0;   ///< RDMA READs that a queue pair answers at a time
};

/// One rail of this process. Members are destroyed in reverse order: the listener before the domain.
struct rail {
  std::string device{};
  std::uint8_t port = 0;
  bool is_iwarp = false;
  socket_address address{};  ///< with port 0, for this process's own connections
  device_limits limits{};
  handle<ibv_pd> domain{};        ///< of the memory and queue pairs of this transport object alone
  handle<ibv_cq> unused_queue{};  ///< required by queue pairs that only answer; always empty
  handle<rdma_cm_id> listener{};
  std::unique_ptr<window_maker> windows{};
  std::string no_windows{};  ///< why `windows` is null

  [[nodiscard]] ibv_context* context() const noexcept { return listener->verbs; }
};

/// An address of this machine that belongs to an RDMA device.
struct rail_candidate {
  socket_address address{};
  std::string device{};
  std::uint8_t port = 0;
  bool is_active = false;
  int node = -1;  ///< NUMA node of the device; -1: unknown
  std::vector<int> gid_indexes{};

  [[nodiscard]] std::string text() const;
};

/// Names of the machine's RDMA devices, whether they have an address or not.
[[nodiscard]] std::vector<std::string> device_names();

[[nodiscard]] int node_of(const std::string& device);

[[nodiscard]] int node_of_this_thread() noexcept;

/// Fills in the device of the address; false: the address belongs to no device.
[[nodiscard]] bool identify(rdma_event_channel& channel, rail_candidate& candidate);

/// How far an RDMA device is from a PCI device. The less, the more of the way is common to both: 1 to 7
/// below one root of the PCI tree, 8 on one NUMA node, 9 elsewhere; 0: there is no such PCI device.
[[nodiscard]] int distance_between(const std::string& device, const std::string& pci_address,
                                   const std::string& sys = "/sys");

/// All addresses of this machine's RDMA devices, best first: active, then IPv4, then near.
[[nodiscard]] std::vector<rail_candidate> find_candidates(rdma_event_channel& channel,
                                                          const std::string& near_device = {});

/// For error sentences: the possible choices.
[[nodiscard]] std::string list_of(const std::vector<rail_candidate>& candidates);

[[nodiscard]] bool fits(const rail_candidate& each, const verbs_options& options);

/// One address per rail, according to the options. Throws `transport_failed` with the possible choices.
[[nodiscard]] std::vector<rail_candidate> choose_rails(rdma_event_channel& channel,
                                                       const verbs_options& options);

[[nodiscard]] device_limits limits_of(ibv_context* context, std::uint8_t port, const std::string& device,
                                      const verbs_options& options);

/// Opens a rail and listens on it.
[[nodiscard]] rail open_rail(rdma_event_channel& channel, const rail_candidate& chosen,
                             const verbs_options& options);

/// Opens all rails, or throws.
[[nodiscard]] std::vector<rail> open_rails(rdma_event_channel& channel, const verbs_options& options);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/device.ipp"
#endif
