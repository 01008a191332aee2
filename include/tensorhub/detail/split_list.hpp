#pragma once
/// \file split_list.hpp
/// Options that hold several values: "one, two".

#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The parts between the commas, without spaces. The result is never empty: a text without a comma is one
/// value.
[[nodiscard]] std::vector<std::string> split_list(const std::string& list);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/split_list.ipp"
#endif
