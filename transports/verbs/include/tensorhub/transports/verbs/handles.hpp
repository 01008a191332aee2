#pragma once
/// \file handles.hpp
/// Owners of the objects of libibverbs and librdmacm, and the events of the connection manager.
///
/// Thread safety: values; their libraries make the underlying objects thread-safe.

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/verbs/address.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

struct handle_closer {
  void operator()(rdma_event_channel* channel) const noexcept { ::rdma_destroy_event_channel(channel); }
  /// Waits until all events of the id are acknowledged, and notifies a connected peer.
  void operator()(rdma_cm_id* id) const noexcept { static_cast<void>(::rdma_destroy_id(id)); }
  void operator()(ibv_pd* domain) const noexcept { static_cast<void>(::ibv_dealloc_pd(domain)); }
  void operator()(ibv_cq* queue) const noexcept { static_cast<void>(::ibv_destroy_cq(queue)); }
  void operator()(ibv_qp* pair) const noexcept { static_cast<void>(::ibv_destroy_qp(pair)); }
  void operator()(ibv_mr* memory) const noexcept { static_cast<void>(::ibv_dereg_mr(memory)); }
  void operator()(ibv_mw* window) const noexcept { static_cast<void>(::ibv_dealloc_mw(window)); }
  void operator()(ibv_comp_channel* channel) const noexcept {
    static_cast<void>(::ibv_destroy_comp_channel(channel));
  }
};
template <typename Object>
using handle = std::unique_ptr<Object, handle_closer>;

[[nodiscard]] inline std::string reason(int number) {
  return std::strerror(number);
}

void set_nonblocking(int descriptor) noexcept;

[[nodiscard]] handle<rdma_event_channel> make_event_channel();

[[nodiscard]] handle<rdma_cm_id> make_id(rdma_event_channel& channel);

/// Destroys the id's queue pair, if it has one. False: it is still there, and the device may go on reading
/// and writing for it. (rdma_destroy_qp does not tell.)
[[nodiscard]] bool destroy_queue_pair(rdma_cm_id& id) noexcept;

/// A copy of an event of the connection manager, which is acknowledged already.
struct cm_answer {
  rdma_cm_event_type type = RDMA_CM_EVENT_CONNECT_ERROR;
  int status = 0;
  std::array<std::byte, 64> private_data{};
  std::size_t private_bytes = 0;
};

/// The channel's next event; empty at the deadline.
[[nodiscard]] std::optional<cm_answer> next_answer(rdma_event_channel& channel, deadline until);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/handles.ipp"
#endif
