/// \file policies.cpp
/// Every policy of the library, and the archetypes, through the conformance suites; and what the single
/// policies promise beyond.

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "nearest_class.hpp"
#include "tensorhub/policy/consistency/bounded_staleness.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/policy/scheduler/round_robin.hpp"
#include "tensorhub/testing/archetypes.hpp"
#include "tensorhub/testing/policy_conformance.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

void all_hold(const std::vector<rule_result>& results) {
  REQUIRE(!results.empty());
  for (const rule_result& result : results) CHECK_MESSAGE(result.ok(), to_string(result));
}

/// A candidate that differs from others only in what the arguments say.
source_candidate candidate(std::uint64_t worker, std::uint32_t leases = 0, bool publisher = false) {
  source_candidate made;
  made.worker = incarnation{worker};
  made.leases = leases;
  made.chunks = 64;
  made.chunks_held = 64;
  made.publisher = publisher;
  return made;
}

}  // namespace

TEST_CASE_TEMPLATE("schedulers keep the rules", S, nearest_source, least_loaded, round_robin,
                   scheduler_archetype) {
  all_hold(check_scheduler<S>());
}

TEST_CASE_TEMPLATE("consistency policies keep the rules", C, group_consistent, independent, bounded_staleness,
                   consistency_archetype) {
  all_hold(check_consistency<C>());
}

TEST_CASE("bounded staleness keeps the rules with any bound") {
  for (const std::uint64_t bound : {std::uint64_t{0}, std::uint64_t{2}, UINT64_MAX}) {
    CAPTURE(bound);
    all_hold(check_consistency<bounded_staleness>([bound] { return bounded_staleness{{bound}}; }));
  }
}

TEST_CASE_TEMPLATE("integrity policies keep the rules", I, xxh3_128, no_integrity, integrity_archetype) {
  all_hold(check_integrity<I>());
}

TEST_CASE("nearest_source never goes farther than it must") {
  const violations seen = nearest_class_is_chosen<nearest_source>();
  CHECK_MESSAGE(seen.empty(), to_string(rule_result{"nearest_class_is_chosen", seen}));
}

TEST_CASE("nearest_source relieves the trainer as soon as a rollout is as near and as free") {
  scheduler_call call;
  call.read_from(incarnation{9}, {.datacenter = "d"});
  call.offer(candidate(1, 0, true), {.datacenter = "d"});
  call.offer(candidate(2), {.datacenter = "d"});
  nearest_source policy;
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  call.candidates[1].leases = 1;
  CHECK(policy.choose(call.query, call.candidates).index == 0);
}

TEST_CASE("least_loaded chooses the fewest leases, wherever that is") {
  scheduler_call call;
  call.read_from(incarnation{9}, {.datacenter = "d", .host = "h"});
  call.offer(candidate(1, 2), {.datacenter = "d", .host = "h"});
  call.offer(candidate(2, 1), {.datacenter = "far away"});
  least_loaded policy;
  CHECK(policy.choose(call.query, call.candidates).index == 1);
}

TEST_CASE("round_robin is fair, also while the list changes") {
  scheduler_call call;
  call.read_from(incarnation{9}, {});
  for (const std::uint64_t worker : {30u, 10u, 20u}) call.offer(candidate(worker), {});
  round_robin policy;
  std::map<std::uint64_t, int> served;
  for (int i = 0; i < 9; ++i) {
    const source_choice choice = policy.choose(call.query, call.candidates);
    REQUIRE(choice.index);
    ++served[call.candidates[*choice.index].worker.value];
  }
  CHECK(served == std::map<std::uint64_t, int>{{10, 3}, {20, 3}, {30, 3}});

  // The last one served was 30; 10 is next, and when it has gone, 20.
  call.candidates.erase(call.candidates.begin() + 1);
  const source_choice choice = policy.choose(call.query, call.candidates);
  REQUIRE(choice.index);
  CHECK(call.candidates[*choice.index].worker.value == 20);
}

TEST_CASE("bounded staleness keeps what is held up to its bound, and not longer") {
  const bounded_staleness policy{{2}};
  const auto decide = [&](std::uint64_t held, std::uint64_t available) {
    return policy.decide(latest, {available, available, held, false});
  };
  using kind = version_decision::kind_type;
  CHECK(decide(5, 7).kind == kind::keep);
  CHECK(decide(5, 8).kind == kind::take);
  CHECK(decide(5, 8).version == version_number{8});
  CHECK(decide(0, 1).kind == kind::take);  // nothing held is never fresh enough
  CHECK(policy.decide(exactly(8), {8, 8, 7, true}).kind == kind::take);
}

TEST_CASE("a bound of zero is group_consistent") {
  const bounded_staleness bounded{{0}};
  const group_consistent plain;
  for (const consistency_case& asked : all_consistency_cases()) {
    const version_decision a = bounded.decide(asked.selector, asked.view);
    const version_decision b = plain.decide(asked.selector, asked.view);
    CHECK_MESSAGE((a.kind == b.kind && a.version == b.version && a.reason == b.reason), to_string(asked));
  }
}
