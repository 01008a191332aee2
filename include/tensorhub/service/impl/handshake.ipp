#pragma once
/// \file handshake.ipp
/// Definitions of service/handshake.hpp.

#include "tensorhub/service/handshake.hpp"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "tensorhub/error.hpp"
#include "tensorhub/service/zmq_socket.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL handshake_monitor::handshake_monitor(zmq::context_t& context, zmq::socket_t& watched,
                                                    int events)
    : watched_{watched.handle()}, events_{context, zmq::socket_type::pair} {
  static std::atomic<std::uint64_t> count = 0;
  const std::string address = "inproc://tensorhub-handshakes-" + std::to_string(++count);
  events_.set(zmq::sockopt::linger, 0);
  // No limit: ZeroMQ's thread sends events with a blocking call, under the mutex that ends the monitor too.
  // At a limit it would stop all connections, and the destructor for ever. An event takes some 100 bytes, and
  // who reads them does nothing but that.
  events_.set(zmq::sockopt::rcvhwm, 0);
  if (::zmq_socket_monitor(watched_, address.c_str(), events) != 0) throw zmq::error_t{};
  events_.connect(address);
}

TENSORHUB_DECL handshake_monitor::~handshake_monitor() {
  ::zmq_socket_monitor(watched_, nullptr, 0);
}

TENSORHUB_DECL std::optional<handshake_event> handshake_monitor::next() {
  try {
    if (!events_.recv(frame_, zmq::recv_flags::dontwait)) return std::nullopt;
    handshake_event out;
    if (frame_.size() >= 6) {
      std::memcpy(&out.kind, frame_.data(), 2);
      std::memcpy(&out.value, static_cast<const char*>(frame_.data()) + 2, 4);
    }
    while (frame_.more())
      static_cast<void>(uninterrupted([&] { return events_.recv(frame_, zmq::recv_flags::none); }));
    return out;
  } catch (const zmq::error_t&) {
    return std::nullopt;
  }
}

TENSORHUB_DECL handshake_trouble explain_handshake(const handshake_event& event, const std::string& address,
                                                   const std::optional<client_security>& ours) {
  const std::string server = "the reference server at " + address;
  if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
    return {
        {errc::refused, server + " does not let this process in: put its public key " +
                            (ours ? ours->keys.public_key : std::string{}) + " on the server's allow-list"},
        true};
  }
  if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL &&
      event.value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    if (ours) {
      return {
          {errc::protocol_mismatch, server + " is not secured, and this process insists on it: start "
                                             "the server with keys and a list of allowed clients (program: "
                                             "--keys, --allow), or leave out the option security here"},
          true};
    }
    return {{errc::protocol_mismatch, server + " is secured by CURVE: set the option security to its "
                                               "public key and to a key pair that it allows"},
            true};
  }
  // ZeroMQ's own time-out; a connection that the server closes has another errno.
  if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && event.value == EAGAIN) {
    return {{errc::disconnected,
             server + " has been connected to, and says nothing: it is stopped or too busy, or it "
                      "has no descriptor left to let this process in (its log says so; "
                      "ulimit -n)"},
            false};
  }
  if (ours) {
    return {{errc::refused, server + " ends the secured handshake: either server_key (" + ours->server_key +
                                ") is not its public key, or it is not secured"},
            false};
  }
  return {{errc::protocol_mismatch, server + " ends the ZeroMQ handshake: if it is secured by CURVE, set "
                                             "the option security to its public key and to a key pair "
                                             "that it allows"},
          false};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
