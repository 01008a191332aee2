#pragma once
/// \file tensor_memory.hpp
/// Memory that the library allocates for a set of tensors. It is one allocation, so that it becomes one
/// registered region wherever the tensor sizes allow that.
///
/// Tensors lie in the order of the constructor's span, each at a multiple of 256 bytes. A tensor without
/// bytes has no memory.
///
/// Thread safety: immutable after construction; users of the bytes synchronise their own access.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/tensor.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <memory_space Memory>
class tensor_memory {
 public:
  static constexpr std::uint64_t alignment_bytes = 256;

  /// Throws `limit_exceeded`, or what the memory space throws when it cannot allocate (`system_failed`).
  explicit tensor_memory(std::span<const tensor_spec> tensors) {
    offsets_.reserve(tensors.size());
    for (const tensor_spec& tensor : tensors) {
      const auto bytes = tensor.bytes();
      if (!bytes || *bytes > limits::shard_bytes - bytes_) {
        throw error(errc::limit_exceeded, "no memory is that large: with tensor '" + tensor.name + "', " +
                                              describe(tensor) + ", the shard exceeds its limit");
      }
      offsets_.push_back(*bytes == 0 ? std::nullopt : std::optional{bytes_});
      bytes_ += (*bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
      if (bytes_ > limits::shard_bytes) bytes_ = limits::shard_bytes;
    }
    if (bytes_ > 0) allocation_.emplace(Memory{}.allocate(bytes_));
  }

  /// The first byte of a tensor; null if it has no bytes. Pre-condition: `tensor` is a position in the
  /// constructor's span.
  [[nodiscard]] std::byte* data(std::size_t tensor) const noexcept {
    return offsets_[tensor] ? allocation_->range().data + *offsets_[tensor] : nullptr;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// All of it.
  [[nodiscard]] memory_range range() const noexcept {
    return allocation_ ? allocation_->range() : memory_range{};
  }

 private:
  std::vector<std::optional<std::uint64_t>> offsets_;
  std::uint64_t bytes_ = 0;
  std::optional<typename Memory::allocation> allocation_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
