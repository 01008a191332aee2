#pragma once
/// \file socket.hpp
/// Packet sockets between processes of one machine: listening, connecting with a deadline, packets that may
/// bring a file descriptor, and whom the kernel says the peer is.
///
/// Thread safety: free functions without shared state.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

using clock = std::chrono::steady_clock;

/// Milliseconds left, rounded up, at least zero; for poll(2).
[[nodiscard]] inline int milliseconds_left(clock::time_point until) noexcept {
  const auto left = until - clock::now();
  if (left.count() <= 0) return 0;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
  return static_cast<int>(std::min<std::int64_t>(ms, 1'000'000));
}

struct socket_name {
  sockaddr_un address{};
  socklen_t bytes = 0;
  /// Abstract: it needs no file and goes with its socket.
  explicit socket_name(std::string_view name) noexcept {
    address.sun_family = AF_UNIX;
    name = name.substr(0, sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

[[nodiscard]] inline detail::unique_fd listen_at(const std::string& name) {
  detail::unique_fd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const socket_name at{name};
  if (!socket || ::bind(socket.get(), at.get(), at.bytes) != 0 || ::listen(socket.get(), 4096) != 0)
    throw error(errc::transport_failed,
                std::string{"same_host: cannot listen on a UNIX socket: "} + std::strerror(errno));
  return socket;
}

/// Connects; throws `transport_failed` or `timed_out`.
[[nodiscard]] inline detail::unique_fd connect_to(const std::string& name, const std::string& address,
                                                  clock::time_point until) {
  detail::unique_fd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!socket)
    throw error(errc::transport_failed, std::string{"same_host: no socket: "} + std::strerror(errno));
  const socket_name at{name};
  for (;;) {
    // It waits only while the source's backlog is full, and at most so long.
    const int left = std::max(1, milliseconds_left(until));
    const timeval limit{left / 1000, (left % 1000) * 1000};
    static_cast<void>(::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    if (::connect(socket.get(), at.get(), at.bytes) == 0) break;
    if (errno == EINTR) continue;
    if (errno == EAGAIN)
      throw error(errc::timed_out,
                  "same_host: " + address + " accepts no connection: it hangs or is stopped");
    throw error(errc::transport_failed, "same_host: " + address + " cannot be reached: " +
                                            std::strerror(errno) + "; that process has probably ended");
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  static_cast<void>(::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK));
  return socket;
}

/// Who is at the other end, in the kernel's words: of a connection that was made here, who listened.
struct peer_credentials {
  pid_t process = 0;  ///< 0: not visible in this PID namespace
  uid_t user = static_cast<uid_t>(-1);
};
[[nodiscard]] inline peer_credentials credentials_of(int socket) noexcept {
  ucred facts{};
  socklen_t bytes = sizeof facts;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &facts, &bytes) != 0) return {};
  return {facts.pid, facts.uid};
}
[[nodiscard]] inline bool may_talk(uid_t user, const std::vector<uid_t>& allowed) noexcept {
  return user == ::geteuid() || std::ranges::find(allowed, user) != allowed.end();
}

/// One packet, with a descriptor if `descriptor` >= 0. False, with errno, if it was not taken.
template <typename Packet>
[[nodiscard]] bool send_packet(int socket, const Packet& packet, int descriptor = -1) noexcept {
  Packet copy = packet;
  iovec piece{&copy, sizeof copy};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  for (;;) {
    const auto sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    return sent == static_cast<ssize_t>(sizeof copy);
  }
}

enum class packet_outcome : std::uint8_t {
  taken,
  nothing,  ///< none is there yet
  ended,    ///< the peer has gone
  strange,  ///< a packet of another size
};

/// Takes one packet and the descriptor that came with it, if any. Never more than one of either.
template <typename Packet>
[[nodiscard]] packet_outcome receive_packet(int socket, Packet& packet,
                                            detail::unique_fd& descriptor) noexcept {
  iovec piece{&packet, sizeof packet};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t taken = -1;
  do {
    taken = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (taken < 0 && errno == EINTR);
  if (taken < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK ? packet_outcome::nothing : packet_outcome::ended;
  if (taken == 0) return packet_outcome::ended;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    // Alignment leaves room for a second one: whatever came is ours to close.
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int got = -1;
      std::memcpy(&got, CMSG_DATA(each) + i * sizeof got, sizeof got);
      if (i == 0)
        descriptor.reset(got);
      else
        ::close(got);
    }
  }
  const bool whole = taken == static_cast<ssize_t>(sizeof packet) && (message.msg_flags & MSG_TRUNC) == 0;
  return whole ? packet_outcome::taken : packet_outcome::strange;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
