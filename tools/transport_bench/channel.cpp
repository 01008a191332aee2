#include "channel.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

namespace transport_bench {

namespace {

using tensorhub::detail::unique_fd;
using steady = std::chrono::steady_clock;

static_assert(std::endian::native == std::endian::little, "frames are written as they are in memory");

struct frame_header {
  std::array<char, 4> magic{'T', 'H', 'T', 'B'};
  std::uint16_t protocol = control_protocol;
  std::uint16_t zero = 0;
  std::uint32_t bytes = 0;
};
static_assert(sizeof(frame_header) == 12);

/// False at the deadline.
bool wait_for(int socket, short events, channel::deadline until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady::now()).count();
    if (left <= 0) return false;
    pollfd entry{socket, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<long>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
  }
}

std::string text_of(const std::string& host, std::uint16_t port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

using address_list = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
address_list resolve(const host_and_port& where, bool to_listen) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = to_listen ? AI_PASSIVE : 0;
  if (where.host.empty()) hints.ai_family = AF_INET;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(where.host.empty() ? nullptr : where.host.c_str(),
                                    std::to_string(where.port).c_str(), &hints, &found);
  if (failure != 0 || found == nullptr) {
    throw channel_error("the name '" + where.host +
                        "' has no address: " + (failure != 0 ? ::gai_strerror(failure) : "nothing found"));
  }
  return {found, &::freeaddrinfo};
}

void prepare(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);  // a machine that is gone says nothing
  const int idle_seconds = 5;
  const int times = 4;
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

std::string host_text(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host.data(), host.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return {};
  return host.data();
}

}  // namespace

channel::channel(unique_fd socket, std::string peer) : socket_{std::move(socket)}, peer_{std::move(peer)} {
  prepare(socket_.get());
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
}

void channel::send(std::string_view payload, deadline until) {
  if (payload.size() > max_payload_bytes)
    throw channel_error("a control message of " + std::to_string(payload.size()) + " bytes is too long");
  frame_header header;
  header.bytes = static_cast<std::uint32_t>(payload.size());
  std::string frame(sizeof header, '\0');
  std::memcpy(frame.data(), &header, sizeof header);
  frame += payload;
  for (std::size_t done = 0; done < frame.size();) {
    const auto sent = ::send(socket_.get(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EINTR) {
      if (!wait_for(socket_.get(), POLLOUT, until))
        throw channel_error(peer_ + " takes no control message: it is stuck or stopped");
    } else {
      throw channel_error(peer_ + " has gone: " + std::strerror(errno));
    }
  }
}

void channel::receive_exactly(void* into, std::size_t bytes, deadline until) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    const auto taken = ::recv(socket_.get(), at, bytes, 0);
    if (taken > 0) {
      at += taken;
      bytes -= static_cast<std::size_t>(taken);
    } else if (taken == 0) {
      throw channel_error(peer_ + " has closed the control connection: it has ended or was killed");
    } else if (errno == EAGAIN || errno == EINTR) {
      if (!wait_for(socket_.get(), POLLIN, until))
        throw channel_error(peer_ + " did not answer in time: it is stuck, stopped or unreachable");
    } else {
      throw channel_error("the control connection to " + peer_ + " broke: " + std::strerror(errno));
    }
  }
}

std::string channel::receive(deadline until) {
  frame_header header;
  receive_exactly(&header.magic, sizeof header.magic, until);
  if (header.magic != frame_header{}.magic) throw channel_error(peer_ + " is no transport_bench");
  receive_exactly(&header.protocol, sizeof header - sizeof header.magic, until);
  if (header.protocol != control_protocol) {
    throw channel_error(peer_ + " speaks control protocol " + std::to_string(header.protocol) +
                        ", this side speaks " + std::to_string(control_protocol) +
                        ": use the same version of transport_bench on both sides");
  }
  if (header.bytes > max_payload_bytes || header.zero != 0)
    throw channel_error(peer_ + " sent a control message that is too long or damaged");
  std::string payload(header.bytes, '\0');
  receive_exactly(payload.data(), payload.size(), until);
  return payload;
}

bool channel::speaks_within(std::chrono::milliseconds time) const {
  return wait_for(socket_.get(), POLLIN, steady::now() + time);
}

std::string channel::local_host() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  const std::string host = host_text(address, length);
  return host.starts_with("::ffff:") ? host.substr(7) : host;
}

control_listener::control_listener(const host_and_port& where) : host_{where.host} {
  const address_list addresses = resolve(where, true);
  socket_.reset(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket_.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(socket_.get(), 4) != 0) {
    throw channel_error("cannot listen at " + text_of(host_, where.port) + ": " + std::strerror(errno));
  }
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                              : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string control_listener::text() const {
  return text_of(host_, port_);
}

channel control_listener::accept(channel::deadline until) {
  if (!wait_for(socket_.get(), POLLIN, until))
    throw channel_error("no reader came to " + text() + " in time");
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  unique_fd socket{::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC)};
  if (!socket) throw channel_error(std::string{"a reader could not be accepted: "} + std::strerror(errno));
  return {std::move(socket), "the reader at " + host_text(address, length)};
}

channel connect_control(const host_and_port& where, channel::deadline until) {
  const std::string host = where.host.empty() ? "127.0.0.1" : where.host;
  const std::string text = text_of(host, where.port);
  std::string reason = "no answer";
  for (;;) {
    const address_list addresses = resolve({host, where.port}, false);
    for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
      unique_fd socket{::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
      int failure = ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
      if (failure == EINPROGRESS) {
        socklen_t length = sizeof failure;
        if (!wait_for(socket.get(), POLLOUT, until)) continue;
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
      }
      if (failure == 0) return {std::move(socket), "the source at " + text};
      reason = std::strerror(failure);
    }
    if (steady::now() + std::chrono::milliseconds{200} > until) {
      throw channel_error("no source can be reached at " + text + " (" + reason +
                          "): start transport_bench with --listen there, and look for a firewall");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
  }
}

}  // namespace transport_bench
