#pragma once
/// \file process.hpp
/// A forked process that talks with the driver in lines, and what of it may be left behind.

#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "child.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace chaos {

/// The driver must have one thread when it starts one.
class process {
 public:
  /// `strangers`: descriptors of the driver that are not this process's business.
  process(const std::function<void(const bench::line_channel&)>& body, const std::vector<int>& strangers) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
      throw std::runtime_error("no socket pair");
    std::fflush(nullptr);
    id_ = ::fork();
    if (id_ < 0) throw std::runtime_error("no process");
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(pair[0]);
      for (const int each : strangers) ::close(each);
      int status = 1;
      try {
        body(bench::line_channel{pair[1]});
        status = 0;
      } catch (const std::exception& e) {
        std::fprintf(stderr, "chaos: process %d: %s\n", static_cast<int>(::getpid()), e.what());
      }
      std::fflush(nullptr);
      std::_Exit(status);
    }
    ::close(pair[1]);
    descriptor_ = pair[0];
  }
  ~process() {
    if (!ended_) {
      signal(SIGKILL);
      static_cast<void>(wait_for_end());
    }
    ::close(descriptor_);
  }
  process(const process&) = delete;
  process& operator=(const process&) = delete;

  void signal(int which) const { ::kill(id_, which); }
  [[nodiscard]] pid_t id() const noexcept { return id_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// False: it is gone.
  bool say(const std::string& line) const {
    return ::send(descriptor_, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size());
  }
  /// Call when the descriptor is readable. Empty: it is gone.
  [[nodiscard]] std::optional<std::string> hear() const {
    std::string line(8192, '\0');
    const auto length = ::recv(descriptor_, line.data(), line.size(), MSG_DONTWAIT);
    if (length <= 0) return std::nullopt;
    line.resize(static_cast<std::size_t>(length));
    return line;
  }
  /// "killed by signal 9", "ended with status 0".
  std::string wait_for_end() {
    if (ended_) return "ended before";
    int status = 0;
    ::waitpid(id_, &status, 0);
    ended_ = true;
    return WIFSIGNALED(status) ? "killed by signal " + std::to_string(WTERMSIG(status))
                               : "ended with status " + std::to_string(WEXITSTATUS(status));
  }

 private:
  pid_t id_ = -1;
  int descriptor_ = -1;
  bool ended_ = false;
};

/// Files without a name (memfd) that this process has open or mapped, by inode.
[[nodiscard]] inline std::set<std::uint64_t> nameless_files() {
  std::set<std::uint64_t> out;
  if (DIR* const folder = ::opendir("/proc/self/fd")) {
    while (const dirent* const entry = ::readdir(folder)) {
      const std::string path = std::string{"/proc/self/fd/"} + entry->d_name;
      char target[256] = {};
      struct stat about {};
      if (::readlink(path.c_str(), target, sizeof target - 1) > 0 &&
          std::string_view{target}.starts_with("/memfd:") && ::stat(path.c_str(), &about) == 0)
        out.insert(about.st_ino);
    }
    ::closedir(folder);
  }
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos) continue;
    std::istringstream in{line};
    std::string range, rights, offset, device;
    std::uint64_t inode = 0;
    in >> range >> rights >> offset >> device >> inode;
    out.insert(inode);
  }
  return out;
}

[[nodiscard]] inline std::set<std::string> names_in(const char* path) {
  std::set<std::string> out;
  if (DIR* const folder = ::opendir(path)) {
    while (const dirent* const entry = ::readdir(folder)) out.insert(entry->d_name);
    ::closedir(folder);
  }
  return out;
}

/// That a library under the transport keeps open, once used, for the process's life (librdmacm: its devices).
inline std::size_t library_descriptors = 0;

#if defined(__SANITIZE_THREAD__)
inline constexpr std::size_t sanitizer_threads = 1;  ///< one of its own, begun when it likes
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr std::size_t sanitizer_threads = 1;
#else
inline constexpr std::size_t sanitizer_threads = 0;
#endif
#else
inline constexpr std::size_t sanitizer_threads = 0;
#endif

/// What a worker or a server must give back when it is destroyed, though its process goes on.
struct belongings {
  std::size_t heap_bytes = heap_in_use();
  std::size_t threads = names_in("/proc/self/task").size();
  std::size_t descriptors = names_in("/proc/self/fd").size();
  std::set<std::uint64_t> files = nameless_files();

  /// What is still there; empty: nothing. A thread that has ended stays in the list for a moment.
  [[nodiscard]] std::string left_over() const {
    std::string out;
    for (int tries = 0; tries < 100 && !(out = present()).empty(); ++tries) ::usleep(10'000);
    return out;
  }

 private:
  [[nodiscard]] std::string present() const {
    // The C library keeps what it has once set up (some KiB); a chunk, a ring or a table is more.
    constexpr std::size_t heap_tolerance = 256u << 10;
    std::string out;
    if (const auto now = heap_in_use(); now > heap_bytes + heap_tolerance)
      out += std::to_string(now - heap_bytes) + " bytes of the heap; ";
    if (const auto now = names_in("/proc/self/task").size(); now > threads + sanitizer_threads)
      out += std::to_string(now - threads) + " threads; ";
    if (const auto now = names_in("/proc/self/fd").size(); now > descriptors + library_descriptors)
      out += std::to_string(now - descriptors) + " descriptors; ";
    for (const auto inode : nameless_files())
      if (!files.contains(inode)) out += "memfd " + std::to_string(inode) + "; ";
#if defined(__SANITIZE_ADDRESS__)
    if (__lsan_do_recoverable_leak_check() != 0) out += "what the leak sanitizer says above; ";
#endif
    return out;
  }
  [[nodiscard]] static std::size_t heap_in_use() noexcept {
    const struct mallinfo2 now = ::mallinfo2();
    return now.uordblks + now.hblkhd;
  }
};

/// How long the threads of this process have waited for a processor, by thread.
[[nodiscard]] inline std::map<std::string, double> waits_for_cpu() {
  std::map<std::string, double> out;
  for (const auto& thread : names_in("/proc/self/task")) {
    std::ifstream in{"/proc/self/task/" + thread + "/schedstat"};
    double run_ns = 0, wait_ns = 0;
    if (in >> run_ns >> wait_ns) out[thread] = wait_ns * 1e-9;
  }
  return out;
}
/// The thread that has waited longest since then.
[[nodiscard]] inline double longest_wait_since(const std::map<std::string, double>& before) {
  double out = 0;
  for (const auto& [thread, seconds] : waits_for_cpu()) {
    const auto then = before.find(thread);
    out = std::max(out, seconds - (then == before.end() ? 0.0 : then->second));
  }
  return out;
}

/// What a round must leave as it was. Others may put files in /dev/shm: only ours count, by their names.
struct surroundings {
  std::size_t descriptors = names_in("/proc/self/fd").size();
  std::set<std::string> shared_memory = names_in("/dev/shm");

  /// What is left of a round; empty: nothing.
  [[nodiscard]] std::string left_over() const {
    std::string out;
    if (::waitpid(-1, nullptr, WNOHANG) != -1) out += "a child process; ";
    if (const auto now = names_in("/proc/self/fd").size(); now != descriptors)
      out += std::to_string(now) + " descriptors instead of " + std::to_string(descriptors) + "; ";
    for (const auto& name : names_in("/dev/shm"))
      if (!shared_memory.contains(name) && name.find("tensorhub") != std::string::npos)
        out += "/dev/shm/" + name + "; ";
    if (!nameless_files().empty()) out += "a memfd in the driver; ";
    return out;
  }
};

}  // namespace chaos
