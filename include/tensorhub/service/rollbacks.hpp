#pragma once
/// \file rollbacks.hpp
/// Which versions of a model are valid after its trainer went back to a checkpoint (DESIGN 2.4).
///
/// A roll back to version c begins a new *line*. Versions above c of all earlier lines are void; their
/// numbers may be published again, as versions of the new line. Among the valid versions each number occurs
/// once, and the order of the numbers is that of the versions.
///
///     line 0   1 ... 100 | 101 ... 105
///     line 1               101 ... 120 | 121 ... 130      {1, 100}: from line 0 up to 100 stays valid
///     line 2                             121 ...          {2, 120}: from line 1 up to 120
///
/// Thread safety: functions of values.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The valid version of this number, whether or not it was published.
[[nodiscard]] inline version_number valid_version(const messages::retention& keeps,
                                                  version_number number) noexcept {
  const auto above =
      std::lower_bound(keeps.rollbacks.begin(), keeps.rollbacks.end(), number.value,
                       [](const messages::rollback& each, std::uint64_t value) { return each.to < value; });
  number.line = above == keeps.rollbacks.begin() ? 0 : std::prev(above)->line;
  return number;
}

/// A user retains this version by its number, whatever line it is of.
[[nodiscard]] inline bool is_pinned(const messages::retention& keeps, version_number version) noexcept {
  return std::binary_search(keeps.pinned.begin(), keeps.pinned.end(), version.number());
}

/// A roll back has withdrawn the version, or it is of a line that is not known.
[[nodiscard]] inline bool is_void(const messages::retention& keeps, version_number version) noexcept {
  return version && version != valid_version(keeps, version);
}

/// The line of what is published now.
[[nodiscard]] inline std::uint32_t last_line(const messages::retention& keeps) noexcept {
  return keeps.rollbacks.empty() ? 0 : keeps.rollbacks.back().line;
}

/// A roll back that is known has withdrawn the version.
[[nodiscard]] inline bool is_withdrawn(const messages::retention& keeps, version_number version) noexcept {
  return version.line <= last_line(keeps) && is_void(keeps, version);
}

inline constexpr std::uint32_t end_of_lines = UINT32_MAX / 2;  ///< more than all roll backs there will be
/// A version number that roll backs could have made: there is a line above its own.
[[nodiscard]] inline bool is_possible(version_number version) noexcept {
  return version.line < end_of_lines - 1;
}

/// Makes all versions above `to` void. `seen`: the latest one that is known, perhaps of a line that an
/// earlier server has not passed on. False: there were too many roll backs (limits::rollbacks).
[[nodiscard]] inline bool roll_back(messages::retention& keeps, version_number to, version_number seen) {
  const std::uint64_t line = std::uint64_t{std::max(last_line(keeps), seen.line)} + 1;
  std::erase_if(keeps.rollbacks, [&](const messages::rollback& each) { return each.to >= to.value; });
  std::erase_if(keeps.pinned, [&](version_number each) { return each.value > to.value; });
  if (keeps.rollbacks.size() >= limits::rollbacks || line >= end_of_lines) return false;
  keeps.rollbacks.push_back({static_cast<std::uint32_t>(line), to.value});
  return true;
}

/// What `roll_back` could have made.
[[nodiscard]] inline bool is_sound(const std::vector<messages::rollback>& rollbacks) noexcept {
  const auto follows = [](const messages::rollback& a, const messages::rollback& b) {
    return a.line >= b.line || a.to >= b.to;
  };
  return rollbacks.size() <= limits::rollbacks &&
         std::adjacent_find(rollbacks.begin(), rollbacks.end(), follows) == rollbacks.end() &&
         (rollbacks.empty() || (rollbacks.front().line > 0 && rollbacks.back().line < end_of_lines));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
