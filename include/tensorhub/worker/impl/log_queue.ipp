#pragma once
/// \file log_queue.ipp
/// Definitions of log_queue.hpp.

#include <memory>
#include <string>
#include <utility>

#include "tensorhub/detail/thread_name.hpp"
#include "tensorhub/worker/log_queue.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL log_queue::~log_queue() {
  {
    const std::lock_guard lock{mutex_};
    ends_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  std::unique_lock lock{mutex_};
  tell(lock);  // what no thread could be started for
}

TENSORHUB_DECL void log_queue::add(const log_line& line) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    if (lines_.size() >= most_lines) {
      ++dropped_;
      return;
    }
    lines_.push_back(line);
    changed_.notify_one();
    if (!thread_.joinable()) thread_ = std::thread{[this] { run(); }};
  } catch (...) {
  }
}

TENSORHUB_DECL void log_queue::run() {
  detail::name_thread("tensorhub-log");
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !lines_.empty(); });
    if (lines_.empty()) return;
    tell(lock);
  }
}

TENSORHUB_DECL void log_queue::tell(std::unique_lock<std::mutex>& lock) {
  const std::vector<log_line> lines = std::exchange(lines_, {});
  const std::uint64_t dropped = std::exchange(dropped_, 0);
  lock.unlock();
  for (const log_line& line : lines) log_(line);
  if (dropped != 0)
    log_({log_level::warning, std::to_string(dropped) + " lines are missing here: this log is too slow", {}});
  lock.lock();
}

TENSORHUB_DECL std::function<void(const log_line&)> queued(std::function<void(const log_line&)> log) {
  if (!log) return log;
  return [queue = std::make_shared<log_queue>(std::move(log))](const log_line& line) { queue->add(line); };
}

}  // namespace tensorhub::inline TENSORHUB_MODE
