#pragma once
/// \file address.hpp
/// Addresses of the TCP transport as text:
///
///     tcp://host:port                        tcp://[v6]:port
///     tcp://host:port?datacenter=label       ... of a source that has said where it is
///
/// A datacenter's name is the user's own text of up to 512 bytes, and all that is done with it is to compare
/// it. So it travels as a *label*: the name itself if it is short and plain, else "~" and its digest in hex.
/// Labels are equal exactly if the names are.
///
/// Thread safety: free functions without shared state.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/xxh3.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

inline constexpr std::size_t label_bytes = 64;  ///< at most

[[nodiscard]] constexpr bool is_plain(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

/// Empty for an empty name: unknown.
[[nodiscard]] inline std::string datacenter_label(std::string_view name) {
  if (name.size() <= label_bytes && std::ranges::all_of(name, is_plain)) return std::string{name};
  return "~" + to_hex(tensorhub::detail::xxh3_128(std::as_bytes(std::span{name}), 0));
}

/// Something that `datacenter_label` can have made of a name.
[[nodiscard]] inline bool is_label(std::string_view text) noexcept {
  if (text.empty() || text.size() > label_bytes) return false;
  if (text.front() != '~') return std::ranges::all_of(text, is_plain);
  return text.size() == 33 && std::ranges::all_of(text.substr(1), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

struct host_and_port {
  std::string host{};
  std::string port{};
  std::string datacenter{};  ///< label; empty: unknown
};

inline constexpr std::string_view address_scheme = "tcp://";
inline constexpr std::string_view datacenter_field = "?datacenter=";

/// `host` may be a numeric IPv6 address without brackets.
[[nodiscard]] inline std::string make_address(const host_and_port& where,
                                              std::string_view scheme = address_scheme) {
  const bool is_v6 = where.host.find(':') != std::string::npos;
  std::string text{scheme};
  text += (is_v6 ? "[" + where.host + "]" : where.host) + ":" + where.port;
  if (!where.datacenter.empty()) text.append(datacenter_field).append(where.datacenter);
  return text;
}

/// Nothing: no address of this transport.
[[nodiscard]] inline std::optional<host_and_port> parse_address(std::string_view text,
                                                                std::string_view scheme = address_scheme) {
  if (text.size() > limits::address_bytes || !text.starts_with(scheme)) return std::nullopt;
  text.remove_prefix(scheme.size());
  host_and_port where;
  if (const auto mark = text.find('?'); mark != std::string_view::npos) {
    const std::string_view field = text.substr(mark);
    if (!field.starts_with(datacenter_field) || !is_label(field.substr(datacenter_field.size())))
      return std::nullopt;
    where.datacenter = field.substr(datacenter_field.size());
    text = text.substr(0, mark);
  }
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size()) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) return std::nullopt;
  where.host = host;
  where.port = text.substr(colon + 1);
  return where;
}

/// From a reader in datacenter `own` (a label) to a source. Where either is unknown they are taken to be in
/// the same one.
[[nodiscard]] inline path_kind path_to(const host_and_port& source, std::string_view own) noexcept {
  const bool both_known = !source.datacenter.empty() && !own.empty();
  return both_known && source.datacenter != own ? path_kind::wide_area : path_kind::same_datacenter;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
