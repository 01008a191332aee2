#pragma once
/// \file missing_chunks.hpp
/// The chunks that a pull has not taken yet, as a bitmap, and ways to choose one of them.
///
/// A choice is among the missing chunks for which `bits` has a one: `bits(word)` returns the bits of the 64
/// chunks from 64 * word on, and is called only for words in which a chunk is missing.
///
/// Thread safety: as a value.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/repeatable_random.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class missing_chunks {
 public:
  /// All of them are missing.
  explicit missing_chunks(std::uint64_t chunks) : words_((chunks + 63) / 64, ~0ull), count_{chunks} {
    if (chunks % 64 != 0) words_.back() = (1ull << (chunks % 64)) - 1;
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::size_t words() const noexcept { return words_.size(); }
  [[nodiscard]] std::uint64_t word(std::size_t index) const noexcept { return words_[index]; }

  /// Pre-condition: it is missing.
  void take(chunk_index chunk) noexcept {
    words_[chunk / 64] &= ~(1ull << (chunk % 64));
    --count_;
  }
  /// Pre-condition: it is not missing.
  void give_back(chunk_index chunk) noexcept {
    words_[chunk / 64] |= 1ull << (chunk % 64);
    ++count_;
  }

  /// The first one, searched from `start` with wrap-around.
  template <typename Bits>
  [[nodiscard]] std::optional<chunk_index> first_from(chunk_index start, Bits&& bits) const {
    const std::uint64_t behind = ~0ull << (start % 64);
    for (std::size_t i = 0; i <= words_.size(); ++i) {
      const std::size_t word = wrapped(start / 64 + i);
      std::uint64_t here = chosen(word, bits);
      if (i == 0) here &= behind;
      if (i == words_.size()) here &= ~behind;
      if (here != 0) return word * 64 + static_cast<chunk_index>(std::countr_zero(here));
    }
    return std::nullopt;
  }

  /// A random one, each with the same probability while they are no more than `most_drawn_from`. (Chunks that
  /// few workers have lie together: the first one from a random place would often be the same.)
  template <typename Bits>
  [[nodiscard]] std::optional<chunk_index> draw(detail::repeatable_random& random, Bits&& bits) const {
    const std::size_t first = static_cast<std::size_t>(random()) % words_.size();
    std::uint64_t seen = 0, drawn = 0, word_drawn = 0;
    for (std::size_t i = 0; i < words_.size() && seen < most_drawn_from; ++i) {
      const std::size_t word = wrapped(first + i);
      const std::uint64_t here = chosen(word, bits);
      if (here == 0) continue;
      const auto count = static_cast<std::uint64_t>(std::popcount(here));
      seen += count;
      if (random() % seen >= count) continue;  // as likely as its share of what has been seen
      drawn = here;
      word_drawn = word;
    }
    if (seen == 0) return std::nullopt;
    for (auto below = random() % static_cast<std::uint64_t>(std::popcount(drawn)); below > 0; --below)
      drawn &= drawn - 1;
    return word_drawn * 64 + static_cast<chunk_index>(std::countr_zero(drawn));
  }

  /// How many there are, if they are no more than `limit`; else some number above it.
  template <typename Bits>
  [[nodiscard]] std::uint64_t count_to(std::uint64_t limit, Bits&& bits) const {
    std::uint64_t ones = 0;
    for (std::size_t word = 0; word < words_.size() && ones <= limit; ++word)
      ones += static_cast<std::uint64_t>(std::popcount(chosen(word, bits)));
    return ones;
  }

 private:
  static constexpr std::uint64_t most_drawn_from = 256;

  [[nodiscard]] std::size_t wrapped(std::size_t word) const noexcept {
    return word < words_.size() ? word : word - words_.size();
  }
  template <typename Bits>
  [[nodiscard]] std::uint64_t chosen(std::size_t word, Bits& bits) const {
    return words_[word] == 0 ? 0 : words_[word] & bits(word);
  }

  std::vector<std::uint64_t> words_;
  std::uint64_t count_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
