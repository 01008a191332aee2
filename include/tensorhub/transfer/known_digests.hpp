#pragma once
/// \file known_digests.hpp
/// The digests that the chunks of a pull must have.
///
/// Of a version that is whole, the table of a source is adopted at once: its root was compared before. Of a
/// version that is *open* (its publisher still fills it), each digest is taken from the source that shows it
/// first, because there is no root to compare with. When the root is known, and no digest is lacking, the
/// pull compares the two and settles. A look at a source may find half of a digest that is being written:
/// such digests are forgotten and read again, a few times.
///
/// Thread safety: as a value.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/pull_task.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class known_digests {
 public:
  /// `collects`: from an open version that has digests.
  known_digests(std::uint64_t chunks, bool is_open, bool collects) : is_open_{is_open} {
    if (!is_open || !collects) return;
    table_.resize(chunks);
    shown_by_.resize(chunks);
    lacking_ = chunks;
  }

  /// By chunk; zero: not known yet. Empty: there are none.
  [[nodiscard]] std::span<const digest128> table() const noexcept { return table_; }
  [[nodiscard]] bool empty() const noexcept { return table_.empty(); }
  [[nodiscard]] digest128 of(chunk_index chunk) const noexcept { return table_[chunk]; }
  void adopt(std::vector<digest128> table) { table_ = std::move(table); }

  // ---- an open version

  /// The table was not compared with the root yet.
  [[nodiscard]] bool is_open() const noexcept { return is_open_; }
  [[nodiscard]] std::optional<digest128> root() const noexcept { return root_; }
  void set_root(digest128 root) noexcept { root_ = root; }
  /// Set while the root of the table has to be compared with this one.
  [[nodiscard]] std::optional<digest128> unsettled() const noexcept {
    return is_open_ && lacking_ == 0 ? root_ : std::nullopt;
  }
  void settle() noexcept { is_open_ = false; }

  /// A source shows this digest of a chunk. False: another one is known.
  bool learn(chunk_index chunk, const digest128& shown, source_slot by) noexcept {
    if (shown && !table_[chunk]) {
      table_[chunk] = shown;
      shown_by_[chunk] = by;
      --lacking_;
    }
    return shown && shown == table_[chunk];
  }
  [[nodiscard]] bool was_shown_by(chunk_index chunk, source_slot slot) const noexcept {
    return is_open_ && chunk < shown_by_.size() && table_[chunk] && shown_by_[chunk] == slot;
  }
  void forget(chunk_index chunk) noexcept {
    if (table_[chunk]) ++lacking_;
    table_[chunk] = {};
  }

  /// A chunk had another digest than was shown first. True: the digest may have been the wrong one.
  [[nodiscard]] bool may_mismatch() noexcept { return ++mismatches_ <= most_doubts; }
  /// The table does not have the root. True: its digests may be read once more.
  [[nodiscard]] bool may_doubt() noexcept { return ++doubts_ <= most_doubts; }

 private:
  static constexpr std::uint32_t most_doubts = 3;

  std::vector<digest128> table_;
  bool is_open_;
  std::optional<digest128> root_;
  std::uint64_t lacking_ = 0;
  std::vector<source_slot> shown_by_;
  std::uint32_t mismatches_ = 0;
  std::uint32_t doubts_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
