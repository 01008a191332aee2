#pragma once
/// \file zmq_socket.ipp
/// Definitions of service/zmq_socket.hpp.

#include "tensorhub/service/zmq_socket.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

#include "tensorhub/config.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::shared_ptr<zmq::context_t> shared_context() {
  static std::mutex mutex;
  static std::weak_ptr<zmq::context_t> present;
  const std::lock_guard lock{mutex};
  auto context = present.lock();
  if (!context) {
    context = std::make_shared<zmq::context_t>(1);
    context->set(zmq::ctxopt::max_sockets, 16384);
    present = context;
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

TENSORHUB_DECL wake_signal::wake_signal() : descriptor_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)} {
  if (!descriptor_) throw error(errc::system_failed, std::string{"no eventfd: "} + std::strerror(errno));
}

TENSORHUB_DECL void wake_signal::raise() noexcept {
  const std::uint64_t one = 1;
  // A full counter (EAGAIN) means that the signal is already raised.
  [[maybe_unused]] const auto written = ::write(descriptor_.get(), &one, sizeof one);
}

TENSORHUB_DECL void wake_signal::lower() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto taken = ::read(descriptor_.get(), &count, sizeof count);
}

TENSORHUB_DECL void wait_for_input(zmq::socket_t& socket, wake_signal& signal, time_point now,
                                   time_point until, zmq::socket_t* other) {
  constexpr std::int64_t longest_ms = 1000;
  const std::int64_t left_ms =
      until <= now ? 0 : std::min<std::int64_t>((until - now).count() / 1'000'000 + 1, longest_ms);
  zmq::pollitem_t items[] = {{socket.handle(), 0, ZMQ_POLLIN, 0},
                             {nullptr, signal.descriptor(), ZMQ_POLLIN, 0},
                             {other == nullptr ? nullptr : other->handle(), 0, ZMQ_POLLIN, 0}};
  try {
    zmq::poll(items, other == nullptr ? 2 : 3, std::chrono::milliseconds{left_ms});
  } catch (const zmq::error_t&) {  // interrupted by a signal: the caller looks again
  }
  if ((items[1].revents & ZMQ_POLLIN) != 0) signal.lower();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
