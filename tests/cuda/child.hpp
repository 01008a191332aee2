#pragma once
/// \file child.hpp
/// Another process of a test: this program again, with one of its hidden test cases. (Not fork() alone: a
/// process that has used CUDA cannot go on in a child.)
///
/// The two talk over a pair of sockets, whose number the child finds in the environment.

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

namespace children {

inline constexpr char descriptor_name[] = "TENSORHUB_CUDA_TEST_DESCRIPTOR";

/// False if the other side is gone or says nothing for a minute.
template <typename Value>
bool hear(int descriptor, Value& value) {
  std::size_t have = 0;
  while (have < sizeof value) {
    pollfd entry{descriptor, POLLIN, 0};
    if (::poll(&entry, 1, 60'000) != 1) return false;
    const auto got = ::recv(descriptor, reinterpret_cast<char*>(&value) + have, sizeof value - have, 0);
    if (got <= 0) return false;
    have += static_cast<std::size_t>(got);
  }
  return true;
}
template <typename Value>
bool say(int descriptor, const Value& value) {
  return ::send(descriptor, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
}

class child {
 public:
  explicit child(const std::string& test_case) {
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    const int given = ::dup(pair[1]);  // not closed by exec
    ::close(pair[1]);
    ::setenv(descriptor_name, std::to_string(given).c_str(), 1);
    std::string program = "/proc/self/exe";
    std::string chosen = "--test-case=" + test_case;
    std::string skipped = "--no-skip";
    std::vector<char*> words{program.data(), chosen.data(), skipped.data(), nullptr};
    const int failed = ::posix_spawn(&process_, program.c_str(), nullptr, nullptr, words.data(), environ);
    ::close(given);
    ::unsetenv(descriptor_name);
    descriptor_ = pair[0];
    REQUIRE(failed == 0);
  }
  ~child() {
    kill();
    ::close(descriptor_);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;

  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  [[nodiscard]] int line() const noexcept { return descriptor_; }

 private:
  pid_t process_ = -1;
  int descriptor_ = -1;
};

/// In the child: the socket to the parent, whose end is this process's too.
inline int line_of_parent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* const number = std::getenv(descriptor_name);
  REQUIRE_MESSAGE(number != nullptr, "this case is run by another one, in a process of its own");
  return std::atoi(number);
}

}  // namespace children
