#pragma once
/// \file local_socket.ipp
/// Definitions of local_socket.hpp.

#include <algorithm>
#include <fstream>
#include <span>

#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/local_socket.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail::local {

TENSORHUB_DECL socket_name::socket_name(std::string_view name) noexcept {
  address.sun_family = AF_UNIX;
  name = name.substr(0, sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

TENSORHUB_DECL unique_socket listen_at(const std::string& name) {
  unique_socket socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const socket_name at{name};
  if (!socket || ::bind(socket.get(), at.get(), at.bytes) != 0 || ::listen(socket.get(), 4096) != 0) {
    const int failure = errno;
    throw error(failure == EADDRINUSE ? errc::invalid_argument : errc::transport_failed,
                std::string{"cannot listen on a UNIX socket: "} + std::strerror(failure));
  }
  return socket;
}

TENSORHUB_DECL unique_socket connect_to(const std::string& name, const std::string& address,
                                        clock::time_point until) {
  unique_socket socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!socket) {
    const int failure = errno;
    const std::string trouble = std::string{"no UNIX socket: "} + std::strerror(failure);
    if (!is_out_of_descriptors(failure)) throw error(errc::transport_failed, trouble);
    throw error(errc::system_failed, trouble + ": raise the limit of open files (ulimit -n)");
  }
  const socket_name at{name};
  for (;;) {
    // `connect` waits only while the source's backlog is full, and at most for this time.
    const int left = std::max(1, milliseconds_left(until));
    const timeval limit{left / 1000, (left % 1000) * 1000};
    static_cast<void>(::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    if (::connect(socket.get(), at.get(), at.bytes) == 0) break;
    if (errno == EINTR) continue;
    if (errno == EAGAIN)
      throw error(errc::timed_out, address + " accepts no connection: it hangs or is stopped");
    throw error(errc::transport_failed, address + " cannot be reached: " + std::strerror(errno) +
                                            "; that process has probably ended, or is in another network "
                                            "namespace: the two need the same one");
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  static_cast<void>(::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK));
  return socket;
}

TENSORHUB_DECL peer_credentials credentials_of(int socket) noexcept {
  ucred facts{};
  socklen_t bytes = sizeof facts;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &facts, &bytes) != 0) return {};
  return {facts.pid, facts.uid};
}

/// The numbers in this file; none if it cannot be read.
[[nodiscard]] inline std::vector<std::uint64_t> numbers_in(const char* path) {
  std::ifstream file{path};
  std::vector<std::uint64_t> out;
  for (std::uint64_t each = 0; file >> each;) out.push_back(each);
  return out;
}

TENSORHUB_DECL bool stands_for_many(uid_t user) noexcept {
  if (user != ::geteuid()) return false;
  try {
    const auto unmapped = numbers_in("/proc/sys/kernel/overflowuid");
    if (user != (unmapped.empty() ? 65534 : unmapped.front())) return false;
    // A kernel without user namespaces has no such file.
    if (::access("/proc/self/uid_map", F_OK) != 0 && ::access("/proc/self/status", F_OK) == 0) return false;
    const auto map = numbers_in("/proc/self/uid_map");  // first, first outside, count; ...
    std::uint64_t mapped = 0;
    for (std::size_t i = 2; i < map.size(); i += 3) mapped += map[i];
    return mapped < 0xffff'ffff;  // all of them: as in the first namespace
  } catch (...) {                 // no memory
    return true;
  }
}

TENSORHUB_DECL bool may_talk(uid_t user, const std::vector<uid_t>& allowed) noexcept {
  return detail::contains(allowed, user) || (user == ::geteuid() && !stands_for_many(user));
}

TENSORHUB_DECL std::string other_user_text(uid_t user) {
  const std::string number = std::to_string(user);
  if (!stands_for_many(user))
    return "belongs to user " + number + ", this process to user " + std::to_string(::geteuid());
  return "may belong to another user: " + number +
         " stands for each one that has no number in this user namespace (/proc/self/uid_map gives them), "
         "and so does this process's";
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail::local
