#pragma once
/// \file process.hpp
/// Child processes that never outlive their launcher.
///
/// Three things see to that: the kernel kills a child when its launcher dies (PR_SET_PDEATHSIG), the
/// launcher's `children` object kills what is left when it goes, on every path, and a child whose line to the
/// launcher is closed ends by itself (link.hpp).

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "descriptor.hpp"

namespace rl_loop {

/// Where a child finds what it inherits.
inline constexpr int link_fd = 3;      // its line to the launcher
inline constexpr int peer_fd = 4;      // the other shard of its replica
inline constexpr int listener_fd = 5;  // where episodes arrive; first shard of the trainer only

struct child {
  std::string name;
  pid_t pid = -1;
  int wait_status = 0;
  bool ended = false;

  [[nodiscard]] bool succeeded() const {
    return ended && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  }
  [[nodiscard]] std::string ending() const {
    if (!ended) return "is still running";
    if (WIFSIGNALED(wait_status)) return "was killed by signal " + std::to_string(WTERMSIG(wait_status));
    return "ended with status " + std::to_string(WEXITSTATUS(wait_status));
  }
};

/// All children of this process. They form a process group of their own, led by the first one.
class children {
 public:
  children() = default;
  children(const children&) = delete;
  children& operator=(const children&) = delete;
  ~children() { kill_all(); }

  /// Starts this program again with other arguments. `inherited[i]` becomes descriptor `link_fd + i`; -1 is
  /// left out. Call only while this process has one thread.
  std::size_t start(const std::string& name, std::vector<std::string> arguments,
                    const std::array<int, 3>& inherited) {
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t launcher = ::getpid();
    const pid_t group = all_.empty() ? 0 : all_.front().pid;
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
      ::setpgid(0, group);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != launcher) ::_exit(127);  // it died before the line above
      ::signal(SIGINT, SIG_DFL);
      ::signal(SIGTERM, SIG_DFL);
      for (std::size_t i = 0; i < inherited.size(); ++i) {
        if (inherited[i] >= 0 && ::dup2(inherited[i], link_fd + static_cast<int>(i)) < 0) ::_exit(127);
      }
      ::execv("/proc/self/exe", argv.data());
      ::_exit(127);
    }
    ::setpgid(pid, group);  // both sides set it, so that neither has to wait for the other
    all_.push_back({name, pid, 0, false});
    return all_.size() - 1;
  }

  /// Notes which children have ended. Does not wait.
  void reap() {
    for (auto& c : all_) {
      if (!c.ended && ::waitpid(c.pid, &c.wait_status, WNOHANG) == c.pid) c.ended = true;
    }
  }

  void kill_all() {
    bool any = false;
    for (const auto& c : all_) {
      if (c.ended) continue;
      any = true;
      ::kill(c.pid, SIGKILL);
    }
    // The group's number is ours as long as its leader has not been waited for.
    if (any && !all_.front().ended) ::kill(-all_.front().pid, SIGKILL);
    for (auto& c : all_) {
      if (!c.ended && ::waitpid(c.pid, &c.wait_status, 0) == c.pid) c.ended = true;
    }
  }

  [[nodiscard]] const child& operator[](std::size_t index) const { return all_[index]; }
  [[nodiscard]] std::size_t size() const { return all_.size(); }

 private:
  std::vector<child> all_;
};

/// The same descriptor with a number that no child uses for what it inherits (10 or higher).
[[nodiscard]] inline descriptor out_of_the_way(const descriptor& low) {
  descriptor high{::fcntl(low.get(), F_DUPFD_CLOEXEC, 10)};
  if (high.get() < 0) fail("fcntl");
  return high;
}

[[nodiscard]] inline std::pair<descriptor, descriptor> connected_pair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  const descriptor a{ends[0]}, b{ends[1]};
  return {out_of_the_way(a), out_of_the_way(b)};
}

}  // namespace rl_loop
