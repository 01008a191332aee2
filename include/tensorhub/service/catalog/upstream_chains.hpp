#pragma once
/// \file upstream_chains.hpp
/// The chains of upstreams: where each one ends, and who is on it, in O(log n) steps.
///
/// When ten thousand readers ask at once, a chain has thousands of workers, and walking along it at every
/// choice of a source would be most of the server's work. The chains of all workers form trees. This is a
/// link-cut tree (D. Sleator and R. Tarjan, "A data structure for dynamic trees", 1983): the workers of one
/// path to a root are a binary tree in the order of the path, which each question rotates so that the worker
/// that was asked for is on top.
///
/// Thread safety: none.

#include <cstddef>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

struct worker_state;

/// A worker's place in its chain; part of the worker. Pre-condition of its end: nobody follows it.
class chain_node {
 public:
  explicit chain_node(const worker_state* worker) noexcept : worker_{worker} {}
  chain_node(const chain_node&) = delete;
  chain_node& operator=(const chain_node&) = delete;

  /// The next one towards the end of the chain; null: the chain ends here. A chain that would come back here
  /// ends here.
  void follow(chain_node* next) {
    if (next == next_) return;
    if (next_ != nullptr) cut();
    if (next == nullptr || &next->last() == this) return;
    next_ = next;
    expose();
    above_ = next;
  }

  /// The worker at which the chain ends.
  [[nodiscard]] const worker_state& end() { return *last().worker_; }

  /// Whether `other` is on the chain that begins here.
  [[nodiscard]] bool passes(chain_node& other) {
    if (this == &other) return true;
    expose();
    other.raise();
    return above_ != nullptr;  // `other` was in the same binary tree, and has taken the top
  }

 private:
  [[nodiscard]] chain_node& last() {
    expose();
    chain_node* at = this;
    while (at->nearer_end_ != nullptr) at = at->nearer_end_;
    at->raise();
    return *at;
  }
  [[nodiscard]] bool is_top() const {
    return above_ == nullptr || (above_->nearer_end_ != this && above_->farther_ != this);
  }

  void cut() {
    expose();
    nearer_end_->above_ = nullptr;
    nearer_end_ = nullptr;
    next_ = nullptr;
  }

  /// Makes the chain from here to its end one binary tree, with this worker on top and nothing farther.
  void expose() {
    chain_node* below = nullptr;
    for (chain_node* at = this; at != nullptr; at = at->above_) {
      at->raise();
      at->farther_ = below;
      below = at;
    }
    raise();
  }

  /// Rotates this worker to the top of its binary tree.
  void raise() {
    while (!is_top()) {
      chain_node* const parent = above_;
      if (!parent->is_top()) {
        const bool straight = (parent->nearer_end_ == this) == (parent->above_->nearer_end_ == parent);
        (straight ? parent : this)->rotate();
      }
      rotate();
    }
  }
  void rotate() {
    chain_node* const parent = above_;
    const bool was_top = parent->is_top();
    const bool nearer = parent->nearer_end_ == this;
    chain_node*& inner = nearer ? farther_ : nearer_end_;
    (nearer ? parent->nearer_end_ : parent->farther_) = inner;
    if (inner != nullptr) inner->above_ = parent;
    inner = parent;
    above_ = parent->above_;
    if (!was_top) (above_->nearer_end_ == parent ? above_->nearer_end_ : above_->farther_) = this;
    parent->above_ = this;
  }

  const worker_state* worker_;
  chain_node* next_ = nullptr;
  chain_node* above_ = nullptr;  ///< in the binary tree; of its top: the next worker of another path
  chain_node* nearer_end_ = nullptr;
  chain_node* farther_ = nullptr;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
