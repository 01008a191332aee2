/// \file policy_mutants.cpp
/// The conformance suites of the policies can fail: for every rule there is a policy that breaks it, and the
/// suite names exactly the rules that this policy breaks.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baselines/chain.hpp"
#include "baselines/one_to_many.hpp"
#include "nearest_class.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/testing/policy_conformance.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

using names = std::vector<std::string_view>;
using results = std::vector<rule_result>;

names broken_of(const results& found) {
  names out;
  for (const rule_result& result : found) {
    if (!result.ok()) out.push_back(result.rule);
  }
  return out;
}

/// A policy that breaks `rule`, and with it the rules in `also`.
struct mutant {
  std::string_view rule;
  results (*check)();
  names also{};
};

/// `honest`: what the suite finds of the policy that the mutants change.
void each_rule_has_its_mutant(const results& honest, const std::vector<mutant>& mutants) {
  CHECK(broken_of(honest).empty());
  for (const rule_result& rule : honest) {
    CAPTURE(rule.rule);
    CHECK(std::ranges::count(mutants, rule.rule, &mutant::rule) == 1);
  }
  for (const mutant& each : mutants) {
    CAPTURE(each.rule);
    names expected = each.also;
    expected.push_back(each.rule);
    names found = broken_of(each.check());
    std::ranges::sort(expected);
    std::ranges::sort(found);
    CHECK(found == expected);
  }
}

// ---- schedulers ----------------------------------------------------------------------------------------

using candidates = std::span<const source_candidate>;

/// `nearest_source` with another choice.
template <source_choice (*Change)(const source_query&, candidates, source_choice)>
struct scheduler_mutant : nearest_source {
  using nearest_source::nearest_source;
  source_choice choose(const source_query& query, candidates from) noexcept {
    return Change(query, from, nearest_source::choose(query, from));
  }
};
template <typename S>
results check_of() {
  return check_scheduler<S>();
}
template <source_choice (*Change)(const source_query&, candidates, source_choice)>
results check_choice() {
  return check_scheduler<scheduler_mutant<Change>>();
}

source_choice off_by_one(const source_query&, candidates from, source_choice honest) noexcept {
  return honest.index ? source_choice{from.size(), "the one behind the last", false} : honest;
}
/// The one behind the last, where a scheduler may not have thought of what it is asked.
template <bool (*Unexpected)(const source_query&, candidates)>
source_choice outside_where(const source_query& query, candidates from, source_choice honest) noexcept {
  return Unexpected(query, from) ? off_by_one(query, from, honest) : honest;
}
bool nobody_names_a_datacenter(const source_query& query, candidates) {
  return query.location->datacenter.empty();
}
bool is_a_later_version(const source_query& query, candidates) {
  return query.version.value > 1;
}
bool was_rolled_back(const source_query& query, candidates) {
  return query.version.line > 0;
}
bool is_one_of_several_shards(const source_query& query, candidates) {
  return query.shard.count > 1;
}
bool has_not_joined(const source_query& query, candidates) {
  return !query.reader;
}
bool can_use_one_source(const source_query& query, candidates) {
  return query.sources_useful < 2;
}
bool are_many(const source_query&, candidates from) {
  return from.size() > 9;
}
bool one_has_nothing(const source_query&, candidates from) {
  return std::ranges::any_of(from,
                             [](const source_candidate& c) { return c.chunks_held == 0 && c.chunks > 0; });
}
bool one_has_no_chunks(const source_query&, candidates from) {
  return std::ranges::any_of(from, [](const source_candidate& c) { return c.chunks == 0; });
}
source_choice nobody(const source_query&, candidates, source_choice) noexcept {
  return {std::nullopt, "nobody is good enough"};
}
source_choice first_of_none(const source_query&, candidates from, source_choice honest) noexcept {
  return from.empty() ? source_choice{0, "the first of none"} : honest;
}
/// The first candidate with a free credit, from `place` on and around.
source_choice first_free(candidates from, std::size_t place) noexcept {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::size_t at = (place + i) % from.size();
    if (from[at].leases < nearest_source{}.limits().credits) return {at, "free"};
  }
  return {};
}
/// The choice depends on an address, which a copy of the same question does not share.
source_choice by_address(const source_query& query, candidates from, source_choice) noexcept {
  return first_free(from, reinterpret_cast<std::uintptr_t>(query.location) >> 4);
}
source_choice more_than_the_credits(const source_query&, candidates from, source_choice honest) noexcept {
  return !honest.index && !from.empty() ? source_choice{0, "one more"} : honest;
}
source_choice displaces_for_nothing(const source_query& query, candidates, source_choice honest) noexcept {
  honest.displace = honest.index && query.may_displace;
  return honest;
}

