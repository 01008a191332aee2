/// \file policies.cpp
/// Every policy of the library, and the archetypes, through the conformance suites; and what the single
/// policies promise beyond.

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "baselines/chain.hpp"
#include "baselines/one_to_many.hpp"
#include "nearest_class.hpp"
#include "support/archetypes.hpp"
#include "tensorhub/policy/consistency/bounded_staleness.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/blake3_128.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/testing/policy_conformance.hpp"
#include "tensorhub/testing/transport_conformance.hpp"  // both in one file compile

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

TEST_CASE_TEMPLATE("schedulers keep the rules", S, nearest_source, least_loaded, baselines::one_to_many,
                   baselines::chain, scheduler_archetype) {
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

TEST_CASE_TEMPLATE("integrity policies keep the rules", I, xxh3_128, blake3_128, no_integrity,
                   integrity_archetype) {
  all_hold(check_integrity<I>());
}

TEST_CASE("nearest_source never goes farther than it must") {
  const violations seen = nearest_class_is_chosen<nearest_source>();
  CHECK_MESSAGE(seen.empty(), to_string(rule_result{"nearest_class_is_chosen", seen}));
}

TEST_CASE_TEMPLATE("schedulers keep the rules with any limits", S, nearest_source, least_loaded) {
  for (const source_limits most : {source_limits{1, 1}, {1, 3}, {3, 1}, {4, UINT32_MAX}}) {
    CAPTURE(most.sources);
    CAPTURE(most.credits);
    const auto make = [most] { return S{typename S::options{most}}; };
    all_hold(check_scheduler<S>(make));
    CHECK(make().limits().sources == most.sources);
    CHECK(make().limits().credits == most.credits);
  }
}

TEST_CASE("nearest_source: host, then rack, then datacenter, then elsewhere, whatever their load") {
  const location here{.datacenter = "d", .rack = "r", .host = "h"};
  scheduler_call call;
  call.read_from(incarnation{9}, here);
  call.offer(candidate(1), {.datacenter = "e", .rack = "r", .host = "h"});
  call.offer(candidate(2, 1), {.datacenter = "d", .rack = "s", .host = "i"});
  call.offer(candidate(3, 2), {.datacenter = "d", .rack = "r", .host = "i"});
  call.offer(candidate(4, 3, true), here);
  nearest_source policy{{.most = {4, 4}}};
  for (const std::uint64_t expected : {4u, 3u, 2u, 1u}) {
    const source_choice choice = policy.choose(call.query, call.candidates);
    REQUIRE(choice.index);
    CHECK(call.candidates[*choice.index].worker.value == expected);
    CHECK_FALSE(choice.displace);
    call.candidates[*choice.index].leases = 4;  // no credit left: the next class
  }
  CHECK_FALSE(policy.choose(call.query, call.candidates).index);
}

TEST_CASE(
    "nearest_source: on the own host everything from a worker that has it, trainer or not, and no relays") {
  const location here{.datacenter = "d", .host = "h"};
  scheduler_call call;
  call.read_from(incarnation{9}, here);
  source_candidate half = candidate(1);
  half.chunks_held = 32;
  call.offer(half, here);
  call.offer(candidate(2, 3, true), here);
  nearest_source policy{{.most = {4, 4}}};
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  call.query.sources_held = call.query.sources_nearby = 1;
  call.query.served_on_host = true;
  CHECK_FALSE(policy.choose(call.query, call.candidates).index);
  call.query.served_on_host = false;  // it has run out of new chunks
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  call.candidates[1].leases = 4;
  CHECK(policy.choose(call.query, call.candidates).index == 0);
}

TEST_CASE(
    "nearest_source: a third datacenter reads from the first one, not from what the second one receives") {
  scheduler_call call;
  call.read_from(incarnation{9}, {.datacenter = "third"});
  source_candidate receiving = candidate(1);
  receiving.chunks_held = 63;
  call.offer(receiving, {.datacenter = "second"});
  call.offer(candidate(2, 1, true), {.datacenter = "first"});
  nearest_source policy{{.most = {4, 4}}};
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  call.candidates[0].chunks_held = call.candidates[0].chunks;
  CHECK(policy.choose(call.query, call.candidates).index == 0);
  call.candidates[0].chunks_held = 0;
  call.candidates[1].leases = 2;  // the other credits are for its own datacenter
  CHECK(policy.choose(call.query, call.candidates).index == 0);
  call.candidates[0].leases = 2;
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  call.candidates[1].leases = 4;
  CHECK(policy.choose(call.query, call.candidates).index == 0);
}

TEST_CASE("nearest_source relieves the trainer as soon as a rollout is as near and has a credit") {
  scheduler_call call;
  call.read_from(incarnation{9}, {.datacenter = "d"});
  call.offer(candidate(1, 0, true), {.datacenter = "d"});
  call.offer(candidate(2), {.datacenter = "d"});
  nearest_source policy{{.most = {4, 4}}};
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  call.candidates[1].leases = 3;
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  call.candidates[1].leases = 4;
  CHECK(policy.choose(call.query, call.candidates).index == 0);
}

TEST_CASE("nearest_source takes a place in the nearest class rather than to go farther") {
  scheduler_call call;
  call.read_from(incarnation{9}, {.datacenter = "d", .rack = "r"});
  call.offer(candidate(1), {.datacenter = "d", .rack = "s"});
  call.offer(candidate(2, 4), {.datacenter = "d", .rack = "r"});
  call.offer(candidate(3, 5), {.datacenter = "d", .rack = "r"});
  nearest_source policy{{.most = {4, 4}}};
  CHECK(policy.choose(call.query, call.candidates).index == 0);  // not allowed
  call.query.may_displace = true;
  const source_choice choice = policy.choose(call.query, call.candidates);
  CHECK(choice.index == 1);
  CHECK(choice.displace);
  call.candidates[2].leases = 3;  // a free one of that class needs no displacing
  const source_choice free = policy.choose(call.query, call.candidates);
  CHECK(free.index == 2);
  CHECK_FALSE(free.displace);
}

TEST_CASE("nearest_source: not all sources of a reader are from its rack, where others are there") {
  scheduler_call call;
  call.read_from(incarnation{9}, {.datacenter = "d", .rack = "r"});
  call.offer(candidate(1), {.datacenter = "d", .rack = "r"});
  call.offer(candidate(2, 3), {.datacenter = "d", .rack = "s"});
  nearest_source policy{{.most = {4, 4}}};
  const auto chosen = [&](std::uint32_t held, std::uint32_t nearby) {
    call.query.sources_held = held;
    call.query.sources_nearby = nearby;
    return policy.choose(call.query, call.candidates).index;
  };
  CHECK(chosen(0, 0) == 0);
  CHECK(chosen(2, 2) == 0);
  CHECK(chosen(3, 3) == 1);  // the last one
  CHECK(chosen(3, 2) == 0);  // one is from elsewhere already
  call.query.sources_useful = 2;
  CHECK(chosen(1, 1) == 1);
  CHECK(chosen(1, 0) == 0);
  call.candidates.pop_back();
  CHECK(chosen(1, 1) == 0);  // nobody else is there
  call.query.sources_useful = 4;
  CHECK(chosen(3, 3) == 0);
}

TEST_CASE("nearest_source prefers who has more, and who stays, among equals") {
  scheduler_call call;
  call.read_from(incarnation{9}, {});
  source_candidate spot = candidate(1);
  spot.spot = true;
  source_candidate behind = candidate(2);
  behind.chunks_held = 63;
  call.offer(spot, {});
  call.offer(behind, {});
  call.offer(candidate(3), {});
  nearest_source policy{{.most = {4, 4}}};
  CHECK(policy.choose(call.query, call.candidates).index == 2);
  call.candidates.pop_back();
  CHECK(policy.choose(call.query, call.candidates).index == 1);
}

TEST_CASE("least_loaded chooses the fewest leases, wherever that is") {
  scheduler_call call;
  call.read_from(incarnation{9}, {.datacenter = "d", .host = "h"});
  call.offer(candidate(1, 2), {.datacenter = "d", .host = "h"});
  call.offer(candidate(2, 1), {.datacenter = "far away"});
  least_loaded policy;
  CHECK(policy.choose(call.query, call.candidates).index == 1);
}

TEST_CASE("one_to_many reads from the publisher, however many do; else from whoever has most") {
  scheduler_call call;
  call.read_from(incarnation{9}, {});
  source_candidate half = candidate(1);
  half.chunks_held = 32;
  call.offer(half, {});
  call.offer(candidate(2), {});
  call.offer(candidate(3, 1000, true), {});
  baselines::one_to_many policy;
  CHECK(policy.choose(call.query, call.candidates).index == 2);
  call.candidates.pop_back();
  CHECK(policy.choose(call.query, call.candidates).index == 1);
}

TEST_CASE("chain takes the end of the chain, and waits for it") {
  scheduler_call call;
  call.read_from(incarnation{9}, {});
  call.offer(candidate(1, 1), {});
  baselines::chain policy;
  CHECK_FALSE(policy.choose(call.query, call.candidates).index);
  call.offer(candidate(2), {});
  CHECK(policy.choose(call.query, call.candidates).index == 1);
  CHECK(policy.limits().sources == 1);
  CHECK(policy.limits().credits == 1);
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
