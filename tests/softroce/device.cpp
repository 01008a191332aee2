// The guest has the devices that the other tests count on.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "rdma_addresses.hpp"

namespace {

using softroce_tests::rdma_addresses;

struct device_list {
  int count = 0;
  ibv_device** devices = ::ibv_get_device_list(&count);
  device_list() = default;
  ~device_list() { ::ibv_free_device_list(devices); }
  device_list(const device_list&) = delete;
  device_list& operator=(const device_list&) = delete;
};

struct close_context {
  void operator()(ibv_context* context) const { ::ibv_close_device(context); }
};
using context = std::unique_ptr<ibv_context, close_context>;

/// The IPv4 addresses that the GIDs of port 1 stand for (::ffff:a.b.c.d).
std::set<std::string> addresses_of(ibv_context* opened, const ibv_port_attr& port) {
  std::set<std::string> found;
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    ibv_gid_entry entry{};
    if (::ibv_query_gid_ex(opened, 1, static_cast<std::uint32_t>(index), &entry, 0) != 0) continue;
    constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (std::memcmp(entry.gid.raw, mapped, sizeof mapped) != 0) continue;
    CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2);
    char text[INET_ADDRSTRLEN] = {};
    REQUIRE(::inet_ntop(AF_INET, entry.gid.raw + sizeof mapped, text, sizeof text) != nullptr);
    found.insert(text);
  }
  return found;
}

}  // namespace

TEST_CASE("the guest has a device for each address, with an active port and the GID of that address") {
  const auto expected = rdma_addresses();
  const device_list list;
  REQUIRE(list.devices != nullptr);
  CHECK(static_cast<std::size_t>(list.count) == expected.size());
  std::set<std::string> found;
  for (int i = 0; i < list.count; ++i) {
    INFO("device " << ::ibv_get_device_name(list.devices[i]));
    const context opened{::ibv_open_device(list.devices[i])};
    REQUIRE(opened != nullptr);
    ibv_port_attr port{};
    REQUIRE(::ibv_query_port(opened.get(), 1, &port) == 0);
    CHECK(port.state == IBV_PORT_ACTIVE);
    CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET);
    CHECK(port.active_mtu == IBV_MTU_4096);
    CHECK(port.max_msg_sz >= 8u << 20);  // of Linux 6.1; 6.12 has 2 GiB
    found.merge(addresses_of(opened.get(), port));
  }
  CHECK(found == std::set<std::string>{expected.begin(), expected.end()});
}

TEST_CASE("the guest's device registers memory, and refuses what it cannot have") {
  const device_list list;
  REQUIRE(list.count > 0);
  const context opened{::ibv_open_device(list.devices[0])};
  REQUIRE(opened != nullptr);
  ibv_pd* const domain = ::ibv_alloc_pd(opened.get());
  REQUIRE(domain != nullptr);
  std::string memory(1u << 20, 'x');
  const int readable = IBV_ACCESS_REMOTE_READ;
  const int writable = IBV_ACCESS_LOCAL_WRITE;
  ibv_mr* const region = ::ibv_reg_mr(domain, memory.data(), memory.size(), readable | writable);
  CHECK(region != nullptr);
  CHECK(::ibv_reg_mr(domain, nullptr, 4096, readable) == nullptr);
  if (region != nullptr) CHECK(::ibv_dereg_mr(region) == 0);
  CHECK(::ibv_dealloc_pd(domain) == 0);
}
