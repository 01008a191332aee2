/// \file policy_mutants.cpp
/// Policies that lie. Each breaks rules of the conformance suites and is caught by exactly those: the suites
/// can fail, and every rule has a liar that it alone or first of all catches.

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nearest_class.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/scheduler/chain.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/policy/scheduler/one_to_many.hpp"
#include "tensorhub/policy/scheduler/round_robin.hpp"
#include "tensorhub/testing/policy_conformance.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

using names = std::vector<std::string_view>;

names violated(const std::vector<rule_result>& results) {
  names found;
  for (const rule_result& result : results) {
    if (!result.ok()) found.push_back(result.rule);
  }
  return found;
}

// ---- schedulers ----------------------------------------------------------------------------------------

struct off_by_one : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    source_choice choice = nearest_source::choose(query, candidates);
    if (choice.index) choice = {candidates.size(), "the one behind the last", false};
    return choice;
  }
};

struct chooses_of_none : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    if (candidates.empty()) return {0, "the first of none"};
    return nearest_source::choose(query, candidates);
  }
};

/// The first of those that have a credit left, from `place` on and around.
source_choice first_free(std::span<const source_candidate> candidates, std::size_t place) noexcept {
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const std::size_t at = (place + i) % candidates.size();
    if (candidates[at].leases < nearest_source{}.limits().credits) return {at, "free"};
  }
  return {};
}

/// One counter for all objects: the answer depends on what others were asked.
struct shares_its_turn : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query&, std::span<const source_candidate> candidates) noexcept {
    static std::atomic<std::size_t> turn{0};
    return first_free(candidates, turn++);
  }
};

/// Orders by address: another copy of the same question has another answer.
struct compares_addresses : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    return first_free(candidates, reinterpret_cast<std::uintptr_t>(query.place) >> 4);
  }
};

/// Keeps its turn in an object that stays behind.
class forgets_when_moved {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "forgets_when_moved";
  struct options {};
  explicit forgets_when_moved(options) noexcept {}
  forgets_when_moved(forgets_when_moved&&) noexcept {}
  forgets_when_moved& operator=(forgets_when_moved&&) noexcept {
    turn_ = {};
    return *this;
  }
  [[nodiscard]] source_limits limits() const noexcept { return turn_.limits(); }
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    return turn_.choose(query, candidates);
  }

 private:
  round_robin turn_{};
};

struct grows_greedy : nearest_source {
  using nearest_source::nearest_source;
  [[nodiscard]] source_limits limits() const noexcept {
    return {nearest_source::limits().sources + calls, nearest_source::limits().credits};
  }
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    ++calls;
    return nearest_source::choose(query, candidates);
  }
  std::uint32_t calls = 0;
};
/// Chooses nobody, which is consistent with its limits.
struct gives_no_credit : nearest_source {
  using nearest_source::nearest_source;
  [[nodiscard]] source_limits limits() const noexcept { return {nearest_source::limits().sources, 0}; }
  source_choice choose(const source_query&, std::span<const source_candidate>) noexcept { return {}; }
};
struct wants_no_source : nearest_source {
  using nearest_source::nearest_source;
  [[nodiscard]] source_limits limits() const noexcept { return {0, nearest_source::limits().credits}; }
};

/// Does not count the readers.
struct gives_what_it_has_not : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    source_choice choice = nearest_source::choose(query, candidates);
    if (!choice.index && !candidates.empty()) choice = {0, "one more"};
    return choice;
  }
};
/// Takes places also for those who cannot take one.
struct pushes_in : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    source_query bold = query;
    bold.may_displace = true;
    return nearest_source::choose(bold, candidates);
  }
};
/// Takes the place of somebody although there is a free one.
struct pushes_for_fun : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    source_choice choice = nearest_source::choose(query, candidates);
    choice.displace = choice.index && query.may_displace;
    return choice;
  }
};
struct takes_the_place_of_nobody : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, std::span<const source_candidate> candidates) noexcept {
    source_choice choice = nearest_source::choose(query, candidates);
    choice.displace = choice.displace || (!choice.index && query.may_displace);
    return choice;
  }
};

// ---- consistency ---------------------------------------------------------------------------------------

using kind = version_decision::kind_type;
using selector_kind = version_selector::kind_type;

/// Changes what `group_consistent` decides.
template <typename Change>
struct lying : group_consistent {
  using group_consistent::group_consistent;
  version_decision decide(const version_selector& selector, const version_view& view) const noexcept {
    return Change{}(selector, view, group_consistent::decide(selector, view));
  }
};

