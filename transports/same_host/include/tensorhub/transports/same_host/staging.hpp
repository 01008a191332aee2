#pragma once
/// \file staging.hpp
/// The source's side of memory that readers cannot or may not reach: the source or its device copies
/// requested pieces into a file that both processes have mapped.
///
/// One thread per transport object, started with the first request. It begins the pieces in the order of the
/// requests, four at a time where devices copy them, and answers each when it is over; a reader has several
/// slots and overlaps these copies with its own. A device that copies into a file pins it.
///
/// A region is neither deregistered nor revoked while a piece of it is being copied (region_table::lend), and
/// nothing is copied into a closed file. So a reader finds in its file only what was there while it might
/// read it. An honest one also checks the grants when it has copied the piece from the slot.
///
/// Thread safety: `stage_desk` may be used from any thread.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/transports/same_host/region_table.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// The slots of one connection. The file's pages take memory once they have been used, or pinned.
class stage_file {
 public:
  static constexpr std::uint64_t bytes = stage_slots * stage_piece_bytes;

  /// Throws `system_failed`.
  stage_file();
  [[nodiscard]] int file() const noexcept { return file_.get(); }
  [[nodiscard]] std::byte* slot(std::uint32_t number) const noexcept {
    return view_.data() + number * stage_piece_bytes;
  }
  /// No further piece is copied into the file; `stage_desk::settle` waits for those that have begun.
  void close() noexcept { is_closed_ = true; }
  [[nodiscard]] bool is_closed() const noexcept { return is_closed_; }
  /// The device will copy into the slots. One thread calls it.
  void pin(device_access& by) const noexcept { pages_.pin(by, view_.data(), bytes, false); }

 private:
  detail::unique_fd file_;
  file_mapping_view view_;
  mutable pinned_pages pages_;  ///< after the mapping: unpinned before it ends
  std::atomic<bool> is_closed_ = false;
};

/// One request: slot and size were checked, the bounds of the region were not.
struct stage_job {
  std::uint64_t connection = 0;
  region_request request{};
  std::shared_ptr<const stage_file> into{};
};

class stage_desk {
 public:
  /// The desk's thread calls `answer` for every job.
  stage_desk(region_table& regions, std::function<void(const stage_job&, answer_status)> answer,
             stage_limits limits = {})
      : regions_{&regions}, answer_{std::move(answer)}, limits_{limits} {
    begun_.reserve(pieces_at_once);  // `run` does not allocate
  }
  ~stage_desk() { stop(); }
  stage_desk(const stage_desk&) = delete;
  stage_desk& operator=(const stage_desk&) = delete;

  /// May throw bad_alloc or system_error.
  void add(stage_job job);
  /// Returns when no piece is being copied into a closed file.
  void settle() noexcept;
  /// Begins no further job, and waits for the end of those that have begun.
  void stop() noexcept;

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t pieces_at_once = 4;

  /// A piece that has begun.
  struct piece {
    stage_job job{};
    clock::time_point until{};  ///< when the device has had time enough
    bool is_lent = false;       ///< its region is, until the piece is over
    bool is_over = false;       ///< with this status, which is not told yet
    answer_status status = answer_status::failed;
    std::shared_ptr<device_lane> lane{};  ///< that copies it; null: over
    lane_ticket ticket = 0;               ///< zero: the lane has refused it
  };

  void run() noexcept;
  void begin(piece& begun) noexcept;
  void begin(piece& begun, const memory_range& range);
  void begin_on_device(piece& begun, const memory_range& range);
  /// True: the piece is over.
  [[nodiscard]] bool look_at(piece& begun) noexcept;
  /// Answers one piece that is over, or waits a little for one that is not.
  void finish(std::unique_lock<std::mutex>& lock) noexcept;
  void end(piece& begun, answer_status status) noexcept;
  /// The lane has failed or hangs: returns when it is idle, and its pieces have failed.
  void end_lane(std::shared_ptr<device_lane> lane) noexcept;

  region_table* regions_;
  std::function<void(const stage_job&, answer_status)> answer_;
  stage_limits limits_;
  std::unordered_map<device_access*, std::shared_ptr<device_lane>> lanes_;  ///< used by the thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable settled_;
  std::deque<stage_job> jobs_;
  std::vector<piece> begun_;  ///< the oldest first; the thread alone changes it, with the mutex held
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/staging.ipp"
#endif
