#pragma once
/// \file held_completions.hpp
/// A queue that holds completions back, on which `faulty` and `throttled` are built.
///
/// Every read is posted to the inner queue under a slot number. When the read has completed there, its
/// completion is held until its time has come, and then returned with the user's id. The status and, for
/// tests of digests, the bytes may be changed meanwhile. The bytes are in the target before the completion is
/// returned, which the concept allows.
///
/// Thread safety: one thread at a time; any thread may call `wake`.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The fate of one read.
struct read_fate {
  std::chrono::steady_clock::time_point due{};        ///< the read does not complete before this time
  completion_status instead = completion_status::ok;  ///< the status to report if the read itself ends `ok`
  bool torn = false;                                  ///< one byte in the middle is changed
};

template <transport Inner>
class held_completions {
  using steady = std::chrono::steady_clock;

 public:
  held_completions(typename Inner::queue inner, std::size_t depth) : inner_{std::move(inner)}, slots_(depth) {
    free_.reserve(depth);
    held_.reserve(depth);
    for (std::size_t i = 0; i < depth; ++i) free_.push_back(depth - 1 - i);
  }

  [[nodiscard]] post_result post(typename Inner::endpoint& connection,
                                 const typename Inner::memory_region& into, std::uint64_t offset,
                                 const remote_slice& from, request_id id, const read_fate& fate) noexcept {
    if (free_.empty()) return post_result::queue_full;
    const std::size_t index = free_.back();
    if (inner_.post_read(connection, into, offset, from, index) == post_result::queue_full)
      return post_result::queue_full;
    free_.pop_back();
    slots_[index] = {id, fate, {}};
    if (fate.torn && from.bytes > 0) slots_[index].torn_byte = into.range().data + offset + from.bytes / 2;
    return post_result::posted;
  }

  /// A read that never reaches the inner transport. Returns false if the queue is full.
  [[nodiscard]] post_result post_finished(request_id id, const read_fate& fate) noexcept {
    if (free_.empty()) return post_result::queue_full;
    const std::size_t index = free_.back();
    free_.pop_back();
    slots_[index] = {id, fate, {}};
    hold({index, fate.instead});
    return post_result::posted;
  }

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
    std::array<completion, 64> batch;
    while (const std::size_t count = inner_.poll(batch)) {
      for (const completion& done : std::span{batch}.first(count)) {
        const slot& read = slots_[done.id];
        const bool ok = done.status == completion_status::ok;
        if (ok && read.torn_byte != nullptr) *read.torn_byte ^= std::byte{0x55};
        hold({done.id, ok ? read.fate.instead : done.status});
      }
    }
    std::size_t taken = 0;
    const auto now = held_.empty() ? steady::time_point{} : steady::now();
    while (taken < completions.size() && !held_.empty() && due_of(held_.front()) <= now) {
      std::pop_heap(held_.begin(), held_.end(), later{this});
      const completion done = held_.back();
      held_.pop_back();
      completions[taken++] = {slots_[done.id].id, done.status};
      free_.push_back(done.id);
    }
    return taken;
  }

  void wait(duration timeout) noexcept {
    if (!held_.empty()) {
      const duration left = due_of(held_.front()) - steady::now();
      if (left <= duration::zero()) return;
      timeout = std::min(timeout, left);
    }
    inner_.wait(timeout);
  }
  void wake() noexcept { inner_.wake(); }
  [[nodiscard]] std::size_t outstanding() const noexcept { return slots_.size() - free_.size(); }
  [[nodiscard]] typename Inner::queue& inner() noexcept { return inner_; }

 private:
  struct slot {
    request_id id = 0;
    read_fate fate{};
    std::byte* torn_byte = nullptr;
  };
  struct later {
    const held_completions* of;
    bool operator()(const completion& a, const completion& b) const noexcept {
      return of->due_of(a) > of->due_of(b);
    }
  };
  [[nodiscard]] steady::time_point due_of(const completion& done) const noexcept {
    return slots_[done.id].fate.due;
  }
  /// `done.id` is the slot. The capacity is never exceeded.
  void hold(const completion& done) noexcept {
    held_.push_back(done);
    std::push_heap(held_.begin(), held_.end(), later{this});
  }

  typename Inner::queue inner_;
  std::vector<slot> slots_;
  std::vector<std::size_t> free_;
  std::vector<completion> held_;  ///< a heap with the earliest due first
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
