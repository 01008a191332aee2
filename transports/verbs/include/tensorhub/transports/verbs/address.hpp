#pragma once
/// \file address.hpp
/// Addresses as text ("verbs://10.0.0.1:4711,10.0.1.1:4712": one host and port per rail) and as sockaddr.
///
/// Thread safety: free functions without shared state.

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/time_left.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

using deadline = std::chrono::steady_clock::time_point;

using detail::milliseconds_left;

/// An IPv4 or IPv6 address, with port.
struct socket_address {
  sockaddr_storage storage{};

  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] bool is_v6() const noexcept { return storage.ss_family == AF_INET6; }
  [[nodiscard]] const sockaddr_in& v4() const noexcept {
    return reinterpret_cast<const sockaddr_in&>(storage);
  }
  [[nodiscard]] const sockaddr_in6& v6() const noexcept {
    return reinterpret_cast<const sockaddr_in6&>(storage);
  }
  void set_port(std::uint16_t port) noexcept;
  /// The 16 bytes of this address in a RoCE GID table.
  [[nodiscard]] bool is_gid(const std::uint8_t (&gid)[16]) const noexcept;
  [[nodiscard]] std::string host() const;
};

/// `numeric`: a host name is refused. Otherwise the resolver has timeouts of its own. Throws
/// `transport_failed`.
[[nodiscard]] socket_address resolve(const std::string& host, const std::string& port, bool numeric);

[[nodiscard]] std::string host_and_port(const socket_address& address, std::uint16_t port);

struct named_address {
  std::string text{};  ///< "10.0.0.1:4711"
  socket_address address{};
};

/// Parses an address, whose hosts are numeric: one entry per rail of the source. Throws `transport_failed`.
[[nodiscard]] std::vector<named_address> parse_address(std::string_view text);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/address.ipp"
#endif
