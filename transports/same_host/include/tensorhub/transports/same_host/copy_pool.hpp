#pragma once
/// \file copy_pool.hpp
/// Reads cut into pieces, and the threads that copy them: the thread that polls a queue copies that queue's
/// pieces, and helper threads copy pieces of any queue.
///
/// One mutex guards everything. Copying a piece takes a hundred microseconds, assigning it well under one.
///
/// Thread safety: see each member.

#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/link.hpp"
#include "tensorhub/types/completion.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

class endpoint_core;

enum class read_state : std::uint8_t { free, waiting, ready, finished };

struct device_lane_record;

/// The state of a read that involves a device (device_reads.hpp); used by its queue alone.
struct device_part {
  enum class way_type : std::uint8_t {
    direct,   ///< one copy by the lane
    bounced,  ///< through pinned host memory of this process
    staged,   ///< through the source's staging file
  };
  way_type way = way_type::direct;
  device_lane_record* lane = nullptr;  ///< null: staged, to host memory
  std::uint64_t next = 0;              ///< first byte that is not in a piece yet
  std::uint64_t landed = 0;            ///< bytes that have arrived
  std::uint32_t in_flight = 0;         ///< pieces in the lane
  completion_status failure = completion_status::ok;
};

struct read_record {
  request_id id = 0;
  endpoint_core* endpoint = nullptr;  ///< null: destroyed, or irrelevant
  link* connection = nullptr;
  std::shared_ptr<const region_view> region{};
  std::byte* target = nullptr;
  device_access* device = nullptr;  ///< of the target; null: host memory
  device_part part{};
  std::uint64_t offset = 0;  ///< in the region
  std::uint64_t bytes = 0;
  bool streaming = false;
  bool is_waiting = false;  ///< its region is not known yet; used by the queue alone
  // From `add` on these are guarded by the pool's mutex.
  read_state state = read_state::free;
  bool handed_out = false;  ///< all pieces are assigned
  std::uint64_t next = 0;   ///< first byte that is not in a piece yet
  std::uint32_t pieces_out = 0;
  completion_status status = completion_status::ok;
};

/// A first-in, first-out ring of reads with a fixed size.
class read_ring {
 public:
  explicit read_ring(std::size_t most) : entries_(most) {}
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] read_record* front() const noexcept { return entries_[first_]; }
  void push(read_record* read) noexcept { entries_[(first_ + count_++) % entries_.size()] = read; }
  void pop() noexcept;
  template <typename Predicate>
  void erase_if(Predicate&& matches) noexcept {
    for (std::size_t left = count_; left > 0; --left) {
      read_record* const each = front();
      pop();
      if (!matches(*each)) push(each);
    }
  }

 private:
  std::vector<read_record*> entries_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

/// A queue's part of the pool.
struct work_queue {
  explicit work_queue(std::size_t depth);
  void wake() const noexcept;
  read_ring ready;
  read_ring finished;
  bool sleeping = false;
  detail::wake_event event;
};

class copy_pool {
 public:
  /// Has fewer helpers where no more threads can be started.
  explicit copy_pool(std::size_t helpers);
  ~copy_pool();
  copy_pool(const copy_pool&) = delete;
  copy_pool& operator=(const copy_pool&) = delete;

  void attach(work_queue& queue);
  void detach(work_queue& queue) noexcept;

  /// Adds a read, which may be copied from now on.
  void add(work_queue& queue, read_record& read) noexcept;
  /// Adds a read that another component copies as one piece, until `end_elsewhere`.
  void begin_elsewhere(read_record& read) noexcept;
  void end_elsewhere(work_queue& queue, read_record& read, completion_status status) noexcept;
  /// Ends a read without copying it.
  void finish(work_queue& queue, read_record& read, completion_status status) noexcept;

  /// Copies one piece of this queue; false if there is none.
  [[nodiscard]] bool copy_one(work_queue& queue) noexcept;

  /// Ends all unfinished reads of one endpoint. `wait`: when the function returns, none of them is being
  /// copied.
  void end_all(work_queue& queue, std::vector<read_record>& reads, const endpoint_core& endpoint,
               completion_status status, bool wait) noexcept;

  [[nodiscard]] read_record* take_finished(work_queue& queue) noexcept;
  [[nodiscard]] bool has_finished(const work_queue& queue) const noexcept;
  /// True: the caller has nothing to do, and the thread that finishes a read will raise the queue's event.
  [[nodiscard]] bool begin_sleep(work_queue& queue) noexcept;
  void end_sleep(work_queue& queue) noexcept;

 private:
  /// Small enough to be shared between threads and to stay in a cache, large enough to be worth a system
  /// call.
  static constexpr std::uint64_t piece_bytes = 1u << 20;
  /// The piece size of large reads from another process. Threads that read adjacent memory contend for the
  /// locks of that process's page tables (one per 2 MiB); the pieces are therefore larger and aligned.
  static constexpr std::uint64_t attached_piece_bytes = 4u << 20;

  [[nodiscard]] static std::uint64_t next_piece_bytes(const read_record& read) noexcept;

  /// A smaller read is copied before a helper wakes up.
  static constexpr std::uint64_t worth_help_bytes = 512u << 10;

  /// The function unlocks while it copies the bytes.
  [[nodiscard]] bool copy_one(work_queue& queue, std::unique_lock<std::mutex>& lock) noexcept;

  void finish_now(work_queue& queue, read_record& read) noexcept;

  void help() noexcept;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable quiet_;  ///< a read has ended
  bool stopping_ = false;
  std::size_t idle_helpers_ = 0;
  std::uint64_t ready_bytes_ = 0;
  std::vector<work_queue*> queues_;
  std::size_t next_queue_ = 0;
  std::vector<std::jthread> helpers_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/copy_pool.ipp"
#endif
