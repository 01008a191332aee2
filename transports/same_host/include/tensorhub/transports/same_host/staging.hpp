#pragma once
/// \file staging.hpp
/// The source's side of memory that readers cannot or may not reach: the source or its device copies
/// requested pieces into a file that both processes have mapped.
///
/// One thread per transport object, started with the first request. It copies one piece after the other, in
/// the order of the requests; a reader has several slots and overlaps these copies with its own.
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

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/transports/same_host/region_table.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// The slots of one connection. The file's pages take memory once they have been used.
class stage_file {
 public:
  static constexpr std::uint64_t bytes = stage_slots * stage_piece_bytes;

  /// Throws `system_failed`.
  stage_file();
  [[nodiscard]] int file() const noexcept { return file_.get(); }
  [[nodiscard]] std::byte* slot(std::uint32_t number) const noexcept {
    return view_.data() + number * stage_piece_bytes;
  }
  /// No further piece is copied into the file; `stage_desk::settle` waits for the present one.
  void close() noexcept { is_closed_ = true; }
  [[nodiscard]] bool is_closed() const noexcept { return is_closed_; }

 private:
  detail::unique_fd file_;
  file_mapping_view view_;
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
      : regions_{&regions}, answer_{std::move(answer)}, limits_{limits} {}
  ~stage_desk() { stop(); }
  stage_desk(const stage_desk&) = delete;
  stage_desk& operator=(const stage_desk&) = delete;

  /// May throw bad_alloc or system_error.
  void add(stage_job job);
  /// Returns when no piece is being copied into a closed file.
  void settle() noexcept;
  /// Begins no further job, and waits for the end of the current one.
  void stop() noexcept;

 private:
  void run() noexcept;

  [[nodiscard]] answer_status copy(const stage_job& job) noexcept;
  [[nodiscard]] answer_status copy(const stage_job& job, const memory_range& range) noexcept;

  region_table* regions_;
  std::function<void(const stage_job&, answer_status)> answer_;
  stage_limits limits_;
  std::unordered_map<device_access*, std::unique_ptr<device_lane>> lanes_;  ///< used by the thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable settled_;
  const stage_file* copying_into_ = nullptr;
  std::deque<stage_job> jobs_;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/staging.ipp"
#endif
