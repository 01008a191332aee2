#pragma once
/// \file child_process.hpp
/// The child processes of tests and benchmarks: a function in a forked process, a program, or this test
/// program again with one of its hidden test cases. A child process ends with its object, and with its
/// parent.
///
/// Parent and child exchange lines or values over a `channel`. The parent can instead read the standard
/// output of a child, line by line.
///
/// Fork only while the parent has one thread: a forked function inherits the state of the libraries, but not
/// their threads. Errors are `std::runtime_error`. One thread at a time may use a `child_process`.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace processes {

using std::chrono::milliseconds;
inline constexpr milliseconds for_ever{-1};

/// One end of a packet socket between two processes. It does not own the socket. An empty line cannot be
/// sent.
class channel {
 public:
  explicit channel(int descriptor) noexcept : descriptor_{descriptor} {}

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// Whether a line, a value or the end of the channel arrives within this time.
  [[nodiscard]] bool ready(milliseconds patience) const {
    pollfd entry{descriptor_, POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(patience.count())) > 0;
  }

  /// Returns false if the other process has ended.
  bool try_say(const std::string& line) const { return send(line.data(), line.size()); }
  void say(const std::string& line) const {
    if (!try_say(line)) throw std::runtime_error("the other process is gone");
  }
  /// A line that has already arrived; empty if there is none or the other process has ended.
  [[nodiscard]] std::optional<std::string> try_hear() const { return receive(MSG_DONTWAIT); }
  [[nodiscard]] std::string hear(milliseconds patience = for_ever) const {
    if (!ready(patience)) throw std::runtime_error("the other process says nothing");
    auto line = receive(0);
    if (!line) throw std::runtime_error("the other process has ended");
    return *std::move(line);
  }

  template <typename Value>
  bool try_tell(const Value& value) const {
    static_assert(std::is_trivially_copyable_v<Value>);
    return send(&value, sizeof value);
  }
  template <typename Value>
  void tell(const Value& value) const {
    if (!try_tell(value)) throw std::runtime_error("the other process is gone");
  }
  /// Returns false if the other process sends nothing within this time or has ended.
  template <typename Value>
  bool try_take(Value& value, milliseconds patience = for_ever) const {
    static_assert(std::is_trivially_copyable_v<Value>);
    return ready(patience) && ::recv(descriptor_, &value, sizeof value, 0) == ssize_t{sizeof value};
  }
  template <typename Value>
  [[nodiscard]] Value take(milliseconds patience = std::chrono::seconds{60}) const {
    Value value{};
    if (!try_take(value, patience)) throw std::runtime_error("the other process does not answer");
    return value;
  }

 private:
  [[nodiscard]] bool send(const void* data, std::size_t bytes) const {
    return ::send(descriptor_, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  }
  [[nodiscard]] std::optional<std::string> receive(int flags) const {
    std::string line(8192, '\0');
    const auto length = ::recv(descriptor_, line.data(), line.size(), flags);
    if (length <= 0) return std::nullopt;
    line.resize(static_cast<std::size_t>(length));
    return line;
  }

  int descriptor_;
};

class child_process {
 public:
  /// Forks and calls `body` with the child's end of the channel. The exit status is 1 if `body` throws, else
  /// 0. `strangers`: descriptors of the parent that are closed in the child.
  explicit child_process(const std::function<void(channel&)>& body, const std::vector<int>& strangers = {}) {
    start(
        [&] {
          for (const int each : strangers) ::close(each);
          channel line{theirs_};
          body(line);
          return 0;
        },
        false);
  }
  /// Forks and calls `body`; the parent reads its standard output with `output_line`. The exit status is the
  /// result of `body`, or 99 if `body` throws.
  explicit child_process(const std::function<int()>& body) { start(body, true); }
  /// Runs a program; the parent reads its standard output with `output_line`.
  explicit child_process(const std::vector<std::string>& command) {
    const std::vector<char*> words = words_of(command);
    start([&] { return execute(words); }, true);
  }
  /// Runs this program again with one test case, which `doctest::skip()` hides from other runs and which gets
  /// the channel from `channel_of_parent`. For libraries that do not survive a fork.
  [[nodiscard]] static child_process of_test_case(const std::string& name) {
    return child_process{test_case{name}};
  }

  ~child_process() {
    end();
    ::close(ours_);
    if (output_ >= 0) ::close(output_);
  }
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;

  [[nodiscard]] channel line() const noexcept { return channel{ours_}; }
  [[nodiscard]] std::string ask(const std::string& question) const {
    line().say(question);
    return line().hear();
  }