struct takes_again {
  version_decision operator()(const version_selector&, const version_view&,
                              version_decision d) const noexcept {
    if (d.kind == kind::keep) d.kind = kind::take;
    return d;
  }
};
struct takes_what_was {
  version_decision operator()(const version_selector& selector, const version_view& view,
                              version_decision d) const noexcept {
    if (selector.kind == selector_kind::latest && view.latest_ever > view.held)
      return {kind::take, view.latest_ever, errc::ok};
    return d;
  }
};
struct near_enough {
  version_decision operator()(const version_selector& selector, const version_view& view,
                              version_decision d) const noexcept {
    if (selector.kind == selector_kind::exactly && d.kind == kind::wait && view.latest_available > view.held)
      return {kind::take, view.latest_available, errc::ok};
    return d;
  }
};
struct at_least_roughly {
  version_decision operator()(const version_selector& selector, const version_view& view,
                              version_decision d) const noexcept {
    if (selector.kind == selector_kind::at_least && d.kind == kind::wait && view.held)
      return {kind::keep, view.held, errc::ok};
    return d;
  }
};
struct keeps_another {
  version_decision operator()(const version_selector& selector, const version_view&,
                              version_decision d) const noexcept {
    if (selector.kind == selector_kind::latest && d.kind == kind::keep) d.version.value += 1;
    return d;
  }
};
struct changes_its_mind {
  version_decision operator()(const version_selector&, const version_view&,
                              version_decision d) const noexcept {
    static std::atomic<unsigned> calls{0};
    if (d.kind == kind::take && ++calls % 2 == 0) d = {kind::wait, {}, errc::ok};
    return d;
  }
};
struct waits_for_the_past {
  version_decision operator()(const version_selector&, const version_view&,
                              version_decision d) const noexcept {
    if (d.kind == kind::refuse) d = {kind::wait, {}, errc::ok};
    return d;
  }
};
struct sleeps {
  version_decision operator()(const version_selector&, const version_view&,
                              version_decision d) const noexcept {
    if (d.kind == kind::take) d = {kind::wait, {}, errc::ok};
    return d;
  }
};
struct refuses_without_a_word {
  version_decision operator()(const version_selector&, const version_view&,
                              version_decision d) const noexcept {
    d.reason = errc::ok;
    return d;
  }
};
struct warns_in_success {
  version_decision operator()(const version_selector&, const version_view&,
                              version_decision d) const noexcept {
    if (d.kind == kind::take) d.reason = errc::busy;
    return d;
  }
};

// ---- integrity -----------------------------------------------------------------------------------------

struct ignores_the_version : xxh3_128 {
  static std::uint64_t bind(std::string_view model, version_number, shard_of shard) noexcept {
    return xxh3_128::bind(model, 1, shard);
  }
};
struct ignores_the_shard_count : xxh3_128 {
  static std::uint64_t bind(std::string_view model, version_number version, shard_of shard) noexcept {
    return xxh3_128::bind(model, version, {shard.index, 1});
  }
};
struct ignores_the_seed : xxh3_128 {
  static digest128 chunk_digest(std::uint64_t, std::uint64_t chunk, std::span<const std::byte> b) noexcept {
    return xxh3_128::chunk_digest(0, chunk, b);
  }
};
struct root_ignores_the_seed : xxh3_128 {
  static digest128 root(std::uint64_t, std::span<const digest128> table) noexcept {
    return xxh3_128::root(0, table);
  }
};
struct ignores_the_chunk : xxh3_128 {
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t, std::span<const std::byte> b) noexcept {
    return xxh3_128::chunk_digest(seed, 0, b);
  }
};
struct skips_the_tail : xxh3_128 {
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                std::span<const std::byte> b) noexcept {
    return xxh3_128::chunk_digest(seed, chunk, b.first(b.size() - b.size() % 16));
  }
};
struct samples : xxh3_128 {
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                std::span<const std::byte> b) noexcept {
    if (b.size() <= 1024) return xxh3_128::chunk_digest(seed, chunk, b);
    const digest128 head = xxh3_128::chunk_digest(seed, chunk, b.first(512));
    const digest128 tail = xxh3_128::chunk_digest(seed + b.size(), chunk, b.last(512));
    return {head.low ^ tail.low, head.high ^ tail.high};
  }
};
struct zero_for_zeros : xxh3_128 {
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                std::span<const std::byte> b) noexcept {
    if (b.empty()) return {};
    return xxh3_128::chunk_digest(seed, chunk, b);
  }
};
struct sums_the_table : xxh3_128 {
  static digest128 root(std::uint64_t seed, std::span<const digest128> table) noexcept {
    digest128 sum{seed | 1, table.size() + 1};
    for (const digest128& entry : table) sum = {sum.low + 2 * entry.low, sum.high + entry.high};
    return sum;
  }
};
struct depends_on_the_address : xxh3_128 {
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                std::span<const std::byte> b) noexcept {
    return xxh3_128::chunk_digest(seed + reinterpret_cast<std::uintptr_t>(b.data()) % 8, chunk, b);
  }
};
struct off_but_digests : xxh3_128 {
  static constexpr bool enabled = false;
};

}  // namespace

