#pragma once
/// \file memory.ipp
/// Which memory can be registered: definitions of types/memory.hpp.

#include <string>
#include <string_view>

#include "tensorhub/error.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL void check_registrable(std::string_view transport, std::span<const memory_range> ranges) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    std::string_view why;
    if (ranges[i].data == nullptr || ranges[i].bytes == 0)
      why = "null or empty";
    else if (!ranges[i].host_accessible() && ranges[i].device == nullptr)
      why = "device memory without its device (memory_range::device): let its memory space describe it";
    if (why.empty()) continue;
    throw error(errc::invalid_argument, std::string{transport} + ": " + name_of_range(i, ranges.size()) +
                                            " cannot be registered: it is " + std::string{why});
  }
}

TENSORHUB_DECL void check_pages_stay(std::string_view transport, std::span<const memory_range> ranges) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (!ranges[i].migrates()) continue;
    const std::string own{transport};
    throw error(
        errc::transport_failed,
        own + ": " + name_of_range(i, ranges.size()) + " (" + std::to_string(ranges[i].bytes) +
            " bytes) cannot be registered: it is managed memory (cudaMallocManaged), whose pages move "
            "between host and device, and a NIC would go on using those that it was given. Use memory of "
            "cudaMalloc or cudaMallocHost, or put another transport behind this one: first_of<" +
            own + ", tcp>");
  }
}

TENSORHUB_DECL std::string name_of_range(std::size_t index, std::size_t count) {
  return "range " + std::to_string(index) + " of " + std::to_string(count);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
