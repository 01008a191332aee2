#pragma once
/// \file handles.hpp
/// Owners of the objects of libibverbs and librdmacm, and the events of the connection manager.
///
/// Thread safety: values; the objects behind them are thread safe in their libraries.

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/address.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

struct handle_closer {
  void operator()(rdma_event_channel* channel) const noexcept { ::rdma_destroy_event_channel(channel); }
  /// Waits until all events of the id are acknowledged. Tells a connected peer.
  void operator()(rdma_cm_id* id) const noexcept { static_cast<void>(::rdma_destroy_id(id)); }
  void operator()(ibv_pd* domain) const noexcept { static_cast<void>(::ibv_dealloc_pd(domain)); }
  void operator()(ibv_cq* queue) const noexcept { static_cast<void>(::ibv_destroy_cq(queue)); }
  void operator()(ibv_comp_channel* channel) const noexcept {
    static_cast<void>(::ibv_destroy_comp_channel(channel));
  }
};
template <typename Object>
using handle = std::unique_ptr<Object, handle_closer>;

[[nodiscard]] inline std::string reason(int number) {
  return std::strerror(number);
}

inline void set_nonblocking(int descriptor) noexcept {
  static_cast<void>(::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK));
}

[[nodiscard]] inline handle<rdma_event_channel> make_event_channel() {
  handle<rdma_event_channel> channel{::rdma_create_event_channel()};
  if (!channel) {
    throw error(errc::transport_failed,
                "verbs: the RDMA connection manager cannot be used: " + reason(errno) +
                    " (is the kernel module rdma_ucm loaded, and may this process "
                    "open /dev/infiniband/rdma_cm?)");
  }
  set_nonblocking(channel->fd);
  return channel;
}

[[nodiscard]] inline handle<rdma_cm_id> make_id(rdma_event_channel& channel) {
  rdma_cm_id* id = nullptr;
  if (::rdma_create_id(&channel, &id, nullptr, RDMA_PS_TCP) != 0)
    throw error(errc::transport_failed, "verbs: no connection identifier: " + reason(errno));
  return handle<rdma_cm_id>{id};
}

/// An event of the connection manager, copied: it is acknowledged already.
struct cm_answer {
  rdma_cm_event_type type = RDMA_CM_EVENT_CONNECT_ERROR;
  int status = 0;
  std::array<std::byte, 64> private_data{};
  std::size_t private_bytes = 0;
};

/// The channel's next event; nothing at the deadline.
[[nodiscard]] inline std::optional<cm_answer> next_answer(rdma_event_channel& channel, deadline until) {
  for (;;) {
    rdma_cm_event* event = nullptr;
    if (::rdma_get_cm_event(&channel, &event) == 0) {
      cm_answer answer{event->event, event->status, {}, 0};
      if (event->param.conn.private_data != nullptr) {
        answer.private_bytes =
            std::min<std::size_t>(event->param.conn.private_data_len, answer.private_data.size());
        std::memcpy(answer.private_data.data(), event->param.conn.private_data, answer.private_bytes);
      }
      static_cast<void>(::rdma_ack_cm_event(event));
      return answer;
    }
    if (errno != EAGAIN && errno != EINTR)
      throw error(errc::transport_failed, "verbs: no events of the connection manager: " + reason(errno));
    if (std::chrono::steady_clock::now() >= until) return std::nullopt;
    pollfd entry{channel.fd, POLLIN, 0};
    static_cast<void>(::poll(&entry, 1, milliseconds_left(until)));
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
