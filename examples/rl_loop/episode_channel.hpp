#pragma once
/// \file episode_channel.hpp
/// Episodes on their way from the rollouts to the trainer: many senders, one receiver, over TCP.
///
/// A frame is `magic, bytes` (two u32) and then waves in the form of encode(). The trainer confirms every
/// wave that it takes with one byte; a rollout has at most two waves on the way, so that it never runs far
/// ahead of the learning.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "descriptor.hpp"
#include "episode.hpp"

namespace rl_loop {

inline constexpr std::uint32_t frame_magic = 0x31574c52;  // "RLW1"
inline constexpr std::uint32_t largest_frame_bytes = 256u << 20;
inline constexpr std::size_t waves_on_the_way = 2;

/// Waves as bytes: u32 count; each u64 version, u32 episodes; each u32 steps, u8 fell, then the arrays.
[[nodiscard]] inline std::vector<std::byte> encode(std::span<const wave> waves) {
  std::vector<std::byte> bytes;
  const auto put = [&bytes](const void* data, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + count);
  };
  const auto put_count = [&put](std::size_t count) {
    const auto number = static_cast<std::uint32_t>(count);
    put(&number, sizeof number);
  };
  put_count(waves.size());
  for (const auto& w : waves) {
    put(&w.version, sizeof w.version);
    put_count(w.episodes.size());
    for (const auto& e : w.episodes) {
      put_count(e.steps());
      const std::uint8_t fell = e.fell ? 1 : 0;
      put(&fell, 1);
      put(e.seen.data(), e.seen.size() * sizeof(observation));
      put(e.actions.data(), e.actions.size());
      put(e.log_chosen.data(), e.log_chosen.size() * sizeof(float));
    }
  }
  return bytes;
}

/// Throws `runtime_error` for anything that encode() would not have made.
[[nodiscard]] inline std::vector<wave> decode(std::span<const std::byte> bytes) {
  const auto take = [&bytes](void* to, std::size_t count) {
    if (count > bytes.size()) throw std::runtime_error("episodes end in the middle");
    if (count != 0) std::memcpy(to, bytes.data(), count);
    bytes = bytes.subspan(count);
  };
  const auto take_count = [&take](std::size_t largest, const char* what) {
    std::uint32_t count = 0;
    take(&count, sizeof count);
    if (count > largest) throw std::runtime_error(std::string("too many ") + what + " in one message");
    return count;
  };
  std::vector<wave> waves(take_count(1u << 16, "waves"));
  for (auto& w : waves) {
    take(&w.version, sizeof w.version);
    w.episodes.resize(take_count(1u << 12, "episodes"));
    for (auto& e : w.episodes) {
      const std::size_t steps = take_count(episode_limit_steps, "steps");
      std::uint8_t fell = 0;
      take(&fell, 1);
      e.fell = fell != 0;
      e.seen.resize(steps + 1);
      e.actions.resize(steps);
      e.log_chosen.resize(steps);
      take(e.seen.data(), e.seen.size() * sizeof(observation));
      take(e.actions.data(), e.actions.size());
      take(e.log_chosen.data(), e.log_chosen.size() * sizeof(float));
      for (const auto action : e.actions) {
        if (action >= action_count) throw std::runtime_error("an episode has an action that does not exist");
      }
    }
  }
  if (!bytes.empty()) throw std::runtime_error("bytes after the last episode");
  return waves;
}

/// Binds a port of the system's choice on the loopback interface. `port` receives it.
[[nodiscard]] inline descriptor listen_for_episodes(std::uint16_t& port) {
  descriptor listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener.get() < 0 || ::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), 64) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0) {
    fail("cannot listen for episodes");
  }
  port = ntohs(address.sin_port);
  return listener;
}

