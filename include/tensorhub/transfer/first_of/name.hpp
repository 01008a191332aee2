#pragma once
/// \file name.hpp
/// The name of a composition, "first_of<same_host,tcp>", made at compile time.

#include <array>
#include <cstddef>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::first_of_detail {

template <typename... Members>
struct composed {
  static constexpr std::string_view prefix = "first_of<";
  static constexpr std::size_t bytes = prefix.size() + (Members::name.size() + ...) + sizeof...(Members);
  static constexpr std::array<char, bytes> text = [] {
    std::array<char, bytes> out{};
    std::size_t at = 0;
    const auto append = [&](std::string_view part) {
      for (const char each : part) out[at++] = each;
    };
    append(prefix);
    std::size_t left = sizeof...(Members);
    ((append(Members::name), append(--left > 0 ? "," : ">")), ...);
    return out;
  }();
};

template <typename... Members>
[[nodiscard]] constexpr std::string_view composed_name() noexcept {
  return {composed<Members...>::text.data(), composed<Members...>::text.size()};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail
