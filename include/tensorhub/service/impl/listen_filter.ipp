#pragma once
/// \file listen_filter.ipp
/// Definitions of service/listen_filter.hpp.

#include "tensorhub/service/listen_filter.hpp"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::optional<ip_network> network_of(const sockaddr_storage& address) noexcept {
  if (address.ss_family == AF_INET)
    return ip_network{ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr), false};
  if (address.ss_family != AF_INET6) return std::nullopt;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  std::array<std::uint32_t, 4> words{};
  static_assert(sizeof words == sizeof six);
  std::memcpy(words.data(), &six, sizeof six);
  if (IN6_IS_ADDR_V4MAPPED(&six)) return ip_network{ntohl(words[3]), false};
  return ip_network{std::uint64_t{ntohl(words[0])} << 32 | ntohl(words[1]), true};
}

TENSORHUB_DECL std::optional<ip_network> network_of(std::string_view address) {
  const std::string text{address};
  sockaddr_storage out{};
  auto& four = reinterpret_cast<sockaddr_in&>(out);
  auto& six = reinterpret_cast<sockaddr_in6&>(out);
  if (::inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1)
    out.ss_family = AF_INET;
  else if (::inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1)
    out.ss_family = AF_INET6;
  return network_of(out);
}

TENSORHUB_DECL std::string to_string(const ip_network& network) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (!network.is_six) {
    const in_addr four{htonl(static_cast<std::uint32_t>(network.prefix))};
    return ::inet_ntop(AF_INET, &four, text.data(), text.size());
  }
  const std::array<std::uint32_t, 4> words{htonl(static_cast<std::uint32_t>(network.prefix >> 32)),
                                           htonl(static_cast<std::uint32_t>(network.prefix)), 0, 0};
  return std::string{::inet_ntop(AF_INET6, words.data(), text.data(), text.size())} + "/64";
}

namespace packet_filter {

constexpr sock_filter load(std::uint32_t offset_in_packet) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(SKF_NET_OFF) + offset_in_packet);
}
constexpr sock_filter unless_equal(std::uint32_t word, std::uint8_t skip) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word, 0, skip);
}
constexpr sock_filter give(std::uint32_t bytes) {
  return BPF_STMT(BPF_RET | BPF_K, bytes);
}

/// In the kernel's words (linux/filter.h): the packet begins with the header of IP, which begins with its
/// version; the address of the sender is at byte 12 or, in IPv6, at byte 8. A load from the packet becomes
/// many instructions: with one for each network, two filters would not fit into the 20 KiB that older kernels
/// grant a socket (6.1 does), and a new filter takes the place of the old one only when both are there.
inline std::vector<sock_filter> program_against(std::span<const ip_network> blocked) {
  constexpr std::uint32_t none = 0;
  constexpr std::uint32_t whole = 0xffffffff;
  std::vector<sock_filter> four{load(12)};
  const sock_filter load_upper = BPF_STMT(BPF_LD | BPF_MEM, 0);
  const sock_filter load_lower = BPF_STMT(BPF_MISC | BPF_TXA, 0);
  std::vector<sock_filter> six{load(8), BPF_STMT(BPF_ST, 0), load(12), BPF_STMT(BPF_MISC | BPF_TAX, 0),
                               load_upper};
  for (const ip_network& each : blocked) {
    const auto upper = static_cast<std::uint32_t>(each.prefix >> 32);
    const auto lower = static_cast<std::uint32_t>(each.prefix);
    if (each.is_six)
      six.insert(six.end(),
                 {unless_equal(upper, 4), load_lower, unless_equal(lower, 1), give(none), load_upper});
    else
      four.insert(four.end(), {unless_equal(lower, 1), give(none)});
  }
  four.push_back(give(whole));
  six.push_back(give(whole));
  std::vector<sock_filter> out{load(0), BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 28), unless_equal(4, 1),
                               BPF_STMT(BPF_JMP | BPF_JA, 1),
                               BPF_STMT(BPF_JMP | BPF_JA, static_cast<std::uint32_t>(four.size()))};
  out.insert(out.end(), four.begin(), four.end());
  out.insert(out.end(), six.begin(), six.end());
  return out;
}

}  // namespace packet_filter

TENSORHUB_DECL bool accept_none_of(std::span<const ip_network> blocked, int listening) {
  if (blocked.empty()) {
    const int unused = 0;
    return ::setsockopt(listening, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused) == 0 ||
           errno == ENOENT;
  }
  std::vector<sock_filter> program = packet_filter::program_against(blocked);
  const sock_fprog given{static_cast<unsigned short>(program.size()), program.data()};
  return ::setsockopt(listening, SOL_SOCKET, SO_ATTACH_FILTER, &given, sizeof given) == 0;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
