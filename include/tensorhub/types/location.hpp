#pragma once
/// \file location.hpp
/// Where a worker runs. The scheduler compares locations; no other part interprets them.

#include <cstdint>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The names are the user's own. An empty name means "unknown". Two unknown names are never equal, except for
/// the datacenter: two workers that name none count as being in the same datacenter.
struct location {
  std::string datacenter{};
  std::string rack{};
  std::string host{};    ///< if empty, a worker takes the machine's name and a part of its identity
  std::string device{};  ///< for example "gpu0"; not compared between hosts
  bool operator==(const location&) const = default;
};

/// How far two workers are from each other, nearest first.
enum class locality : std::uint8_t {
  same_host = 0,
  same_rack = 1,
  same_datacenter = 2,
  other_datacenter = 3
};

[[nodiscard]] locality locality_between(const location& a, const location& b) noexcept;

/// Sets the location of this process in a transport's options if they have an empty member `here`, or if a
/// decorated transport's options (`inner`) have one.
template <typename Options>
void tell_location(Options& options, const location& ours) {
  if constexpr (requires { options.here = ours; }) {
    if (options.here == location{}) options.here = ours;
  }
  if constexpr (requires { options.inner; }) tell_location(options.inner, ours);
}

template <typename Options>
[[nodiscard]] Options with_location(Options options, const location& ours) {
  tell_location(options, ours);
  return options;
}

[[nodiscard]] std::string_view to_string(locality distance) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/location.ipp"
#endif
