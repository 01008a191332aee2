#pragma once
/// \file local_host.ipp
/// Definitions of detail/local_host.hpp.

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>

#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/machine_id.hpp"
#include "tensorhub/detail/unique_fd.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::string own_address_towards(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // to connect such a socket is to ask for the route
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses{found, &::freeaddrinfo};
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const unique_fd socket{::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol)};
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST] = {};
    if (socket && ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0 &&
        std::string_view{text}.find('%') == std::string_view::npos)
      return text;
  }
  return {};
}

TENSORHUB_DECL bool is_own_address(std::string_view host) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return true;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> addresses{found, &::freeifaddrs};
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    const int family = at->ifa_addr != nullptr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    char text[NI_MAXHOST] = {};
    if (::getnameinfo(at->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
        text == host)
      return true;
  }
  return false;
}

TENSORHUB_DECL std::string machine_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return {};
  return std::string{name} + "/" + machine_id().substr(0, 8);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