TEST_CASE("lying schedulers are caught") {
  CHECK(violated(check_scheduler<nearest_source>()).empty());
  CHECK(violated(check_scheduler<off_by_one>()) == names{"index_is_inside"});
  CHECK(violated(check_scheduler<chooses_of_none>()) == names{"nobody_is_chosen_of_none"});
  CHECK(violated(check_scheduler<shares_its_turn>()) ==
        names{"same_history_same_choice", "moving_changes_nothing"});
  CHECK(violated(check_scheduler<compares_addresses>()) == names{"same_history_same_choice"});
  CHECK(violated(check_scheduler<forgets_when_moved>()) == names{"moving_changes_nothing"});
  CHECK(violated(check_scheduler<grows_greedy>()) == names{"limits_are_constant"});
  CHECK(violated(check_scheduler<gives_no_credit>()) == names{"limits_are_constant"});
  CHECK(violated(check_scheduler<wants_no_source>()) == names{"limits_are_constant"});
  CHECK(violated(check_scheduler<gives_what_it_has_not>()) == names{"full_ones_are_only_displaced"});
  CHECK(violated(check_scheduler<pushes_in>()) == names{"displaces_only_if_allowed"});
  CHECK(violated(check_scheduler<pushes_for_fun>()) == names{"displaces_only_if_allowed"});
  CHECK(violated(check_scheduler<takes_the_place_of_nobody>()) == names{"displaces_only_if_allowed"});
}

TEST_CASE("schedulers that do not look at places fail the test of nearest_source") {
  CHECK_FALSE(nearest_class_is_chosen<least_loaded>().empty());
  CHECK_FALSE(nearest_class_is_chosen<round_robin>().empty());
  CHECK_FALSE(nearest_class_is_chosen<one_to_many>().empty());
  CHECK_FALSE(nearest_class_is_chosen<chain>().empty());
}

TEST_CASE("lying consistency policies are caught") {
  CHECK(violated(check_consistency<group_consistent>()).empty());
  CHECK(violated(check_consistency<lying<takes_again>>()) ==
        names{"takes_what_is_available", "never_takes_what_is_held"});
  CHECK(violated(check_consistency<lying<takes_what_was>>()) ==
        names{"takes_what_is_available", "waits_or_refuses_as_the_selector_says"});
  CHECK(violated(check_consistency<lying<near_enough>>()) == names{"exactly_is_exact"});
  CHECK(violated(check_consistency<lying<at_least_roughly>>()) ==
        names{"at_least_is_a_bound", "waits_or_refuses_as_the_selector_says"});
  CHECK(violated(check_consistency<lying<keeps_another>>()) == names{"keeps_what_is_held"});
  CHECK(violated(check_consistency<lying<changes_its_mind>>()) ==
        names{"pure", "does_not_wait_for_what_is_there"});
  CHECK(violated(check_consistency<lying<waits_for_the_past>>()) ==
        names{"waits_or_refuses_as_the_selector_says"});
  CHECK(violated(check_consistency<lying<sleeps>>()) == names{"does_not_wait_for_what_is_there"});
  CHECK(violated(check_consistency<lying<refuses_without_a_word>>()) ==
        names{"waits_or_refuses_as_the_selector_says", "a_refusal_says_why"});
  CHECK(violated(check_consistency<lying<warns_in_success>>()) == names{"a_refusal_says_why"});
}

TEST_CASE("lying integrity policies are caught") {
  CHECK(violated(check_integrity<xxh3_128>()).empty());
  CHECK(violated(check_integrity<no_integrity>()).empty());
  const names binding{"bound_to_model_version_and_shard"};
  CHECK(violated(check_integrity<ignores_the_version>()) == binding);
  CHECK(violated(check_integrity<ignores_the_shard_count>()) == binding);
  CHECK(violated(check_integrity<ignores_the_seed>()) == binding);
  CHECK(violated(check_integrity<root_ignores_the_seed>()) == binding);
  CHECK(violated(check_integrity<ignores_the_chunk>()) == names{"bound_to_the_chunk"});
  const names bits{"one_flipped_bit_changes_the_digest"};
  CHECK(violated(check_integrity<skips_the_tail>()) == bits);
  CHECK(violated(check_integrity<samples>()) == bits);
  CHECK(violated(check_integrity<zero_for_zeros>()) == names{"never_zero"});
  CHECK(violated(check_integrity<sums_the_table>()) == names{"root_depends_on_every_entry_and_their_order"});
  CHECK(violated(check_integrity<depends_on_the_address>()) == names{"deterministic"});
  CHECK(violated(check_integrity<off_but_digests>()) == names{"disabled_makes_no_digest"});
}
