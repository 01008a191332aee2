/// \file concepts.cpp
/// The six concepts: the types that must model them do, and the broken twins of the archetypes are refused
/// (concept_twins.hpp, at compile time). The archetypes keep the parts of the tables that no compiler sees.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "concept_twins.hpp"
#include "support/archetypes.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/policy/consistency/bounded_staleness.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/policy/steady_clock.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

static_assert(scheduler<nearest_source> && scheduler<least_loaded>);
static_assert(consistency<group_consistent> && consistency<independent> && consistency<bounded_staleness>);
static_assert(integrity<xxh3_128> && integrity<no_integrity>);
static_assert(tensorhub::clock<steady_clock>);
static_assert(memory_space<host_memory>);

static_assert(scheduler<scheduler_archetype> && consistency<consistency_archetype>);
static_assert(integrity<integrity_archetype> && tensorhub::clock<clock_archetype>);
static_assert(memory_space<memory_space_archetype> && transport<transport_archetype>);

// A tag of another concept, or a type that is no class at all, models nothing.
static_assert(!scheduler<group_consistent> && !consistency<nearest_source> && !integrity<steady_clock>);
static_assert(!transport<int> && !scheduler<int> && !consistency<void> && !integrity<int*> &&
              !tensorhub::clock<int> && !memory_space<int[4]>);

}  // namespace

TEST_CASE("the memory archetype keeps the table of memory_space") {
  memory_space_archetype space;
  auto memory = space.allocate(10000);
  const memory_range range = memory.range();
  REQUIRE(range.bytes == 10000);
  CHECK(reinterpret_cast<std::uintptr_t>(range.data) % 4096 == 0);
  CHECK(std::all_of(range.data, range.data + range.bytes, [](std::byte b) { return b == std::byte{}; }));
  CHECK(range.backing_fd == -1);

  const std::array<std::uint32_t, 3> numbers{1, 2, 3};
  space.copy(range.data + 8, numbers.data(), sizeof numbers);
  CHECK(std::equal(numbers.begin(), numbers.end(), reinterpret_cast<const std::uint32_t*>(range.data + 8)));

  CHECK(space.describe(range.data, 5).data == range.data);
  CHECK_THROWS_AS(static_cast<void>(space.describe(nullptr, 5)), error);
  CHECK_THROWS_AS(static_cast<void>(space.allocate(UINT64_MAX / 2)), error);

  auto moved = std::move(memory);
  CHECK(moved.range().data == range.data);
}

TEST_CASE("the transport archetype keeps the table of transport, and reaches nobody") {
  transport_archetype self{{}, incarnation{7}};
  std::array<std::byte, 64> bytes{};
  const std::array<memory_range, 2> ranges{memory_range{bytes.data(), 16}, memory_range{&bytes[16], 48}};
  {
    auto regions = self.register_memory(ranges, region_access::both);
    REQUIRE(regions.size() == 2);
    CHECK(self.registered_bytes() == 64);
    CHECK(regions[1].range().data == &bytes[16]);

    const remote_region before = self.describe(regions[0]);
    CHECK(before == self.describe(regions[0]));
    CHECK(before.bytes == 16);
    CHECK_FALSE(before.key == self.describe(regions[1]).key);
    self.revoke(regions[0]);
    CHECK_FALSE(before.key == self.describe(regions[0]).key);

    const std::array<memory_range, 2> one_empty{ranges[0], memory_range{&bytes[16], 0}};
    CHECK_THROWS_AS(static_cast<void>(self.register_memory(one_empty, region_access::both)), error);
    CHECK(self.registered_bytes() == 64);  // all or none

    auto moved = std::move(regions[0]);
    regions.clear();
    CHECK(self.registered_bytes() == 16);
  }
  CHECK(self.registered_bytes() == 0);

  auto queue = self.make_queue(1);
  CHECK_THROWS_AS(static_cast<void>(self.make_queue(0)), error);
  CHECK_THROWS_AS(static_cast<void>(self.connect(queue, self.address(), incarnation{7}, duration{0})), error);
  std::array<completion, 4> completions{};
  CHECK(queue.poll(completions) == 0);
  CHECK(queue.outstanding() == 0);
}

TEST_CASE("a wake ends the archetype's wait, whether it comes before or during it") {
  transport_archetype self{{}, incarnation{7}};
  auto queue = self.make_queue(1);
  queue.wake();
  queue.wait(std::chrono::hours{1});  // returns: it was woken before

  std::thread waker{[&queue] { queue.wake(); }};
  queue.wait(std::chrono::hours{1});
  waker.join();
  queue.wait(duration{0});
}

TEST_CASE("the clock archetype stands still") {
  const clock_archetype still{time_point{5}};
  CHECK(still.now() == still.now());
  CHECK(still.now() == time_point{5});
}
