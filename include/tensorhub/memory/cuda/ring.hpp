#pragma once
/// \file ring.hpp
/// The bookkeeping of a ring: which bytes are in use. The memory itself is elsewhere.

#include <cstdint>
#include <optional>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Runs are taken in order and returned in the same order; a run never wraps around the end.
class ring_space {
 public:
  /// A run: its offset, and the argument for `give_back`.
  struct run {
    std::uint64_t offset = 0;
    std::uint64_t until = 0;
  };

  explicit ring_space(std::uint64_t bytes) noexcept : bytes_{bytes} {}

  /// Takes a run at a multiple of 64. Empty if there is no space now; if no bytes are in use, up to half of
  /// the ring always fits.
  [[nodiscard]] std::optional<run> take(std::uint64_t bytes) noexcept {
    const std::uint64_t rounded = (bytes + 63) / 64 * 64;
    std::uint64_t begin = next_;
    if (begin % bytes_ + rounded > bytes_) begin += bytes_ - begin % bytes_;
    if (rounded > bytes_ || begin + rounded - oldest_ > bytes_) return std::nullopt;
    next_ = begin + rounded;
    return run{begin % bytes_, next_};
  }

  /// Returns this run and all runs before it.
  void give_back(std::uint64_t until) noexcept {
    if (until > oldest_) oldest_ = until;
  }

 private:
  std::uint64_t bytes_;
  // Counters from the start that never wrap: 2^64 bytes are not reached.
  std::uint64_t next_ = 0;
  std::uint64_t oldest_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
