#pragma once
/// \file shm_files.hpp
/// The queues of libfabric's provider `shm`: files in /dev/shm, named PID:UID:NUMBER. They stay where their
/// process was killed.

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace shm_files {

[[nodiscard]] inline std::vector<std::filesystem::path> of(pid_t process) {
  const std::string prefix = std::to_string(process) + ":";
  std::vector<std::filesystem::path> files;
  for (const auto& each : std::filesystem::directory_iterator{"/dev/shm"})
    if (each.path().filename().string().starts_with(prefix)) files.push_back(each.path());
  return files;
}

inline void remove(pid_t process) {
  std::error_code ignored;
  for (const auto& file : of(process)) std::filesystem::remove(file, ignored);
}

}  // namespace shm_files
