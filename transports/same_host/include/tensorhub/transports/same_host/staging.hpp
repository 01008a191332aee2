#pragma once
/// \file staging.hpp
/// The source's side of memory that readers cannot map: its own device copies what they ask for, piece by
/// piece, into a file that both have mapped.
///
/// One thread per transport object, started with the first request. It copies one piece after the other, in
/// the order of the requests; a reader overlaps that with its own copies, having several slots.
///
/// A region is not deregistered while a piece of it is being copied (region_table::lend). Whether the reader
/// may use a piece is not decided here: it looks at the grants when it has copied the piece out of the slot.
///
/// Thread safety: `stage_desk::add` and `stop` may be called from any thread.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
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

/// The slots of one connection. Its pages take memory once they have been used.
class stage_file {
 public:
  static constexpr std::uint64_t bytes = stage_slots * stage_piece_bytes;

  /// Throws `system_failed`.
  stage_file() : file_{::memfd_create("tensorhub-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
    if (file_ && ::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0)
      view_ = file_mapping_view{file_.get(), bytes, PROT_READ | PROT_WRITE};
    if (!view_ || ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
      throw error(
          errc::system_failed,
          std::string{"same_host: no shared memory to stage device memory in: "} + std::strerror(errno));
    static_cast<void>(::fcntl(file_.get(), F_ADD_SEALS, seal_future_write));  // older kernels do not know it
  }
  [[nodiscard]] int file() const noexcept { return file_.get(); }
  [[nodiscard]] std::byte* slot(std::uint32_t number) const noexcept {
    return view_.data() + number * stage_piece_bytes;
  }

 private:
  detail::unique_fd file_;
  file_mapping_view view_;
};

/// One request: the bounds of slot and size were looked at, those of the region were not.
struct stage_job {
  std::uint64_t connection = 0;
  region_request request{};
  std::shared_ptr<const stage_file> into{};
};

class stage_desk {
 public:
  /// `answer` is called by the desk's thread for every job.
  stage_desk(region_table& regions, std::function<void(const stage_job&, answer_status)> answer)
      : regions_{&regions}, answer_{std::move(answer)} {}
  ~stage_desk() { stop(); }
  stage_desk(const stage_desk&) = delete;
  stage_desk& operator=(const stage_desk&) = delete;

  /// May throw bad_alloc or system_error.
  void add(stage_job job) {
    const std::lock_guard lock{mutex_};
    if (stopping_) return;
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) thread_ = std::jthread{[this] { run(); }};
    changed_.notify_one();
  }
  /// No job is begun any more; the present one ends first.
  void stop() noexcept {
    {
      const std::lock_guard lock{mutex_};
      stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  /// Longer than any copy of one piece takes on a device that works.
  static constexpr std::chrono::seconds longest_copy{20};

  void run() noexcept {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      const stage_job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      answer_(job, copy(job));
      lock.lock();
    }
  }

  [[nodiscard]] answer_status copy(const stage_job& job) noexcept {
    try {
      const auto facts = regions_->lend(job.request.key);
      if (!facts) return answer_status::denied;
      const answer_status status = copy(job, facts->range);
      regions_->give_back(job.request.key.region);
      return status;
    } catch (...) {  // no memory
      return answer_status::failed;
    }
  }
  [[nodiscard]] answer_status copy(const stage_job& job, const memory_range& range) noexcept {
    const region_request& wanted = job.request;
    if (wanted.offset > range.bytes || wanted.bytes > range.bytes - wanted.offset)
      return answer_status::denied;
    try {
      auto& lane = lanes_[range.device];
      if (!lane) lane = range.device->open_lane();
      const lane_ticket ticket =
          lane->copy(job.into->slot(wanted.slot), range.data + wanted.offset, wanted.bytes);
      if (ticket != 0 && lane->wait(ticket, longest_copy) == lane_state::done) return answer_status::granted;
      lane.reset();  // returns when it does nothing any more
    } catch (...) {  // no lane
    }
    return answer_status::failed;
  }

  region_table* regions_;
  std::function<void(const stage_job&, answer_status)> answer_;
  std::unordered_map<device_access*, std::unique_ptr<device_lane>> lanes_;  ///< the thread's own
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<stage_job> jobs_;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
