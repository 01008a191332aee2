#pragma once
/// \file socket.hpp
/// Sockets: addresses as text, listening, connecting with a deadline, options.
///
/// Thread safety: free functions without shared state.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::transports::tcp_detail {

using deadline = std::chrono::steady_clock::time_point;

/// Milliseconds left, rounded up, at least zero; for poll(2).
[[nodiscard]] inline int milliseconds_left(deadline until) noexcept {
  const auto left = until - std::chrono::steady_clock::now();
  if (left.count() <= 0) return 0;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
  return static_cast<int>(ms < 1'000'000 ? ms : 1'000'000);
}

struct host_and_port {
  std::string host{};
  std::string port{};
};

/// "tcp://host:port", "tcp://[v6]:port".
[[nodiscard]] inline std::optional<host_and_port> parse_address(std::string_view text) {
  constexpr std::string_view scheme = "tcp://";
  if (!text.starts_with(scheme)) return std::nullopt;
  text.remove_prefix(scheme.size());
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size()) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host_and_port{std::string{host}, std::string{text.substr(colon + 1)}};
}

using resolved_addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

[[nodiscard]] inline resolved_addresses resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) {
    throw error(errc::transport_failed,
                "tcp: the host '" + host + "' cannot be resolved: " + ::gai_strerror(failed));
  }
  return {found, &::freeaddrinfo};
}

inline void set_option(int socket, int level, int name, int value) noexcept {
  // An option that the kernel refuses costs speed, never correctness.
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

[[nodiscard]] inline bool is_loopback(const sockaddr_storage& address) noexcept {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  }
  return false;
}

/// The other end of this connection is on this machine.
[[nodiscard]] inline bool reaches_loopback(int socket) noexcept {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && is_loopback(peer);
}

/// Options that both ends of a data connection want.
inline void tune(int socket, const tcp_options& options) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  std::string_view control = options.congestion_control;
  if (control == "auto") {
    control = reaches_loopback(socket) ? "cubic" : "";
  }
  if (!control.empty()) {
    static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, control.data(),
                                   static_cast<socklen_t>(control.size())));
  }
}

/// Buffer sizes must be set before the connection is made, else the window does not scale with them.
inline void size_buffers(int socket, const tcp_options& options) noexcept {
  if (options.send_buffer_bytes != 0)
    set_option(socket, SOL_SOCKET, SO_SNDBUF, static_cast<int>(options.send_buffer_bytes));
  if (options.receive_buffer_bytes != 0)
    set_option(socket, SOL_SOCKET, SO_RCVBUF, static_cast<int>(options.receive_buffer_bytes));
}

/// Listens; `bound_port` is what the kernel chose. Throws `transport_failed`.
[[nodiscard]] inline detail::unique_fd listen_at(const tcp_options& options, std::uint16_t& bound_port) {
  const auto addresses =
      resolve(options.listen_host, std::to_string(options.listen_port), AI_PASSIVE | AI_ADDRCONFIG);
  std::string trouble = "no address";
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    detail::unique_fd socket{
        ::socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol)};
    if (socket) {
      set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      size_buffers(socket.get(), options);
    }
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    if (socket && ::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0) {
      bound_port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                     : reinterpret_cast<sockaddr_in&>(bound).sin_port);
      return socket;
    }
    trouble = std::strerror(errno);
  }
  throw error(errc::transport_failed, "tcp: cannot listen at " + options.listen_host + ":" +
                                          std::to_string(options.listen_port) + ": " + trouble);
}

/// Waits until the socket is ready for `events`; false at the deadline.
[[nodiscard]] inline bool wait_ready(int socket, short events, deadline until) noexcept {
  pollfd entry{socket, events, 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, milliseconds_left(until));
    if (ready > 0) return true;
    if (ready == 0 && std::chrono::steady_clock::now() >= until) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

/// A non-blocking connection. The resolver has time-outs of its own: give numeric addresses where `until`
/// must be kept even when a name server is silent. Throws `transport_failed` or `timed_out`.
[[nodiscard]] inline detail::unique_fd connect_to(const std::string& address, const tcp_options& options,
                                                  deadline until) {
  const auto where = parse_address(address);
  if (!where) {
    throw error(errc::transport_failed,
                "tcp: '" + address.substr(0, 128) + "' is no address of this transport");
  }
  const auto addresses = resolve(where->host, where->port, AI_ADDRCONFIG);
  std::string trouble = "no address";
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    detail::unique_fd socket{
        ::socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol)};
    if (!socket) {
      trouble = std::strerror(errno);
      continue;
    }
    size_buffers(socket.get(), options);
    int failed = ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
      if (!wait_ready(socket.get(), POLLOUT, until)) {
        throw error(errc::timed_out, "tcp: " + address + " does not answer within the connect time-out");
      }
      socklen_t length = sizeof failed;
      if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0) failed = errno;
    }
    if (failed == 0) {
      tune(socket.get(), options);
      return socket;
    }
    trouble = std::strerror(failed);
  }
  throw error(errc::transport_failed, "tcp: cannot connect to " + address + ": " + trouble);
}

/// Drops what is not sent yet and resets the connection when it is closed.
inline void abort_on_close(int socket) noexcept {
  const linger now{1, 0};
  static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof now));
}

}  // namespace tensorhub::transports::tcp_detail
