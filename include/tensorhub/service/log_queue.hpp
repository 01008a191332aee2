#pragma once
/// \file log_queue.hpp
/// A log that is called in a thread of its own, in the order of its lines. Workers write lines with locks
/// held and from threads that must not wait; their user's `log` may take time, and locks of its own.
///
/// Thread safety: `add` may be called from any thread.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class log_queue {
 public:
  /// Lines that wait for `log`; further ones are dropped, and counted in a line that `log` gets later.
  static constexpr std::size_t most_lines = 1024;

  /// `log` is not empty, and does not throw.
  explicit log_queue(std::function<void(const log_line&)> log) : log_{std::move(log)} {}
  /// Returns when `log` has had every line. No deadline: `log` is its user's.
  TENSORHUB_DECL ~log_queue();
  log_queue(const log_queue&) = delete;
  log_queue& operator=(const log_queue&) = delete;

  /// Returns at once. Without memory the line is lost. If no thread can be started, the line is told with the
  /// next one, or at the end.
  TENSORHUB_DECL void add(const log_line& line) noexcept;

 private:
  TENSORHUB_DECL void run();
  /// Gives `log` what waits. Pre-condition: `lock` is held; it is not while `log` runs.
  TENSORHUB_DECL void tell(std::unique_lock<std::mutex>& lock);
  /// False: not now.
  TENSORHUB_DECL bool tell_of(std::uint64_t dropped) const noexcept;

  const std::function<void(const log_line&)> log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<log_line> lines_;  ///< guarded by mutex_, as the next two
  std::uint64_t dropped_ = 0;
  bool ends_ = false;
  std::thread thread_;  ///< started by the first line
};

/// `log` behind a queue, which ends with the last copy of this function: `log` may throw, and is called by
/// one thread, however many objects have a copy. Empty, if `log` is; the same, if it is such a function
/// already.
[[nodiscard]] TENSORHUB_DECL std::function<void(const log_line&)> queued(
    std::function<void(const log_line&)> log);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/log_queue.ipp"
#endif
