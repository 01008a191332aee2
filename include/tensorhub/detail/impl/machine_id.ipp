#pragma once
/// \file machine_id.ipp
/// Reads the boot identity from the proc file system: definitions of detail/machine_id.hpp.

#include "tensorhub/detail/machine_id.hpp"

#include <fstream>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::string machine_id() {
  std::ifstream file{"/proc/sys/kernel/random/boot_id"};
  std::string text;
  if (!(file >> text) || text.empty()) return "unknown";
  return text;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
