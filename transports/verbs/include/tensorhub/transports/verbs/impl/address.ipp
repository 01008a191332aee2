#pragma once
/// \file address.ipp
/// Definitions of address.hpp.

#include <memory>

#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/address.hpp"
#include "tensorhub/transports/verbs/protocol.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL void socket_address::set_port(std::uint16_t port) noexcept {
  if (is_v6())
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
}

TENSORHUB_DECL bool socket_address::is_gid(const std::uint8_t (&gid)[16]) const noexcept {
  if (is_v6()) return std::memcmp(gid, &v6().sin6_addr, 16) == 0;
  static constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid, mapped, 12) == 0 && std::memcmp(gid + 12, &v4().sin_addr, 4) == 0;
}

TENSORHUB_DECL std::string socket_address::host() const {
  char text[INET6_ADDRSTRLEN] = {};
  const void* const raw = is_v6() ? static_cast<const void*>(&v6().sin6_addr) : &v4().sin_addr;
  return ::inet_ntop(storage.ss_family, raw, text, sizeof text) != nullptr ? text : "?";
}

TENSORHUB_DECL socket_address resolve(const std::string& host, const std::string& port, bool numeric) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found);
  if (failed != 0) {
    throw error(errc::transport_failed,
                "verbs: the host '" + host.substr(0, 128) + "' cannot be resolved: " +
                    (numeric ? "the hosts of an address have to be numeric" : ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner{found, &::freeaddrinfo};
  socket_address out;
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  return out;
}

TENSORHUB_DECL std::string host_and_port(const socket_address& address, std::uint16_t port) {
  const std::string host = address.host();
  return (address.is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

TENSORHUB_DECL std::vector<named_address> parse_address(std::string_view text) {
  constexpr std::string_view scheme = "verbs://";
  const auto refusal = [whole = std::string{text.substr(0, 128)}] {
    return error(errc::transport_failed, "verbs: '" + whole + "' is not an address of this transport");
  };
  if (!text.starts_with(scheme)) throw refusal();
  text.remove_prefix(scheme.size());
  std::vector<named_address> rails;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view one = text.substr(0, comma);
    if (more) text.remove_prefix(comma + 1);
    const auto colon = one.rfind(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == one.size()) throw refusal();
    std::string_view host = one.substr(0, colon);
    if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    if (rails.size() == most_rails) throw refusal();
    rails.push_back({std::string{one}, resolve(std::string{host}, std::string{one.substr(colon + 1)}, true)});
  }
  return rails;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
