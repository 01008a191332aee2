#pragma once
/// \file listen_filter.hpp
/// Networks from which a listening TCP socket accepts no connection: a packet filter (BPF) of the socket
/// makes the kernel drop their requests, and needs no privilege. Connections that exist go on. A client's
/// kernel asks again after 1, 3, 7 ... seconds.
///
/// Thread safety: all functions may be called from any thread.

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// What one owner of addresses has: an IPv4 address, or the first 64 bits of an IPv6 address.
struct ip_network {
  std::uint64_t prefix = 0;  ///< of IPv6; an IPv4 address is its lower half
  bool is_six = false;

  friend bool operator==(const ip_network&, const ip_network&) = default;
  struct hash {
    [[nodiscard]] std::size_t operator()(const ip_network& of) const noexcept {
      return static_cast<std::size_t>((of.prefix + (of.is_six ? 1 : 0)) * 0x9e3779b97f4a7c15u);
    }
  };
};
/// Empty: the address is of another family, or the text is none. "::ffff:10.0.0.7" is an IPv4 address.
[[nodiscard]] std::optional<ip_network> network_of(const sockaddr_storage& address) noexcept;
[[nodiscard]] std::optional<ip_network> network_of(std::string_view address);
/// "10.0.0.7" or "2001:db8:0:1::/64".
[[nodiscard]] std::string to_string(const ip_network& network);

/// A filter for more would not fit into what the kernel grants a socket (net.core.optmem_max).
inline constexpr std::size_t most_filtered_networks = 64;

/// From now on `listening` accepts connections from all but these (at most `most_filtered_networks`). False:
/// the kernel refuses, and the filter is as it was; errno says why.
bool accept_none_of(std::span<const ip_network> blocked, int listening);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/listen_filter.ipp"
#endif
