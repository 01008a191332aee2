#pragma once
/// \file in_parallel.ipp
/// Definitions of in_parallel.hpp.

#include <exception>
#include <thread>
#include <vector>

#include "tensorhub/detail/in_parallel.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::jthread> helpers;
  if (count > 1) helpers.reserve(count - 1);
  try {
    for (std::size_t i = 1; i < count; ++i) helpers.emplace_back([&work, i] { work(i); });
  } catch (const std::exception&) {  // no more threads: those that run do the rest
  }
  work(0);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
