#pragma once
/// \file machine_id.hpp
/// Which machine this process runs on.

#include <fstream>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The kernel's random identity of this boot: the same in every process and container of one running machine,
/// and in no other. "unknown" where the kernel does not tell.
[[nodiscard]] inline std::string machine_id() {
  std::ifstream file{"/proc/sys/kernel/random/boot_id"};
  std::string text;
  if (!(file >> text) || text.empty()) return "unknown";
  return text;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
