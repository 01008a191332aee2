#pragma once
/// \file scheduler.hpp
/// Rules for every scheduler. Each policy decides which choice is good; the rules check only what the catalog
/// relies on: constant limits, an index that it can use, somebody for a reader that has nobody, no source
/// beyond its credits unless a reader is displaced, and equal answers to equal histories.
///
/// The calls vary all that a catalog varies (service/catalog/choosing.hpp). A scheduler that crashes crashes
/// the suite.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/policy_conformance/rule.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// One call of `choose` with its own copies of everything to which it points. Not copyable, because it has
/// pointers into itself; `clone` makes the same call at other addresses.
class scheduler_call {
 public:
  scheduler_call() = default;
  scheduler_call(const scheduler_call&) = delete;
  scheduler_call& operator=(const scheduler_call&) = delete;

  source_query query{};
  std::vector<source_candidate> candidates{};

  void read_from(incarnation reader, location where) {
    query.reader = reader;
    query.location = &locations_.emplace_back(std::move(where));
    query.version = 1;
  }
  void offer(source_candidate candidate, location where) {
    candidate.location = &locations_.emplace_back(std::move(where));
    candidates.push_back(candidate);
  }
  void clone(scheduler_call& into) const {
    into.query = query;
    into.read_from(query.reader, *query.location);
    into.query.version = query.version;
    for (const source_candidate& candidate : candidates) into.offer(candidate, *candidate.location);
  }

  /// Calls as a catalog makes them, determined by the seed: in a small cluster of 2 datacenters of 2 racks of
  /// 3 hosts, some of them unnamed, or all datacenters (as long as nobody names any); 0 to 9 candidates with
  /// distinct incarnations, sometimes many (8 of each group, and two groups of each other datacenter); random
  /// load (also beyond the usual credits), progress, also none, reliability, and sources that the reader has
  /// already; the reader may not have joined; any shard and version, also of a rolled back model.
  static void fill(scheduler_call& call, std::uint64_t seed) {
    policy_detail::suite_random random{seed};
    const bool is_unnamed = random.below(4) == 0;
    fill_query(call, random, is_unnamed);
    constexpr std::uint64_t chunk_counts[] = {64, 64, 64, 64, 1, 2, 0, 1u << 20};
    const std::uint64_t chunks = chunk_counts[random.below(std::size(chunk_counts))];
    const std::uint64_t count = random.below(8) == 0 ? random.below(200) : random.below(10);
    for (std::uint64_t i = 0; i < count; ++i) {
      source_candidate candidate;
      candidate.worker = incarnation{1 + i * 100 + random.below(100)};
      candidate.leases = static_cast<std::uint32_t>(random.below(random.below(16) == 0 ? 1000 : 12));
      candidate.chunks = chunks;
      candidate.chunks_held = random.below(4) == 0 ? chunks : random.below(chunks + 1);
      candidate.spot = random.below(3) == 0;
      candidate.publisher = random.below(3) == 0;
      call.offer(candidate, some_location(random, is_unnamed));
    }
  }

 private:
  static void fill_query(scheduler_call& call, policy_detail::suite_random& random, bool is_unnamed) {
    source_query& query = call.query;
    const bool has_joined = random.below(8) != 0;
    call.read_from(has_joined ? incarnation{1'000'000} : incarnation{}, some_location(random, is_unnamed));
    query.version.value = 1 + random.below(random.below(2) == 0 ? 3 : UINT64_MAX);
    query.version.line = random.below(8) == 0 ? 1 : 0;
    query.shard.count = static_cast<std::uint32_t>(1 + random.below(random.below(2) == 0 ? 1 : 64));
    query.shard.index = static_cast<std::uint32_t>(random.below(query.shard.count));
    query.sources_useful = static_cast<std::uint32_t>(1 + random.below(9));
    if (!has_joined) return;
    query.sources_held = static_cast<std::uint32_t>(random.below(4));
    query.sources_nearby = static_cast<std::uint32_t>(random.below(query.sources_held + 1));
    query.served_on_host = query.sources_nearby > 0 && random.below(4) == 0;
    query.may_displace = random.below(2) == 0;
  }
  static location some_location(policy_detail::suite_random& random, bool is_unnamed) {
    location out;
    if (!is_unnamed) out.datacenter = "d" + std::to_string(random.below(2));
    if (random.below(5) != 0) out.rack = out.datacenter + "-r" + std::to_string(random.below(2));
    if (random.below(5) != 0) out.host = out.rack + "-h" + std::to_string(random.below(3));
    return out;
  }

