#pragma once
/// \file tensor_arrivals.ipp
/// Definitions of transfer/tensor_arrivals.hpp.

#include "tensorhub/transfer/tensor_arrivals.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL bool tensor_arrivals::has(std::size_t tensor) const noexcept {
  const chunk_run run = layout_->chunks_of(tensor);
  for (chunk_index i = run.first; i < run.first + run.count; ++i) {
    if (!has_chunk(i)) return false;
  }
  return true;
}

TENSORHUB_DECL std::vector<chunk_index> tensor_arrivals::missing(std::span<const std::size_t> tensors,
                                                                 std::size_t most) const {
  std::vector<chunk_index> out;
  for (const std::size_t tensor : tensors) {
    const chunk_run run = layout_->chunks_of(tensor);
    for (chunk_index i = run.first; i < run.first + run.count; ++i) {
      if (out.size() == most) return out;
      // Small tensors that follow each other lie in the same chunk.
      if (!has_chunk(i) && (out.empty() || out.back() != i)) out.push_back(i);
    }
  }
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
