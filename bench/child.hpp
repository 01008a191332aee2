#pragma once
/// \file child.hpp
/// The other side of a benchmark in a process of its own: told what to do over a socket pair, one line each,
/// and asked for its CPU seconds.

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "harness.hpp"

namespace bench {

/// Lines over a packet socket.
class line_channel {
 public:
  explicit line_channel(int descriptor) : descriptor_{descriptor} {}
  void say(const std::string& line) const {
    if (::send(descriptor_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("the other process of the benchmark is gone");
  }
  [[nodiscard]] std::string hear() const {
    std::string line(4096, '\0');
    const auto length = ::recv(descriptor_, line.data(), line.size(), 0);
    if (length <= 0) throw std::runtime_error("the other process of the benchmark has ended");
    line.resize(static_cast<std::size_t>(length));
    return line;
  }
  /// Whether `hear` would return at once, after at most so long.
  [[nodiscard]] bool ready(int patience_ms) const {
    pollfd entry{descriptor_, POLLIN, 0};
    return ::poll(&entry, 1, patience_ms) > 0;
  }

 private:
  int descriptor_;
};

/// Must be made before the parent has threads.
class child {
 public:
  explicit child(const std::function<void(line_channel&)>& body) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) throw std::runtime_error("no socket pair");
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(pair[0]);
      line_channel line{pair[1]};
      try {
        body(line);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "benchmark child: %s\n", e.what());
      }
      std::_Exit(0);
    }
    ::close(pair[1]);
    descriptor_ = pair[0];
  }
  ~child() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ::close(descriptor_);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;

  /// Without a word of farewell.
  void kill() const { ::kill(process_, SIGKILL); }
  [[nodiscard]] line_channel line() const { return line_channel{descriptor_}; }
  [[nodiscard]] std::string ask(const std::string& question) const {
    line().say(question);
    return line().hear();
  }
  /// The body must answer "cpu" with its CPU seconds.
  [[nodiscard]] double cpu() const { return std::strtod(ask("cpu").c_str(), nullptr); }

 private:
  pid_t process_ = -1;
  int descriptor_ = -1;
};

}  // namespace bench