  std::deque<location> locations_;  // a deque, because addresses must stay valid
};

/// `Make` makes a fresh scheduler; two fresh ones must behave alike.
template <scheduler S, typename Make>
struct scheduler_rules {
  static constexpr std::uint64_t histories = 300;
  static constexpr std::uint64_t calls_per_history = 6;

  /// "An index is inside the candidates."
  static violations index_is_inside(const Make& make) {
    violations seen;
    for_each_call(make, [&](S& policy, const scheduler_call& call, std::uint64_t seed) {
      const source_choice choice = policy.choose(call.query, call.candidates);
      if (choice.index && *choice.index >= call.candidates.size() && !call.candidates.empty()) {
        seen.add("index " + std::to_string(*choice.index) + " of " + std::to_string(call.candidates.size()) +
                 " candidates" + name_of(seed));
      }
    });
    return seen;
  }

  /// "No candidates: no index." In the first call and in later ones.
  static violations nobody_is_chosen_of_none(const Make& make) {
    violations seen;
    S policy = make();
    for (std::uint64_t seed = 0; seed < histories; ++seed) {
      scheduler_call call;
      scheduler_call::fill(call, seed);
      seen.require(!policy.choose(call.query, {}).index, "an index although there is no candidate");
      static_cast<void>(policy.choose(call.query, call.candidates));
    }
    return seen;
  }

  /// "A reader without a source gets the only candidate, if that is the publisher and has every chunk and a
  /// credit": nobody would ask again, since nothing changes.
  static violations the_only_one_is_chosen(const Make& make) {
    violations seen;
    for_each_call(make, [&](S& policy, scheduler_call& call, std::uint64_t seed) {
      static_cast<void>(policy.choose(call.query, call.candidates));
      if (call.candidates.empty()) return;
      call.query.sources_held = call.query.sources_nearby = 0;
      call.query.served_on_host = false;
      call.candidates.resize(1);
      call.candidates.front().publisher = true;
      call.candidates.front().leases = 0;
      call.candidates.front().chunks_held = call.candidates.front().chunks;
      seen.require(
          policy.choose(call.query, call.candidates).index.has_value(),
          "the publisher is the only candidate and has no reader, and the reader waits" + name_of(seed));
    });
    return seen;
  }

  /// "Deterministic in its arguments and earlier calls": two fresh schedulers with the same history give the
  /// same answers, wherever the arguments lie in memory, and whatever a third scheduler answers in between.
  static violations same_history_same_choice(const Make& make) {
    violations seen;
    for (std::uint64_t history = 0; history < histories; ++history) {
      S one = make();
      S other = make();
      S noise = make();
      for (std::uint64_t i = 0; i < calls_per_history; ++i) {
        scheduler_call call;
        scheduler_call moved;
        scheduler_call between;
        scheduler_call::fill(call, history * calls_per_history + i);
        scheduler_call::fill(between, ~(history * calls_per_history + i));
        call.clone(moved);
        const source_choice first = one.choose(call.query, call.candidates);
        static_cast<void>(noise.choose(between.query, between.candidates));
        const source_choice second = other.choose(moved.query, moved.candidates);
        seen.require(first.index == second.index,
                     "two choices for call " + std::to_string(i) + " of history " + std::to_string(history));
        seen.require(first.displace == second.displace,
                     "two ways for call " + std::to_string(i) + " of history " + std::to_string(history));
        seen.require(first.reason == second.reason,
                     "two reasons for call " + std::to_string(i) + " of history " + std::to_string(history));
      }
    }
    return seen;
  }

  /// A moved scheduler continues its history.
  static violations moving_changes_nothing(const Make& make) {
    violations seen;
    for (std::uint64_t history = 0; history < histories; ++history) {
      S stays = make();
      S moves = make();
      for (std::uint64_t i = 0; i < calls_per_history; ++i) {
        scheduler_call call;
        scheduler_call::fill(call, history * calls_per_history + i);
        S elsewhere = std::move(moves);
        seen.require(stays.choose(call.query, call.candidates).index ==
                         elsewhere.choose(call.query, call.candidates).index,
                     "another choice after a move, in history " + std::to_string(history));
        moves = std::move(elsewhere);
      }
    }
    return seen;
  }

