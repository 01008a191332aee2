#pragma once
/// \file zmq_socket.hpp
/// The use of ZeroMQ that the client and the server shell share: one context per process, bounded sockets,
/// and a
/// signal that wakes a polling thread.
///
/// Thread safety: `shared_context` and `wake_signal::raise` may be called from any thread; a socket belongs
/// to one thread.

#include <memory>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Exists while a shared pointer holds it; a process without hub objects has no ZeroMQ threads.
[[nodiscard]] std::shared_ptr<zmq::context_t> shared_context();

/// A socket with bounded memory: ZeroMQ closes the connection of a peer that sends a longer frame.
[[nodiscard]] zmq::socket_t bounded_socket(zmq::context_t& context, zmq::socket_type type);

/// Ends the present or the next `wait_for_input` of another thread.
class wake_signal {
 public:
  wake_signal();
  void raise() noexcept;
  void lower() noexcept;
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  unique_fd descriptor_;
};

/// Returns when the socket (or `other`) may have a message, the signal was raised, or `until` has passed.
void wait_for_input(zmq::socket_t& socket, wake_signal& signal, time_point now, time_point until,
                    zmq::socket_t* other = nullptr);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/zmq_socket.ipp"
#endif
