#pragma once
/// \file log.hpp
/// Log lines as values: cores collect them, shells print them.

#include <cstdint>
#include <string>
#include <string_view>

namespace tensorhub {

enum class log_level : std::uint8_t { error = 0, warning = 1, info = 2, debug = 3 };

[[nodiscard]] constexpr std::string_view to_string(log_level level) noexcept {
  switch (level) {
    case log_level::error:
      return "error";
    case log_level::warning:
      return "warning";
    case log_level::info:
      return "info";
    case log_level::debug:
      return "debug";
  }
  return "unknown";
}

struct log_line {
  log_level level = log_level::info;
  std::string text{};
};

}  // namespace tensorhub