/// Keeps its turn in a member that a move does not take along.
class forgets_when_moved {
 public:
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "forgets_when_moved";
  struct options {};
  explicit forgets_when_moved(options) noexcept {}
  forgets_when_moved(forgets_when_moved&&) noexcept {}
  forgets_when_moved& operator=(forgets_when_moved&&) noexcept {
    turn_ = 0;
    return *this;
  }
  [[nodiscard]] source_limits limits() const noexcept { return nearest_source{}.limits(); }
  source_choice choose(const source_query&, candidates from) noexcept { return first_free(from, turn_++); }

 private:
  std::size_t turn_ = 0;
};
struct grows_greedy : nearest_source {
  using nearest_source::nearest_source;
  [[nodiscard]] source_limits limits() const noexcept {
    return {nearest_source::limits().sources + calls, nearest_source::limits().credits};
  }
  source_choice choose(const source_query& query, candidates from) noexcept {
    ++calls;
    return nearest_source::choose(query, from);
  }
  std::uint32_t calls = 0;
};

// ---- consistency ---------------------------------------------------------------------------------------

using kind = version_decision::kind_type;
using selector_kind = version_selector::kind_type;

/// `group_consistent` with another decision.
template <version_decision (*Change)(const version_selector&, const version_view&, version_decision)>
struct consistency_mutant : group_consistent {
  using group_consistent::group_consistent;
  version_decision decide(const version_selector& selector, const version_view& view) const noexcept {
    return Change(selector, view, group_consistent::decide(selector, view));
  }
};
template <version_decision (*Change)(const version_selector&, const version_view&, version_decision)>
results check_decision() {
  return check_consistency<consistency_mutant<Change>>();
}

version_decision takes_again(const version_selector&, const version_view&, version_decision d) noexcept {
  if (d.kind == kind::keep) d.kind = kind::take;
  return d;
}
version_decision takes_the_past(const version_selector& selector, const version_view& view,
                                version_decision d) noexcept {
  const bool lies = selector.kind == selector_kind::latest && view.latest_ever > view.held;
  return lies ? version_decision{kind::take, view.latest_ever, errc::ok} : d;
}
version_decision nearly_exact(const version_selector& selector, const version_view& view,
                              version_decision d) noexcept {
  const bool lies =
      selector.kind == selector_kind::exactly && d.kind == kind::wait && view.latest_available > view.held;
  return lies ? version_decision{kind::take, view.latest_available, errc::ok} : d;
}
version_decision roughly_at_least(const version_selector& selector, const version_view& view,
                                  version_decision d) noexcept {
  const bool lies = selector.kind == selector_kind::at_least && d.kind == kind::wait && view.held;
  return lies ? version_decision{kind::keep, view.held, errc::ok} : d;
}
version_decision keeps_another(const version_selector& selector, const version_view&,
                               version_decision d) noexcept {
  if (selector.kind == selector_kind::latest && d.kind == kind::keep) d.version.value += 1;
  return d;
}
version_decision changes_its_mind(const version_selector&, const version_view&, version_decision d) noexcept {
  static std::atomic<unsigned> calls{0};
  return d.kind == kind::take && ++calls % 2 == 0 ? version_decision{kind::wait, {}, errc::ok} : d;
}
version_decision waits_for_the_past(const version_selector&, const version_view&,
                                    version_decision d) noexcept {
  return d.kind == kind::refuse ? version_decision{kind::wait, {}, errc::ok} : d;
}
version_decision sleeps(const version_selector&, const version_view&, version_decision d) noexcept {
  return d.kind == kind::take ? version_decision{kind::wait, {}, errc::ok} : d;
}
version_decision warns_in_success(const version_selector&, const version_view&, version_decision d) noexcept {
  if (d.kind == kind::take) d.reason = errc::busy;
  return d;
}

// ---- integrity -----------------------------------------------------------------------------------------

template <typename I>
results check_digests() {
  return check_integrity<I>();
}

