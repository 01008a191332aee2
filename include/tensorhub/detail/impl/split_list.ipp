#pragma once
/// \file split_list.ipp
/// Splits at commas and trims spaces: definitions of detail/split_list.hpp.

#include "tensorhub/detail/split_list.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::vector<std::string> split_list(const std::string& list) {
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
