#pragma once
/// \file control_connection.hpp
/// A process's connection to its reference servers: one DEALER socket and one thread, for all sessions that
/// name the same servers and keys.
///
/// Each session has an end of it (`control_end`; client.hpp has the one that workers use). The server
/// addresses its messages to a worker (`envelope::recipient`). All ends use the same server of the list: when
/// one session gives it up, the connection moves, and the other sessions are told.
///
/// Thread safety: all members may be called from any thread; an end that is being called may call
/// `use_server`, `wake` and `trouble`.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What a connection calls, in its thread, one call at a time.
class control_end {
 public:
  /// False: the message is for another end.
  [[nodiscard]] virtual bool receive(time_point now, const messages::envelope& message) noexcept = 0;
  /// Does what is due, and appends what is to be sent. Returns when it is due again.
  [[nodiscard]] virtual time_point step(time_point now, std::vector<messages::envelope>& out) noexcept = 0;
  /// The connection uses the server with this index in the list from now on.
  virtual void move_to_server(time_point now, std::size_t index) noexcept = 0;

 protected:
  ~control_end() = default;
};

class control_connection {
 public:
  /// `servers`: addresses with commas between. Connects in the background and never stops trying. Throws
  /// `invalid_argument` for an invalid address, `system_failed` if this process can start no thread, or open
  /// too few descriptors. `security`: its fields must be valid.
  TENSORHUB_DECL control_connection(std::string servers, std::optional<client_security> security);
  TENSORHUB_DECL ~control_connection();
  control_connection(const control_connection&) = delete;
  control_connection& operator=(const control_connection&) = delete;

  /// True: a session with these servers and keys may use it, and there is room for one more.
  [[nodiscard]] TENSORHUB_DECL bool fits(const std::string& servers,
                                         const std::optional<client_security>& security) const;

  /// `end` is borrowed until `remove`.
  TENSORHUB_DECL void add(control_end& end);
  /// Takes what the end still has to send; afterwards the end is not called any more.
  TENSORHUB_DECL void remove(control_end& end) noexcept;

  /// Some end has something to send, or is due earlier than it has said.
  TENSORHUB_DECL void wake() noexcept;

  /// Messages that the present server has not received yet are dropped. The only one, if it has been silent:
  /// over a new connection.
  TENSORHUB_DECL void use_server(std::size_t index);

  /// Why the last attempts to connect failed in the handshake, for sentences; empty: no handshake has failed
  /// since the last message of the server. The code is `disconnected`, or another one if a server has refused
  /// this process for certain, and none has ever answered.
  [[nodiscard]] TENSORHUB_DECL messages::status trouble() const;

 private:
  class loop;
  std::unique_ptr<loop> loop_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/control_connection.ipp"
#endif
