#pragma once
/// \file placed_chunk.hpp
/// Where the segments and the chunks of a layout lie in this process. Values.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// One chunk's bytes.
struct placed_chunk {
  chunk_index chunk = 0;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  device_access* device = nullptr;  ///< null: the CPU may follow `data`
};

/// Where a layout segment lies in this process.
struct segment_place {
  std::size_t region = 0;    ///< position in the list of registered regions
  std::uint64_t offset = 0;  ///< of the segment in the region
  std::byte* data = nullptr;
  device_access* device = nullptr;  ///< null: the CPU may follow `data`
};

/// `places` has one entry per segment of the layout.
[[nodiscard]] inline placed_chunk place_of(const layout& shape, std::span<const segment_place> places,
                                           chunk_index chunk) {
  const chunk_slice slice = shape.slice(chunk);
  const segment_place& place = places[slice.segment];
  return {chunk, place.data + slice.offset, slice.bytes, place.device};
}

}  // namespace tensorhub::inline TENSORHUB_MODE
