#pragma once
/// \file device.ipp
/// Definitions of device.hpp.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/device.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL std::string rail_candidate::text() const {
  std::string out = device + " port " + std::to_string(port) + " at " + address.host();
  for (const int index : gid_indexes) out += ", GID " + std::to_string(index);
  return is_active ? out : out + ", not active";
}

TENSORHUB_DECL std::vector<std::string> device_names() {
  int count = 0;
  ibv_device** const list = ::ibv_get_device_list(&count);
  std::vector<std::string> names;
  for (int i = 0; list != nullptr && i < count; ++i) names.emplace_back(::ibv_get_device_name(list[i]));
  if (list != nullptr) ::ibv_free_device_list(list);
  return names;
}

TENSORHUB_DECL int node_of(const std::string& device) {
  std::ifstream file{"/sys/class/infiniband/" + device + "/device/numa_node"};
  int node = -1;
  return file >> node ? node : -1;
}

TENSORHUB_DECL int distance_between(const std::string& device, const std::string& pci_address,
                                    const std::string& sys) {
  namespace fs = std::filesystem;
  std::error_code trouble;
  const fs::path bus = fs::path{sys} / "bus/pci/devices" / pci_address;
  const fs::path to = fs::canonical(bus, trouble);
  if (pci_address.empty() || trouble) return 0;
  const fs::path link = fs::path{sys} / "class/infiniband" / device / "device";
  const fs::path from = fs::canonical(link, trouble);
  // What follows "devices" is a root, and a bridge or the device itself for each further step.
  const fs::path root = fs::canonical(fs::path{sys} / "devices", trouble);
  const auto above = std::distance(root.begin(), root.end());
  const auto shared = std::mismatch(from.begin(), from.end(), to.begin(), to.end()).first;
  const auto common = std::distance(from.begin(), shared) - above;
  if (!trouble && common > 0) return static_cast<int>(8 - std::min<std::ptrdiff_t>(common, 7));
  const auto node_in = [](const fs::path& folder) {
    std::ifstream file{folder / "numa_node"};
    int node = -1;
    return file >> node ? node : -1;
  };
  const int node = node_in(bus);
  return node >= 0 && node == node_in(link) ? 8 : 9;
}

TENSORHUB_DECL int node_of_this_thread() noexcept {
  unsigned cpu = 0;
  unsigned node = 0;
  return ::getcpu(&cpu, &node) == 0 ? static_cast<int>(node) : -1;
}

TENSORHUB_DECL bool identify(rdma_event_channel& channel, rail_candidate& candidate) {
  const auto id = make_id(channel);
  candidate.address.set_port(0);
  if (::rdma_bind_addr(id.get(), candidate.address.get()) != 0 || id->verbs == nullptr) return false;
  candidate.device = ::ibv_get_device_name(id->verbs->device);
  candidate.port = id->port_num;
  candidate.node = node_of(candidate.device);
  ibv_port_attr port{};
  if (::ibv_query_port(id->verbs, id->port_num, &port) != 0) return true;
  candidate.is_active = port.state == IBV_PORT_ACTIVE;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    if (::ibv_query_gid_ex(id->verbs, id->port_num, static_cast<std::uint32_t>(i), &entry, 0) != 0) continue;
    if (candidate.address.is_gid(entry.gid.raw)) candidate.gid_indexes.push_back(i);
  }
  return true;
}

TENSORHUB_DECL std::vector<rail_candidate> find_candidates(rdma_event_channel& channel,
                                                           const std::string& near_device) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0)
    throw error(errc::transport_failed,
                "verbs: the addresses of this machine cannot be listed: " + reason(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner{all, &::freeifaddrs};
  std::vector<rail_candidate> found;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    rail_candidate candidate;
    if (at->ifa_addr->sa_family == AF_INET) {
      std::memcpy(&candidate.address.storage, at->ifa_addr, sizeof(sockaddr_in));
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(&candidate.address.storage, at->ifa_addr, sizeof(sockaddr_in6));
      if (IN6_IS_ADDR_LINKLOCAL(&candidate.address.v6().sin6_addr)) continue;
    } else {
      continue;
    }
    if (identify(channel, candidate)) found.push_back(std::move(candidate));
  }
  const int here = node_of_this_thread();
  const auto rank = [&](const rail_candidate& each) {
    const bool link_local =
        !each.address.is_v6() && (ntohl(each.address.v4().sin_addr.s_addr) >> 16) == 0xa9fe;
    int distance = distance_between(each.device, near_device);
    if (distance == 0) distance = each.node == here ? 0 : each.node < 0 ? 1 : 2;
    return (each.is_active ? 0 : 100) + (link_local ? 50 : 0) + (each.address.is_v6() ? 10 : 0) + distance;
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const rail_candidate& a, const rail_candidate& b) { return rank(a) < rank(b); });
  return found;
}

TENSORHUB_DECL std::string list_of(const std::vector<rail_candidate>& candidates) {
  std::string text = "There is: ";
  for (const rail_candidate& each : candidates) text += each.text() + "; ";
  for (const std::string& name : device_names()) {
    if (detail::none_of(candidates, [&](const auto& each) { return each.device == name; }))
      text += name + ", whose network interface has no IP address or is down; ";
  }
  text.resize(text.size() - 2);
  return text;
}

TENSORHUB_DECL bool fits(const rail_candidate& each, const verbs_options& options) {
  return (options.device.empty() || options.device == each.device) &&
         (options.device_port == 0 || options.device_port == each.port) &&
         (options.gid_index < 0 || detail::contains(each.gid_indexes, options.gid_index));
}

