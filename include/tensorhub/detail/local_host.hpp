#pragma once
/// \file local_host.hpp
/// Hosts in addresses that mean another machine to every process that reads them, and the addresses of this
/// machine that do not.
///
/// Thread safety: functions of values.

#include <array>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// To listen there is to listen at all interfaces.
[[nodiscard]] inline bool is_every_interface(std::string_view host) noexcept {
  constexpr std::array<std::string_view, 4> names{"*", "0.0.0.0", "::", "[::]"};
  return detail::contains(names, host);
}

/// The loopback interface, or every interface: to connect there is to connect to the own machine.
[[nodiscard]] inline bool is_local_host(std::string_view host) noexcept {
  constexpr std::array<std::string_view, 4> names{"", "localhost", "::1", "[::1]"};
  return is_every_interface(host) || host.starts_with("127.") || detail::contains(names, host);
}

/// The host to listen at if the user names none.
[[nodiscard]] inline std::string or_loopback(const std::string& host) {
  return host.empty() ? "127.0.0.1" : host;
}

/// The numeric address from which this machine would send to `host`; empty: the host is not known, there is
/// no route to it, or the address holds on one link only (fe80::). Nothing is sent, but the name may be
/// looked up, for as long as the system's resolver takes.
[[nodiscard]] std::string own_address_towards(const std::string& host, const std::string& port);

/// An interface of this machine has this numeric address. True also if the system does not tell.
[[nodiscard]] bool is_own_address(std::string_view host);

/// The host's name, and eight digits of the machine's identity, because names such as "localhost" are not
/// unique: "node-17/3fa2b81c". Empty: the system does not tell the name.
[[nodiscard]] std::string machine_name();

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/local_host.ipp"
#endif
