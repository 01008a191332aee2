#pragma once
/// \file dead_list.hpp
/// The workers that are gone, and why.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// Why the server declared a worker dead.
enum class verdict : std::uint8_t {
  silent,     ///< it sent no message for too long
  replaced,   ///< a newer process has joined for the same shard
  earlier,    ///< an earlier server declared it dead
  unruly,     ///< it broke the protocol
  lingering,  ///< it kept sources from their memory until the deadlines of their drains, again
  evicted,    ///< by an order (orders.hpp)
  misfit      ///< it had joined before the publisher, with another layout or other policies
};

/// Incarnations that left or were declared dead; the list is bounded and forgets the oldest first.
class dead_list {
 public:
  static constexpr std::size_t capacity = 1u << 16;
  /// `why`: empty if the worker left of its own accord.
  void insert(incarnation id, std::optional<verdict> why) {
    if (!verdicts_.try_emplace(id, why).second) return;
    order_.push_back(id);
    if (order_.size() > capacity) {
      verdicts_.erase(order_.front());
      order_.pop_front();
    }
  }
  [[nodiscard]] bool contains(incarnation id) const { return verdicts_.contains(id); }
  /// Empty: the worker left, or is not in the list.
  [[nodiscard]] std::optional<verdict> verdict_of(incarnation id) const {
    const auto found = verdicts_.find(id);
    return found == verdicts_.end() ? std::nullopt : found->second;
  }

 private:
  std::unordered_map<incarnation, std::optional<verdict>> verdicts_;
  std::deque<incarnation> order_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
