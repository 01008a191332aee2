#pragma once
/// \file log_queue.ipp
/// Definitions of log_queue.hpp.

#include <memory>
#include <string>
#include <utility>

#include "tensorhub/detail/thread_name.hpp"
#include "tensorhub/service/log_queue.hpp"

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
    lines_.push_back(log_detail::timed(line));
    changed_.notify_one();
    if (!thread_.joinable()) thread_ = std::thread{[this] { run(); }};
  } catch (...) {  // no memory, no thread
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
  const bool is_told = dropped == 0 || tell_of(dropped);
  lock.lock();
  if (!is_told) dropped_ += dropped;
}

TENSORHUB_DECL bool log_queue::tell_of(std::uint64_t dropped) const noexcept {
  log_line line{log_level::warning, {}, {}};
  try {
    line.text = std::to_string(dropped) + " lines are missing here: this log is too slow";
  } catch (...) {  // no memory
    return false;
  }
  log_(line);
  return true;
}

namespace log_detail {

struct queued_log {
  std::shared_ptr<log_queue> queue;
  void operator()(const log_line& line) const noexcept { queue->add(line); }
};

}  // namespace log_detail

TENSORHUB_DECL std::function<void(const log_line&)> queued(std::function<void(const log_line&)> log) {
  if (!log || log.target<log_detail::queued_log>() != nullptr) return log;
  return log_detail::queued_log{std::make_shared<log_queue>(never_throwing(std::move(log)))};
}

}  // namespace tensorhub::inline TENSORHUB_MODE
