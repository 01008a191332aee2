#pragma once
/// \file zmq_socket.ipp
/// Definitions of service/zmq_socket.hpp.

#include "tensorhub/service/zmq_socket.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/process_wide.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

struct present_context {
  std::mutex mutex;
  std::weak_ptr<zmq::context_t> context;  ///< guarded by mutex
  void in_child() noexcept { context.reset(); }
};

TENSORHUB_DECL std::shared_ptr<zmq::context_t> shared_context() {
  auto& present = process_wide<present_context>();
  const std::lock_guard lock{present.mutex};
  auto context = present.context.lock();
  if (!context) {
    context = std::make_shared<zmq::context_t>(1);
    context->set(zmq::ctxopt::max_sockets, 16384);
    present.context = context;
  }
  return context;
}

TENSORHUB_DECL zmq::socket_t bounded_socket(zmq::context_t& context, zmq::socket_type type) {
  zmq::socket_t socket{context, type};
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(limits::frame_bytes));
  socket.set(zmq::sockopt::handshake_ivl, 5000);
  return socket;
}

TENSORHUB_DECL void wait_for_input(zmq::socket_t& socket, wake_event& wake, time_point now, time_point until,
                                   zmq::socket_t* other) {
  constexpr std::int64_t longest_ms = 1000;
  const std::int64_t left_ms =
      until <= now ? 0 : std::min<std::int64_t>((until - now).count() / 1'000'000 + 1, longest_ms);
  zmq::pollitem_t items[] = {{socket.handle(), 0, ZMQ_POLLIN, 0},
                             {nullptr, wake.descriptor(), ZMQ_POLLIN, 0},
                             {other == nullptr ? nullptr : other->handle(), 0, ZMQ_POLLIN, 0}};
  try {
    zmq::poll(items, other == nullptr ? 2 : 3, std::chrono::milliseconds{left_ms});
  } catch (const zmq::error_t&) {  // interrupted by a signal: the caller looks again
  }
  if ((items[1].revents & ZMQ_POLLIN) != 0) wake.lower();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
