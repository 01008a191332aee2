/// \file catalog_holding.cpp
/// The catalog, message by message: workers that say what their memory holds, outside of any call.

#include "catalog_driver.hpp"
#include "support/catalog_of.hpp"

using namespace catalog_test;

namespace {

/// A trainer that has published version 1, which rollout-a holds too, and rollout-b.
struct scene {
  driver<> server{};
  incarnation trainer = server.join(1, "trainer");
  incarnation a = server.join(2, "rollout-a");
  incarnation b = server.join(3, "rollout-b");
  scene() {
    REQUIRE(server.publish(trainer, 1).ok());
    server.finish(a, server.start_update(a));
    server.clear();
  }
};

}  // namespace

TEST_CASE("catalog: a worker holds what it says that it has copied, without a call of its replica") {
  scene s;
  const auto hold = [&](incarnation worker, const messages::reference& held) {
    return s.server.ask<messages::status_reply>(worker, messages::holding_request{held}).result;
  };
  SUBCASE("it is a source at once") {
    CHECK(hold(s.b, s.server.reference(1)).ok());
    s.server.unpublish(s.trainer, 1);
    s.server.unpublish(s.a, 1);
    const auto reader = s.server.join(9, "rollout-c");
    CHECK(s.server.start_update(reader).source == s.b);
  }
  SUBCASE("of bytes that somebody has published") {
    auto other = s.server.reference(1);
    other.root.low += 1;
    CHECK(hold(s.b, other).code == errc::version_conflict);
    CHECK(hold(s.b, s.server.reference(2)).code == errc::version_conflict);
    CHECK(hold(s.b, s.server.reference(0)).code == errc::invalid_argument);
    CHECK(s.server.entry("rollout-b").version == version_number{});
  }
  SUBCASE("not while it receives something else") {
    static_cast<void>(s.server.start_update(s.b));
    CHECK(hold(s.b, s.server.reference(1)).code == errc::busy);
  }
  SUBCASE("an unpublish that it has given up is forgotten: its readers go on") {
    const auto lease = s.server.start_update(s.b, exactly(1));
    const incarnation source = lease.source;
    const auto asked = s.server.unpublish(source, 1);
    CHECK_FALSE(s.server.answer<messages::drained_reply>(source, asked).has_value());
    CHECK(hold(source, s.server.reference(1)).ok());
    // It may be repeated until it is answered, and other calls wait for that.
    const auto given_up = s.server.answer<messages::drained_reply>(source, asked);
    REQUIRE(given_up.has_value());
    CHECK(given_up->result.code == errc::cancelled);
    s.server.finish(s.b, lease);
    CHECK_FALSE(s.server.answer<messages::drained_reply>(source, asked).has_value());
    const auto reader = s.server.join(9, "rollout-c");
    CHECK(s.server.start_update(reader).version == version_number{1});
  }
  SUBCASE("readers of what it held before are cut off already") {
    s.server.unpublish(s.trainer, 1);
    REQUIRE(s.server.publish(s.trainer, 2).ok());
    CHECK(s.server.start_update(s.b, exactly(1)).source == s.a);
    CHECK(s.server.leases_on(s.a) == 1);
    CHECK(hold(s.a, s.server.reference(2)).ok());
    CHECK(s.server.leases_on(s.a) == 0);
    CHECK(s.server.entry("rollout-a").version == version_number{2});
  }
  SUBCASE("repeated, it changes nothing") {
    CHECK(hold(s.a, s.server.reference(1)).ok());
    CHECK(s.server.available() == versions{{1}});
  }
}
