#pragma once
/// \file local_host.hpp
/// Hosts in addresses that mean another machine to every process that reads them.
///
/// Thread safety: a pure function.

#include <algorithm>
#include <array>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The loopback interface, or every interface: to connect there is to connect to the own machine.
[[nodiscard]] inline bool is_local_host(std::string_view host) noexcept {
  constexpr std::array<std::string_view, 8> names{"",    "*",  "localhost", "0.0.0.0",
                                                  "::1", "::", "[::1]",     "[::]"};
  return host.starts_with("127.") || std::ranges::find(names, host) != names.end();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
