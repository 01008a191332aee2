#pragma once
/// \file layout.hpp
/// The layout of one shard: tensors -> segments -> chunks.
///
/// A shard's flat byte space is a sequence of *segments*. Segment 0 packs the small tensors, in the order in
/// which the tensors were added, each at a multiple of 64 bytes. Every larger tensor is a segment of its own,
/// in the same order. (If no tensor is small, there is no packed segment.) A *chunk* is a run of at most
/// `chunk_bytes` inside one segment, so that a chunk is always one contiguous read at both ends. Chunks are
/// numbered across all segments; the last chunk of a segment may be short.
///
/// Small are tensors below `chunk_bytes`; but if all of them are more than 32 chunks, only those below a
/// quarter of `chunk_bytes`. What is packed needs its memory twice, and is copied at both ends; on the other
/// hand it is read in whole chunks. (With 1 MiB chunks over TCP, packed tensors took 1.1 to 1.2 times
/// the time of tensors of 256 KiB that were read in place, and 0.7 of that of tensors of 128 KiB.)
///
///     segment 0 (packed)      segment 1 (tensor "wq")                 segment 2 ...
///     | norm | bias | ... |   |            wq             |
///     [ chunk 0 ][chunk 1 ]   [ chunk 2 ][ chunk 3 ][ch. 4]           [ chunk 5 ] ...
///
/// Two workers agree on chunk numbers exactly if `digest()` agrees. The digest covers names, types, shapes,
/// order, `chunk_bytes`, and what counts as small.
///
/// Thread safety: immutable after construction.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/tensor.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The number of a chunk within its shard.
using chunk_index = std::uint64_t;

/// The location of a chunk: bytes [offset, offset + bytes) of segment `segment`.
struct chunk_slice {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Chunks [first, first + count).
struct chunk_run {
  chunk_index first = 0;
  std::uint64_t count = 0;
};

/// One contiguous piece of the shard: the packed small tensors, or one large tensor.
struct layout_segment {
  std::uint64_t bytes = 0;
  chunk_index first_chunk = 0;
  std::uint64_t chunk_count = 0;
  std::optional<std::uint32_t> tensor{};  ///< the large tensor; empty for the packed segment
};

class layout {
 public:
  static constexpr std::uint64_t packed_alignment_bytes = 64;
  /// If all tensors below `chunk_bytes` together are no more, all of them are packed.
  static constexpr std::uint64_t most_packed_chunks = 32;

  layout() = default;

  /// Throws as `checked_bytes`, and `invalid_argument` for a duplicate name or a chunk size of zero. A shard
  /// may have no bytes; it then has no segment and no chunk.
  explicit layout(std::vector<tensor_spec> tensors, std::uint64_t chunk_bytes = defaults::chunk_bytes);

  /// The bytes of a tensor. Throws `invalid_argument` (a name that is empty or no plain text, an unknown
  /// type) or `limit_exceeded`.
  [[nodiscard]] static std::uint64_t checked_bytes(const tensor_spec& tensor);

  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::span<const layout_segment> segments() const noexcept { return segments_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  [[nodiscard]] std::uint64_t chunk_count() const noexcept { return chunk_count_; }
  /// The bytes of all segments, including the padding between packed tensors.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] digest128 digest() const noexcept { return digest_; }

  /// Tensors with fewer bytes are packed: `chunk_bytes`, or a quarter of it.
  [[nodiscard]] std::uint64_t packed_below_bytes() const noexcept { return packed_below_bytes_; }
  /// The bytes of segment 0 if it is the packed segment, else zero.
  [[nodiscard]] std::uint64_t packed_bytes() const noexcept {
    return !segments_.empty() && !segments_.front().tensor ? segments_.front().bytes : 0;
  }
  /// The offset of a small tensor in the packed segment; empty for a large tensor.
  [[nodiscard]] std::optional<std::uint64_t> packed_offset(std::size_t tensor) const noexcept {
    return packed_offsets_[tensor];
  }

  /// Pre-condition: chunk < chunk_count().
  [[nodiscard]] chunk_slice slice(chunk_index chunk) const noexcept;

  /// The chunks that a tensor's bytes are in; a chunk of the packed segment has bytes of several tensors.
  /// Pre-condition: tensor < tensors().size().
  [[nodiscard]] chunk_run chunks_of(std::size_t tensor) const noexcept;
  /// "chunk 5 of tensor 'wq'", "chunk 0 of the small tensors". Pre-condition: chunk < chunk_count().
  [[nodiscard]] std::string text_of(chunk_index chunk) const;

 private:
  void check_tensors() const;

  [[nodiscard]] std::uint64_t choose_packed_below() const;
  void place_tensors();

  void append_segment(std::uint64_t bytes, std::optional<std::uint32_t> tensor);

  [[noreturn]] static void refuse_size();

  [[nodiscard]] digest128 make_digest() const;

  std::vector<tensor_spec> tensors_;
  std::uint64_t chunk_bytes_ = defaults::chunk_bytes;
  std::uint64_t packed_below_bytes_ = defaults::chunk_bytes;
  std::vector<layout_segment> segments_;
  std::vector<std::optional<std::uint64_t>> packed_offsets_;
  std::uint64_t chunk_count_ = 0;
  std::uint64_t bytes_ = 0;
  digest128 digest_;
};

/// The chunks that these tensors' bytes are in (by position), each once, in their order.
[[nodiscard]] std::vector<chunk_index> chunks_of(const layout& shape, std::span<const std::size_t> tensors);

/// The first difference between a worker's layout and another one, as a sentence that calls that one
/// `the_other` ("tensor 3: 'wq' f32 [8, 8] in this worker, 'wk' f32 [8, 8] in the model"); empty if they
/// agree.
[[nodiscard]] std::string first_difference(const layout& own, const layout& other,
                                           std::string_view the_other);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/layout.ipp"
#endif
