#pragma once
/// \file connection.ipp
/// Definitions of connection.hpp.

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "tensorhub/transports/verbs/connection.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL connection::connection(const rail& from, std::size_t local_rail, const named_address& to,
                                      const hello& greeting, const verbs_options& options,
                                      const event_home& events, deadline until)
    : local_rail_{local_rail}, remote_rail_{greeting.rail} {
  connect(from, to, greeting, options, events, until);
}

TENSORHUB_DECL bool connection::post(const work_request& what, bool is_last) noexcept {
  if (outstanding() == 0) last_progress_ = clock::now();
  ++unsignalled_;
  unsignalled_bytes_ += what.bytes;
  const bool signalled =
      is_last || unsignalled_ >= signal_interval_ || unsignalled_bytes_ >= largest_unsignalled_bytes;
  ibv_sge target{what.local_address, what.bytes, what.local_key};
  ibv_send_wr request{};
  request.wr_id = last_;
  request.sg_list = &target;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  if (signalled) request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = what.remote_address;
  request.wr.rdma.rkey = what.remote_key;
  ibv_send_wr* refused = nullptr;
  if (::ibv_post_send(id_->qp, &request, &refused) != 0) return false;
  slots_[last_++ & slot_mask_] = what.slot;
  if (signalled) {
    unsignalled_ = 0;
    unsignalled_bytes_ = 0;
  }
  return true;
}

TENSORHUB_DECL void connection::disarm() noexcept {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (::ibv_get_cq_event(completion_channel_.get(), &queue, &context) == 0) ::ibv_ack_cq_events(queue, 1);
}

TENSORHUB_DECL void connection::lose() noexcept {
  const std::lock_guard lock{mutex_};
  if (!id_ || id_->qp == nullptr) return;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_ERR;
  static_cast<void>(::ibv_modify_qp(id_->qp, &state, IBV_QP_STATE));
}

TENSORHUB_DECL bool connection::close() noexcept {
  handle<rdma_cm_id> id;
  bool is_over = true;
  {
    const std::lock_guard lock{mutex_};
    id = std::move(id_);
    is_over = !id || destroy_queue_pair(*id);
  }
  if (!is_over) {  // the queue pair uses them
    static_cast<void>(completion_queue_.release());
    static_cast<void>(completion_channel_.release());
  }
  id.reset();  // waits for events in progress, which may need the mutex
  completion_queue_.reset();
  completion_channel_.reset();
  first_ = last_;
  return is_over;
}

