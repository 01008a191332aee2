#pragma once
/// \file layout.hpp
/// The layout of one shard: tensors -> segments -> chunks.
///
/// A shard's flat byte space is a row of *segments*. Segment 0 packs every tensor smaller than `chunk_bytes`,
/// in the order in which they were added, each at a multiple of 64 bytes; every larger tensor is a segment of
/// its own, in the same order. (There is no packed segment when no tensor is small.) A *chunk* is a run of at
/// most `chunk_bytes` inside one segment, so that it is always one contiguous read at both ends: chunks are
/// numbered through, the last one of a segment is short.
///
///     segment 0 (packed)      segment 1 (tensor "wq")                 segment 2 ...
///     | norm | bias | ... |   |            wq             |
///     [ chunk 0 ][chunk 1 ]   [ chunk 2 ][ chunk 3 ][ch. 4]           [ chunk 5 ] ...
///
/// Two workers agree on chunk numbers exactly if `digest()` agrees: it covers names, types, shapes, order and
/// `chunk_bytes`.
///
/// Thread safety: immutable after construction.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/xxh3.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Number of a chunk within its shard.
using chunk_index = std::uint64_t;

/// Where a chunk lies: bytes [offset, offset + bytes) of segment `segment`.
struct chunk_slice {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
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

  layout() = default;

