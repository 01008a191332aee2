#pragma once
/// \file available_memory.ipp
/// What detail/available_memory.hpp declares.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#include "tensorhub/detail/available_memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// What one group leaves. Without these files there is no limit. `prefix`: of the names in memory.stat, of a
/// group and those in it.
[[nodiscard]] inline std::uint64_t room_in_group(const std::string& folder, const char* limit_name,
                                                 const char* usage_name, std::string_view prefix) {
  std::uint64_t limit = 0;
  std::uint64_t usage = 0;
  if (!(std::ifstream{folder + limit_name} >> limit) || !(std::ifstream{folder + usage_name} >> usage))
    return UINT64_MAX;
  std::uint64_t idle = 0;
  std::ifstream facts{folder + "/memory.stat"};
  std::string name;
  for (std::uint64_t value = 0; facts >> name >> value;) {
    if (name == std::string{prefix} + "inactive_file") idle += value;
    if (name == std::string{prefix} + "active_file") idle += value / 2;
    if (name == "slab_reclaimable") idle += value;
  }
  usage -= std::min(usage, idle);
  return limit - std::min(limit, usage);
}

TENSORHUB_DECL std::uint64_t room_in_groups(const std::string& folder, const std::string& groups) {
  std::uint64_t room = UINT64_MAX;
  std::istringstream lines{groups};  // "<number>:<controllers>:<path>"; version 2: "0::<path>"
  for (std::string line; std::getline(lines, line);) {
    const std::size_t controllers = line.find(':');
    const std::size_t path = controllers == std::string::npos ? controllers : line.find(':', controllers + 1);
    if (path == std::string::npos) continue;
    const std::string of = "," + line.substr(controllers + 1, path - controllers - 1) + ",";
    const bool is_new = of == ",,";
    if (!is_new && of.find(",memory,") == std::string::npos) continue;
    for (std::string group = line.substr(path + 1);; group.resize(group.rfind('/'))) {
      if (group == "/") group.clear();
      room = std::min(room, is_new ? room_in_group(folder + group, "/memory.max", "/memory.current", "")
                                   : room_in_group(folder + "/memory" + group, "/memory.limit_in_bytes",
                                                   "/memory.usage_in_bytes", "total_"));
      if (group.find('/') == std::string::npos) break;
    }
  }
  return room;
}

/// Kernels before 3.14 do not say it; there, what is free.
[[nodiscard]] inline std::uint64_t available_on_machine() {
  std::ifstream facts{"/proc/meminfo"};
  std::string name;
  for (std::uint64_t kib = 0; facts >> name >> kib;) {
    if (name == "MemAvailable:") return kib * 1024;
    facts.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return static_cast<std::uint64_t>(std::max(::sysconf(_SC_AVPHYS_PAGES), 0l)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

TENSORHUB_DECL std::uint64_t available_memory_bytes() noexcept {
  try {
    std::ostringstream groups;
    groups << std::ifstream{"/proc/self/cgroup"}.rdbuf();
    return std::min(available_on_machine(), room_in_groups("/sys/fs/cgroup", groups.str()));
  } catch (...) {  // not even for a line of text
    return 0;
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
