#pragma once
/// \file socket.ipp
/// Definitions of socket.hpp.

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/address.hpp"
#include "tensorhub/transports/tcp/socket.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

TENSORHUB_DECL resolved_addresses resolve(const std::string& host, const std::string& port, int flags,
                                          std::string_view transport) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int failed = EAI_NONAME;
  for (const int kind : {AI_NUMERICHOST, AI_ADDRCONFIG, 0}) {
    hints.ai_flags = flags | kind | AI_NUMERICSERV;
    failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (failed == 0 || (flags & AI_NUMERICHOST) != 0) break;
  }
  if (failed != 0 && !detail::has_free_descriptor())
    throw error(errc::system_failed, std::string{transport} + ": the host '" + host +
                                         "' cannot be resolved without a descriptor: raise the limit of open "
                                         "files (ulimit -n)");
  if (failed != 0) {
    throw error(errc::transport_failed,
                std::string{transport} + ": the host '" + host + "' cannot be resolved: " +
                    (flags & AI_NUMERICHOST ? "an address has to be numeric, unless names_in_addresses is "
                                              "set, at the source and at its readers"
                                            : ::gai_strerror(failed)));
  }
  return {found, &::freeaddrinfo};
}

TENSORHUB_DECL void set_option(int socket, int level, int name, int value) noexcept {
  // If the kernel refuses an option, the connection is slower but still correct.
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

/// The bytes of an IP address; empty: it is none.
[[nodiscard]] inline std::string_view host_bytes(const sockaddr_storage& address) noexcept {
  if (address.ss_family == AF_INET) {
    const auto& host = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return {reinterpret_cast<const char*>(&host), sizeof host};
  }
  if (address.ss_family == AF_INET6) {
    const auto& host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return {reinterpret_cast<const char*>(&host), sizeof host};
  }
  return {};
}

TENSORHUB_DECL bool is_loopback(const sockaddr_storage& address) noexcept {
  if (address.ss_family == AF_INET6) {
    const auto& host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&host) || (IN6_IS_ADDR_V4MAPPED(&host) && host.s6_addr[12] == 127);
  }
  return address.ss_family == AF_INET && host_bytes(address).front() == 127;
}

TENSORHUB_DECL bool reaches_loopback(int socket) noexcept {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) return false;
  if (is_loopback(peer)) return true;
  // What a machine sends to an address of its own comes from that address.
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         !host_bytes(peer).empty() && host_bytes(own) == host_bytes(peer);
}

TENSORHUB_DECL tcp_path settings_of(const tcp_options& options, path_kind path) {
  if (path == path_kind::wide_area) return options.wide_area;
  return {options.streams, options.congestion_control, options.send_buffer_bytes,
          options.receive_buffer_bytes};
}

TENSORHUB_DECL void choose_congestion_control(int socket, std::string_view control) noexcept {
  if (control == "auto") control = reaches_loopback(socket) ? "cubic" : "";
  if (control.empty()) return;
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, control.data(),
                                 static_cast<socklen_t>(control.size())));
}

TENSORHUB_DECL void tune(int socket, const tcp_path& path) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  choose_congestion_control(socket, path.congestion_control);
}

TENSORHUB_DECL bool leads_to_loopback(const addrinfo& address) noexcept {
  // A datagram socket sends nothing to connect, and finds its own address.
  const detail::unique_socket trial{::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  return trial && ::connect(trial.get(), address.ai_addr, address.ai_addrlen) == 0 &&
         reaches_loopback(trial.get());
}

TENSORHUB_DECL std::uint64_t wake_bytes_of(int socket) noexcept {
  int granted = 0;
  socklen_t length = sizeof granted;
  if (!reaches_loopback(socket) || ::getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &granted, &length) != 0)
    return 1;
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(granted) / 8, 1,
                                   loopback_receive_buffer_bytes / 4);
}

TENSORHUB_DECL duration round_trip_of(int socket) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return std::chrono::microseconds{info.tcpi_rtt};
}

TENSORHUB_DECL std::uint64_t kernel_limit(const char* file) noexcept {
  const detail::unique_fd opened{::open(file, O_RDONLY | O_CLOEXEC)};
  char text[128];
  const auto length = opened ? ::read(opened.get(), text, sizeof text) : -1;
  std::uint64_t last = 0;
  bool inside = false;
  for (const char c : std::string_view{text, length > 0 ? static_cast<std::size_t>(length) : 0}) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit) last = (inside ? last * 10 : 0) + static_cast<std::uint64_t>(c - '0');
    inside = is_digit;
  }
  return last;
}

TENSORHUB_DECL void size_buffer(int socket, int option, int forced_option, std::size_t wanted,
                                const char* largest_by_hand, const char* largest_by_tuning) noexcept {
  if (wanted == 0) return;
  const int size = static_cast<int>(std::min<std::size_t>(wanted, 1u << 30));
  if (::setsockopt(socket, SOL_SOCKET, forced_option, &size, sizeof size) == 0) return;
  const std::uint64_t granted = kernel_limit(largest_by_hand);
  if (granted < wanted && 2 * granted < kernel_limit(largest_by_tuning)) return;
  set_option(socket, SOL_SOCKET, option, size);
}