  /// Throws `invalid_argument` (empty or duplicate name, chunk size zero) or `limit_exceeded`. A shard may be
  /// without bytes: it has no segment and no chunk.
  explicit layout(std::vector<tensor_spec> tensors, std::uint64_t chunk_bytes = defaults::chunk_bytes)
      : tensors_{std::move(tensors)}, chunk_bytes_{chunk_bytes} {
    if (chunk_bytes_ == 0) throw error(errc::invalid_argument, "chunk_bytes must not be zero");
    if (tensors_.size() > limits::tensors) throw error(errc::limit_exceeded, "too many tensors in one shard");
    check_tensors();
    place_tensors();
    digest_ = make_digest();
  }

  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::span<const layout_segment> segments() const noexcept { return segments_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  [[nodiscard]] std::uint64_t chunk_count() const noexcept { return chunk_count_; }
  /// Bytes of all segments, the padding between packed tensors included.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] digest128 digest() const noexcept { return digest_; }

  /// Bytes of segment 0 if it is the packed one, else zero.
  [[nodiscard]] std::uint64_t packed_bytes() const noexcept {
    return !segments_.empty() && !segments_.front().tensor ? segments_.front().bytes : 0;
  }
  /// Offset of a small tensor in the packed segment; empty for a large one.
  [[nodiscard]] std::optional<std::uint64_t> packed_offset(std::size_t tensor) const noexcept {
    return packed_offsets_[tensor];
  }

  /// Pre-condition: chunk < chunk_count().
  [[nodiscard]] chunk_slice slice(chunk_index chunk) const noexcept {
    const auto after =
        std::upper_bound(segments_.begin(), segments_.end(), chunk,
                         [](chunk_index c, const layout_segment& s) { return c < s.first_chunk; });
    const auto& segment = *std::prev(after);
    const std::uint64_t offset = (chunk - segment.first_chunk) * chunk_bytes_;
    return {static_cast<std::uint32_t>(std::prev(after) - segments_.begin()), offset,
            std::min(chunk_bytes_, segment.bytes - offset)};
  }

 private:
  void check_tensors() const {
    std::unordered_set<std::string_view> names;
    for (const auto& tensor : tensors_) {
      if (tensor.name.empty()) throw error(errc::invalid_argument, "a tensor has no name");
      if (tensor.name.size() > limits::name_bytes)
        throw error(errc::limit_exceeded, "tensor name too long: " + tensor.name);
      if (tensor.shape.size() > limits::tensor_dimensions) {
        throw error(errc::limit_exceeded, "tensor '" + tensor.name + "' has too many dimensions");
      }
      const auto bytes = tensor.bytes();
      if (!bytes || *bytes > limits::shard_bytes) {
        throw error(errc::limit_exceeded, "tensor '" + tensor.name + "' is too large: " + describe(tensor));
      }
      if (!names.insert(tensor.name).second) {
        throw error(errc::invalid_argument, "tensor '" + tensor.name + "' was added twice");
      }
    }
  }

  void place_tensors() {
    packed_offsets_.resize(tensors_.size());
    std::uint64_t packed = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::uint64_t bytes = *tensors_[i].bytes();
      if (bytes >= chunk_bytes_) continue;
      packed_offsets_[i] = packed;
      packed += (bytes + packed_alignment_bytes - 1) / packed_alignment_bytes * packed_alignment_bytes;
      if (packed > limits::shard_bytes) refuse_size();  // here, before the sum can wrap
    }
    if (packed != 0) append_segment(packed, std::nullopt);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!packed_offsets_[i]) append_segment(*tensors_[i].bytes(), static_cast<std::uint32_t>(i));
    }
  }

  void append_segment(std::uint64_t bytes, std::optional<std::uint32_t> tensor) {
    const std::uint64_t chunks = bytes / chunk_bytes_ + (bytes % chunk_bytes_ != 0 ? 1 : 0);
    segments_.push_back({bytes, chunk_count_, chunks, tensor});
    chunk_count_ += chunks;
    bytes_ += bytes;
    if (bytes_ > limits::shard_bytes || chunk_count_ > limits::chunks) refuse_size();
  }

  [[noreturn]] static void refuse_size() {
    throw error(errc::limit_exceeded,
                "the shard is too large: raise chunk_bytes or split it into more shards");
  }

  [[nodiscard]] digest128 make_digest() const {
    std::string text;
    const auto put = [&text](std::uint64_t number) {
      char raw[8];
      for (unsigned i = 0; i < 8; ++i) raw[i] = static_cast<char>((number >> (8 * i)) & 255u);
      text.append(raw, 8);
    };
    put(chunk_bytes_);
    put(tensors_.size());
    for (const auto& tensor : tensors_) {
      put(tensor.name.size());
      text += tensor.name;
      put(static_cast<std::uint64_t>(tensor.type));
      put(tensor.shape.size());
      for (const std::uint64_t dimension : tensor.shape) put(dimension);
    }
    return detail::xxh3_128(std::as_bytes(std::span{text}), 0x6c61796f7574ull);
  }

  std::vector<tensor_spec> tensors_;
  std::uint64_t chunk_bytes_ = defaults::chunk_bytes;
  std::vector<layout_segment> segments_;
  std::vector<std::optional<std::uint64_t>> packed_offsets_;
  std::uint64_t chunk_count_ = 0;
  std::uint64_t bytes_ = 0;
  digest128 digest_;
};

/// The first thing in which two layouts differ, as a sentence ("tensor 3: 'wq' f32 [8, 8] here, 'wk' f32 [8,
/// 8] there"), or empty if they agree.
[[nodiscard]] inline std::string first_difference(const layout& here, const layout& there) {
  if (here.chunk_bytes() != there.chunk_bytes()) {
    return "chunk_bytes is " + std::to_string(here.chunk_bytes()) + " here, " +
           std::to_string(there.chunk_bytes()) + " there";
  }
  const auto text = [](std::span<const tensor_spec> list, std::size_t i) {
    return i < list.size() ? "'" + list[i].name + "' " + describe(list[i]) : std::string{"nothing"};
  };
  const std::size_t count = std::max(here.tensors().size(), there.tensors().size());
  for (std::size_t i = 0; i < count; ++i) {
    const bool equal =
        i < here.tensors().size() && i < there.tensors().size() && here.tensors()[i] == there.tensors()[i];
    if (!equal) {
      return "tensor " + std::to_string(i) + ": " + text(here.tensors(), i) + " here, " +
             text(there.tensors(), i) + " there";
    }
  }
  return {};
}

}  // namespace tensorhub::inline TENSORHUB_MODE
