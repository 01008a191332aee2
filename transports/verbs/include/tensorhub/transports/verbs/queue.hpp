#pragma once
/// \file queue.hpp
/// The reading side of the verbs transport: queues, and the endpoints on them.
///
/// A read is cut into work requests: at the port's largest size, and at the ends of the pieces of both
/// regions. Work requests alternate strictly between the endpoint's connections, so that the last ones of a
/// read are the last ones on their connections: those are signalled. Reads that do not fit into the queue
/// pairs wait in the endpoint's line. A read ends when all its work requests are complete.
///
/// The first error breaks the endpoint: its queue pairs are destroyed, after which no byte can arrive, and
/// its outstanding reads end. The queue does not wait for the device to flush.
///
/// Thread safety: a queue and its endpoints belong to one thread at a time; only `wake` is for any thread.

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/connection.hpp"
#include "tensorhub/transports/verbs/options.hpp"
#include "tensorhub/transports/verbs/protocol.hpp"
#include "tensorhub/transports/verbs/region.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/read_ledger.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

class queue_core;
class endpoint_core;

inline constexpr std::uint32_t no_slot = UINT32_MAX;

/// One outstanding read.
struct read_slot {
  endpoint_core* endpoint = nullptr;  ///< null: free
  request_id id = 0;
  const region* into = nullptr;
  std::uint64_t local_offset = 0;        ///< of the next work request, in the local region
  std::uint64_t remote_offset = 0;       ///< of the next work request, in the remote region
  std::uint64_t unposted_bytes = 0;      ///< not yet cut into work requests
  std::uint64_t remote_piece_bytes = 0;  ///< length of the remote region's registrations
  std::uint32_t work_requests = 0;       ///< posted, not complete
  std::uint32_t next = no_slot;          ///< in the endpoint's line, or in the list of free slots
  region_key key{};
};

/// Connections to one source. Owned by an endpoint, listed by its queue.
class endpoint_core {
 public:
  endpoint_core(queue_core& owner, incarnation peer, std::size_t rails, std::uint64_t largest_work_request)
      : owner_{&owner}, peer_{peer}, rails_{rails}, largest_work_request_{largest_work_request} {}
  ~endpoint_core();
  endpoint_core(const endpoint_core&) = delete;
  endpoint_core& operator=(const endpoint_core&) = delete;

  [[nodiscard]] incarnation peer() const noexcept { return peer_; }
  [[nodiscard]] bool usable() const noexcept { return usable_; }
  /// The number of the source's rails in use; its keys must cover at least as many.
  [[nodiscard]] std::size_t rails() const noexcept { return rails_; }
  void add(std::unique_ptr<connection> fresh) {
    if (connections_.empty()) key_maker_ = fresh->key_maker();
    connections_.push_back(std::move(fresh));
  }
  /// What the source's keys are bound to, as the source has said on the first connection. A broken endpoint
  /// has no connections any more.
  [[nodiscard]] incarnation key_maker() const noexcept { return key_maker_; }

 private:
  friend class queue_core;
  queue_core* owner_;
  incarnation peer_;
  incarnation key_maker_{};
  std::size_t rails_;
  std::uint64_t largest_work_request_;
  bool usable_ = true;
  std::vector<std::unique_ptr<connection>> connections_;
  std::size_t turn_ = 0;                ///< the connection for the next work request
  std::size_t reads_ = 0;               ///< slots in use
  std::uint32_t line_first_ = no_slot;  ///< reads that are not completely posted, in order
  std::uint32_t line_last_ = no_slot;
};

class queue_core {
 public:
  queue_core(std::size_t depth, const verbs_options& options);
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t outstanding() const noexcept { return ledger_.outstanding(); }

  /// Precondition: the endpoint has its connections.
  void attach(endpoint_core& endpoint);
  void detach(endpoint_core& endpoint) noexcept;

  /// Precondition: the read fits both regions, and is not empty.
  [[nodiscard]] post_result post(endpoint_core& endpoint, request_id id, const region& into,
                                 std::uint64_t offset, const region_key& key, std::uint64_t remote_offset,
                                 std::uint64_t bytes) noexcept;

  /// Ends a read without sending it.
  [[nodiscard]] post_result post_finished(request_id id, completion_status status) noexcept {
    return ledger_.begin_and_end({id, status});
  }

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept;

  void wait(duration timeout) noexcept;

  void wake() noexcept;

 private:
  static constexpr int batch = 16;

  /// Maps error statuses; most mean that the connection is lost.
  [[nodiscard]] static completion_status status_of(ibv_wc_status status) noexcept;

  void take_wake() noexcept;

  void spin(connection::clock::time_point until) noexcept;

  /// Cuts the reads in line into work requests, as far as the connections accept them.
  void post_line(endpoint_core& endpoint) noexcept;

  void receive() noexcept;

  void receive(endpoint_core& endpoint) noexcept;

  /// Takes the completions that have arrived, before the connections are closed.
  void take_completed(endpoint_core& endpoint, const connection* without = nullptr) noexcept;

  /// Called when one work request of this read is complete.
  void retire(std::uint32_t number) noexcept;

  void end(std::uint32_t number, completion_status status) noexcept;

  /// Closes the endpoint's connections first, so that no byte arrives later, and then ends all of its reads.
  void give_up(endpoint_core& endpoint, completion_status why, std::uint32_t offending = no_slot,
               completion_status offence = completion_status::peer_lost) noexcept;

  read_ledger ledger_;
  duration peer_timeout_;
  completion_mode mode_;
  detail::wake_event event_;
  std::atomic<bool> woken_ = false;
  std::vector<read_slot> slots_;
  std::uint32_t free_ = 0;
  std::vector<endpoint_core*> endpoints_;
  std::vector<pollfd> waits_;
};

inline endpoint_core::~endpoint_core() {
  owner_->detach(*this);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/queue.ipp"
#endif
