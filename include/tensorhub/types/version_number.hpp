#pragma once
/// \file version_number.hpp
/// Version numbers of a model, and the selectors by which an update chooses one.

#include <compare>
#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A version of a model. Versions increase per model, and the trainer chooses the numbers. Zero means "no
/// version" and cannot be published.
struct version_number {
  std::uint64_t value = 0;
  /// The library's own (service/rollbacks.hpp): tells versions apart that were published under one number,
  /// before and after a roll back. Zero in all that users give and get.
  std::uint32_t line = 0;
  constexpr version_number() = default;
  /// Implicit, because `publish(step)` is the usual call.
  constexpr version_number(std::uint64_t number) : value{number} {}
  constexpr bool operator==(const version_number&) const = default;
  constexpr std::strong_ordering operator<=>(const version_number& other) const noexcept {
    return line == other.line ? value <=> other.value : line <=> other.line;
  }
  /// Without the line: as users name the version.
  [[nodiscard]] constexpr version_number number() const noexcept { return value; }
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return value != 0; }
};

[[nodiscard]] inline std::string to_string(version_number version) {
  return std::to_string(version.value);
}

/// The version that an update asks for.
///
/// | selector    | means                                        | if it is not there                        |
/// |-------------|----------------------------------------------|-------------------------------------------|
/// | latest      | the highest version that some replica holds  | waits for the first one until the         |
/// |             | completely                                   | deadline                                  |
/// | exactly(v)  | v                                            | future v: waits; past v: `unavailable`    |
/// | at_least(v) | the latest one, if it is v or higher         | waits until the deadline                  |
struct version_selector {
  enum class kind_type : std::uint8_t { latest = 0, exactly = 1, at_least = 2 };
  kind_type kind = kind_type::latest;
  version_number version{};

  constexpr version_selector() = default;
  constexpr version_selector(kind_type which, version_number number) : kind{which}, version{number} {}
  /// Implicit: `update(v)` means exactly v.
  constexpr version_selector(version_number number) : kind{kind_type::exactly}, version{number} {}
  constexpr version_selector(std::uint64_t number) : kind{kind_type::exactly}, version{number} {}
  constexpr bool operator==(const version_selector&) const = default;
};

inline constexpr version_selector latest{};
[[nodiscard]] constexpr version_selector exactly(version_number version) {
  return {version_selector::kind_type::exactly, version};
}
[[nodiscard]] constexpr version_selector at_least(version_number version) {
  return {version_selector::kind_type::at_least, version};
}

/// A valid version that is there may be what the selector asks for.
[[nodiscard]] constexpr bool accepts(const version_selector& selector, version_number version) noexcept {
  if (selector.kind == version_selector::kind_type::exactly) return version.value == selector.version.value;
  return selector.kind == version_selector::kind_type::latest || version.value >= selector.version.value;
}

[[nodiscard]] std::string to_string(const version_selector& selector);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/version_number.ipp"
#endif
