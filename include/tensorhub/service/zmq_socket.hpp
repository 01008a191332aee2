#pragma once
/// \file zmq_socket.hpp
/// What the client and the server shell share of ZeroMQ: one context per process, bounded sockets, and
/// waiting for input.
///
/// Thread safety: `shared_context` may be called from any thread; a socket and a budget belong to one thread.

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// A context whose first socket will start so many threads, and one more that closes sockets. ZeroMQ ends the
/// process (abort) if it cannot start one: throws `system_failed` if this process can start no such number
/// now. `owner` begins the sentence.
[[nodiscard]] std::shared_ptr<zmq::context_t> new_context(std::string_view owner, int io_threads);

/// Exists while a shared pointer holds it; a process without hub objects has no ZeroMQ threads. A forked
/// child gets one of its own. Throws what `new_context` throws, with the first of them.
[[nodiscard]] std::shared_ptr<zmq::context_t> shared_context(std::string_view owner = "ZeroMQ");

/// ZeroMQ counts messages per connection, not their bytes.
///
/// A connection speaks for up to limits::workers_of_connection (256) workers, and what the server decides for
/// all of them at once (an answer, a heartbeat's answer, two pushes each) must fit, or they would ask again.
inline constexpr int most_unsent = 1024;
/// What the server has not taken yet waits in the network and at its sender, and is not lost: only so many
/// messages of a connection wait in its memory, and one more is being received.
inline constexpr int most_unheard = 8;
/// Of one message to a server: a join that describes 100,000 tensors takes 8,100,117. (The 134,971 of a shape
/// as Kimi-K2's, with 384 experts in each of 61 layers and their scales, take 11.5 MB.)
inline constexpr std::size_t most_heard_bytes = 16u << 20;
/// What a server takes from a peer in the long run: two such messages a second.
inline constexpr std::size_t heard_bytes_per_second = 32u << 20;
/// Connections that the kernel has made and ZeroMQ has not taken over yet: a whole fleet may start at once,
/// and a client that is turned away tries again after a second or more. (The kernel's own limit is
/// net.core.somaxconn, 4096 by default.)
inline constexpr int most_arriving = 4096;
/// A connection over TCP ends when its peer has acknowledged nothing, or taken nothing of what was sent, for
/// so long, and is made again: the kernel alone would try for a quarter of an hour, and less and less often,
/// so that a machine that is back is noticed late. A peer to which nothing is sent is asked (keep-alive).
inline constexpr std::chrono::milliseconds peer_silence{60'000};
/// For the same reason an attempt to connect is begun anew after it: the kernel asks twice in that time.
inline constexpr std::chrono::milliseconds connect_attempt{2'000};
/// A connection is served by one of them, so strangers' handshakes delay the others' connections less.
inline constexpr int server_io_threads = 2;

/// A socket with bounded memory: ZeroMQ closes the connection of a peer that sends a longer frame, and keeps
/// at most `most_unsent` messages for a connection and of it; a router keeps `most_unheard` of it, each of
/// `most_heard_bytes` at most.
[[nodiscard]] zmq::socket_t bounded_socket(zmq::context_t& context, zmq::socket_type type);

/// Before it is bound or connected to this address: whether ZeroMQ is to use IPv6. It then takes a name's
/// IPv6 address only, so names are looked up for IPv4, and IPv6 is for numbers: "tcp://[fd00::1]:5570".
void set_family(zmq::socket_t& socket, std::string_view address);

/// ZeroMQ ends the process (abort) if there is no descriptor for the epoll of one of its threads, or to look
/// at the network's interfaces. A control connection opens 10 with the process's first context, and a server
/// with keys opens 14; the rest is for other threads that open files meanwhile.
inline constexpr std::size_t descriptors_of_connection = 16;
inline constexpr std::size_t descriptors_of_server = 24;

/// What `make` returns: something with sockets. What ZeroMQ throws becomes an error that begins with `owner`,
/// and so does a want of `descriptors`, before anything is made.
template <typename Make>
[[nodiscard]] auto with_sockets(const std::string& owner, std::size_t descriptors, Make&& make) {
  require_descriptors(owner, descriptors);
  try {
    return std::forward<Make>(make)();
  } catch (const zmq::error_t& e) {
    throw error(errc::system_failed,
                owner + " has no sockets (" + e.what() + "): raise the limit of open files (ulimit -n)");
  }
}

/// What `call` returns: of a socket, once more when a signal's handler has interrupted it. ZeroMQ then has
/// sent or received nothing, also if the call does not wait.
template <typename Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    try {
      return call();
    } catch (const zmq::error_t& e) {
      if (e.num() != EINTR) throw;
    }
  }
}

/// What a peer may still send, or be sent: bytes or messages.
struct flow_account {
  std::int64_t left = 0;  ///< below zero: it was too much already
  time_point as_of{};
  /// Never more than `most`.
  void refill(time_point now, std::size_t per_second, std::size_t most) noexcept;
};

/// What a router hears, by sender: `most` at once, and so much a second in the long run.
class heard_budget {
 public:
  heard_budget(std::size_t most, std::size_t per_second) : most_{most}, per_second_{per_second} {}

  /// False: this is more than its share; its connection should be closed.
  [[nodiscard]] bool admits(std::string_view sender, std::size_t amount, time_point now);

 private:
  std::size_t most_;
  std::size_t per_second_;
  std::unordered_map<std::string, flow_account> accounts_;
  std::string sender_;  ///< scratch
  std::size_t prune_at_ = 64;
};

/// Closes the connection over which `frame` came (it has to be the last one received). Its peer may connect
/// again. False: the connection has ended already.
bool close_connection_of(zmq::message_t& frame) noexcept;

/// Large answers of a router, by connection: somebody may ask for many, and read none, or ask for one after
/// the other, so that nothing else is done.
///
/// ZeroMQ frees a message when it has handed it to the network, and a large frame counts as waiting until
/// then. Small ones, which `most_unsent` bounds well enough, do not count.
class send_budget {
 public:
  /// 128 KiB for each worker that a connection may speak for.
  static constexpr std::size_t most_bytes = 32u << 20;
  static constexpr std::size_t small_bytes = 4096;

  /// What a connection is answered in a second, in the long run; `most_bytes` at once.
  static constexpr std::size_t bytes_per_second = 64u << 20;

  /// Whether a question of this connection, whose answer may be large, is worth working on now. False: it was
  /// answered more than its share.
  [[nodiscard]] bool may_ask(std::string_view connection, time_point now);

  /// The frame as a message; empty: too much waits for this connection already. One frame is always taken,
  /// whatever its size.
  [[nodiscard]] std::optional<zmq::message_t> admit(std::string_view connection,
                                                    std::span<const std::byte> frame, time_point now);

 private:
  using tally = std::atomic<std::size_t>;
  struct account {
    std::shared_ptr<tally> waiting = std::make_shared<tally>(0);  ///< messages keep it, too
    flow_account bytes{most_bytes};
  };

  std::unordered_map<std::string, account> accounts_;  ///< of connections with large answers
  std::size_t prune_at_ = 64;
};

/// Returns when the socket (or `other`) may have a message, `wake` is raised (it is lowered again), or
/// `until` has come.
void wait_for_input(zmq::socket_t& socket, wake_event& wake, time_point now, time_point until,
                    zmq::socket_t* other = nullptr);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/zmq_socket.ipp"
#endif