  /// "The same for all its life, both at least 1": for all objects, after any calls.
  static violations limits_are_constant(const Make& make) {
    violations seen;
    const source_limits limits = make().limits();
    seen.require(limits.sources >= 1, "a reader without a source");
    seen.require(limits.credits >= 1, "a source without a reader");
    const auto check = [&](const S& policy, const std::string& when) {
      const source_limits now = policy.limits();
      seen.require(now.sources == limits.sources && now.credits == limits.credits, "other limits " + when);
    };
    for (std::uint64_t history = 0; history < histories; ++history) {
      S policy = make();
      check(policy, "of another object");
      for (std::uint64_t i = 0; i < calls_per_history; ++i) {
        scheduler_call call;
        scheduler_call::fill(call, history * calls_per_history + i);
        static_cast<void>(policy.choose(call.query, call.candidates));
        check(policy, "after call " + std::to_string(i) + " of history " + std::to_string(history));
      }
    }
    return seen;
  }

  /// "A candidate without credit is chosen only with `displace`."
  static violations full_ones_are_only_displaced(const Make& make) {
    return of_each_choice(make, [](const source_query&, const source_candidate* chosen,
                                   const source_choice& choice, const source_limits& limits) {
      return chosen == nullptr || chosen->leases < limits.credits || choice.displace;
    });
  }

  /// `displace` is set only if the query allows it and the chosen candidate has no credit left.
  static violations displaces_only_if_allowed(const Make& make) {
    return of_each_choice(make, [](const source_query& query, const source_candidate* chosen,
                                   const source_choice& choice, const source_limits& limits) {
      return !choice.displace ||
             (query.may_displace && chosen != nullptr && chosen->leases >= limits.credits);
    });
  }

 private:
  /// Names a call in a sentence.
  [[nodiscard]] static std::string name_of(std::uint64_t seed) {
    return " (seed " + std::to_string(seed) + ")";
  }
  /// Calls `visit(policy, call, seed)`.
  template <typename Visitor>
  static void for_each_call(const Make& make, Visitor&& visit) {
    for (std::uint64_t history = 0; history < histories; ++history) {
      S policy = make();
      for (std::uint64_t i = 0; i < calls_per_history; ++i) {
        const std::uint64_t seed = history * calls_per_history + i;
        scheduler_call call;
        scheduler_call::fill(call, seed);
        visit(policy, call, seed);
      }
    }
  }

  /// The seeds of the calls for which `holds` is false. `chosen` is null if there is no choice; another rule
  /// checks that an index is inside the candidates.
  template <typename Holds>
  static violations of_each_choice(const Make& make, Holds&& holds) {
    violations seen;
    for_each_call(make, [&](S& policy, scheduler_call& call, std::uint64_t seed) {
      // All candidates are busy, which tempts a scheduler to choose one without credit.
      if (seed % 3 == 0 && policy.limits().credits != UINT32_MAX) {
        for (source_candidate& candidate : call.candidates)
          candidate.leases = std::max(candidate.leases, policy.limits().credits);
      }
      const source_choice choice = policy.choose(call.query, call.candidates);
      if (choice.index && *choice.index >= call.candidates.size()) return;
      const source_candidate* chosen = choice.index ? &call.candidates[*choice.index] : nullptr;
      seen.require(holds(call.query, chosen, choice, policy.limits()),
                   std::string{chosen == nullptr ? "no candidate" : "a candidate"} + " chosen with " +
                       std::to_string(chosen == nullptr ? 0 : chosen->leases) + " readers" +
                       (choice.displace ? ", displacing" : "") +
                       (call.query.may_displace ? ", which is allowed" : "") + name_of(seed));
    });
    return seen;
  }
};

/// Runs all rules.
template <scheduler S, typename Make>
[[nodiscard]] std::vector<rule_result> check_scheduler(const Make& make) {
  using rules = scheduler_rules<S, Make>;
  std::vector<rule_result> results;
  results.push_back({"index_is_inside", rules::index_is_inside(make)});
  results.push_back({"nobody_is_chosen_of_none", rules::nobody_is_chosen_of_none(make)});
  results.push_back({"the_only_one_is_chosen", rules::the_only_one_is_chosen(make)});
  results.push_back({"same_history_same_choice", rules::same_history_same_choice(make)});
  results.push_back({"moving_changes_nothing", rules::moving_changes_nothing(make)});
  results.push_back({"limits_are_constant", rules::limits_are_constant(make)});
  results.push_back({"full_ones_are_only_displaced", rules::full_ones_are_only_displaced(make)});
  results.push_back({"displaces_only_if_allowed", rules::displaces_only_if_allowed(make)});
  return results;
}
template <scheduler S>
[[nodiscard]] std::vector<rule_result> check_scheduler() {
  return check_scheduler<S>([] { return S{typename S::options{}}; });
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