TENSORHUB_DECL void size_send_buffer(int socket, const tcp_path& path) noexcept {
  size_buffer(socket, SO_SNDBUF, SO_SNDBUFFORCE, path.send_buffer_bytes, "/proc/sys/net/core/wmem_max",
              "/proc/sys/net/ipv4/tcp_wmem");
}

TENSORHUB_DECL void size_loopback_send_buffer(int socket, const tcp_path& path) noexcept {
  if (path.send_buffer_bytes != 0 || !reaches_loopback(socket)) return;
  tcp_path here{};
  here.send_buffer_bytes = loopback_send_buffer_bytes;
  size_send_buffer(socket, here);
}

TENSORHUB_DECL void size_buffers(int socket, const tcp_path& path) noexcept {
  size_send_buffer(socket, path);
  size_buffer(socket, SO_RCVBUF, SO_RCVBUFFORCE, path.receive_buffer_bytes, "/proc/sys/net/core/rmem_max",
              "/proc/sys/net/ipv4/tcp_rmem");
}

[[nodiscard]] inline std::string numeric_host(const sockaddr* address, socklen_t length,
                                              std::string_view transport) {
  char text[NI_MAXHOST] = {};
  const int failed = ::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (failed != 0)
    throw error(errc::transport_failed,
                std::string{transport} + ": an address has no text: " + ::gai_strerror(failed));
  return text;
}

TENSORHUB_DECL listening_socket listen_at(const tcp_options& options, std::string_view transport) {
  const std::string host = detail::or_loopback(options.listen_host);
  const auto addresses = resolve(host, std::to_string(options.listen_port), AI_PASSIVE, transport);
  // Accepted sockets inherit the sizes. Only the hello tells how far away a reader is; the send buffer, which
  // matters at a source, is set then.
  const tcp_path near = settings_of(options, path_kind::same_datacenter);
  std::string trouble = "no address";
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    detail::unique_socket socket{
        ::socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol)};
    if (socket) {
      set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      size_buffers(socket.get(), near);
    }
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    if (socket && ::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0) {
      const auto port = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                    : reinterpret_cast<sockaddr_in&>(bound).sin_port;
      return {std::move(socket), numeric_host(reinterpret_cast<const sockaddr*>(&bound), length, transport),
              ntohs(port)};
    }
    trouble = std::strerror(errno);
  }
  throw listen_error(errc::transport_failed, std::string{transport} + ": cannot listen at " + host + ":" +
                                                 std::to_string(options.listen_port) + ": " + trouble);
}

TENSORHUB_DECL std::string advertised_host(const tcp_options& options, const std::string& listening,
                                           std::string_view transport) {
  const std::string& named = options.advertised_host;
  if (options.names_in_addresses) return named.empty() ? detail::or_loopback(options.listen_host) : named;
  if (named.empty()) return listening;
  if (detail::is_every_interface(named)) return named;
  const auto found = resolve(named, {}, 0, transport);
  return numeric_host(found->ai_addr, found->ai_addrlen, transport);
}

TENSORHUB_DECL bool wait_ready(int socket, short events, deadline until) noexcept {
  pollfd entry{socket, events, 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, detail::milliseconds_left(until));
    if (ready > 0) return true;
    if (ready == 0 && std::chrono::steady_clock::now() >= until) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

TENSORHUB_DECL detail::unique_socket connect_to(const std::string& address, const tcp_path& path,
                                                deadline until, std::string_view transport, bool names) {
  const std::string prefix = std::string{transport} + ": ";
  const auto where = parse_address(address, std::string{transport} + "://");
  if (!where) {
    throw error(errc::transport_failed,
                prefix + "'" + address.substr(0, 128) + "' is not an address of this transport");
  }
  const auto addresses = resolve(where->host, where->port, names ? 0 : AI_NUMERICHOST, transport);
  std::string trouble = "no address";
  bool is_short = false;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    detail::unique_socket socket{
        ::socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol)};
    if (!socket) {
      is_short = is_short || detail::is_out_of_descriptors(errno);
      trouble = std::strerror(errno);
      continue;
    }
    tcp_path sizes = path;
    if (path.receive_buffer_bytes == 0 && leads_to_loopback(*at))
      sizes.receive_buffer_bytes = loopback_receive_buffer_bytes;
    size_buffers(socket.get(), sizes);
    int failed = ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
      if (!wait_ready(socket.get(), POLLOUT, until)) {
        throw error(errc::timed_out, prefix + address + " does not answer within the connect timeout");
      }
      socklen_t length = sizeof failed;
      if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0) failed = errno;
    }
    if (failed == 0) {
      tune(socket.get(), path);
      return socket;
    }
    trouble = std::strerror(failed);
  }
  if (is_short)
    throw error(errc::system_failed, prefix + "this process can open no connection to " + address + ": " +
                                         trouble + ": raise the limit of open files (ulimit -n)");
  if (tensorhub::detail::is_local_host(where->host))
    trouble +=
        " (that is this machine: the peer has ended, or it is on another machine and has to set its "
        "listen_host or advertised_host)";
  throw error(errc::transport_failed, prefix + "cannot connect to " + address + ": " + trouble);
}

TENSORHUB_DECL void abort_on_close(int socket) noexcept {
  const linger now{1, 0};
  static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof now));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
