#pragma once
/// \file address.ipp
/// Definitions of address.hpp.

#include <span>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/tcp/address.hpp"
#include "tensorhub/types/xxh3.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

TENSORHUB_DECL std::string datacenter_label(std::string_view name) {
  if (name.size() <= label_bytes && detail::all_of(name, is_plain)) return std::string{name};
  return "~" + to_hex(tensorhub::detail::xxh3_128(std::as_bytes(std::span{name}), 0));
}

TENSORHUB_DECL bool is_label(std::string_view text) noexcept {
  if (text.empty() || text.size() > label_bytes) return false;
  if (text.front() != '~') return detail::all_of(text, is_plain);
  return text.size() == 33 && detail::all_of(text.substr(1), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

TENSORHUB_DECL std::string make_address(const host_and_port& where, std::string_view scheme) {
  const bool is_v6 = where.host.find(':') != std::string::npos;
  std::string text{scheme};
  text += (is_v6 ? "[" + where.host + "]" : where.host) + ":" + where.port;
  if (!where.datacenter.empty()) text.append(datacenter_field).append(where.datacenter);
  return text;
}

TENSORHUB_DECL std::optional<host_and_port> parse_address(std::string_view text, std::string_view scheme) {
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

TENSORHUB_DECL path_kind path_to(const host_and_port& source, std::string_view own) noexcept {
  const bool both_known = !source.datacenter.empty() && !own.empty();
  return both_known && source.datacenter != own ? path_kind::wide_area : path_kind::same_datacenter;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
