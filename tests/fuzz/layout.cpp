/// \file layout.cpp
/// A layout made of tensors that a peer describes: refused with an error, or every byte of every tensor lies
/// in exactly one chunk.
///
/// Input: chunk size, then tensors: type, number of dimensions, dimensions, name.

#include <vector>

#include "input.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/types/layout.hpp"

namespace {

using namespace tensorhub;

tensor_spec tensor_of(fuzz::input& in) {
  tensor_spec out;
  out.type = static_cast<dtype>(in.below(15));
  out.shape.resize(in.below(20));
  for (std::uint64_t& dimension : out.shape) dimension = in.number();
  out.name = in.once_in(16) ? std::string(in.number() % 2048, 'x') : in.text(8);
  return out;
}

void check(const layout& made) {
  std::uint64_t bytes = 0;
  chunk_index next = 0;
  for (const layout_segment& segment : made.segments()) {
    fuzz::require(segment.first_chunk == next, "chunks are numbered through");
    next += segment.chunk_count;
    bytes += segment.bytes;
    if (segment.chunk_count == 0) continue;
    const chunk_slice first = made.slice(segment.first_chunk);
    const chunk_slice last = made.slice(next - 1);
    fuzz::require(first.offset == 0 && first.segment == last.segment,
                  "a segment begins with its first chunk");
    fuzz::require(
        last.bytes != 0 && last.bytes <= made.chunk_bytes() && last.offset + last.bytes == segment.bytes,
        "the last chunk ends with its segment");
  }
  fuzz::require(next == made.chunk_count() && bytes == made.bytes(), "segments make up the shard");
  fuzz::require(made.bytes() <= limits::shard_bytes && made.chunk_count() <= limits::chunks,
                "a layout keeps its limits");
  for (std::size_t i = 0; i < made.tensors().size(); ++i) {
    if (const auto offset = made.packed_offset(i))
      fuzz::require(*offset + *made.tensors()[i].bytes() <= made.packed_bytes(), "small tensors are packed");
  }
  const control_offsets at = control_offsets::of(made);
  fuzz::require(at.bitmap < at.digests || made.chunk_count() == 0, "a control block has its parts in order");
  fuzz::require(at.total_bytes < (1ull << 40), "a control block's size does not wrap");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  const std::uint64_t chunk_bytes = in.number();
  std::vector<tensor_spec> tensors;
  while (!in.empty() && tensors.size() < 64) tensors.push_back(tensor_of(in));
  try {
    const layout made{tensors, chunk_bytes};
    check(made);
    fuzz::require(first_difference(made, made, "itself").empty(), "a layout is itself");
    fuzz::require(layout{tensors, chunk_bytes}.digest() == made.digest(), "a digest is of the layout alone");
  } catch (const error& e) {
    fuzz::require(e.code() == errc::invalid_argument || e.code() == errc::limit_exceeded,
                  "a layout is refused as wrong or too large");
  }
  return 0;
}
