#pragma once
/// \file read_ids.hpp
/// The ids of the reads that the transport conformance suite posts.
///
/// They use all 64 bits, and those of two reads that follow one another differ in one of the upper 16 bits
/// only, as ids of the library's own reads may (transfer/pull_lane.hpp): a transport that keeps fewer bits,
/// or uses some of them itself, mistakes one read for another.
///
/// Thread safety: pure functions.

#include <cstddef>
#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The id of a queue's read number `number`, counted from zero.
[[nodiscard]] constexpr request_id id_of_read(std::size_t number) noexcept {
  constexpr request_id middle = request_id{0xb6d5u} << 32;
  return request_id{0xa5c3u + number % 2} << 48 | middle | (1000 + number / 2);
}

/// Empty: no read of the suite has this id.
[[nodiscard]] constexpr std::optional<std::size_t> number_of_read(request_id id) noexcept {
  const request_id pair = (id & 0xffff'ffffu) - 1000;
  for (const std::size_t number : {2 * pair, 2 * pair + 1})
    if (id_of_read(number) == id) return number;
  return std::nullopt;
}

/// For sentences: "read 7", or what the id is that no read has.
[[nodiscard]] inline std::string name_of_read(request_id id) {
  const auto number = number_of_read(id);
  return number ? "read " + std::to_string(*number)
                : "a read of id " + std::to_string(id) + ", which the suite has not given,";
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
