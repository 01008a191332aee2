#pragma once
/// \file channel.hpp
/// The control channel between the two sides: one TCP connection, framed messages, deadlines everywhere.
///
/// Frame: 4 bytes "THTB", 2 bytes protocol number, 2 bytes zero, 4 bytes length (all little-endian), then the
/// payload, JSON text of at most `max_payload_bytes`. A frame that does not begin so ends the session with a
/// sentence. The data does not go over this connection.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tensorhub/detail/unique_fd.hpp>

#include "parse.hpp"

namespace transport_bench {

inline constexpr std::uint16_t control_protocol = 1;
inline constexpr std::uint16_t default_port = 5580;
inline constexpr std::size_t max_payload_bytes = 8u << 20;

/// The other side is gone, wrong or silent: exit status 1.
struct channel_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The reader has failed and has said so.
struct reader_gave_up : channel_error {
  using channel_error::channel_error;
};

class channel {
 public:
  using deadline = std::chrono::steady_clock::time_point;

  /// `peer`: how the other side is called in sentences ("the source at 10.0.0.1:5580").
  channel(tensorhub::detail::unique_fd socket, std::string peer);

  /// Both throw channel_error: other side closed, deadline passed, no transport_bench, other protocol number.
  void send(std::string_view payload, deadline until);
  [[nodiscard]] std::string receive(deadline until);
  /// True if the other side closes, or says something unasked, within the time.
  [[nodiscard]] bool speaks_within(std::chrono::milliseconds time) const;

  [[nodiscard]] const std::string& peer() const { return peer_; }
  /// This side's address of the connection, without port; IPv6 without brackets.
  [[nodiscard]] std::string local_host() const;

 private:
  void receive_exactly(void* into, std::size_t bytes, deadline until);
  tensorhub::detail::unique_fd socket_;
  std::string peer_;
};

/// Listens at once; `where.port` 0 takes any free one.
class control_listener {
 public:
  explicit control_listener(const host_and_port& where);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string text() const;
  /// Throws channel_error at the deadline.
  [[nodiscard]] channel accept(channel::deadline until);

 private:
  std::string host_;
  std::uint16_t port_ = 0;
  tensorhub::detail::unique_fd socket_;
};

/// Tries until the deadline: the other side may be starting.
[[nodiscard]] channel connect_control(const host_and_port& where, channel::deadline until);

}  // namespace transport_bench
