/// \file log.cpp
/// Log lines for Python's `logging`. The library's threads put them into a queue, and a thread of Python's takes
/// them out (log.py): no thread of the library runs Python.

#include "log.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "calls.hpp"

namespace tensorhub_python {

namespace {

constexpr std::size_t most_lines = 1024;

struct line_queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<tensorhub::log_line> lines;
  std::size_t dropped = 0;
};

line_queue& queue() {
  static auto* const never_destroyed = new line_queue;  // threads may log while the process ends
  return *never_destroyed;
}

}  // namespace

void put_line(const tensorhub::log_line& line) {
  line_queue& into = queue();
  const std::lock_guard lock{into.mutex};
  if (into.lines.size() == most_lines) {
    ++into.dropped;
    return;
  }
  into.lines.push_back(line);
  into.changed.notify_one();
}

void bind_log(nb::module_& module) {
  module.def(
      "next_log_line",
      [](double longest_seconds) -> nb::object {
        tensorhub::log_line line;
        {
          const nb::gil_scoped_release python_goes_on;
          line_queue& from = queue();
          std::unique_lock lock{from.mutex};
          const auto is_there = [&] { return !from.lines.empty(); };
          if (!from.changed.wait_for(lock, std::chrono::duration<double>{longest_seconds}, is_there))
            line.text.clear();
          if (is_there()) {
            line = std::move(from.lines.front());
            from.lines.pop_front();
            if (from.dropped > 0)
              line.text += " (" + std::to_string(std::exchange(from.dropped, 0)) + " lines dropped)";
          }
        }
        if (line.text.empty()) return nb::none();
        return nb::make_tuple(static_cast<int>(line.level), to_text(line));
      },
      nb::arg("longest_seconds"),
      nb::sig("def next_log_line(longest_seconds: float) -> tuple[int, str] | None"));
}

}  // namespace tensorhub_python
