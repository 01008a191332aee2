#pragma once
/// \file location.hpp
/// Where a worker runs. The scheduler compares places; nothing else interprets them.

#include <cstdint>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Names are the user's own. Empty means "unknown", and an unknown part is never equal to another unknown
/// part except for the datacenter: two workers that name none are taken to be in the same one.
struct location {
  std::string datacenter{};
  std::string rack{};
  std::string host{};    ///< filled with the machine's name when left empty (worker.hpp)
  std::string device{};  ///< for instance "gpu0"; not compared between hosts
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

/// Tells a transport's options where this process is, if they ask for it: by a member `here` that is still
/// empty, their own or that of a decorated transport's options (`inner`).
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
