#pragma once
/// \file message.ipp
/// Definitions of message.hpp.

#include <array>
#include <string>

#include "tensorhub/transports/libfabric/message.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL message::message(const provider& chosen, ::fid_domain* domain)
    : operation{operation_kind::message} {
  if (!chosen.needs_local_registration()) return;
  ::fid_mr* registered = nullptr;
  const int failed =
      ::fi_mr_reg(domain, &content, sizeof content, FI_SEND | FI_RECV, 0, 0, 0, &registered, nullptr);
  if (failed != 0) fail(chosen.description() + ": no registered memory for messages: " + reason(failed));
  memory.reset(registered);
}

TENSORHUB_DECL int message::send(::fid_ep* endpoint, ::fi_addr_t to) noexcept {
  sends = true;
  const auto posted = ::fi_send(endpoint, &content, sizeof content, descriptor(), to, &context);
  busy = posted == 0;
  return static_cast<int>(posted);
}

TENSORHUB_DECL int message::receive(::fid_ep* endpoint) noexcept {
  sends = false;
  came_bytes = 0;
  const auto posted = ::fi_recv(endpoint, &content, sizeof content, descriptor(), FI_ADDR_UNSPEC, &context);
  busy = posted == 0;
  return static_cast<int>(posted);
}

TENSORHUB_DECL void message::complete(std::size_t bytes, int error_number) noexcept {
  busy = false;
  came_bytes = bytes;
  result = error_number;
}

TENSORHUB_DECL bool message::holds(std::uint64_t magic) const noexcept {
  return !busy && result == 0 && came_bytes == sizeof content && content.magic == magic &&
         content.address_bytes <= content.address.size();
}

TENSORHUB_DECL void message::write_address(const raw_address& address) {
  if (address.bytes.size() > content.address.size())
    fail("an address of " + std::to_string(address.bytes.size()) + " bytes is too long");
  content.address_bytes = static_cast<std::uint32_t>(address.bytes.size());
  std::memcpy(content.address.data(), address.bytes.data(), address.bytes.size());
}

TENSORHUB_DECL addressed_endpoint::addressed_endpoint(const provider& chosen, ::fid_domain* domain,
                                                      ::fi_info* info, ::fid_cq* cq) {
  const auto check = [&chosen](const char* step, int result) {
    if (result != 0) fail(chosen.description() + ": " + step + ": " + reason(result));
  };
  ::fi_av_attr wanted{};
  wanted.type = FI_AV_UNSPEC;
  ::fid_av* vector = nullptr;
  check("no address vector", ::fi_av_open(domain, &wanted, &vector, nullptr));
  peers.reset(vector);
  // Provider shm names endpoints PID:UID:NUMBER, with a new number for each. A process of the same PID may
  // hold the name: one that was killed, or one in another container that shares /dev/shm.
  constexpr int names_tried = 1024;
  int enabled = -FI_EBUSY;
  for (int i = 0; i < names_tried && enabled == -FI_EBUSY; ++i) {
    ::fid_ep* opened = nullptr;
    check("no endpoint", ::fi_endpoint(domain, info, &opened, nullptr));
    endpoint.reset(opened);
    check("an endpoint takes no address vector", ::fi_ep_bind(opened, &vector->fid, 0));
    check("an endpoint takes no completion queue", ::fi_ep_bind(opened, &cq->fid, FI_TRANSMIT | FI_RECV));
    enabled = ::fi_enable(opened);
  }
  check("an endpoint cannot be enabled", enabled);
  own_address = chosen.address_of(*endpoint);
}

TENSORHUB_DECL ::fi_addr_t addressed_endpoint::insert(std::span<const std::byte> address) noexcept {
  ::fi_addr_t handle = FI_ADDR_NOTAVAIL;
  if (!takes(address)) return handle;
  return ::fi_av_insert(peers.get(), address.data(), 1, &handle, 0, nullptr) == 1 ? handle : FI_ADDR_NOTAVAIL;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
