#pragma once
/// \file region_text.hpp
/// A remote region as text, for the line between a benchmark's processes.

#include <cstddef>
#include <istream>
#include <sstream>
#include <string>
#include <tensorhub/types/memory.hpp>

namespace bench {

[[nodiscard]] inline std::string to_text(const tensorhub::remote_region& region) {
  std::ostringstream out;
  out << region.base << " " << region.bytes << " " << static_cast<unsigned>(region.key.used_bytes);
  for (const std::byte b : region.key.bytes) out << " " << std::to_integer<unsigned>(b);
  return out.str();
}
[[nodiscard]] inline tensorhub::remote_region from_text(std::istream& in) {
  tensorhub::remote_region region;
  unsigned used = 0;
  in >> region.base >> region.bytes >> used;
  region.key.used_bytes = static_cast<std::uint8_t>(used);
  for (std::byte& b : region.key.bytes) {
    unsigned value = 0;
    in >> value;
    b = static_cast<std::byte>(value);
  }
  return region;
}

}  // namespace bench
