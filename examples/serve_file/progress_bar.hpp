#pragma once
/// \file progress_bar.hpp
/// A running update in one line of a terminal, written over and over: how much is here, and from whom.
///
///     [##########..............]  42 %  430/1024 MB  1310 MB/s  publisher/0 60 %  puller-17/0 40 %
///
/// Written to standard error, and only if that is a terminal: a log or a pipe gets nothing.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <tensorhub/tensorhub.hpp>

namespace serve_file {

/// The line, of at most `columns` characters.
[[nodiscard]] inline std::string progress_line(const tensorhub::update_progress& at, double seconds,
                                               std::size_t columns) {
  constexpr std::size_t cells = 24;
  const double total = std::max(1.0, static_cast<double>(at.total_bytes));
  const double part = std::clamp(static_cast<double>(at.bytes) / total, 0.0, 1.0);
  const auto filled = static_cast<std::size_t>(part * static_cast<double>(cells));
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, " %3.0f %%  %.0f/%.0f MB  %.0f MB/s", 100 * part,
                static_cast<double>(at.bytes) * 1e-6, static_cast<double>(at.total_bytes) * 1e-6,
                seconds > 0 ? static_cast<double>(at.bytes) * 1e-6 / seconds : 0.0);
  std::string line = "[" + std::string(filled, '#') + std::string(cells - filled, '.') + "]" + numbers;
  for (const auto& source : at.sources) {
    const double share = at.bytes > 0 ? static_cast<double>(source.bytes) / static_cast<double>(at.bytes) : 0;
    line += "  " + source.name + (source.lost ? " lost" : "") + " " +
            std::to_string(static_cast<int>(100 * share + 0.5)) + " %";
  }
  return line.substr(0, columns);
}

class progress_bar {
 public:
  void show(const tensorhub::update_progress& at) {
    if (!is_terminal_ || at.done) return;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started_;
    winsize size{};
    const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    const std::size_t columns = known ? size.ws_col - 1u : 79;
    std::fprintf(stderr, "\r\033[K%s", progress_line(at, seconds.count(), columns).c_str());
    std::fflush(stderr);
  }
  void clear() const {
    if (is_terminal_) std::fputs("\r\033[K", stderr);
  }

 private:
  bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace serve_file