  [[nodiscard]] pid_t id() const noexcept { return id_; }
  /// Returns when the child has stopped (after SIGSTOP) or has ended (after SIGKILL): a signal takes effect
  /// only when one of the child's threads handles it, and the other threads run until then.
  void signal(int number) const {
    if (ended_) return;
    ::kill(id_, number);
    siginfo_t facts{};
    if (number == SIGSTOP || number == SIGKILL)
      ::waitid(P_PID, static_cast<id_t>(id_), &facts, WEXITED | WNOWAIT | (number == SIGSTOP ? WSTOPPED : 0));
  }
  /// Kills the child. On return the kernel has released all resources of the child.
  void end() {
    if (ended_) return;
    signal(SIGKILL);
    static_cast<void>(wait(std::chrono::seconds{10}));
  }
  /// The exit status, or 1000 + signal. Throws if the child does not end within the time.
  int wait(milliseconds timeout = std::chrono::seconds{60}) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!ended_) {
      int status = 0;
      if (::waitpid(id_, &status, WNOHANG) != 0) {
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        ended_ = true;
      } else if (std::chrono::steady_clock::now() > until) {
        throw std::runtime_error("the process does not end");
      } else {
        std::this_thread::sleep_for(milliseconds{5});
      }
    }
    return status_;
  }
  /// A description such as "killed by signal 9" or "ended with status 0".
  [[nodiscard]] std::string how_it_ended() {
    const int status = wait();
    return status >= 1000 ? "killed by signal " + std::to_string(status - 1000)
                          : "ended with status " + std::to_string(status);
  }

  /// The next line of the standard output; throws if no line arrives within the time.
  [[nodiscard]] std::string output_line(milliseconds timeout = std::chrono::seconds{20}) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      if (const auto end = text_.find('\n'); end != std::string::npos) {
        std::string out = text_.substr(0, end);
        text_.erase(0, end + 1);
        return out;
      }
      const auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
      pollfd entry{output_, POLLIN, 0};
      char bytes[4096];
      const int ready = ::poll(&entry, 1, std::max(0, static_cast<int>(left.count())));
      const auto taken = ready > 0 ? ::read(output_, bytes, sizeof bytes) : 0;
      if (taken <= 0) throw std::runtime_error("the process said nothing more; so far: " + text_);
      text_.append(bytes, static_cast<std::size_t>(taken));
    }
  }

 private:
  struct test_case {
    std::string name;
  };
  static constexpr int descriptor_of_test_case = 50;
  friend channel channel_of_parent();

  explicit child_process(const test_case& which) {
    const std::vector<std::string> command{"/proc/self/exe", "--no-skip", "--test-case=" + which.name,
                                           "--minimal"};
    const std::vector<char*> words = words_of(command);
    start(
        [&] {
          if (theirs_ == descriptor_of_test_case)
            ::fcntl(theirs_, F_SETFD, 0);
          else
            ::dup2(theirs_, descriptor_of_test_case);
          return execute(words);
        },
        false);
  }
  /// Made before the fork: the child of a process with threads must not allocate.
  [[nodiscard]] static std::vector<char*> words_of(const std::vector<std::string>& command) {
    std::vector<char*> words;
    for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    return words;
  }
  [[nodiscard]] static int execute(const std::vector<char*>& words) {
    ::execv(words.front(), words.data());
    return 127;
  }

  template <typename Body>
  void start(const Body& body, bool with_output) {
    int pair[2], output[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
      throw std::runtime_error("no socket pair");
    if (with_output && ::pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    ours_ = pair[0];
    theirs_ = pair[1];
    output_ = output[0];
    std::cout.flush();  // otherwise both processes print the buffered text
    std::fflush(nullptr);
    id_ = ::fork();
    if (id_ < 0) throw std::runtime_error("no process");
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(pair[0]);
      if (with_output) ::dup2(output[1], STDOUT_FILENO);
      int status = with_output ? 99 : 1;
      try {
        status = body();
      } catch (const std::exception& e) {
        (with_output ? std::cout : std::cerr) << "exception: " << e.what() << std::endl;
      }
      std::cout.flush();
      std::fflush(nullptr);
      std::_Exit(status);
    }
    ::close(pair[1]);
    if (with_output) ::close(output[1]);
  }

  pid_t id_ = -1;
  int ours_ = -1;
  int theirs_ = -1;  ///< in the child
  int output_ = -1;
  std::string text_;
  bool ended_ = false;
  int status_ = 0;
};

/// For a test case that `child_process::of_test_case` runs: the channel to the parent. This process ends with
/// its parent.
[[nodiscard]] inline channel channel_of_parent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::fcntl(child_process::descriptor_of_test_case, F_GETFD) < 0)
    throw std::runtime_error("this test case is run by another one, in a process of its own");
  return channel{child_process::descriptor_of_test_case};
}

/// A text, such as a server's address, for a process that is forked before the text is known.
class text_pipe {
 public:
  text_pipe() {
    if (::pipe(ends_) != 0) throw std::runtime_error("no pipe");
  }
  ~text_pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  text_pipe(const text_pipe&) = delete;
  text_pipe& operator=(const text_pipe&) = delete;

  void tell(const std::string& text) const {
    if (::write(ends_[1], text.c_str(), text.size() + 1) != static_cast<ssize_t>(text.size() + 1))
      throw std::runtime_error("the pipe does not take the text");
  }
  [[nodiscard]] std::string hear() const {
    std::string text;
    for (char c = 0; ::read(ends_[0], &c, 1) == 1 && c != '\0';) text += c;
    return text;
  }

 private:
  int ends_[2];
};

}  // namespace processes