struct ignores_the_version : xxh3_128 {
  static digest_seeds bind(std::string_view model, version_number, shard_of shard) noexcept {
    return xxh3_128::bind(model, 1, shard);
  }
};
struct ignores_the_shard : xxh3_128 {
  static digest_seeds bind(std::string_view model, version_number version, shard_of shard) noexcept {
    return {xxh3_128::bind(model, version, {}).chunks, xxh3_128::bind(model, version, shard).root};
  }
};
struct ignores_the_model : xxh3_128 {
  static digest_seeds bind(std::string_view model, version_number version, shard_of shard) noexcept {
    return {xxh3_128::bind("", version, shard).chunks, xxh3_128::bind(model, version, shard).root};
  }
};
struct binds_chunks_to_the_version : xxh3_128 {
  static digest_seeds bind(std::string_view model, version_number version, shard_of shard) noexcept {
    const digest_seeds seeds = xxh3_128::bind(model, version, shard);
    return {version == version_number{1} ? seeds.chunks : seeds.root + 1, seeds.root};
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
struct zero_for_nothing : xxh3_128 {
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                std::span<const std::byte> b) noexcept {
    return b.empty() ? digest128{} : xxh3_128::chunk_digest(seed, chunk, b);
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
struct disabled_but_digests : xxh3_128 {
  static constexpr bool enabled = false;
};

}  // namespace

TEST_CASE("every rule of schedulers has a scheduler that breaks it") {
  each_rule_has_its_mutant(check_scheduler<nearest_source>(),
                           {{"index_is_inside", check_choice<off_by_one>},
                            {"nobody_is_chosen_of_none", check_choice<first_of_none>},
                            {"the_only_one_is_chosen", check_choice<nobody>},
                            {"same_history_same_choice", check_choice<by_address>},
                            {"moving_changes_nothing", check_of<forgets_when_moved>},
                            {"limits_are_constant", check_of<grows_greedy>},
                            {"full_ones_are_only_displaced", check_choice<more_than_the_credits>},
                            {"displaces_only_if_allowed", check_choice<displaces_for_nothing>}});
}

TEST_CASE("the calls of the suite for schedulers vary whatever a catalog varies") {
  const names outside{"index_is_inside"};
  CHECK(broken_of(check_choice<outside_where<nobody_names_a_datacenter>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<is_a_later_version>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<was_rolled_back>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<is_one_of_several_shards>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<has_not_joined>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<can_use_one_source>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<are_many>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<one_has_nothing>>()) == outside);
  CHECK(broken_of(check_choice<outside_where<one_has_no_chunks>>()) == outside);
}

TEST_CASE("schedulers that do not look at places fail the test of nearest_source") {
  CHECK_FALSE(nearest_class_is_chosen<least_loaded>().empty());
  CHECK_FALSE(nearest_class_is_chosen<baselines::one_to_many>().empty());
  CHECK_FALSE(nearest_class_is_chosen<baselines::chain>().empty());
}

TEST_CASE("every rule of consistency policies has a policy that breaks it") {
  each_rule_has_its_mutant(
      check_consistency<group_consistent>(),
      {{"pure", check_decision<changes_its_mind>, {"does_not_wait_for_what_is_there"}},
       {"takes_what_is_available", check_decision<takes_the_past>, {"waits_or_refuses_as_the_selector_says"}},
       {"never_takes_what_is_held", check_decision<takes_again>, {"takes_what_is_available"}},
       {"keeps_what_is_held", check_decision<keeps_another>},
       {"exactly_is_exact", check_decision<nearly_exact>},
       {"at_least_is_a_bound", check_decision<roughly_at_least>, {"waits_or_refuses_as_the_selector_says"}},
       {"waits_or_refuses_as_the_selector_says", check_decision<waits_for_the_past>},
       {"does_not_wait_for_what_is_there", check_decision<sleeps>},
       {"a_refusal_says_why", check_decision<warns_in_success>}});
}

TEST_CASE("every rule of integrity policies has a policy that breaks it") {
  each_rule_has_its_mutant(
      check_integrity<xxh3_128>(),
      {{"deterministic", check_digests<depends_on_the_address>},
       {"bound_to_model_version_and_shard", check_digests<ignores_the_version>},
       {"unchanged_chunks_keep_their_digests", check_digests<binds_chunks_to_the_version>},
       {"bound_to_the_chunk", check_digests<ignores_the_chunk>},
       {"one_flipped_bit_changes_the_digest", check_digests<skips_the_tail>},
       {"never_zero", check_digests<zero_for_nothing>},
       {"root_depends_on_every_entry_and_their_order", check_digests<sums_the_table>},
       {"disabled_makes_no_digest", check_digests<disabled_but_digests>}});
  const names bound{"bound_to_model_version_and_shard"};
  CHECK(broken_of(check_integrity<ignores_the_shard>()) == bound);
  CHECK(broken_of(check_integrity<ignores_the_model>()) == bound);
  CHECK(broken_of(check_integrity<no_integrity>()).empty());
}
