#pragma once
/// \file zmq_socket.ipp
/// Definitions of service/zmq_socket.hpp.

#include "tensorhub/service/zmq_socket.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/process_wide.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/service/listen_filter.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

struct present_context {
  std::mutex mutex;
  std::weak_ptr<zmq::context_t> context;  ///< guarded by mutex
  void in_child() noexcept { context.reset(); }
};

TENSORHUB_DECL std::shared_ptr<zmq::context_t> new_context(std::string_view owner, int io_threads) {
  require_threads(owner, static_cast<std::size_t>(io_threads) + 1);
  return std::make_shared<zmq::context_t>(io_threads);
}

TENSORHUB_DECL std::shared_ptr<zmq::context_t> shared_context(std::string_view owner) {
  auto& present = process_wide<present_context>();
  const std::lock_guard lock{present.mutex};
  auto context = present.context.lock();
  if (!context) {
    context = new_context(owner, 1);
    context->set(zmq::ctxopt::max_sockets, 16384);
    present.context = context;
  }
  return context;
}

TENSORHUB_DECL zmq::socket_t bounded_socket(zmq::context_t& context, zmq::socket_type type) {
  zmq::socket_t socket{context, type};
  socket.set(zmq::sockopt::linger, 0);
  const bool is_server = type == zmq::socket_type::router;
  constexpr std::size_t of_curve = 64;  // what encryption adds counts, too: 33 bytes
  socket.set(zmq::sockopt::maxmsgsize,
             static_cast<std::int64_t>(is_server ? most_heard_bytes + of_curve : limits::frame_bytes));
  socket.set(zmq::sockopt::handshake_ivl, 5000);
  socket.set(zmq::sockopt::tcp_maxrt, static_cast<int>(peer_silence.count()));
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, static_cast<int>(peer_silence.count() / 3000));
  socket.set(zmq::sockopt::tcp_keepalive_intvl, static_cast<int>(peer_silence.count() / 3000));
  socket.set(zmq::sockopt::tcp_keepalive_cnt, 2);
  socket.set(zmq::sockopt::connect_timeout, static_cast<int>(connect_attempt.count()));
  socket.set(zmq::sockopt::sndhwm, most_unsent);
  socket.set(zmq::sockopt::backlog, most_arriving);
  socket.set(zmq::sockopt::rcvhwm, is_server ? most_unheard : most_unsent);
  return socket;
}

TENSORHUB_DECL void set_family(zmq::socket_t& socket, std::string_view address) {
  socket.set(zmq::sockopt::ipv6, address.starts_with("tcp://["));
}

TENSORHUB_DECL void flow_account::refill(time_point now, std::size_t per_second, std::size_t most) noexcept {
  const double seconds = to_seconds(now - as_of);
  as_of = now;
  const auto limit = static_cast<std::int64_t>(most);
  const double earned = std::min(seconds * static_cast<double>(per_second), 2.0 * static_cast<double>(most));
  left = std::min(left + static_cast<std::int64_t>(earned), limit);
}

TENSORHUB_DECL bool heard_budget::admits(std::string_view sender, std::size_t amount, time_point now) {
  const auto most = static_cast<std::int64_t>(most_);
  if (accounts_.size() >= prune_at_) {
    for (auto& [name, each] : accounts_) each.refill(now, per_second_, most_);
    std::erase_if(accounts_, [most](const auto& entry) { return entry.second.left == most; });
    prune_at_ = 2 * accounts_.size() + 64;
  }
  sender_.assign(sender);
  flow_account& known = accounts_.try_emplace(sender_, flow_account{most, now}).first->second;
  known.refill(now, per_second_, most_);
  known.left = std::max(known.left - static_cast<std::int64_t>(amount), -most);
  return known.left >= 0;
}

TENSORHUB_DECL bool close_connection_of(zmq::message_t& frame) noexcept {
  // The connection may have ended, and its descriptor may belong to another one by now. That one is closed
  // only if it has the same peer, which connects again.
  const int descriptor = ::zmq_msg_get(frame.handle(), ZMQ_SRCFD);
  const char* const address = ::zmq_msg_gets(frame.handle(), "Peer-Address");
  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  if (descriptor < 0 || address == nullptr ||
      ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0)
    return false;
  const auto network = network_of(peer);
  return network && network == network_of(std::string_view{address}) &&
         ::shutdown(descriptor, SHUT_RDWR) == 0;
}

TENSORHUB_DECL bool send_budget::may_ask(std::string_view connection, time_point now) {
  const auto found = accounts_.find(std::string{connection});
  if (found == accounts_.end()) return true;
  found->second.bytes.refill(now, bytes_per_second, most_bytes);
  return found->second.bytes.left > 0;
}

TENSORHUB_DECL std::optional<zmq::message_t> send_budget::admit(std::string_view connection,
                                                                std::span<const std::byte> frame,
                                                                time_point now) {
  if (frame.size() <= small_bytes) return zmq::message_t{frame.data(), frame.size()};
  struct counted_frame {
    std::shared_ptr<tally> counts;
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size;
  };
  if (accounts_.size() >= prune_at_) {
    for (auto& [name, each] : accounts_) each.bytes.refill(now, bytes_per_second, most_bytes);
    std::erase_if(accounts_, [](const auto& entry) {
      return entry.second.bytes.left == std::int64_t{most_bytes} && entry.second.waiting->load() == 0;
    });
    prune_at_ = 2 * accounts_.size() + 64;
  }
  account& known = accounts_[std::string{connection}];
  known.bytes.refill(now, bytes_per_second, most_bytes);
  known.bytes.left -= static_cast<std::int64_t>(frame.size());
  const auto& counts = known.waiting;
  const std::size_t present = counts->load(std::memory_order_relaxed);
  if (present > 0 && present + frame.size() > most_bytes) return std::nullopt;
  auto held = std::make_unique<counted_frame>(
      counted_frame{counts, std::make_unique<std::byte[]>(frame.size()), frame.size()});
  std::memcpy(held->bytes.get(), frame.data(), frame.size());
  zmq::message_t out{held->bytes.get(), frame.size(),
                     [](void*, void* given) {
                       const std::unique_ptr<counted_frame> sent{static_cast<counted_frame*>(given)};
                       sent->counts->fetch_sub(sent->size, std::memory_order_relaxed);
                     },
                     held.get()};
  held.release();
  counts->fetch_add(frame.size(), std::memory_order_relaxed);
  return out;
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
