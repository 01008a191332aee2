/// The tables of transitions of the catalog's machines, and what becomes of a transition that they lack.

#include <doctest/doctest.h>

#include "catalog_driver.hpp"
#include "tensorhub/service/catalog/rules.hpp"
#include "tensorhub/service/catalog/states.hpp"

using namespace catalog_test;
using namespace tensorhub::catalog_detail;

namespace {

/// `last`: the last state of the machine.
template <typename State>
constexpr bool is_whole(State last) {
  const auto& table = table_of(last);
  for (const state_row& row : table) {
    if (row.name.empty() || row.next >> table.size() != 0) return false;
  }
  return table.size() == static_cast<std::size_t>(last) + 1;
}
static_assert(is_whole(holding::withdrawn) && is_whole(writing::receiving) && is_whole(liveness::gone));
static_assert(is_whole(lease_stage::cutting_off) && is_whole(operation_stage::failed) &&
              is_whole(phase::intact));

static_assert(may_follow(holding::whole, holding::withdrawn));
static_assert(!may_follow(holding::withdrawn, holding::pending));
static_assert(!may_follow(liveness::gone, liveness::heard));
static_assert(!may_follow(operation_stage::ended, operation_stage::decided));

}  // namespace

TEST_CASE("catalog states: a transition that its table lacks is not made, and is reported") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  CHECK(server.core.record_of(trainer)->holding == holding::whole);

  catalog_detail::core faulty;
  auto life = liveness::gone;
  faulty.move_to(life, liveness::gone);  // no transition
  CHECK(faulty.batch.refused.empty());
  faulty.move_to(life, liveness::heard);
  CHECK(life == liveness::gone);
  CHECK(faulty.batch.refused == "gone -> heard");
  CHECK(faulty.log_lines.size() == 1);
  CHECK(rule_check{faulty, {8, 4}}.run() == "every transition is in its table: gone -> heard");
}

TEST_CASE("catalog states: what the record of a worker says goes with its calls") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  const incarnation first = server.join(2, "rollout", {0, 1});
  const auto* record = server.core.record_of(first);
  CHECK(record->holding == holding::nothing);
  REQUIRE(server.publish(trainer, 1).ok());
  const auto source = server.start_shown(first).front();
  CHECK(record->writing == writing::receiving);
  server.finish(first, source);
  CHECK(record->writing == writing::idle);
  CHECK(record->holding == holding::whole);
  server.unpublish(trainer, 1);
  CHECK(server.core.record_of(trainer)->holding == holding::nothing);  // nobody reads it
  server.core.unreachable(server.now, first);
  CHECK(record->signs.life == liveness::unreachable);
  server.send(first, messages::heartbeat_request{});
  CHECK(record->signs.life == liveness::heard);
}
