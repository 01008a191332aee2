#pragma once
/// \file socket.hpp
/// Sockets: listening, connecting with a deadline, options.
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

#include <algorithm>
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

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/address.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

using deadline = std::chrono::steady_clock::time_point;

/// Milliseconds left, rounded up, at least zero; for poll(2).
[[nodiscard]] inline int milliseconds_left(deadline until) noexcept {
  const auto left = until - std::chrono::steady_clock::now();
  if (left.count() <= 0) return 0;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
  return static_cast<int>(ms < 1'000'000 ? ms : 1'000'000);
}

using resolved_addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// `transport` is who says so in an error, here and below.
[[nodiscard]] inline resolved_addresses resolve(const std::string& host, const std::string& port, int flags,
                                                std::string_view transport) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) {
    throw error(errc::transport_failed, std::string{transport} + ": the host '" + host +
                                            "' cannot be resolved: " + ::gai_strerror(failed));
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

/// The settings of a connection to or from a peer that far away.
[[nodiscard]] inline tcp_path settings_of(const tcp_options& options, path_kind path) {
  if (path == path_kind::wide_area) return options.wide_area;
  return {options.streams, options.congestion_control, options.send_buffer_bytes,
          options.receive_buffer_bytes};
}

/// Says nothing if the kernel does not have it, or not for this user: the system's default stays.
inline void choose_congestion_control(int socket, std::string_view control) noexcept {
  if (control == "auto") control = reaches_loopback(socket) ? "cubic" : "";
  if (control.empty()) return;
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, control.data(),
                                 static_cast<socklen_t>(control.size())));
}

/// Options that both ends of a data connection want.
inline void tune(int socket, const tcp_path& path) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  choose_congestion_control(socket, path.congestion_control);
}

/// The last number in a file of /proc/sys; zero: there is none.
[[nodiscard]] inline std::uint64_t kernel_limit(const char* file) noexcept {
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

/// Sets one buffer's size. A size by hand ends the kernel's own tuning, and without CAP_NET_ADMIN it is cut
/// to `net.core.*mem_max`, which is often a good deal less than that tuning reaches (`net.ipv4.tcp_*mem`):
/// where it would be, it is left alone. (The kernel doubles what it is given, for its own book-keeping.)
inline void size_buffer(int socket, int option, int forced_option, std::size_t wanted,
                        const char* largest_by_hand, const char* largest_by_tuning) noexcept {
  if (wanted == 0) return;
  const int size = static_cast<int>(std::min<std::size_t>(wanted, 1u << 30));
  if (::setsockopt(socket, SOL_SOCKET, forced_option, &size, sizeof size) == 0) return;
  const std::uint64_t granted = kernel_limit(largest_by_hand);
  if (granted < wanted && 2 * granted < kernel_limit(largest_by_tuning)) return;
  set_option(socket, SOL_SOCKET, option, size);
}

/// A receive buffer must be set before the connection is made, else the window does not scale with it; a send
/// buffer may be set at any time.
inline void size_send_buffer(int socket, const tcp_path& path) noexcept {
  size_buffer(socket, SO_SNDBUF, SO_SNDBUFFORCE, path.send_buffer_bytes, "/proc/sys/net/core/wmem_max",
              "/proc/sys/net/ipv4/tcp_wmem");
}
inline void size_buffers(int socket, const tcp_path& path) noexcept {
  size_send_buffer(socket, path);
  size_buffer(socket, SO_RCVBUF, SO_RCVBUFFORCE, path.receive_buffer_bytes, "/proc/sys/net/core/rmem_max",
              "/proc/sys/net/ipv4/tcp_rmem");
}

/// Listens; `bound_port` is what the kernel chose. Throws `transport_failed`.
[[nodiscard]] inline detail::unique_fd listen_at(const tcp_options& options, std::uint16_t& bound_port,
                                                 std::string_view transport) {
  const auto addresses = resolve(options.listen_host, std::to_string(options.listen_port),
                                 AI_PASSIVE | AI_ADDRCONFIG, transport);
  // Accepted sockets inherit the sizes. Who is far away is known only from its hello; then the send buffer is
  // set, which is what matters here.
  const tcp_path near = settings_of(options, path_kind::same_datacenter);
  std::string trouble = "no address";
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    detail::unique_fd socket{
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
      bound_port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                     : reinterpret_cast<sockaddr_in&>(bound).sin_port);
      return socket;
    }
    trouble = std::strerror(errno);
  }
  throw error(errc::transport_failed, std::string{transport} + ": cannot listen at " + options.listen_host +
                                          ":" + std::to_string(options.listen_port) + ": " + trouble);
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
[[nodiscard]] inline detail::unique_fd connect_to(const std::string& address, const tcp_path& path,
                                                  deadline until, std::string_view transport = "tcp") {
  const std::string who = std::string{transport} + ": ";
  const auto where = parse_address(address, std::string{transport} + "://");
  if (!where) {
    throw error(errc::transport_failed,
                who + "'" + address.substr(0, 128) + "' is no address of this transport");
  }
  const auto addresses = resolve(where->host, where->port, AI_ADDRCONFIG, transport);
  std::string trouble = "no address";
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    detail::unique_fd socket{
        ::socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol)};
    if (!socket) {
      trouble = std::strerror(errno);
      continue;
    }
    size_buffers(socket.get(), path);
    int failed = ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
      if (!wait_ready(socket.get(), POLLOUT, until)) {
        throw error(errc::timed_out, who + address + " does not answer within the connect time-out");
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
  throw error(errc::transport_failed, who + "cannot connect to " + address + ": " + trouble);
}

/// Drops what is not sent yet and resets the connection when it is closed.
inline void abort_on_close(int socket) noexcept {
  const linger now{1, 0};
  static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof now));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
