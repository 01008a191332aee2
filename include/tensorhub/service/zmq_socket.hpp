#pragma once
/// \file zmq_socket.hpp
/// What the client and the server shell share of ZeroMQ: one context per process, bounded sockets, and
/// waiting for input.
///
/// Thread safety: `shared_context` may be called from any thread; a socket and a budget belong to one thread.

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Exists while a shared pointer holds it; a process without hub objects has no ZeroMQ threads. A forked
/// child gets one of its own.
[[nodiscard]] std::shared_ptr<zmq::context_t> shared_context();

/// ZeroMQ counts messages per connection, not their bytes.
///
/// A connection speaks for up to limits::workers_of_connection (256) workers, and what the server decides for
/// all of them at once (an answer, a heartbeat's answer, two pushes each) must fit, or they would ask again.
inline constexpr int most_unsent = 1024;
/// What the server has not taken yet waits in the network and at its sender, and is not lost: only so many
/// messages of a connection wait in its memory, and one more is being received.
inline constexpr int most_unheard = 8;
/// Of one message to a server: a join that describes 100,000 tensors takes 8,100,117.
inline constexpr std::size_t most_heard_bytes = 8u << 20;
/// A connection is served by one of them, so strangers' handshakes delay the others' connections less.
inline constexpr int server_io_threads = 2;

/// A socket with bounded memory: ZeroMQ closes the connection of a peer that sends a longer frame, and keeps
/// at most `most_unsent` messages for a connection and of it; a router keeps `most_unheard` of it, each of
/// `most_heard_bytes` at most.
[[nodiscard]] zmq::socket_t bounded_socket(zmq::context_t& context, zmq::socket_type type);

/// The bytes that wait for the connections of a router: somebody may ask for large answers, and read none.
///
/// ZeroMQ frees a message when it has handed it to the network, and a large frame counts until then. Small
/// ones, which `most_unsent` bounds well enough, do not count.
class send_budget {
 public:
  /// 128 KiB for each worker that a connection may speak for.
  static constexpr std::size_t most_bytes = 32u << 20;
  static constexpr std::size_t small_bytes = 4096;

  /// The frame as a message; empty: too much waits for this connection already. One frame is always taken,
  /// whatever its size.
  [[nodiscard]] std::optional<zmq::message_t> admit(std::string_view connection,
                                                    std::span<const std::byte> frame);

 private:
  using tally = std::atomic<std::size_t>;

  /// Messages keep their connection's tally, even if the connection has none here any more.
  std::unordered_map<std::string, std::weak_ptr<tally>> waiting_;
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
