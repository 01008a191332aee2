#pragma once
/// \file zmq_socket.hpp
/// What the client and the server shell share of ZeroMQ: one context per process, bounded sockets, and
/// waiting for input.
///
/// Thread safety: `shared_context` may be called from any thread; a socket belongs
/// to one thread.

#include <memory>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Exists while a shared pointer holds it; a process without hub objects has no ZeroMQ threads. A forked
/// child gets one of its own.
[[nodiscard]] std::shared_ptr<zmq::context_t> shared_context();

/// A socket with bounded memory: ZeroMQ closes the connection of a peer that sends a longer frame.
[[nodiscard]] zmq::socket_t bounded_socket(zmq::context_t& context, zmq::socket_type type);

/// Returns when the socket (or `other`) may have a message, `wake` is raised (it is lowered again), or
/// `until` has come.
void wait_for_input(zmq::socket_t& socket, wake_event& wake, time_point now, time_point until,
                    zmq::socket_t* other = nullptr);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/zmq_socket.ipp"
#endif
