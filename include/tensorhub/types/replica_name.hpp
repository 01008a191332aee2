#pragma once
/// \file replica_name.hpp
/// Names of the workers that a replica's process adds to its own: "<replica>@<role>", such as
/// "rollout-0@stage", and "<replica>~<version>", a copy of a retained version in its host memory. They are
/// parts of the replica: what its key may be, and what is ordered of it, they may be and do as well.

#include <cstddef>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

[[nodiscard]] inline std::string name_in_role(std::string_view replica, std::string_view role) {
  return std::string{replica}.append("@").append(role);
}
[[nodiscard]] inline std::string name_of_copy(std::string_view replica, version_number version) {
  return std::string{replica}.append("~").append(to_string(version));
}

/// Of a part: the name of what it is a part of. Empty: it is nobody's.
[[nodiscard]] constexpr std::string_view whole_of(std::string_view name) noexcept {
  const std::size_t mark = name.find_last_of("@~");
  return mark == std::string_view::npos ? std::string_view{} : name.substr(0, mark);
}
/// Whether it is the name of a copy of a retained version.
[[nodiscard]] constexpr bool is_copy(std::string_view name) noexcept {
  const std::string_view whole = whole_of(name);
  return !whole.empty() && name[whole.size()] == '~';
}
/// Whether this is the replica's own name or that of one of its parts.
[[nodiscard]] constexpr bool is_part_of(std::string_view name, std::string_view replica) noexcept {
  if (!name.starts_with(replica)) return false;
  const std::string_view rest = name.substr(replica.size());
  return rest.empty() || rest.front() == '@' || rest.front() == '~';
}

}  // namespace tensorhub::inline TENSORHUB_MODE
