#pragma once
/// \file waiter_table.hpp
/// The workers that wait until a version is available.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// A worker that waits until a version is available.
struct waiter_state {
  incarnation worker{};
  request_sequence sequence{};
  version_selector selector{};
  time_point deadline{};
};

/// The waiters of a model. There may be ten thousand: neither a new one nor the passing of time visits all.
class waiter_table {
 public:
  /// False: the worker waits under this sequence number already.
  [[nodiscard]] bool add(const waiter_state& waiter) {
    const auto [added, is_new] = by_worker_.emplace(key_of(waiter), waiter);
    if (!is_new) return false;
    try {
      by_deadline_.emplace(waiter.deadline, key_of(waiter));
    } catch (...) {
      by_worker_.erase(added);
      throw;
    }
    return true;
  }
  /// Removes those for which `is_done` returns true.
  template <typename Condition>
  std::size_t erase_if(Condition&& is_done) {
    return erase(by_worker_.begin(), by_worker_.end(), is_done);
  }
  std::size_t erase(incarnation worker) {
    const auto [first, last] = range_of(worker);
    return erase(first, last, [](const waiter_state&) { return true; });
  }
  /// Removes those whose deadline has come; each was passed to `answer` before.
  template <typename Action>
  std::size_t expire(time_point now, Action&& answer) {
    std::size_t count = 0;
    for (; !by_deadline_.empty() && by_deadline_.begin()->first <= now; ++count) {
      const auto found = by_worker_.find(by_deadline_.begin()->second);
      answer(found->second);
      by_worker_.erase(found);
      by_deadline_.erase(by_deadline_.begin());
    }
    return count;
  }
  [[nodiscard]] bool contains(incarnation worker, request_sequence sequence) const {
    return by_worker_.contains({worker, sequence});
  }
  [[nodiscard]] std::size_t count(incarnation worker) const {
    const auto [first, last] = range_of(worker);
    return static_cast<std::size_t>(std::distance(first, last));
  }
  [[nodiscard]] auto begin() const { return by_worker_.begin(); }
  [[nodiscard]] auto end() const { return by_worker_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return by_worker_.size(); }
  [[nodiscard]] bool empty() const noexcept { return by_worker_.empty(); }

 private:
  using key = std::pair<incarnation, request_sequence>;
  using table = std::map<key, waiter_state>;

  [[nodiscard]] static key key_of(const waiter_state& waiter) { return {waiter.worker, waiter.sequence}; }
  [[nodiscard]] std::pair<table::const_iterator, table::const_iterator> range_of(incarnation worker) const {
    return {by_worker_.lower_bound({worker, {}}), by_worker_.upper_bound({worker, {UINT64_MAX}})};
  }
  template <typename Condition>
  std::size_t erase(table::const_iterator at, table::const_iterator last, Condition&& is_done) {
    const std::size_t before = by_worker_.size();
    while (at != last) {
      if (!is_done(at->second)) {
        ++at;
        continue;
      }
      by_deadline_.erase({at->second.deadline, at->first});
      at = by_worker_.erase(at);
    }
    return before - by_worker_.size();
  }

  table by_worker_;
  std::set<std::pair<time_point, key>> by_deadline_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
