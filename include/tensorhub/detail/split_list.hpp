#pragma once
/// \file split_list.hpp
/// Options that hold several values: "one, two".

#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// What stands between the commas, without spaces; never empty: no comma is one value.
[[nodiscard]] inline std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> out(1);
  for (const char each : list) {
    if (each == ',')
      out.emplace_back();
    else if (each != ' ')
      out.back() += each;
  }
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