/// A rollout's end.
class episode_outbox {
 public:
  explicit episode_outbox(std::uint16_t port) : socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const int on = 1;
    if (socket_.get() < 0 ||
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
      fail("cannot connect to the trainer for episodes");
    }
  }

  /// True when another wave may be sent; waits for that no longer than `patience`.
  [[nodiscard]] bool ready(std::chrono::milliseconds patience) {
    const deadline until{patience};
    while (unconfirmed_ >= waves_on_the_way) {
      if (wait_ready(socket_.get(), POLLIN, until) == 0) return false;
      std::byte confirmations[waves_on_the_way];
      const auto got = ::recv(socket_.get(), confirmations, sizeof confirmations, MSG_DONTWAIT);
      if (got == 0) throw std::runtime_error("the trainer is gone: it closed the episode connection");
      if (got < 0 && errno != EAGAIN && errno != EINTR) fail("the trainer is gone");
      if (got > 0) unconfirmed_ -= static_cast<std::size_t>(got);
    }
    return true;
  }

  void send(const wave& done) {
    const std::vector<std::byte> body = encode({&done, 1});
    const std::uint32_t header[2]{frame_magic, static_cast<std::uint32_t>(body.size())};
    send_all(std::as_bytes(std::span{header}));
    send_all(body);
    ++unconfirmed_;
  }

 private:
  void send_all(std::span<const std::byte> bytes) {
    const deadline until{std::chrono::seconds{60}};
    while (!bytes.empty()) {
      if (wait_ready(socket_.get(), POLLOUT, until) == 0) {
        throw std::runtime_error("the trainer has not taken an episode for a minute");
      }
      const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) fail("the trainer is gone");
      if (sent > 0) bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }

  descriptor socket_;
  std::size_t unconfirmed_ = 0;
};

/// The trainer's end. A rollout that closes its connection has left; what it sent before counts.
class episode_inbox {
 public:
  explicit episode_inbox(descriptor listener) : listener_{std::move(listener)} {}

  /// Appends the waves that have arrived to `batch`; waits for the first of them no longer than `patience`.
  void take(std::vector<wave>& batch, std::chrono::milliseconds patience) {
    std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
    for (const auto& peer : peers_) waiting.push_back({peer.socket.get(), POLLIN, 0});
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(patience.count())) < 0 && errno != EINTR) {
      fail("poll");
    }
    std::size_t i = 1;  // peers_ in the order of `waiting`
    for (auto peer = peers_.begin(); peer != peers_.end(); ++i) {
      const bool open = waiting[i].revents == 0 || receive(*peer, batch);
      peer = open ? std::next(peer) : peers_.erase(peer);
    }
    if (waiting[0].revents != 0) {
      descriptor accepted{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (accepted.get() >= 0) peers_.push_back({std::move(accepted), {}});
    }
  }

 private:
  struct connection {
    descriptor socket;
    std::vector<std::byte> bytes;  // received, not yet a whole frame
  };

  /// False: the peer has closed.
  [[nodiscard]] static bool receive(connection& from, std::vector<wave>& batch) {
    bool open = true;
    for (;;) {
      std::byte piece[65536];
      const auto got = ::recv(from.socket.get(), piece, sizeof piece, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0) {
        open = false;
        break;
      }
      from.bytes.insert(from.bytes.end(), piece, piece + got);
    }
    std::span<const std::byte> left{from.bytes};
    std::uint32_t header[2]{};
    while (left.size() >= sizeof header) {
      std::memcpy(header, left.data(), sizeof header);
      if (header[0] != frame_magic || header[1] > largest_frame_bytes) {
        throw std::runtime_error("the episode port received something that is no episode");
      }
      if (left.size() < sizeof header + header[1]) break;
      for (auto& w : decode(left.subspan(sizeof header, header[1]))) batch.push_back(std::move(w));
      left = left.subspan(sizeof header + header[1]);
      const std::byte confirmation{1};
      // A rollout that has left meanwhile needs no confirmation.
      [[maybe_unused]] const auto sent = ::send(from.socket.get(), &confirmation, 1, MSG_NOSIGNAL);
    }
    from.bytes.erase(from.bytes.begin(), from.bytes.end() - static_cast<std::ptrdiff_t>(left.size()));
    return open;
  }

  descriptor listener_;
  std::list<connection> peers_;
};

}  // namespace rl_loop
