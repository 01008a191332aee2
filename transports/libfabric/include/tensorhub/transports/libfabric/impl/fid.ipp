#pragma once
/// \file fid.ipp
/// Definitions of fid.hpp.

#include <charconv>

#include "tensorhub/config.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL std::string reason(std::int64_t result) {
  const int number = static_cast<int>(result < 0 ? -result : result);
  return std::string{::fi_strerror(number)} + " (" + std::to_string(number) + ")";
}

TENSORHUB_DECL void fail(const std::string& sentence) {
  throw error(errc::transport_failed, "libfabric: " + sentence);
}

TENSORHUB_DECL std::string raw_address::readable() const {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (format == FI_SOCKADDR_IN && bytes.size() >= sizeof(sockaddr_in)) {
    sockaddr_in in{};
    std::memcpy(&in, bytes.data(), sizeof in);
    ::inet_ntop(AF_INET, &in.sin_addr, host.data(), host.size());
    return std::string{host.data()} + ":" + std::to_string(ntohs(in.sin_port));
  }
  if (format == FI_SOCKADDR_IN6 && bytes.size() >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in{};
    std::memcpy(&in, bytes.data(), sizeof in);
    ::inet_ntop(AF_INET6, &in.sin6_addr, host.data(), host.size());
    return "[" + std::string{host.data()} + "]:" + std::to_string(ntohs(in.sin6_port));
  }
  return hexadecimal();
}

TENSORHUB_DECL std::string raw_address::hexadecimal() const {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte each : bytes) {
    text += digits[std::to_integer<unsigned>(each) >> 4];
    text += digits[std::to_integer<unsigned>(each) & 15u];
  }
  return text;
}

TENSORHUB_DECL bool raw_address::has_form_of(std::span<const std::byte> other) const noexcept {
  if (format == FI_ADDR_STR) return other.size() > 1 && other.back() == std::byte{0};
  if (other.size() != bytes.size()) return false;
  const bool has_family = format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6 ||
                          format == FI_SOCKADDR_IB;
  return !has_family || (other.size() >= sizeof(sa_family_t) &&
                         std::memcmp(other.data(), bytes.data(), sizeof(sa_family_t)) == 0);
}

TENSORHUB_DECL std::string peer_address::text() const {
  return "libfabric://" + provider + (connected ? "/msg/" : "/rdm/") + std::to_string(raw.format) + "/" +
         raw.hexadecimal();
}

TENSORHUB_DECL std::optional<peer_address> peer_address::parsed(std::string_view text) {
  static constexpr std::string_view prefix = "libfabric://";
  if (text.size() > limits::address_bytes || !text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  const auto next = [&text]() -> std::string_view {
    const auto slash = text.find('/');
    const auto word = text.substr(0, slash);
    text.remove_prefix(slash == std::string_view::npos ? text.size() : slash + 1);
    return word;
  };
  peer_address out;
  out.provider = next();
  const std::string_view kind = next();
  const std::string_view format = next();
  const auto [end, problem] = std::from_chars(format.data(), format.data() + format.size(), out.raw.format);
  if (out.provider.empty() || (kind != "msg" && kind != "rdm") || format.empty() || problem != std::errc{} ||
      end != format.data() + format.size() || text.empty() || text.size() % 2 != 0 || text.size() > 512)
    return std::nullopt;
  out.connected = kind == "msg";
  for (std::size_t i = 0; i < text.size(); i += 2) {
    std::uint8_t value = 0;
    const auto pair = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (pair.ec != std::errc{} || pair.ptr != text.data() + i + 2) return std::nullopt;
    out.raw.bytes.push_back(static_cast<std::byte>(value));
  }
  if (out.raw.format == FI_SOCKADDR_IN && out.raw.bytes.size() != sizeof(sockaddr_in)) return std::nullopt;
  if (out.raw.format == FI_SOCKADDR_IN6 && out.raw.bytes.size() != sizeof(sockaddr_in6)) return std::nullopt;
  return out;
}

TENSORHUB_DECL raw_address advertised(raw_address own, const std::string& host) {
  if (host.empty()) return own;
  if (own.format == FI_SOCKADDR_IN && own.bytes.size() == sizeof(sockaddr_in)) {
    sockaddr_in in{};
    std::memcpy(&in, own.bytes.data(), sizeof in);
    if (::inet_pton(AF_INET, host.c_str(), &in.sin_addr) == 1) {
      std::memcpy(own.bytes.data(), &in, sizeof in);
      return own;
    }
  }
  if (own.format == FI_SOCKADDR_IN6 && own.bytes.size() == sizeof(sockaddr_in6)) {
    sockaddr_in6 in{};
    std::memcpy(&in, own.bytes.data(), sizeof in);
    if (::inet_pton(AF_INET6, host.c_str(), &in.sin6_addr) == 1) {
      std::memcpy(own.bytes.data(), &in, sizeof in);
      return own;
    }
  }
  throw error(errc::invalid_argument,
              "libfabric: advertised_host '" + host +
                  "' is not a numeric address of the family that the provider listens at");
}

TENSORHUB_DECL ssize_t connection_event::read(::fid_eq* eq) noexcept {
  const auto bytes = ::fi_eq_read(eq, &kind_, raw_.data(), raw_.size(), 0);
  data_bytes_ = bytes > static_cast<ssize_t>(head_bytes) ? static_cast<std::size_t>(bytes) - head_bytes : 0;
  return bytes < 0 || bytes >= static_cast<ssize_t>(head_bytes) ? bytes : -FI_EAGAIN;
}

TENSORHUB_DECL bool connection_event::read_error(::fid_eq* eq, ::fi_eq_err_entry& problem) noexcept {
  problem = {};
  problem.err_data = raw_.data();
  problem.err_data_size = raw_.size();
  return ::fi_eq_readerr(eq, &problem, 0) > 0;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
