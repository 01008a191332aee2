#pragma once
/// \file whole_range.hpp
/// The searches of <algorithm> over a whole range, cheap to compile.
///
/// `std::ranges::any_of` checks two dozen concepts: a call costs g++ 12 about 15 ms, `find` with a member
/// 40 ms (medians of 50 calls in one file), and the headers make 150 of them. These loops cost next to
/// nothing, and say the same. A range is what a range-based `for` takes; a predicate is called with each
/// element, and a member pointer names the part of an element that is compared.

#include <cstddef>
#include <iterator>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The first element that fits; the range's end if none does.
template <typename Range, typename Predicate>
[[nodiscard]] constexpr auto find_if(Range&& range, Predicate fits) {
  auto at = std::begin(range);
  const auto end = std::end(range);
  while (at != end && !fits(*at)) ++at;
  return at;
}
template <typename Range, typename Value>
[[nodiscard]] constexpr auto find(Range&& range, const Value& value) {
  return find_if(range, [&](const auto& each) { return each == value; });
}
template <typename Range, typename Value, typename Element, typename Member>
[[nodiscard]] constexpr auto find(Range&& range, const Value& value, Member Element::*member) {
  return find_if(range, [&](const auto& each) { return each.*member == value; });
}

template <typename Range, typename Predicate>
[[nodiscard]] constexpr bool any_of(Range&& range, Predicate fits) {
  for (auto&& each : range) {
    if (fits(each)) return true;
  }
  return false;
}
template <typename Range, typename Predicate>
[[nodiscard]] constexpr bool all_of(Range&& range, Predicate fits) {
  for (auto&& each : range) {
    if (!fits(each)) return false;
  }
  return true;
}
template <typename Range, typename Predicate>
[[nodiscard]] constexpr bool none_of(Range&& range, Predicate fits) {
  return !any_of(range, fits);
}
template <typename Range, typename Value>
[[nodiscard]] constexpr bool contains(const Range& range, const Value& value) {
  for (const auto& each : range) {
    if (each == value) return true;
  }
  return false;
}

template <typename Range, typename Predicate>
[[nodiscard]] constexpr std::ptrdiff_t count_if(Range&& range, Predicate fits) {
  std::ptrdiff_t found = 0;
  for (auto&& each : range) found += fits(each) ? 1 : 0;
  return found;
}
template <typename Range, typename Value>
[[nodiscard]] constexpr std::ptrdiff_t count(const Range& range, const Value& value) {
  std::ptrdiff_t found = 0;
  for (const auto& each : range) found += each == value ? 1 : 0;
  return found;
}
template <typename Range, typename Value, typename Element, typename Member>
[[nodiscard]] constexpr std::ptrdiff_t count(const Range& range, const Value& value,
                                             Member Element::*member) {
  std::ptrdiff_t found = 0;
  for (const auto& each : range) found += each.*member == value ? 1 : 0;
  return found;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
