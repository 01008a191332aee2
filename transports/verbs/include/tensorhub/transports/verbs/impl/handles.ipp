#pragma once
/// \file handles.ipp
/// Definitions of handles.hpp.

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/handles.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL void set_nonblocking(int descriptor) noexcept {
  static_cast<void>(::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK));
}

TENSORHUB_DECL handle<rdma_event_channel> make_event_channel() {
  // Kernels before 5.12 give the parent new pages after a fork, and the adapter goes on reading the old ones:
  // a forked child does not inherit registered pages there. It must come before the first registration.
  [[maybe_unused]] static const int trouble = ::ibv_fork_init();
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

TENSORHUB_DECL handle<rdma_cm_id> make_id(rdma_event_channel& channel) {
  rdma_cm_id* id = nullptr;
  if (::rdma_create_id(&channel, &id, nullptr, RDMA_PS_TCP) != 0)
    throw error(errc::transport_failed, "verbs: no connection identifier: " + reason(errno));
  return handle<rdma_cm_id>{id};
}

TENSORHUB_DECL bool destroy_queue_pair(rdma_cm_id& id) noexcept {
  if (id.qp != nullptr && ::ibv_destroy_qp(id.qp) != 0) {
    ibv_qp_attr failed{};
    failed.qp_state = IBV_QPS_ERR;  // at least it begins no more reads
    static_cast<void>(::ibv_modify_qp(id.qp, &failed, IBV_QP_STATE));
    return false;
  }
  id.qp = nullptr;
  return true;
}

TENSORHUB_DECL std::optional<cm_answer> next_answer(rdma_event_channel& channel, deadline until) {
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
