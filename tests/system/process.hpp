#pragma once
// Processes of a test: a forked body, or a program; killed on every path out of the test.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../process_signal.hpp"

namespace system_tests {

class process {
 public:
  /// Forks; the body's return value is the exit status. Fork before the test starts threads.
  explicit process(const std::function<int()>& body) { start(body); }
  /// Runs a program; its output can be read line by line.
  explicit process(const std::vector<std::string>& command) {
    start([&] {
      std::vector<char*> words;
      for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      ::execv(words.front(), words.data());
      return 127;
    });
  }
  ~process() {
    if (!ended_) {
      kill(SIGKILL);
      static_cast<void>(wait(std::chrono::seconds{10}));
    }
    ::close(output_);
  }
  process(const process&) = delete;
  process& operator=(const process&) = delete;

  void kill(int signal) const { signal_process(id_, signal); }

  /// The next line of its standard output; throws if there is none within the time.
  [[nodiscard]] std::string line(std::chrono::milliseconds timeout = std::chrono::seconds{20}) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      if (const auto end = text_.find('\n'); end != std::string::npos) {
        std::string out = text_.substr(0, end);
        text_.erase(0, end + 1);
        return out;
      }
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
              .count();
      pollfd entry{output_, POLLIN, 0};
      char bytes[4096];
      const int ready = left > 0 ? ::poll(&entry, 1, static_cast<int>(left)) : 0;
      const auto taken = ready > 0 ? ::read(output_, bytes, sizeof bytes) : 0;
      if (taken <= 0) throw std::runtime_error("the process said nothing more; so far: " + text_);
      text_.append(bytes, static_cast<std::size_t>(taken));
    }
  }

  /// Exit status, or 1000 + signal; throws if it has not ended within the time.
  [[nodiscard]] int wait(std::chrono::milliseconds timeout = std::chrono::seconds{60}) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    int status = 0;
    while (::waitpid(id_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("the process does not end");
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  void start(const std::function<int()>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::cout.flush();  // else both processes print what is buffered
    id_ = ::fork();
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], STDOUT_FILENO);
      int status = 99;
      try {
        status = body();
      } catch (const std::exception& e) {
        std::cout << "exception: " << e.what() << std::endl;
      }
      std::cout.flush();
      std::_Exit(status);
    }
    ::close(ends[1]);
    output_ = ends[0];
  }

  pid_t id_ = -1;
  int output_ = -1;
  std::string text_;
  bool ended_ = false;
};

/// The server's address reaches a process that was forked before the server was started.
struct address_pipe {
  int ends[2];
  address_pipe() {
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  }
  ~address_pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  address_pipe(const address_pipe&) = delete;
  address_pipe& operator=(const address_pipe&) = delete;

  void tell(const std::string& address) const {
    if (::write(ends[1], address.c_str(), address.size() + 1) != static_cast<ssize_t>(address.size() + 1))
      throw std::runtime_error("the pipe does not take the address");
  }
  [[nodiscard]] std::string hear() const {
    std::string text;
    for (char c = 0; ::read(ends[0], &c, 1) == 1 && c != '\0';) text += c;
    return text;
  }
};

}  // namespace system_tests
