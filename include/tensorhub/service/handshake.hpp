#pragma once
/// \file handshake.hpp
/// How the handshakes of a socket end: ZeroMQ tells it on a second socket (`zmq_socket_monitor`), because the
/// first one stays silent and tries again.
///
/// Thread safety: a monitor belongs to one thread at a time, as its socket does.

#include <cstdint>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// One of ZMQ_EVENT_...; `value` is what zmq_socket_monitor(3) says of it.
struct handshake_event {
  std::uint16_t kind = 0;
  std::uint32_t value = 0;
};

inline constexpr int handshake_failures = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                                          ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

/// Must be destroyed before `watched`, by the thread that may use that then: ZeroMQ's own thread waits for
/// whoever should read the events, unless it is told to send none.
class handshake_monitor {
 public:
  handshake_monitor(zmq::context_t& context, zmq::socket_t& watched, int events);
  ~handshake_monitor();
  handshake_monitor(const handshake_monitor&) = delete;
  handshake_monitor& operator=(const handshake_monitor&) = delete;

  /// To poll.
  [[nodiscard]] zmq::socket_t& socket() noexcept { return events_; }

  [[nodiscard]] std::optional<handshake_event> next();

 private:
  void* watched_;
  zmq::socket_t events_;
  zmq::message_t frame_;
};

/// A worker's view of a handshake that failed. `certain`: the other side has said why. (It need not: of two
/// sides that do not fit, the one that sees it first closes the connection, and the other learns no more.)
/// After a certain one ZeroMQ does not connect again by itself.
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
