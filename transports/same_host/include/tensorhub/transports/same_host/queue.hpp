#pragma once
/// \file queue.hpp
/// The reading side of the same-host transport: queues, and the endpoints on them.
///
/// A read waits until its region is known, is then cut into pieces, and is copied by the polling thread and
/// by the helpers (copy_pool.hpp). A polling thread copies at most a few pieces before it returns. Devices
/// perform the reads from or to device memory (device_reads.hpp).
///
/// Thread safety: a queue and its endpoints belong to one thread at a time; only `wake` is for any thread.

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/same_host/copy_pool.hpp"
#include "tensorhub/transports/same_host/device_reads.hpp"
#include "tensorhub/transports/same_host/kept_links.hpp"
#include "tensorhub/transports/same_host/link.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

class queue_core;

/// A connection in use by one queue.
class endpoint_core {
 public:
  endpoint_core(queue_core& owner, std::unique_ptr<link> connection, std::shared_ptr<kept_links> kept)
      : owner_{&owner}, link_{std::move(connection)}, kept_{std::move(kept)} {}
  ~endpoint_core();
  endpoint_core(const endpoint_core&) = delete;
  endpoint_core& operator=(const endpoint_core&) = delete;

  [[nodiscard]] incarnation peer() const noexcept { return link_->peer(); }
  [[nodiscard]] bool usable() const noexcept { return usable_; }
  [[nodiscard]] const std::string& why() const noexcept { return link_->why(); }

 private:
  friend class queue_core;
  queue_core* owner_;
  std::unique_ptr<link> link_;
  std::shared_ptr<kept_links> kept_;
  std::size_t waiting_ = 0;  ///< reads whose region is not known yet
  bool usable_ = true;
};

class queue_core {
 public:
  queue_core(std::size_t depth, std::shared_ptr<copy_pool> pool, duration peer_timeout,
             std::uint64_t streaming_from_bytes, std::function<std::vector<device_access*>()> devices);
  ~queue_core() { pool_->detach(work_); }
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t outstanding() const noexcept { return reads_.size() - free_.size(); }

  /// `wait` must not allocate.
  void attach(endpoint_core& endpoint);
  void detach(endpoint_core& endpoint) noexcept;

  /// `device` is the target's device; null: host memory.
  [[nodiscard]] post_result post(endpoint_core& endpoint, request_id id, std::byte* target,
                                 device_access* device, std::uint64_t offset, std::uint64_t bytes,
                                 const region_key& key) noexcept;

  /// Ends a read that has not begun.
  [[nodiscard]] post_result post_finished(request_id id, completion_status status) noexcept;

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept;

  void wait(duration timeout) noexcept;

  void wake() noexcept { work_.wake(); }

 private:
  static constexpr int pieces_of_a_poll = 4;  ///< about a millisecond
  static constexpr std::chrono::microseconds turn{200};

  [[nodiscard]] static bool waits_for_answers(const endpoint_core& endpoint) noexcept;
  /// True: one of `waits_` is ready.
  [[nodiscard]] bool look_at_descriptors(duration longest) noexcept;

  [[nodiscard]] static bool breaks(completion_status status) noexcept;

  [[nodiscard]] read_record& take_free(request_id id) noexcept;

  /// Called when the read's region is known.
  void start(read_record& read) noexcept;

  void work() noexcept;

  void look_for_answers(endpoint_core& endpoint) noexcept;

  void give_up(endpoint_core& endpoint, completion_status why) noexcept;

  std::shared_ptr<copy_pool> pool_;
  duration peer_timeout_;
  std::uint64_t streaming_from_bytes_;
  std::vector<read_record> reads_;
  std::vector<read_record*> free_;
  work_queue work_;
  device_reads devices_;
  std::vector<endpoint_core*> endpoints_;
  std::vector<pollfd> waits_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/queue.ipp"
#endif
