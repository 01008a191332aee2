#pragma once
/// \file local_socket.hpp
/// Packet sockets between processes of one machine: listening, connecting with a deadline, packets that may
/// carry a file descriptor, and the peer's identity according to the kernel.
///
/// Thread safety: free functions without shared state.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/unique_socket.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail::local {

using clock = std::chrono::steady_clock;

struct socket_name {
  sockaddr_un address{};
  socklen_t bytes = 0;
  /// The name is abstract: it needs no file and disappears with its socket.
  explicit socket_name(std::string_view name) noexcept;
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

/// Throws `invalid_argument` if a process listens there, else `transport_failed`.
[[nodiscard]] unique_socket listen_at(const std::string& name);

/// Connects; throws `transport_failed` or `timed_out`, or `system_failed` if this process has no descriptor
/// left.
[[nodiscard]] unique_socket connect_to(const std::string& name, const std::string& address,
                                       clock::time_point until);

/// The process at the other end according to the kernel; for an outgoing connection, the process that
/// listens.
struct peer_credentials {
  pid_t process = 0;  ///< 0: not visible in this PID namespace
  uid_t user = static_cast<uid_t>(-1);
};
[[nodiscard]] peer_credentials credentials_of(int socket) noexcept;
/// True: this is the number of this process's user, and may be another user all the same. In a user namespace
/// each one that has no number there has the same one (/proc/sys/kernel/overflowuid).
[[nodiscard]] bool stands_for_many(uid_t user) noexcept;
/// Whether it is this process's user, or one of those.
[[nodiscard]] bool may_talk(uid_t user, const std::vector<uid_t>& allowed) noexcept;
/// Why it may not, about the process at the other end.
[[nodiscard]] std::string other_user_text(uid_t user);

/// Sends one packet, with a descriptor if `descriptor` >= 0. False, with errno, if the socket did not accept
/// it.
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
  nothing,  ///< none has arrived yet
  ended,    ///< the peer has closed the connection
  strange,  ///< a packet of another size
};

/// Receives one packet and its descriptor, if any; never more than one of either.
template <typename Packet>
[[nodiscard]] packet_outcome receive_packet(int socket, Packet& packet, unique_fd& descriptor) noexcept {
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
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    // Alignment leaves space for a second descriptor: this process must close all that arrived.
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
  // This comes after the descriptors, which an empty packet may have, too.
  if (taken == 0) return packet_outcome::ended;
  const bool whole = taken == static_cast<ssize_t>(sizeof packet) && (message.msg_flags & MSG_TRUNC) == 0;
  return whole ? packet_outcome::taken : packet_outcome::strange;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail::local

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/local_socket.ipp"
#endif
