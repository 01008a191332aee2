#pragma once
/// \file handshake.hpp
/// Observes the end of a socket's handshakes. ZeroMQ reports them on a second socket
/// (`zmq_socket_monitor`); the first socket reports nothing and tries again.
///
/// Thread safety: a monitor belongs to one thread at a time, like its socket.

#include <cstdint>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// `kind` is one of ZMQ_EVENT_...; zmq_socket_monitor(3) defines `value` for each of them.
struct handshake_event {
  std::uint16_t kind = 0;
  std::uint32_t value = 0;
};

inline constexpr int handshake_failures = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                                          ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

/// Must be destroyed before `watched`, by the thread that may use `watched` at that time: ZeroMQ's own thread
/// waits for the reader of the events unless the events were switched off.
class handshake_monitor {
 public:
  handshake_monitor(zmq::context_t& context, zmq::socket_t& watched, int events);
  ~handshake_monitor();
  handshake_monitor(const handshake_monitor&) = delete;
  handshake_monitor& operator=(const handshake_monitor&) = delete;

  /// The socket to poll for events.
  [[nodiscard]] zmq::socket_t& socket() noexcept { return events_; }

  [[nodiscard]] std::optional<handshake_event> next();

 private:
  void* watched_;
  zmq::socket_t events_;
  zmq::message_t frame_;
};

/// A worker's view of a failed handshake. `certain`: the other side has given the reason. (It need not give
/// one:
/// the side that detects the mismatch first closes the connection, and the other side learns no more.)
/// After a certain failure ZeroMQ does not reconnect by itself.
struct handshake_trouble {
  messages::status why{};
  bool certain = false;
};

[[nodiscard]] handshake_trouble explain_handshake(const handshake_event& event, const std::string& address,
                                                  const std::optional<client_security>& ours);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/handshake.ipp"
#endif
