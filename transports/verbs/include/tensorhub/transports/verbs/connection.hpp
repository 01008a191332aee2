#pragma once
/// \file connection.hpp
/// The reader's end of one connection: a queue pair with its completion queue, and its work requests.
///
/// Work requests complete in order, so that one completion covers all earlier ones. Each has a number, which
/// identifies it at the device (`wr_id`, the only reliable field of an error completion).
///
/// Thread safety: a connection belongs to one queue; only `lose` is for the thread that receives the
/// connection manager's events.

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/device.hpp"
#include "tensorhub/transports/verbs/handles.hpp"
#include "tensorhub/transports/verbs/options.hpp"
#include "tensorhub/transports/verbs/protocol.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

/// One RDMA READ: no larger than the port's limit, within one piece on either side.
struct work_request {
  std::uint64_t local_address = 0;
  std::uint32_t local_key = 0;
  std::uint32_t remote_key = 0;
  std::uint64_t remote_address = 0;
  std::uint32_t bytes = 0;
  std::uint32_t slot = 0;  ///< the read that it is part of
};

/// The destination of the events of established connections. The mutex belongs to the thread that receives
/// them: the thread sees everything that was written under the mutex before the first event.
struct event_home {
  rdma_event_channel& channel;
  std::mutex& mutex;
};

class connection {
 public:
  using clock = std::chrono::steady_clock;

  /// Connects, or throws `transport_failed` or `timed_out`. `events` receives the connection's end.
  connection(const rail& from, std::size_t local_rail, const named_address& to, const hello& greeting,
             const verbs_options& options, const event_home& events, deadline until);
  ~connection() { static_cast<void>(close()); }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;

  [[nodiscard]] std::size_t local_rail() const noexcept { return local_rail_; }
  [[nodiscard]] std::size_t remote_rail() const noexcept { return remote_rail_; }
  /// `welcome::key_maker` of the source.
  [[nodiscard]] incarnation key_maker() const noexcept { return key_maker_; }
  [[nodiscard]] std::uint64_t outstanding() const noexcept { return last_ - first_; }
  [[nodiscard]] bool has_room() const noexcept { return outstanding() < depth_; }
  [[nodiscard]] clock::time_point last_progress() const noexcept { return last_progress_; }
  void note_progress(clock::time_point now) noexcept { last_progress_ = now; }
  /// Readable when a signalled work request is complete; -1 in polling mode.
  [[nodiscard]] int descriptor() const noexcept { return completion_channel_ ? completion_channel_->fd : -1; }

  /// Precondition: has_room(). A work request that is not signalled completes with a later one that is.
  /// False: the queue pair does not accept the work request.
  [[nodiscard]] bool post(const work_request& what, bool is_last) noexcept;

  [[nodiscard]] int poll(ibv_wc* into, int most) noexcept {
    return ::ibv_poll_cq(completion_queue_.get(), most, into);
  }

  /// Calls `each(slot)` for all work requests up to and including this one.
  template <typename Each>
  void retire(std::uint64_t number, Each&& each) noexcept {
    while (first_ <= number && first_ != last_) each(slots_[first_++ & slot_mask_]);
  }
  /// Precondition: that work request is outstanding.
  [[nodiscard]] std::uint32_t slot_of(std::uint64_t number) const noexcept {
    return slots_[number & slot_mask_];
  }

  /// Makes the descriptor readable at the next completion.
  void arm() noexcept { static_cast<void>(::ibv_req_notify_cq(completion_queue_.get(), 0)); }
  void disarm() noexcept;

  /// Called when the peer has closed the connection: the outstanding work requests complete with an error.
  /// Any thread may call it.
  void lose() noexcept;

  /// When the function returns, the device writes nothing for this connection any more. False: the device did
  /// not give up the queue pair, and may write until the peer, which is told of the end, stops answering.
  [[nodiscard]] bool close() noexcept;

 private:
  static constexpr std::uint64_t largest_unsignalled_bytes = 4u << 20;

  void connect(const rail& from, const named_address& to, const hello& greeting, const verbs_options& options,
               const event_home& events, deadline until);

  /// Makes several short attempts: the kernel may consult its neighbour table only when an attempt begins or
  /// ends, although the neighbour has already answered.
  void resolve_address(rdma_event_channel& channel, const rail& from, const named_address& to,
                       const hello& greeting, deadline until);

  void make_queue_pair(const rail& from, const verbs_options& options);

  [[nodiscard]] static error refusal(const rail& from, const named_address& to, const std::string& why);

  void expect(rdma_event_channel& channel, rdma_cm_event_type wanted, const rail& from,
              const named_address& to, const hello& greeting, deadline until) {
    check(next_answer(channel, until), wanted, from, to, greeting);
  }

  /// Notes the source's `key_maker` when the connection is established.
  void check(const std::optional<cm_answer>& answer, rdma_cm_event_type wanted, const rail& from,
             const named_address& to, const hello& greeting);

  [[nodiscard]] static bool read_welcome(const cm_answer& answer, welcome& into) noexcept;

  [[nodiscard]] static std::string why_rejected(const cm_answer& answer, const hello& greeting);

  const std::size_t local_rail_;
  const std::size_t remote_rail_;
  incarnation key_maker_{};
  std::mutex mutex_;  ///< keeps `lose` and the destruction of the queue pair apart
  handle<ibv_comp_channel> completion_channel_;
  handle<ibv_cq> completion_queue_;
  handle<rdma_cm_id> id_;
  std::uint32_t depth_ = 0;
  std::uint32_t signal_interval_ = 1;
  std::uint32_t unsignalled_ = 0;
  std::uint64_t unsignalled_bytes_ = 0;
  std::vector<std::uint32_t> slots_;  ///< ring: slot of work request n at n & slot_mask_
  std::uint64_t slot_mask_ = 0;
  std::uint64_t first_ = 0;  ///< oldest outstanding work request
  std::uint64_t last_ = 0;   ///< the next one's number
  clock::time_point last_progress_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/connection.ipp"
#endif
