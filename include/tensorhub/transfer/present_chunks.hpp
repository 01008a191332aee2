#pragma once
/// \file present_chunks.hpp
/// What lies in the target memory of a pull, as far as its digests tell.
///
/// Between two versions most bytes may stay as they are: of a frozen tower, of a model whose adapters are
/// merged into a part of its layers. And an update that was broken off has left chunks that the next one
/// wants. A chunk that had the new version's digest when it was last seen here is therefore *checked*: its
/// bytes are digested once more, and read from nobody if they still have that digest. (They need not: the
/// memory is the user's, whose engine may have slept meanwhile.)
///
/// Thread safety: as a value.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class present_chunks {
 public:
  explicit present_chunks(std::uint64_t chunks) : table_(chunks) {}

  /// By chunk; zero: not known.
  [[nodiscard]] std::span<const digest128> table() const noexcept { return table_; }
  /// Replaces what is known. A table of another size is that of no shard of this layout, and says nothing.
  void assume(std::span<const digest128> table) {
    if (table.size() == table_.size()) table_.assign(table.begin(), table.end());
  }

  /// A read may write to this chunk from now on.
  void overwrite(chunk_index chunk) noexcept {
    table_[chunk] = {};
    is_touched_ = true;
  }
  /// Its bytes have this digest.
  void note(chunk_index chunk, const digest128& digest) noexcept { table_[chunk] = digest; }
  /// A read may have written here, or a check has shown that somebody has.
  [[nodiscard]] bool is_touched() const noexcept { return is_touched_; }

  /// The chunks to be checked, in this order. Called once, when the table of the version is known.
  void check(std::vector<chunk_index> chunks) noexcept {
    unchecked_ = std::move(chunks);
    is_searched_ = true;
  }
  [[nodiscard]] bool is_searched() const noexcept { return is_searched_; }
  /// The first of them that `is_unchecked` accepts; empty: there is none. What was passed over is not looked
  /// at again.
  template <typename IsUnchecked>
  [[nodiscard]] std::optional<chunk_index> next_check(IsUnchecked&& is_unchecked) noexcept {
    while (next_ < unchecked_.size() && !is_unchecked(unchecked_[next_])) ++next_;
    return next_ < unchecked_.size() ? std::optional{unchecked_[next_]} : std::nullopt;
  }
  [[nodiscard]] std::span<const chunk_index> unchecked() const noexcept {
    return std::span{unchecked_}.subspan(next_);
  }

  void count_right(std::uint64_t bytes) noexcept {
    ++right_;
    unchanged_bytes_ += bytes;
  }
  void count_wrong() noexcept {
    ++wrong_;
    is_touched_ = true;
  }
  /// Sixteen checks were wrong, and four in five: the memory has been given to something else. (Some chunks
  /// may be right by chance, such as those of zeros.)
  [[nodiscard]] bool is_lost() const noexcept { return wrong_ >= most_wrong && wrong_ >= 4 * right_; }
  [[nodiscard]] std::uint64_t unchanged_bytes() const noexcept { return unchanged_bytes_; }

 private:
  static constexpr std::uint64_t most_wrong = 16;

  std::vector<digest128> table_;
  std::vector<chunk_index> unchecked_;
  std::size_t next_ = 0;
  std::uint64_t unchanged_bytes_ = 0;
  std::uint64_t right_ = 0;
  std::uint64_t wrong_ = 0;
  bool is_searched_ = false;
  bool is_touched_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
