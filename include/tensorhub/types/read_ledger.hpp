#pragma once
/// \file read_ledger.hpp
/// The reads of a transport's queue: how many are outstanding, and those that have ended but were not yet
/// polled.
///
/// A queue of depth n has at most n outstanding reads (posted and not yet taken by `poll`, including those
/// that have ended). The ring of ended reads has room for n, so nothing allocates after construction and
/// `end` cannot fail.
///
///     post_read:  if (ledger.full()) return post_result::queue_full;
///                 ledger.begin(); ...
///     a read is over:  ledger.end({id, completion_status::ok});
///     poll:  return ledger.take(completions);
///
/// Thread safety: none; a ledger belongs to one queue, and a queue belongs to one thread.

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class read_ledger {
 public:
  /// A depth of zero counts as one.
  explicit read_ledger(std::size_t depth) : ended_(std::max<std::size_t>(1, depth)) {}

  [[nodiscard]] std::size_t depth() const noexcept { return ended_.size(); }
  [[nodiscard]] std::size_t outstanding() const noexcept { return outstanding_; }
  [[nodiscard]] bool full() const noexcept { return outstanding_ == ended_.size(); }
  /// A read has ended and `take` has not returned it yet.
  [[nodiscard]] bool any_ended() const noexcept { return ended_count_ > 0; }

  /// Pre-condition: not full.
  void begin() noexcept { ++outstanding_; }
  /// Pre-condition: the read was begun and has not ended.
  void end(completion done) noexcept { ended_at(ended_count_++) = {done, false}; }
  /// The same for a read whose bytes an RDMA device has written. Those in a device's memory are made visible
  /// before `take` tells of them, for all reads that it finds at once; if that fails, they end as
  /// `local_error`.
  void end_written(completion done, const memory_range& into) noexcept {
    const bool to_be_flushed = done.status == completion_status::ok && !into.host_accessible();
    if (to_be_flushed) {
      if (written_ != into.device) flush();
      written_ = into.device;
    }
    ended_at(ended_count_++) = {done, to_be_flushed};
  }
  /// Records a read that ended before it was sent.
  [[nodiscard]] post_result begin_and_end(completion done) noexcept {
    if (full()) return post_result::queue_full;
    begin();
    end(done);
    return post_result::posted;
  }

  /// Writes ended reads, oldest first, and returns their number.
  [[nodiscard]] std::size_t take(std::span<completion> completions) noexcept {
    flush();
    const std::size_t count = std::min(completions.size(), ended_count_);
    for (std::size_t i = 0; i < count; ++i) {
      completions[i] = ended_[ended_first_].done;
      ended_first_ = ended_first_ + 1 == ended_.size() ? 0 : ended_first_ + 1;
    }
    ended_count_ -= count;
    outstanding_ -= count;
    return count;
  }

 private:
  struct ended_read {
    completion done{};
    bool to_be_flushed = false;
  };

  [[nodiscard]] ended_read& ended_at(std::size_t i) noexcept {
    const std::size_t at = ended_first_ + i;
    return ended_[at >= ended_.size() ? at - ended_.size() : at];
  }

  void flush() noexcept {
    device_access* const device = std::exchange(written_, nullptr);
    if (device == nullptr) return;
    const bool is_visible = device->flush_arrived();
    for (std::size_t i = 0; i < ended_count_; ++i) {
      ended_read& each = ended_at(i);
      if (std::exchange(each.to_be_flushed, false) && !is_visible)
        each.done.status = completion_status::local_error;
    }
  }

  std::vector<ended_read> ended_;  ///< a ring
  std::size_t ended_first_ = 0;
  std::size_t ended_count_ = 0;
  std::size_t outstanding_ = 0;
  device_access* written_ = nullptr;  ///< its memory, since the last flush
};

}  // namespace tensorhub::inline TENSORHUB_MODE