TENSORHUB_DECL std::vector<rail_candidate> choose_rails(rdma_event_channel& channel,
                                                        const verbs_options& options) {
  std::vector<rail_candidate> chosen;
  const auto refusal = [&](const std::string& why) {
    return error(errc::transport_failed, "verbs: " + why + ". " + list_of(find_candidates(channel)));
  };
  std::string wanted = options.device.empty() ? "a device" : "device '" + options.device + "'";
  if (options.device_port != 0) wanted += " port " + std::to_string(options.device_port);
  if (options.gid_index >= 0) wanted += " with GID index " + std::to_string(options.gid_index);
  if (options.listen_addresses.size() > most_rails)
    throw refusal("at most " + std::to_string(most_rails) + " rails can be used, " +
                  std::to_string(options.listen_addresses.size()) + " addresses were given");
  for (const std::string& address : options.listen_addresses) {
    rail_candidate candidate;
    candidate.address = resolve(address, {}, false);
    if (!identify(channel, candidate))
      throw refusal("the address " + address + " belongs to no RDMA device of this machine");
    if (!fits(candidate, options)) throw refusal("the address " + address + " is not that of " + wanted);
    if (!candidate.is_active) throw refusal("the port at " + address + " is not active");
    chosen.push_back(std::move(candidate));
  }
  if (!chosen.empty()) return chosen;
  for (rail_candidate& candidate : find_candidates(channel, options.near_device)) {
    if (!candidate.is_active || !fits(candidate, options)) continue;
    chosen.push_back(std::move(candidate));
    return chosen;
  }
  throw refusal("there is not " + wanted + " with an active port and an IP address");
}

TENSORHUB_DECL device_limits limits_of(ibv_context* context, std::uint8_t port, const std::string& device,
                                       const verbs_options& options) {
  ibv_device_attr of_device{};
  ibv_port_attr of_port{};
  if (::ibv_query_device(context, &of_device) != 0 || ::ibv_query_port(context, port, &of_port) != 0)
    throw error(errc::transport_failed, "verbs: " + device + ": its limits cannot be read: " + reason(errno));
  const auto reads = [](int most) { return static_cast<std::uint8_t>(std::clamp(most, 1, 128)); };
  device_limits out;
  out.work_request_bytes =
      std::clamp<std::uint64_t>(options.work_request_bytes, 1, std::max(1u, of_port.max_msg_sz));
  out.registration_bytes = of_device.max_mr_size == 0 ? UINT64_MAX : of_device.max_mr_size;
  if (options.largest_registration_bytes != 0)
    out.registration_bytes = std::min(out.registration_bytes, options.largest_registration_bytes);
  const int deepest = std::max(1, std::min(of_device.max_qp_wr, of_device.max_cqe - 1));
  out.queue_pair_depth = static_cast<std::uint32_t>(
      std::clamp<std::size_t>(options.queue_pair_depth, 1, static_cast<std::size_t>(deepest)));
  out.reads_out = reads(of_device.max_qp_init_rd_atom);
  out.reads_in = reads(of_device.max_qp_rd_atom);
  return out;
}

TENSORHUB_DECL rail open_rail(rdma_event_channel& channel, const rail_candidate& chosen,
                              const verbs_options& options) {
  const auto refusal = [&](const std::string& what) {
    return error(errc::transport_failed, "verbs: " + what + " on " + chosen.device + " at " +
                                             chosen.address.host() + ": " + reason(errno));
  };
  rail out;
  out.device = chosen.device;
  out.port = chosen.port;
  out.address = chosen.address;
  out.address.set_port(0);
  socket_address with_port = chosen.address;
  with_port.set_port(options.listen_port);
  out.listener = make_id(channel);
  if (::rdma_bind_addr(out.listener.get(), with_port.get()) != 0)
    throw listen_error(errc::transport_failed,
                       refusal("cannot bind port " + std::to_string(options.listen_port)).sentence());
  ibv_context* const context = out.listener->verbs;
  if (context == nullptr) throw refusal("the device has gone");
  out.is_iwarp = context->device->transport_type == IBV_TRANSPORT_IWARP;
  out.limits = limits_of(context, out.port, out.device, options);
  out.domain.reset(::ibv_alloc_pd(context));
  if (!out.domain) throw refusal("no protection domain");
  out.unused_queue.reset(::ibv_create_cq(context, 1, nullptr, nullptr, 0));
  if (!out.unused_queue) throw refusal("no completion queue");
  const int gid_index =
      options.gid_index >= 0 || chosen.gid_indexes.empty() ? options.gid_index : chosen.gid_indexes.front();
  out.windows = find_windows(*out.domain, out.port, gid_index, options.revocation, out.no_windows);
  if (out.windows || options.revocation != revocation_mode::memory_windows) return out;
  throw error(errc::transport_failed,
              "verbs: revocation_mode::memory_windows cannot be used on " + chosen.device + " at " +
                  chosen.address.host() + ": " + out.no_windows +
                  ". With revocation_mode::automatic, memory is registered again where there are none");
}

TENSORHUB_DECL std::vector<rail> open_rails(rdma_event_channel& channel, const verbs_options& options) {
  std::vector<rail> rails;
  for (const rail_candidate& chosen : choose_rails(channel, options))
    rails.push_back(open_rail(channel, chosen, options));
  return rails;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
