#pragma once
/// \file left_over.hpp
/// What a process of a round, or the round, may leave behind: heap, threads, descriptors, files.

#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "support/sanitizers.hpp"

#if TENSORHUB_UNDER_ADDRESS_SANITIZER
#include <sanitizer/lsan_interface.h>
#endif

namespace chaos {

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

/// The thread sanitizer has one of its own, begun when it likes.
inline constexpr std::size_t sanitizer_threads = TENSORHUB_UNDER_THREAD_SANITIZER;

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
#if TENSORHUB_UNDER_ADDRESS_SANITIZER
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