TENSORHUB_DECL void connection::connect(const rail& from, const named_address& to, const hello& greeting,
                                        const verbs_options& options, const event_home& events,
                                        deadline until) {
  const auto channel = make_event_channel();
  id_ = make_id(*channel);
  try {
    resolve_address(*channel, from, to, greeting, until);
    // Older kernels and some devices do not have this option; their own timeout then applies.
    std::uint8_t timeout = options.retry_timeout;
    static_cast<void>(::rdma_set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
    // Without time left there is no route; the function that waits for the event reports the timeout.
    if (::rdma_resolve_route(id_.get(), std::max(1, milliseconds_left(until))) != 0)
      throw refusal(from, to, "has no route: " + reason(errno));
    expect(*channel, RDMA_CM_EVENT_ROUTE_RESOLVED, from, to, greeting, until);
    make_queue_pair(from, options);
    rdma_conn_param wanted{};
    wanted.private_data = &greeting;
    wanted.private_data_len = sizeof greeting;
    wanted.responder_resources = 1;
    wanted.initiator_depth = from.limits.reads_out;
    wanted.retry_count = std::min<std::uint8_t>(options.retry_count, 7);
    wanted.rnr_retry_count = 7;
    if (::rdma_connect(id_.get(), &wanted) != 0)
      throw refusal(from, to, "cannot be connected to: " + reason(errno));
    expect(*channel, RDMA_CM_EVENT_ESTABLISHED, from, to, greeting, until);
    {
      const std::lock_guard lock{events.mutex};
      id_->context = this;
    }
    if (::rdma_migrate_id(id_.get(), &events.channel) != 0)
      throw refusal(from, to, "is connected, but its events cannot be received: " + reason(errno));
  } catch (...) {
    static_cast<void>(close());  // before its channel is destroyed; nothing was read yet
    throw;
  }
}

TENSORHUB_DECL void connection::resolve_address(rdma_event_channel& channel, const rail& from,
                                                const named_address& to, const hello& greeting,
                                                deadline until) {
  constexpr int longest_attempt_ms = 250;
  socket_address local = from.address;
  socket_address remote = to.address;
  for (;;) {
    const int attempt_ms = std::min(longest_attempt_ms, milliseconds_left(until));
    if (::rdma_resolve_addr(id_.get(), local.get(), remote.get(), attempt_ms) != 0)
      throw refusal(from, to, "cannot be reached: " + reason(errno));
    const auto answer = next_answer(channel, until);
    const bool again = answer && answer->type == RDMA_CM_EVENT_ADDR_ERROR && answer->status == -ETIMEDOUT &&
                       clock::now() < until;
    if (again) continue;
    return check(answer, RDMA_CM_EVENT_ADDR_RESOLVED, from, to, greeting);
  }
}

TENSORHUB_DECL void connection::make_queue_pair(const rail& from, const verbs_options& options) {
  const auto refuse = [&](const std::string& what) {
    throw error(errc::transport_failed, "verbs: no " + what + " on " + from.device + ": " + reason(errno));
  };
  depth_ = from.limits.queue_pair_depth;
  signal_interval_ = static_cast<std::uint32_t>(
      std::clamp<std::size_t>(options.signal_interval, 1, std::max<std::size_t>(1, depth_ / 2)));
  slots_.resize(std::bit_ceil(std::size_t{depth_}));
  slot_mask_ = slots_.size() - 1;
  if (options.completions == completion_mode::events) {
    completion_channel_.reset(::ibv_create_comp_channel(id_->verbs));
    if (!completion_channel_) refuse("completion channel");
    set_nonblocking(completion_channel_->fd);
  }
  completion_queue_.reset(
      ::ibv_create_cq(id_->verbs, static_cast<int>(depth_ + 1), nullptr, completion_channel_.get(), 0));
  if (!completion_queue_) refuse("completion queue of " + std::to_string(depth_ + 1) + " entries");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completion_queue_.get();
  wanted.cap = {depth_, 1, 1, 1, 0};
  wanted.qp_type = IBV_QPT_RC;
  if (::rdma_create_qp(id_.get(), from.domain.get(), &wanted) != 0)
    refuse("queue pair of " + std::to_string(depth_) + " work requests");
}

TENSORHUB_DECL error connection::refusal(const rail& from, const named_address& to, const std::string& why) {
  return {errc::transport_failed,
          "verbs: " + to.text + " " + why + " (from " + from.device + " at " + from.address.host() + ")"};
}

TENSORHUB_DECL void connection::check(const std::optional<cm_answer>& answer, rdma_cm_event_type wanted,
                                      const rail& from, const named_address& to, const hello& greeting) {
  if (!answer || (answer->type != wanted && answer->status == -ETIMEDOUT)) {
    throw error(errc::timed_out, "verbs: " + to.text + " does not answer within the connect timeout (from " +
                                     from.device + " at " + from.address.host() + ")");
  }
  if (answer->type == RDMA_CM_EVENT_REJECTED) throw refusal(from, to, why_rejected(*answer, greeting));
  if (answer->type != wanted) {
    const int status = answer->status < 0 ? -answer->status : answer->status;
    throw refusal(from, to,
                  std::string{"cannot be reached: "} + ::rdma_event_str(answer->type) +
                      (answer->status < 0 ? ", " + reason(status) : std::string{}));
  }
  if (wanted != RDMA_CM_EVENT_ESTABLISHED) return;
  welcome said;
  if (!read_welcome(*answer, said)) throw refusal(from, to, "is not a TensorHub data port");
  const std::string why = detail::why_refused(said, data_protocol, {greeting.source});
  if (!why.empty()) throw refusal(from, to, why);
  key_maker_ = {said.key_maker};
}

TENSORHUB_DECL bool connection::read_welcome(const cm_answer& answer, welcome& into) noexcept {
  if (answer.private_bytes < sizeof into) return false;
  std::memcpy(&into, answer.private_data.data(), sizeof into);
  return into.magic == welcome_magic;
}

TENSORHUB_DECL std::string connection::why_rejected(const cm_answer& answer, const hello& greeting) {
  welcome said;
  if (!read_welcome(answer, said)) {
    constexpr int no_listener = 8;  // IB_CM_REJ_INVALID_SERVICE_ID
    if (answer.status == no_listener || answer.status == -ECONNREFUSED)
      return "refused the connection: nothing is listening";
    return "rejected the connection (reason " + std::to_string(answer.status) +
           "): it is not a TensorHub data port, or is shutting down";
  }
  if (said.status == welcome_status::other_transport)
    return "did not understand the greeting of this transport";
  if (said.status == welcome_status::overloaded)
    return "accepts no more connections (see max_connections, and the device's number of queue pairs)";
  if (said.status == welcome_status::crowded)
    return "takes no more connections of this worker: raise its option max_connections_per_reader";
  const std::string why = detail::why_refused(said, data_protocol, {greeting.source});
  return why.empty() ? "rejected the connection without a reason" : why;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
