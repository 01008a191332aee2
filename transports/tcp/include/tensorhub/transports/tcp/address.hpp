#pragma once
/// \file address.hpp
/// Addresses of the TCP transport as text:
///
///     tcp://host:port                        tcp://[v6]:port
///     tcp://host:port?datacenter=label       ... of a source with a known location
///
/// A datacenter's name is the user's own text of up to 512 bytes; the library only compares it. An address
/// therefore contains a *label*: the name itself if it is short and plain, otherwise "~" and the name's
/// digest in hexadecimal. Two labels are equal if and only if the names are.
///
/// Thread safety: free functions without shared state.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/types/digest.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

inline constexpr std::size_t label_bytes = 64;  ///< at most

[[nodiscard]] constexpr bool is_plain(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

/// Empty for an empty name: unknown.
[[nodiscard]] std::string datacenter_label(std::string_view name);

/// Whether `datacenter_label` can have produced this text.
[[nodiscard]] bool is_label(std::string_view text) noexcept;

struct host_and_port {
  std::string host{};
  std::string port{};
  std::string datacenter{};  ///< label; empty: unknown
};

inline constexpr std::string_view address_scheme = "tcp://";
inline constexpr std::string_view datacenter_field = "?datacenter=";

/// `host` may be a numeric IPv6 address without brackets.
[[nodiscard]] std::string make_address(const host_and_port& where, std::string_view scheme = address_scheme);

/// Empty: the text is not an address of this transport.
[[nodiscard]] std::optional<host_and_port> parse_address(std::string_view text,
                                                         std::string_view scheme = address_scheme);

/// The path from a reader in datacenter `own` (a label) to a source. If either is unknown, both are assumed
/// to be in the same datacenter.
[[nodiscard]] path_kind path_to(const host_and_port& source, std::string_view own) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tcp/impl/address.ipp"
#endif
