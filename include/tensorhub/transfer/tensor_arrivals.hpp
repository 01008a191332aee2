#pragma once
/// \file tensor_arrivals.hpp
/// Which tensors of a version have arrived while the rest of it is on its way: a pure state machine beside
/// `pull` (pull.hpp).
///
/// Thread safety: none; the shell serialises all calls.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class tensor_arrivals {
 public:
  /// Borrows `shape`. Nothing has arrived.
  explicit tensor_arrivals(const layout& shape)
      : layout_{&shape}, arrived_(static_cast<std::size_t>(shape.chunk_count())) {}

  /// These chunks are here and verified.
  void add(std::span<const chunk_index> chunks) noexcept {
    for (const chunk_index chunk : chunks) arrived_[static_cast<std::size_t>(chunk)] = true;
  }

  [[nodiscard]] bool has_chunk(chunk_index chunk) const noexcept {
    return arrived_[static_cast<std::size_t>(chunk)];
  }
  /// All bytes of this tensor are here.
  [[nodiscard]] bool has(std::size_t tensor) const noexcept;

  /// The first `most` chunks that these tensors, in this order, still lack.
  [[nodiscard]] std::vector<chunk_index> missing(std::span<const std::size_t> tensors,
                                                 std::size_t most) const;

 private:
  const layout* layout_;
  std::vector<bool> arrived_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/tensor_arrivals.ipp"
#endif
