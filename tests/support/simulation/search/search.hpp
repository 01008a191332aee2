#pragma once
/// \file search.hpp
/// Visits every state of a small world, breadth first: the first history that breaks a rule is a shortest
/// one.
///
/// A state is reached by repeating the choices that lead to it, in a new world. A state whose digest was seen
/// before is not continued. Levels are computed by several threads; what is found does not depend on their
/// number.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "support/simulation/search/choice.hpp"
#include "support/simulation/violation.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

struct search_result {
  std::uint64_t states = 1;
  std::uint64_t steps = 0;  ///< choices that were tried
  std::uint64_t ends = 0;   ///< states in which everything is done and at rest
  std::size_t depth = 0;    ///< of the last state that was found
  bool exhausted = false;   ///< there is no other state
  std::optional<violation> broken{};
  std::vector<choice> history{};  ///< that breaks the rule
};

/// Creates worlds by `make()`, which returns a `unique_ptr` to a new one.
template <typename Make>
class search {
 public:
  /// `tries_all`: also the orders that need not be tried (`was_private` of the world).
  explicit search(Make make, bool tries_all = false) : make_{std::move(make)}, tries_all_{tries_all} {}

  /// Ends when there is no other state, when a rule is broken, or with about `most_states` states.
  [[nodiscard]] search_result run(std::uint64_t most_states) {
    search_result out;
    const auto first = make_();
    seen_.insert(first->digest());
    nodes_.push_back({});
    std::vector<found_state> level{{0, {}, {}, false, first->choices(), {}}};
    std::vector<std::uint32_t> numbers{0};
    while (!level.empty() && !out.broken && out.states < most_states) {
      std::vector<std::vector<found_state>> children(level.size());
      for_all(level.size(), [&](std::size_t i) { expand(numbers[i], level[i].choices, children[i]); });
      std::vector<found_state> next;
      numbers.clear();
      for (auto& of_one : children) {
        for (found_state& child : of_one) {
          ++out.steps;
          if (child.broken && !out.broken) {
            out.broken = child.broken;
            out.history = way_to(child.parent);
            out.history.push_back(child.by);
          }
          if (!seen_.insert(child.digest).second) continue;
          ++out.states;
          if (child.choices.empty()) ++out.ends;
          nodes_.push_back({child.parent, child.by});
          numbers.push_back(static_cast<std::uint32_t>(nodes_.size() - 1));
          next.push_back(std::move(child));
        }
      }
      if (!next.empty()) ++out.depth;
      level = std::move(next);
    }
    out.exhausted = level.empty();
    return out;
  }

 private:
  struct node {
    std::uint32_t parent = 0;
    choice by{};
  };
  struct found_state {
    std::uint32_t parent = 0;
    choice by{};
    digest128 digest{};
    bool known = false;  ///< was seen in an earlier level
    std::vector<choice> choices{};
    std::optional<violation> broken{};
  };
  struct low_half {
    [[nodiscard]] std::size_t operator()(digest128 digest) const noexcept { return digest.low; }
  };

  [[nodiscard]] std::vector<choice> way_to(std::uint32_t number) const {
    std::vector<choice> out;
    for (; number != 0; number = nodes_[number].parent) out.push_back(nodes_[number].by);
    std::ranges::reverse(out);
    return out;
  }

  /// All threads read `seen_` here; nobody writes it.
  void expand(std::uint32_t number, const std::vector<choice>& choices, std::vector<found_state>& out) {
    const std::vector<choice> way = way_to(number);
    for (const choice next : choices) {
      const auto world = make_();
      for (const choice each : way) world->apply(each);
      world->apply(next);
      found_state child{number, next, world->digest(), false, {}, {}};
      child.known = seen_.contains(child.digest);
      if (!child.known) child.choices = world->choices();
      if (!world->violations().empty()) child.broken = world->violations().front();
      if (world->was_private() && !tries_all_) out.clear();
      out.push_back(std::move(child));
      if (world->was_private() && !tries_all_) return;
    }
  }

  template <typename Job>
  void for_all(std::size_t count, Job&& job) {
    const std::size_t threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 64);
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t i = next++; i < count; i = next++) job(i);
    };
    if (count < 4 * threads) return work();
    std::vector<std::thread> running;
    for (std::size_t i = 1; i < threads; ++i) running.emplace_back(work);
    work();
    for (std::thread& each : running) each.join();
  }

  Make make_;
  bool tries_all_;
  std::unordered_set<digest128, low_half> seen_;
  std::vector<node> nodes_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
