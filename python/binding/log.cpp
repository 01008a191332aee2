/// \file log.cpp
/// Log lines for Python's `logging`. The library's threads put them into a queue, and a thread of Python's
/// takes them out (log.py): no thread of the library runs Python.

#include "log.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "calls.hpp"

namespace tensorhub_python {

namespace {

class line_queue {
 public:
  void put(const tensorhub::log_line& line) {
    const std::lock_guard lock{mutex_};
    if (lines_.size() == most_lines) {
      ++dropped_;
      return;
    }
    lines_.push_back(line);
    changed_.notify_one();
  }
  /// Waits for a line; empty: there will be no more.
  std::optional<tensorhub::log_line> take() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return ended_ || !lines_.empty(); });
    if (lines_.empty()) return std::nullopt;
    tensorhub::log_line out = std::move(lines_.front());
    lines_.pop_front();
    if (dropped_ > 0) out.text += " (" + std::to_string(std::exchange(dropped_, 0)) + " lines dropped)";
    return out;
  }
  void end() {
    const std::lock_guard lock{mutex_};
    ended_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr std::size_t most_lines = 1024;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<tensorhub::log_line> lines_;
  std::size_t dropped_ = 0;
  bool ended_ = false;
};

/// Of this process. Never destroyed: threads may log while the process ends.
line_queue*& present() {
  static auto* queue = new line_queue;
  return queue;
}

nb::object next_line() {
  std::optional<tensorhub::log_line> line;
  {
    const nb::gil_scoped_release python_goes_on;
    line = present()->take();
  }
  if (!line) return nb::none();
  return nb::make_tuple(static_cast<int>(line->level), to_text(*line));
}

}  // namespace

void put_line(const tensorhub::log_line& line) {
  present()->put(line);
}

void bind_log(nb::module_& module) {
  module.def("next_log_line", next_line);
  module.def("end_log", [] { present()->end(); });
  // In a forked child, where another thread may have held the mutex.
  module.def("begin_log_anew", [] { present() = new line_queue; });
}

}  // namespace tensorhub_python
