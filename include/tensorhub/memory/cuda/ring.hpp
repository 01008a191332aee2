#pragma once
/// \file ring.hpp
/// Which bytes of a ring are in use. Pure bookkeeping: the memory itself is elsewhere.

#include <cstdint>
#include <optional>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Runs are taken in order and given back in the same order; a run never wraps around the end.
class ring_space {
 public:
  /// A run: where it begins, and what `give_back` is told.
  struct run {
    std::uint64_t offset = 0;
    std::uint64_t until = 0;
  };

  explicit ring_space(std::uint64_t bytes) noexcept : bytes_{bytes} {}

  /// At a multiple of 64. Nothing if there is no room now; with nothing in use, up to half of the ring always
  /// fits.
  [[nodiscard]] std::optional<run> take(std::uint64_t bytes) noexcept {
    const std::uint64_t rounded = (bytes + 63) / 64 * 64;
    std::uint64_t begin = next_;
    if (begin % bytes_ + rounded > bytes_) begin += bytes_ - begin % bytes_;
    if (rounded > bytes_ || begin + rounded - oldest_ > bytes_) return std::nullopt;
    next_ = begin + rounded;
    return run{begin % bytes_, next_};
  }

  /// This run and all before it.
  void give_back(std::uint64_t until) noexcept {
    if (until > oldest_) oldest_ = until;
  }

 private:
  std::uint64_t bytes_;
  // Counted from the start and never wrapped: 2^64 bytes are not reached.
  std::uint64_t next_ = 0;
  std::uint64_t oldest_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
