/// \file catalog_sources.cpp
/// The catalog, message by message: readers that are sources, several sources per reader, credits, places
/// that are taken, seeds of datacenters, and why.

#include <set>

#include "baselines/chain.hpp"
#include "catalog_driver.hpp"
#include "support/catalog_of.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"

using namespace catalog_test;

namespace {

/// A trainer that has published version 1, and rollouts of one shard, with so many sources and credits.
struct scene {
  explicit scene(source_limits most = {}) : server{{}, nearest_source{{.most = most}}} {
    trainer = server.join(1, "trainer");
    a = server.join(2, "rollout-a");
    b = server.join(3, "rollout-b");
    c = server.join(4, "rollout-c");
    REQUIRE(server.publish(trainer, 1).ok());
    server.clear();
  }
  ~scene() { server.check_rules(); }
  [[nodiscard]] bool is_upstream(incarnation reader, incarnation source) const {
    return server.core.record_of(reader)->as_reader.upstream == server.core.record_of(source);
  }

  driver<> server;
  incarnation trainer, a, b, c;
};

TEST_CASE("catalog: a reader learns where the segments of a source that has the version lie") {
  scene s;
  messages::reference held = s.server.reference(2);
  held.segments = {{1, 2, "key"}};
  REQUIRE(s.server.publish(s.server.join(5, "second trainer"), held).ok());
  const auto first = s.server.start_shown(s.a);
  REQUIRE(first.size() == 1);
  CHECK(first[0].segments == held.segments);
  const auto second = s.server.start_shown(s.b);
  REQUIRE(second.size() == 2);
  CHECK(second[0].receiving);
  CHECK(second[0].segments.empty());
  CHECK(second[1].segments == held.segments);
  s.server.finish(s.a, first[0]);  // and says nothing of its segments
  const auto third = s.server.start_shown(s.c);
  const auto of_a = std::ranges::find(third, s.a, &messages::assignment::source);
  REQUIRE(of_a != third.end());
  CHECK(of_a->segments.empty());
}

// ---- readers are sources

TEST_CASE("catalog: a reader that shows what it receives is a source at once") {
  scene s;
  const auto first = s.server.start_shown(s.a);
  REQUIRE(first.size() == 1);
  CHECK(first[0].source == s.trainer);
  CHECK_FALSE(first[0].receiving);
  const auto second = s.server.start_shown(s.b);
  REQUIRE(second.size() == 2);
  CHECK(second[0].source == s.a);  // its upstream: the trainer is relieved
  CHECK(second[0].receiving);
  CHECK(second[0].epoch == driver<>::shows().epoch);
  CHECK(second[0].control == driver<>::shows().control);
  CHECK(second[0].root == root_of(1));
  CHECK(second[1].source == s.trainer);
  // And the first one may read from the second: they trade.
  const auto more = s.server.push<messages::reassign_push>(s.a);
  REQUIRE(more.has_value());
  CHECK(more->source.source == s.b);
  CHECK(more->source.receiving);
  CHECK_FALSE(more->old_lease);
  CHECK(s.is_upstream(s.a, s.trainer));
  CHECK(s.is_upstream(s.b, s.a));
}

TEST_CASE(
    "catalog: readers on the trainer's host read from it alone; others from all, and those on the host too") {
  driver<> server{{}, nearest_source{}};
  const location here{.datacenter = "d", .host = "h1"};
  const incarnation trainer = server.join_at(1, "trainer", here);
  const incarnation a = server.join_at(2, "rollout-a", here);
  const incarnation b = server.join_at(3, "rollout-b", here);
  const incarnation far = server.join_at(4, "rollout-c", {.datacenter = "d", .host = "h2"});
  REQUIRE(server.publish(trainer, 1).ok());
  server.clear();
  for (const incarnation each : {a, b}) {
    const auto sources = server.start_shown(each);
    REQUIRE(sources.size() == 1);
    CHECK(sources[0].source == trainer);
  }
  CHECK_FALSE(server.push<messages::reassign_push>(a).has_value());
  CHECK(server.start_shown(far).size() == 3);
  CHECK_FALSE(server.push<messages::reassign_push>(a).has_value());
  const auto more = server.stall(a).sources;  // one that is on its host is not always fast
  REQUIRE(more.size() == 2);
  CHECK(more[0].source == b);
  CHECK(more[1].source == far);
  server.check_rules();
}

TEST_CASE("catalog: a reader that does not show what it receives is no source before it has finished") {
  scene s;
  const auto first = s.server.start_update(s.a);
  const auto second = s.server.start_shown(s.b);
  REQUIRE(second.size() == 1);
  CHECK(second[0].source == s.trainer);
  CHECK(s.server.leases_on(s.a) == 0);
  s.server.finish(s.a, first);
  const auto more = s.server.push<messages::reassign_push>(s.b);
  REQUIRE(more.has_value());
  CHECK(more->source.source == s.a);
  CHECK_FALSE(more->source.receiving);
}

TEST_CASE("catalog: a reader with readers of its own is a source only when they have ended") {
  scene s;
  s.server.finish(s.a, s.server.start_update(s.a));
  s.server.unpublish(s.trainer, 1);
  const auto reading = s.server.start_update(s.c);
  REQUIRE(reading.source == s.a);
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  const auto sources = s.server.start_shown(s.a);
  CHECK_FALSE(sources[0].drained);
  CHECK(s.server.start_shown(s.b).size() == 1);
  CHECK(s.server.leases_on(s.a) == 1);  // the reader of version 1
  s.server.clear();
  s.server.finish(s.c, reading);
  s.server.send(s.a, messages::receiving_request{sources[0].operation, driver<>::shows()});
  const auto more = s.server.push<messages::reassign_push>(s.b);
  REQUIRE(more.has_value());
  CHECK(more->source.source == s.a);
  CHECK(more->source.receiving);
  CHECK(more->source.version == version_number{2});
}

TEST_CASE("catalog: who has lost another source takes nothing from the seed of its datacenter") {
  driver<> server{};
  const location there{.datacenter = "y"};
  REQUIRE(server.publish(server.join_at(1, "trainer", {.datacenter = "x"}), 1).ok());
  const incarnation seed = server.join_at(2, "rollout-a", there);
  server.start_update(seed);
  const incarnation holder = server.join_at(3, "rollout-b", there);
  server.send(holder, messages::holding_request{server.reference(1)});
  const incarnation reader = server.join_at(4, "rollout-c", there);
  const auto source = server.start_update(reader);
  REQUIRE(source.source == holder);
  server.clear();
  static_cast<void>(server.lose_source(reader, source));
  CHECK_FALSE(server.push<messages::reassign_push>(seed).has_value());
  server.check_rules();
}

TEST_CASE("catalog: word of a receiving that is over, or of another operation, makes no source") {
  scene s;
  const auto source = s.server.start_update(s.a);
  s.server.send(s.a, messages::receiving_request{{source.operation.value + 1}, driver<>::shows()});
  CHECK(s.server.core.record_of(s.a)->as_source.offered == catalog_detail::offer::none);
  s.server.fail(s.a, source, {errc::cancelled, "cancelled"}, false);
  s.server.send(s.a, messages::receiving_request{source.operation, driver<>::shows()});
  CHECK(s.server.core.record_of(s.a)->as_source.offered == catalog_detail::offer::none);
}

TEST_CASE("catalog: readers are numbered per version, so that each begins at its own place") {
  scene s;
  std::vector<std::uint64_t> ordinals;
  for (const incarnation reader : {s.a, s.b, s.c}) {
    const auto reply = s.server.answer<messages::update_reply>(reader, s.server.update_shown(reader));
    REQUIRE(reply.has_value());
    ordinals.push_back(reply->ordinal);
  }
  CHECK(ordinals == std::vector<std::uint64_t>{0, 1, 2});
}

/// Workers of a shard of one chunk, or of a few.
struct workers_of_few_chunks {
  explicit workers_of_few_chunks(std::size_t count, const location& place = {}, std::uint64_t chunks = 1)
      : chunk_count{chunks} {
    for (std::uint64_t i = 1; i <= count; ++i) all.push_back(join(i, {}, place));
  }
  incarnation join(std::uint64_t id, const std::optional<messages::reference>& held,
                   const location& place = {}) {
    auto message = server.join_message("replica-" + std::to_string(id));
    server.set_layout(message, layout{{{"w", dtype::f32, {16 * chunk_count}}}, 64});
    REQUIRE(message.form.chunk_count == chunk_count);
    message.before.held = held;
    message.location = place;
    REQUIRE(server.ask<messages::join_reply>(incarnation{id}, std::move(message)).result.ok());
    return incarnation{id};
  }
  std::uint64_t chunk_count;
  driver<> server;
  std::vector<incarnation> all;
};

TEST_CASE("catalog: a reader gets one source more than it has chunks, and another only for one of them") {
  workers_of_few_chunks s{5};
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(s.server.publish(s.all[i], 1).ok());
  const incarnation reader = s.all[4];
  const auto sources = s.server.start_shown(reader);
  REQUIRE(sources.size() == 2);
  s.server.clear();
  s.server.send(reader, messages::receiving_request{sources[0].operation, s.server.shows()});
  CHECK_FALSE(s.server.push<messages::reassign_push>(reader).has_value());
  const auto instead = s.server.lose_source(reader, sources[0]);
  REQUIRE(instead.sources.size() == 1);
  CHECK(instead.sources[0].source != sources[0].source);
  CHECK(instead.sources[0].source != sources[1].source);
}

TEST_CASE("catalog: a reader that has sources enough, and no upstream, gets one beside them") {
  workers_of_few_chunks s{5};
  REQUIRE(s.server.publish(s.all[0], 1).ok());
  std::map<incarnation, messages::assignment> upstreams;
  for (std::size_t i = 1; i < 5; ++i) upstreams[s.all[i]] = s.server.start_shown(s.all[i]).front();
  for (const auto& [reader, lost] : upstreams) s.server.lose_source(reader, lost, errc::transport_failed);
  const auto& reader = *s.server.core.record_of(s.all[1]);
  REQUIRE(reader.as_reader.upstream == nullptr);
  REQUIRE(reader.as_reader.leases.size() == 2);
  s.server.clear();
  const incarnation again = s.join(30, s.server.reference(1));
  const auto told = s.server.push<messages::reassign_push>(reader.id);
  REQUIRE(told.has_value());
  CHECK(told->source.source == again);
  CHECK(reader.as_reader.upstream != nullptr);
}

TEST_CASE("catalog: a reader that has stalled gets more sources than it has chunks") {
  workers_of_few_chunks s{4};
  REQUIRE(s.server.publish(s.all[0], 1).ok());
  for (const std::size_t i : {1u, 2u}) s.server.start_shown(s.all[i]);
  const incarnation reader = s.all[3];
  const auto sources = s.server.start_shown(reader);
  REQUIRE(sources.size() == 2);
  for (const messages::assignment& source : sources) REQUIRE(source.source != s.all[0]);
  const auto more = s.server.stall(reader).sources;
  REQUIRE(more.size() == 1);
  CHECK(more[0].source == s.all[0]);
  s.server.clear();
  const incarnation late = s.join(30, s.server.reference(1));
  const auto told = s.server.push<messages::reassign_push>(reader);
  REQUIRE(told.has_value());
  CHECK(told->source.source == late);
  s.server.check_rules();
}

TEST_CASE("catalog: a reader that has stalled tries the source again that has failed it") {
  scene s;
  const auto first = s.server.start_shown(s.a);
  const auto second = s.server.start_shown(s.b);
  REQUIRE(second.size() == 2);
  REQUIRE(second[1].source == s.trainer);
  s.server.lose_source(s.a, first[0], errc::transport_failed);
  s.server.lose_source(s.b, second[1], errc::transport_failed);  // now they read from each other alone
  const auto again = s.server.stall(s.b).sources;
  REQUIRE(again.size() == 1);
  CHECK(again[0].source == s.trainer);
}

TEST_CASE("catalog: readers that lose the trainer after a stall find a way back to it") {
  for (const std::uint64_t chunks : {1u, 3u, 20u}) {
    CAPTURE(chunks);
    workers_of_few_chunks s{41, {}, chunks};
    const incarnation trainer = s.all[0];
    const auto each_reader = [&](const auto& does) {
      for (std::size_t i = 1; i < s.all.size(); ++i) does(s.all[i]);
    };
    REQUIRE(s.server.publish(trainer, 1).ok());
    each_reader([&](incarnation reader) { s.server.start_shown(reader); });
    std::map<incarnation, lease_id> of_trainer;
    s.server.core.for_each_lease([&](const auto& lease) {
      if (lease.source == trainer) of_trainer[lease.reader] = lease.id;
    });
    each_reader([&](incarnation reader) {  // the reads of the others hang, and then end
      if (!of_trainer.contains(reader)) s.server.stall(reader);
    });
    for (const auto& [reader, lease] : of_trainer) {
      messages::assignment lost;
      lost.operation = s.server.operation_of(reader);
      lost.lease = lease;
      s.server.lose_source(reader, lost, errc::timed_out);
    }
    for (int round = 0; round < 20; ++round) {
      s.server.pass_alive(500ms, s.all);
      each_reader([&](incarnation reader) { CHECK(s.server.stall(reader).result.ok()); });
    }
    CHECK(s.server.leases_on(trainer) > 0);
    each_reader(
        [&](incarnation reader) { CHECK(s.server.core.record_of(reader)->as_reader.upstream != nullptr); });
  }
}

TEST_CASE("catalog: a reader of few chunks has one of its sources outside its rack") {
  const location rack{.datacenter = "d", .rack = "r1"};
  workers_of_few_chunks s{3, rack};
  const incarnation trainer = s.join(30, {}, {.datacenter = "d", .rack = "r0"});
  REQUIRE(s.server.publish(trainer, 1).ok());
  for (const incarnation reader : s.all) {
    const auto sources = s.server.start_shown(reader);
    const bool is_first = reader == s.all[0];
    REQUIRE(sources.size() == (is_first ? 1 : 2));
    CHECK((sources[0].source == trainer) == is_first);
    CHECK(sources.back().source == trainer);
  }
}

TEST_CASE("catalog: what fails of a reader that was read takes its readers elsewhere") {
  scene s;
  const auto first = s.server.start_shown(s.a);
  const auto second = s.server.start_shown(s.b);
  REQUIRE(second[0].source == s.a);
  s.server.clear();
  s.server.fail(s.a, first[0], {errc::cancelled, "cancelled"}, false);
  CHECK(s.server.leases_on(s.a) == 0);  // it has overwritten its memory
  CHECK(s.is_upstream(s.b, s.trainer));
  const auto push = s.server.push<messages::reassign_push>(s.b);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == second[0].lease);
  CHECK_FALSE(push->source.lease);  // it had the trainer already
  CHECK(push->source.operation == second[0].operation);
  CHECK(push->source.version == version_number{1});
}

TEST_CASE("catalog: a reader that has finished keeps its readers") {
  scene s;
  const auto first = s.server.start_shown(s.a);
  const auto second = s.server.start_shown(s.b);
  REQUIRE(second[0].source == s.a);
  auto held = s.server.reference(1);
  held.epoch = driver<>::shows().epoch;
  s.server.send(s.a, messages::finish_request{first[0].operation, 1, {}, false, held, first[0].lease});
  CHECK(s.server.leases_on(s.a) == 1);
  CHECK(s.server.core.record_of(s.a)->as_source.offered == catalog_detail::offer::complete);
  CHECK(s.server.available() == versions{1});
  s.server.unpublish(s.trainer, 1);
  CHECK(s.is_upstream(s.b, s.a));
}

// ---- credits

TEST_CASE("catalog: nobody serves more readers than its credits; who comes too late waits for one") {
  scene s{{1, 2}};
  const auto a = s.server.start_update(s.a);
  s.server.start_update(s.b);
  const auto waiting = s.server.update(s.c);
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.c, waiting).has_value());
  CHECK(s.server.leases_on(s.trainer) == 2);
  SUBCASE("a reader finishes") {
    s.server.finish(s.a, a);
  }
  SUBCASE("a reader shows what it receives") {
    s.server.send(s.a, messages::receiving_request{a.operation, driver<>::shows()});
  }
  SUBCASE("a reader gives up") {
    s.server.fail(s.a, a, {errc::cancelled, "cancelled"}, false);
    s.server.pass(20ms);
  }
  SUBCASE("a reader dies, and its source has cut it off") {
    s.server.join(20, "rollout-a");
    s.server.send(s.trainer, messages::cut_off_done_request{s.a});
    s.server.pass(20ms);
  }
  const auto reply = s.server.answer<messages::update_reply>(s.c, waiting);
  REQUIRE(reply.has_value());
  CHECK(reply->result.ok());
  CHECK(reply->sources.size() == 1);
}

TEST_CASE("catalog: who waits for a credit is told at its deadline that it got none") {
  scene s{{1, 1}};
  s.server.start_update(s.a);
  const auto waiting = s.server.update(s.b, latest, 300ms);
  s.server.pass_alive(400ms, {s.trainer, s.a, s.b, s.c});
  const auto reply = s.server.answer<messages::update_reply>(s.b, waiting);
  REQUIRE(reply.has_value());
  CHECK(reply->result.code == errc::timed_out);
  CHECK(reply->result.sentence.find("no source of version 1 ") != std::string::npos);
}

TEST_CASE("catalog: a chain is one: each reader reads from the one before") {
  driver<testing::catalog_of<baselines::chain>> server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  incarnation last = trainer;
  for (std::uint64_t i = 0; i < 10; ++i) {
    const incarnation reader = server.join(10 + i, "rollout-" + std::to_string(i));
    const auto sources = server.start_shown(reader);
    REQUIRE(sources.size() == 1);
    CHECK(sources[0].source == last);
    last = reader;
    server.check_rules();
  }
}

TEST_CASE("catalog: a newcomer takes the place between a full source and one of its readers") {
  scene s{{2, 2}};
  const auto a = s.server.start_update(s.a);  // cannot be read
  REQUIRE(s.server.start_shown(s.b)[0].source == s.trainer);
  s.server.clear();
  const auto c = s.server.start_shown(s.c);
  REQUIRE(c.size() == 2);
  CHECK(c[0].source == s.b);
  CHECK(c[1].source == s.trainer);  // it was full: `a` reads from the newcomer now
  const auto push = s.server.push<messages::reassign_push>(s.a);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == a.lease);
  CHECK(push->source.source == s.c);
  CHECK(push->source.receiving);
  CHECK(s.is_upstream(s.a, s.c));
  CHECK(s.is_upstream(s.c, s.b));
  CHECK(s.server.core.record_of(s.trainer)->as_source.load == 2);
  CHECK(s.server.leases_on(s.trainer) == 3);  // the old one lasts until `a` has let go
  s.server.send(s.a, messages::lease_released_request{a.lease});
  CHECK(s.server.leases_on(s.trainer) == 2);
  CHECK(s.server.why("rollout-c").find("rollout-a/0 reads from the newcomer instead") != std::string::npos);
}

TEST_CASE("catalog: a newcomer that cannot be read takes nobody's place") {
  scene s{{2, 2}};
  s.server.start_update(s.a);
  s.server.start_shown(s.b);
  s.server.clear();
  const auto c = s.server.start_update(s.c);
  CHECK(c.source == s.b);
  CHECK_FALSE(s.server.push<messages::reassign_push>(s.a).has_value());
}

TEST_CASE("catalog: who takes a place needs a credit of its own for the one who makes room") {
  driver<> server{{}, nearest_source{{.most = {4, 4}}}};
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  std::map<incarnation, messages::assignment> upstream;
  for (std::uint64_t i = 0; i < 30; ++i) {
    const incarnation reader = server.join(10 + i, "rollout-" + std::to_string(i));
    upstream[reader] = server.start_shown(reader).front();
    server.check_rules();
  }
  // Those who have readers already look for a source again.
  for (const auto& [reader, lost] : upstream) {
    CHECK(server.lose_source(reader, lost).result.ok());
    server.check_rules();
  }
}

// ---- exchanges

/// Whether the reader has a lease on the source that it need not give back.
bool reads(const driver<>& server, incarnation reader, incarnation source) {
  bool found = false;
  server.core.for_each_lease([&](const auto& lease) {
    found = found || (lease.reader == reader && lease.source == source && lease.lasts());
  });
  return found;
}

TEST_CASE("catalog: readers that run short take turns at the source that has everything") {
  driver<> server{{}, nearest_source{{.most = {4, 4}}}};
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  std::vector<incarnation> readers;
  for (std::uint64_t i = 0; i < 12; ++i) {
    readers.push_back(server.join(10 + i, "rollout-" + std::to_string(i)));
    server.start_shown(readers.back());
  }
  std::map<incarnation, std::uint32_t> load;
  for (const incarnation each : readers) load[each] = server.core.record_of(each)->as_source.load;
  REQUIRE(server.core.record_of(trainer)->as_source.load == 4);
  server.clear();
  for (const incarnation each : readers) {
    server.run_short(each);  // all have just begun
    CHECK_FALSE(server.push<messages::reassign_push>(each).has_value());
  }
  std::set<incarnation> had_a_turn;
  for (std::size_t round = 0; round < readers.size(); ++round) {
    server.pass_alive(100ms, readers);
    std::rotate(readers.begin(), readers.begin() + 1, readers.end());
    for (const incarnation each : readers) {
      CHECK(server.run_short(each).sources.empty());
      CHECK(server.core.record_of(trainer)->as_source.load == 4);
      for (const incarnation other : readers) {
        CHECK(server.core.record_of(other)->as_source.load == load[other]);
        if (reads(server, other, trainer)) had_a_turn.insert(other);
        while (const auto push = server.push<messages::reassign_push>(other))
          server.send(other, messages::lease_released_request{push->old_lease});
      }
    }
  }
  CHECK(had_a_turn.size() == readers.size());
  const auto counted = server.core.statistics();
  CHECK(counted.stalls == 0);
  CHECK(counted.shortages.reported == readers.size() * (1 + readers.size()));
  CHECK(counted.shortages.exchanged >= readers.size() - 4);
  CHECK(counted.shortages.exchanged < counted.shortages.reported);
  const std::string why = server.why("rollout-11");
  CHECK(why.find("has every chunk; after a shortage; rollout-") != std::string::npos);
  CHECK(why.find("reads from the newcomer instead", why.find("after a shortage")) == std::string::npos);
}

/// A trainer, a reader of it, and one that reads from that reader; with one credit each, and long enough ago.
struct line {
  explicit line(any_scheduler scheduler = nearest_source{{.most = {1, 1}}}, const location& readers = {})
      : server{{}, std::move(scheduler)} {
    trainer = server.join(1, "trainer");
    a = server.join_at(2, "rollout-a", readers);
    b = server.join_at(3, "rollout-b", readers);
    REQUIRE(server.publish(trainer, 1).ok());
    of_a = server.start_shown(a).at(0);
    of_b = server.start_shown(b).at(0);
    REQUIRE(of_a.source == trainer);
    REQUIRE(of_b.source == a);
    server.pass_alive(100ms, {trainer, a, b});
  }
  /// Another one that has everything, and a credit.
  incarnation add_trainer() {
    const incarnation other = server.join(9, "other trainer");
    REQUIRE(server.publish(other, 1).ok());
    server.clear();
    return other;
  }
  [[nodiscard]] std::optional<messages::reassign_push> run_short(incarnation reader) {
    server.clear();
    const auto reply = server.run_short(reader);
    CHECK(reply.result.ok());
    CHECK(reply.sources.empty());
    return server.push<messages::reassign_push>(reader);
  }
  driver<> server;
  incarnation trainer, a, b;
  messages::assignment of_a, of_b;
};

TEST_CASE("catalog: a source that has everything and a credit takes nobody's place in an exchange") {
  line s;
  const incarnation other = s.add_trainer();
  const auto push = s.run_short(s.b);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == s.of_b.lease);
  CHECK(push->source.source == other);
  CHECK_FALSE(s.server.push<messages::reassign_push>(s.a).has_value());
  CHECK(s.server.core.record_of(s.a)->as_source.load == 0);
  CHECK(s.server.core.record_of(s.b)->as_reader.upstream == s.server.core.record_of(other));
  s.server.pass_alive(100ms, {s.trainer, s.a, s.b, other});
  CHECK_FALSE(s.run_short(s.b).has_value());  // it has one now
  CHECK(s.server.core.statistics().shortages.exchanged == 1);
}

/// Gives further sources to nobody.
struct upstreams_only {
  using concept_tag = scheduler_tag;
  static constexpr std::string_view name = "upstreams_only";
  struct options {};
  upstreams_only() = default;
  explicit upstreams_only(options) noexcept {}
  [[nodiscard]] source_limits limits() const noexcept { return {1, 1}; }
  [[nodiscard]] source_choice choose(const source_query& query,
                                     std::span<const source_candidate> candidates) noexcept {
    if (query.sources_held > 0) return {std::nullopt, "one is enough"};
    return inner_.choose(query, candidates);
  }

 private:
  nearest_source inner_{{.most = {1, 1}}};
};

TEST_CASE("catalog: what is not exchanged") {
  SUBCASE("a lease, if its reader cannot read the source that is given") {
    line s;  // `b` has only `a` to give
    CHECK_FALSE(s.run_short(s.b).has_value());
  }
  SUBCASE("for a source in another datacenter") {
    line s{nearest_source{{.most = {1, 1}}}, {.datacenter = "e"}};
    s.add_trainer();
    CHECK_FALSE(s.run_short(s.b).has_value());
  }
  SUBCASE("for what the scheduler does not choose") {
    line s{upstreams_only{}};
    s.add_trainer();
    CHECK_FALSE(s.run_short(s.b).has_value());
  }
  SUBCASE("before the reader can have read much from its last source") {
    line s;
    const incarnation c = s.server.join(4, "rollout-c");
    REQUIRE(s.server.start_shown(c).at(0).source == s.b);
    s.add_trainer();
    CHECK_FALSE(s.run_short(c).has_value());
    s.server.pass_alive(100ms, {s.trainer, s.a, s.b, c, {9}});
    CHECK(s.run_short(c).has_value());
  }
  SUBCASE("for a source that has failed the reader") {
    line s;
    const incarnation c = s.server.join(4, "rollout-c");
    const auto of_c = s.server.start_shown(c).at(0);
    REQUIRE(of_c.source == s.b);
    const incarnation other = s.add_trainer();
    const auto next = s.server.lose_source(c, of_c).sources.at(0);
    REQUIRE(next.source == other);
    REQUIRE(s.server.lose_source(c, next).sources.at(0).source == s.a);
    s.server.pass_alive(100ms, {s.trainer, s.a, s.b, c, other});
    CHECK_FALSE(s.run_short(c).has_value());
  }
  SUBCASE("a source that has failed the reader that would get it") {
    driver<> server{{}, nearest_source{{.most = {1, 2}}}};
    const incarnation trainer = server.join(1, "trainer"), a = server.join(2, "rollout-a"),
                      b = server.join(3, "rollout-b"), c = server.join(4, "rollout-c");
    REQUIRE(server.publish(trainer, 1).ok());
    server.start_shown(a);
    const auto of_b = server.start_update(b);  // cannot be read
    REQUIRE(of_b.source == a);
    REQUIRE(server.lose_source(b, of_b).sources.at(0).source == trainer);
    REQUIRE(server.start_shown(c).at(0).source == a);
    server.pass_alive(100ms, {trainer, a, b, c});
    server.clear();
    server.run_short(c);
    CHECK_FALSE(server.push<messages::reassign_push>(c).has_value());
  }
}

TEST_CASE("catalog: an exchange leaves no reader without a source outside its rack") {
  for (const bool has_racks : {false, true}) {
    CAPTURE(has_racks);
    driver<> server{{}, nearest_source{{.most = {1, 2}}}};
    location place{.datacenter = "d"};
    const incarnation trainer = server.join_at(1, "trainer", place);
    if (has_racks) place.rack = "r";
    const incarnation a = server.join_at(2, "rollout-a", place), b = server.join_at(3, "rollout-b", place),
                      c = server.join_at(4, "rollout-c", place);
    REQUIRE(server.publish(trainer, 1).ok());
    REQUIRE(server.start_update(a).source == trainer);
    REQUIRE(server.start_shown(b).at(0).source == trainer);
    REQUIRE(server.start_shown(c).at(0).source == b);
    server.pass_alive(100ms, {trainer, a, b, c});
    server.clear();
    server.run_short(c);
    CHECK(reads(server, c, trainer) == !has_racks);
    CHECK(reads(server, a, b) == !has_racks);
  }
}

TEST_CASE("catalog: a reader on the host of a source keeps its place there") {
  driver<> server{{}, nearest_source{{.most = {2, 2}}}};
  const location here{.datacenter = "d", .host = "h1"};
  const incarnation trainer = server.join_at(1, "trainer", here);
  REQUIRE(server.publish(trainer, 1).ok());
  std::vector<incarnation> readers;
  for (std::uint64_t i = 0; i < 4; ++i) {
    location place = here;
    if (i >= 2) place.host = "h2";
    readers.push_back(server.join_at(10 + i, "rollout-" + std::to_string(i), place));
    server.start_shown(readers.back());
  }
  server.pass_alive(100ms, readers);
  for (const incarnation each : readers) server.run_short(each);
  CHECK(reads(server, readers[0], trainer));
  CHECK(reads(server, readers[1], trainer));
}

// ---- drains

TEST_CASE("catalog: a drain tells the readers that only trade to go on without it") {
  scene s;
  s.server.finish(s.a, s.server.start_update(s.a));
  const auto sources = s.server.sources_of(s.b, s.server.update(s.b));
  REQUIRE(sources.size() == 2);
  REQUIRE(sources[0].source == s.a);
  s.server.clear();
  const auto drain = s.server.unpublish(s.trainer, 1);
  const auto push = s.server.push<messages::reassign_push>(s.b);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == sources[1].lease);
  CHECK_FALSE(push->source.lease);
  CHECK(push->source.version == version_number{1});
  CHECK(push->source.operation == sources[1].operation);
  CHECK(s.server.core.record_of(s.trainer)->as_source.load == 0);
  CHECK_FALSE(s.server.answer<messages::drained_reply>(s.trainer, drain).has_value());
  s.server.send(s.b, messages::lease_released_request{sources[1].lease});
  CHECK(s.server.answer<messages::drained_reply>(s.trainer, drain).value().moved == 1);
}

TEST_CASE("catalog: a reader whose source is drained is told in one message which one it reads instead") {
  scene s{{2, 4}};
  s.server.finish(s.a, s.server.start_update(s.a));
  s.server.finish(s.c, s.server.start_update(s.c));
  const auto sources = s.server.sources_of(s.b, s.server.update(s.b));
  REQUIRE(sources.size() == 2);
  s.server.clear();
  const auto drain = s.server.unpublish(sources[1].source, 1);
  const auto push = s.server.push<messages::reassign_push>(s.b);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == sources[1].lease);
  CHECK(push->source.source == s.trainer);
  CHECK_FALSE(s.server.push<messages::reassign_push>(s.b).has_value());
  CHECK(s.server.leases_on(sources[1].source) == 1);
  s.server.send(s.b, messages::lease_released_request{sources[1].lease});
  CHECK(s.server.answer<messages::drained_reply>(sources[1].source, drain).value().moved == 1);
  CHECK(s.server.leases_on(s.trainer) == 1);
}

TEST_CASE("catalog: a reader that has ended its update meanwhile is given no sources") {
  scene s;
  const auto a = s.server.start_update(s.a);
  const auto b = s.server.start_update(s.b);
  const auto c = s.server.start_update(s.c);
  const std::uint64_t before = s.server.core.statistics().assignments;
  s.server.together([&] {
    s.server.finish(s.a, a);
    s.server.finish(s.b, b);
  });
  CHECK_FALSE(s.server.push<messages::reassign_push>(s.b).has_value());
  const auto first = s.server.push<messages::reassign_push>(s.c);
  const auto second = s.server.push<messages::reassign_push>(s.c);
  REQUIRE((first && second));
  CHECK(std::set{first->source.source, second->source.source} == std::set{s.a, s.b});
  CHECK(s.server.core.statistics().assignments == before + 2);
  s.server.finish(s.c, c);
}

TEST_CASE("catalog: a reader that has ended its update meanwhile is not told that a source is taken back") {
  scene s;
  s.server.finish(s.a, s.server.start_update(s.a));
  const auto sources = s.server.sources_of(s.b, s.server.update(s.b));
  REQUIRE(sources.size() == 2);
  REQUIRE(sources[0].source == s.a);
  s.server.clear();
  std::uint64_t drain = 0;
  s.server.together([&] {
    drain = s.server.unpublish(s.trainer, 1);
    s.server.finish(s.b, sources[0]);
  });
  CHECK_FALSE(s.server.push<messages::reassign_push>(s.b).has_value());
  CHECK(s.server.answer<messages::drained_reply>(s.trainer, drain).has_value());
}

TEST_CASE("catalog: a source whose bytes a reader has refused is told the chunk when it is drained") {
  driver<> server{};
  const incarnation trainer = server.join(1, "trainer"), reader = server.join(2, "rollout");
  const auto refuse = [&](version_number version, errc reason, std::optional<std::uint64_t> chunk) {
    REQUIRE(server.publish(trainer, version).ok());
    const auto source = server.start_update(reader);
    static_cast<void>(server.ask<messages::update_reply>(
        reader, messages::sources_request{source.operation, messages::sources_wanted::one_failed,
                                          source.lease, reason, "x", chunk}));
    server.fail(reader, source, {errc::unavailable, "x"}, false);
    return server.answer<messages::drained_reply>(trainer, server.unpublish(trainer, version))
        .value()
        .refused;
  };
  CHECK(refuse(1, errc::corrupt, 7) == 7);
  CHECK(refuse(2, errc::source_lost, 7) == std::nullopt);
  CHECK(refuse(3, errc::corrupt, std::nullopt) == std::nullopt);
  CHECK(refuse(4, errc::corrupt, 0) == 0);
}

TEST_CASE("catalog: a drain of an upstream makes another of the reader's sources its upstream") {
  scene s;
  const auto a = s.server.start_update(s.a);
  const auto b = s.server.start_update(s.b);
  REQUIRE(b.source == s.trainer);
  s.server.finish(s.a, a);
  REQUIRE(s.server.push<messages::reassign_push>(s.b).value().source.source == s.a);
  s.server.unpublish(s.trainer, 1);
  CHECK(s.is_upstream(s.b, s.a));
  const auto push = s.server.push<messages::reassign_push>(s.b);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == b.lease);
  CHECK_FALSE(push->source.lease);
}

TEST_CASE("catalog: a last whole source that wants to let go waits for its readers") {
  scene s;
  const auto a = s.server.start_shown(s.a);
  s.server.start_shown(s.b);
  const auto drain = s.server.unpublish(s.trainer, 1);
  CHECK(s.is_upstream(s.a, s.trainer));  // nobody else has everything
  CHECK_FALSE(s.server.answer<messages::drained_reply>(s.trainer, drain).has_value());
  s.server.finish(s.a, a[0]);
  CHECK(s.is_upstream(s.b, s.a));
}

// ---- stalls and deaths

TEST_CASE("catalog: a stall is nothing while somebody upstream has everything") {
  scene s;
  s.server.start_shown(s.a);
  s.server.start_shown(s.b);
  const auto reply = s.server.stall(s.b);
  CHECK(reply.result.ok());
  CHECK(reply.sources.empty());
}

TEST_CASE("catalog: readers that only have each other are told that nobody is left, by name") {
  scene s;
  s.server.start_shown(s.a);
  s.server.start_shown(s.b);
  s.server.pass_alive(6000ms, {s.a, s.b, s.c});
  REQUIRE_FALSE(s.server.core.knows(s.trainer));
  for (const incarnation reader : {s.a, s.b}) {
    const auto reply = s.server.stall(reader);
    CHECK(reply.result.code == errc::unavailable);
    CHECK(reply.result.sentence ==
          "no remaining source holds shard 0/1 of version 1 (the last source: no news)");
  }
}

TEST_CASE("catalog: a reader that cannot reach the trainer is told so, not what it heard of another reader") {
  scene s;
  s.server.start_shown(s.a);
  s.server.start_shown(s.b);
  const auto lose = [&](incarnation reader, incarnation source, const std::string& why) {
    std::vector<lease_id> lost;
    s.server.core.for_each_lease([&](const auto& lease) {
      if (lease.reader == reader && lease.source == source) lost.push_back(lease.id);
    });
    messages::update_reply last;
    for (const lease_id lease : lost) {
      last = s.server.ask<messages::update_reply>(
          reader,
          messages::sources_request{s.server.operation_of(reader), messages::sources_wanted::one_failed,
                                    lease, errc::source_lost, why});
    }
    return last.result;
  };
  bool has_left = false;
  SUBCASE("it has nothing new") {}
  SUBCASE("it has left") {
    has_left = true;
  }
  messages::status told;
  for (int again = 0; told.ok() && again < 10; ++again) {
    for (const incarnation reader : {s.b, s.a}) lose(reader, s.trainer, "cannot connect");
    told = s.server.stall(s.a).result;
    if (told.ok() && has_left && again == 2) {
      lose(s.a, s.trainer, "cannot connect");
      told = lose(s.a, s.b, "it has left");
    }
  }
  CHECK(told.code == errc::unavailable);
  CHECK(
      told.sentence ==
      "shard 0/1 of version 1 cannot be read from any of the workers that hold it (1): each has failed this "
      "reader (the last source: cannot connect)");
}

TEST_CASE("catalog: readers that only have each other are saved by a whole source that comes back") {
  scene s;
  s.server.start_shown(s.a);
  s.server.start_shown(s.b);
  s.server.pass_alive(6000ms, {s.a, s.b, s.c});
  auto young = s.server.join_message("trainer");
  young.before.held = s.server.reference(1);
  s.server.clear();
  REQUIRE(s.server.ask<messages::join_reply>({30}, young).result.ok());
  const auto told = s.server.push<messages::reassign_push>(s.a);
  REQUIRE(told.has_value());
  CHECK(told->source.source == incarnation{30});
  CHECK(s.is_upstream(s.a, {30}));
  CHECK(s.server.stall(s.a).result.ok());
  CHECK(s.server.stall(s.b).result.ok());
}

TEST_CASE("catalog: who says that it has ended, of whatever call, is given no source any more") {
  scene s;
  const auto a = s.server.start_shown(s.a);
  s.server.start_shown(s.b);
  auto other = a[0];
  other.operation.value += 5;
  s.server.finish(s.a, other);
  std::size_t reading = 0;
  s.server.core.for_each_lease([&](const auto& lease) { reading += lease.reader == s.a ? 1 : 0; });
  CHECK(reading == 0);
}

TEST_CASE("catalog: who lost its sources waits while the only whole one has no credit left") {
  scene s{{.sources = 1, .credits = 1}};
  s.server.finish(s.a, s.server.start_update(s.a));
  auto source = s.server.start_update(s.b);
  const auto busy = s.server.start_update(s.c);  // takes the other one's only credit
  REQUIRE(busy.source != source.source);
  const incarnation lost = source.source;
  // The source that it has refuses it again and again, the other one is busy: not the end.
  messages::update_reply reply;
  do {
    reply = s.server.lose_source(s.b, source);
    REQUIRE_MESSAGE(reply.result.ok(), reply.result.sentence);
    if (!reply.sources.empty()) source = reply.sources[0];
  } while (!reply.sources.empty());
  CHECK(s.server.leases_on(lost) == 0);
  const auto stall = s.server.stall(s.b);
  CHECK_MESSAGE(stall.result.ok(), stall.result.sentence);
  s.server.clear();
  s.server.finish(s.c, busy);
  const auto push = s.server.push<messages::reassign_push>(s.b);
  REQUIRE(push.has_value());
  CHECK(push->source.source != lost);
  CHECK_FALSE(push->source.receiving);
}

TEST_CASE("catalog: who was reported lost is no source until it is heard, unless there is no other") {
  scene s{{.sources = 2, .credits = 4}};
  s.server.finish(s.a, s.server.start_update(s.a));
  const auto b = s.server.start_shown(s.b);
  REQUIRE(b[0].source == s.a);
  s.server.lose_source(s.b, b[0]);
  const auto asks_for = [&s] {
    std::vector<incarnation> out;
    for (const auto& source : s.server.start_shown(s.c)) out.push_back(source.source);
    return out;
  };
  SUBCASE("not heard") {
    CHECK(std::ranges::count(asks_for(), s.a) == 0);
  }
  SUBCASE("heard") {
    s.server.send_as(s.a, 0, messages::heartbeat_request{});
    CHECK(std::ranges::count(asks_for(), s.a) == 1);
  }
  SUBCASE("no other") {
    s.server.fail(s.b, b[0], {errc::cancelled, "cancelled"}, false);
    s.server.unpublish(s.trainer, 1);
    CHECK(asks_for() == std::vector{s.a});
  }
}

TEST_CASE("catalog: a dead receiving source's readers go on without it, and never in a cycle") {
  scene s;
  s.server.start_shown(s.a);
  const auto b = s.server.start_shown(s.b);
  s.server.start_shown(s.c);
  REQUIRE(b[0].source == s.a);
  s.server.join(20, "rollout-a");  // takes the place of `a`
  CHECK(s.server.leases_on(s.a) == 0);
  s.server.check_rules();
  for (const incarnation reader : {s.b, s.c}) CHECK(s.server.stall(reader).result.ok());
}

// ---- a new server

TEST_CASE("catalog: a new server takes over who reads from whom, and who can be read") {
  driver server{catalog_options{.recovery_grace = 1000ms}};
  auto holder = server.join_message("trainer");
  holder.before.peers = 3;
  holder.before.held = server.reference(7);
  REQUIRE(server.ask<messages::join_reply>({1}, holder).result.ok());
  const auto reading = [](std::uint64_t source, std::uint64_t lease) {
    messages::assignment out;
    out.operation = {3};
    out.lease = {lease};
    out.version = 7;
    out.source = {source};
    return out;
  };
  auto first = server.join_message("rollout-a");
  first.before.reading = {reading(1, 41), reading(3, 42)};
  first.before.receiving = server.reference(7);
  REQUIRE(server.ask<messages::join_reply>({2}, first).result.ok());
  auto second = server.join_message("rollout-b");
  second.before.reading = {reading(2, 43)};
  REQUIRE(server.ask<messages::join_reply>({3}, second).result.ok());
  CHECK(server.leases_on({1}) == 1);
  CHECK(server.leases_on({2}) == 1);
  CHECK(server.leases_on({3}) == 1);
  CHECK(server.core.record_of({2})->as_source.offered == catalog_detail::offer::receiving);
  CHECK(server.core.record_of({3})->as_source.offered == catalog_detail::offer::none);
  CHECK(server.available() == versions{7});
  const auto drain = server.unpublish({1}, 7);
  CHECK_FALSE(server.answer<messages::drained_reply>({1}, drain).has_value());
  server.finish({2}, first.before.reading[0]);
  CHECK(server.answer<messages::drained_reply>({1}, drain).has_value());
  CHECK(server.leases_on({3}) == 0);
}

// ---- datacenters

/// A trainer in one datacenter, rollouts in another.
struct far_scene {
  driver<> server{};
  incarnation trainer = server.join_at(1, "trainer", {.datacenter = "east"});
  incarnation x = server.join_at(2, "rollout-x", {.datacenter = "west"});
  incarnation y = server.join_at(3, "rollout-y", {.datacenter = "west"});
  incarnation z = server.join_at(4, "rollout-z", {.datacenter = "west"});
  far_scene() {
    REQUIRE(server.publish(trainer, 1).ok());
    server.clear();
  }
  ~far_scene() { server.check_rules(); }
  [[nodiscard]] std::size_t crossings() const {
    std::size_t count = 0;
    server.core.for_each_lease([&](const auto& lease) { count += lease.crossing && lease.lasts() ? 1 : 0; });
    return count;
  }
};

TEST_CASE("catalog: one reader of a datacenter reads from outside, the others follow it") {
  far_scene s;
  CHECK(s.server.start_shown(s.x)[0].source == s.trainer);
  const auto y = s.server.start_shown(s.y);
  REQUIRE(y.size() == 1);  // a source outside is no trade
  CHECK(y[0].source == s.x);
  for (const auto& source : s.server.start_shown(s.z)) CHECK(source.source != s.trainer);
  CHECK(s.crossings() == 1);
  CHECK(s.server.leases_on(s.trainer) == 1);
}

TEST_CASE("catalog: the others wait for a seed that cannot be read while it receives") {
  far_scene s;
  const auto seed = s.server.start_update(s.x);
  const auto waiting = s.server.update_shown(s.y);
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.y, waiting).has_value());
  s.server.finish(s.x, seed);
  CHECK(s.server.sources_of(s.y, waiting)[0].source == s.x);
  CHECK(s.crossings() == 0);
}

TEST_CASE("catalog: another seed is elected when the first one dies, fails or gives up") {
  far_scene s;
  const auto x = s.server.start_shown(s.x);
  const auto y = s.server.start_shown(s.y);
  s.server.clear();
  SUBCASE("dies") {
    s.server.join_at(20, "rollout-x", {.datacenter = "west"});
  }
  SUBCASE("gives up") {
    s.server.fail(s.x, x[0], {errc::cancelled, "cancelled"}, false);
  }
  const auto push = s.server.push<messages::reassign_push>(s.y);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == y[0].lease);
  CHECK(push->source.source == s.trainer);
  CHECK(s.crossings() == 1);
  for (const auto& source : s.server.start_shown(s.z)) CHECK(source.source == s.y);
  CHECK(s.crossings() == 1);
}

TEST_CASE("catalog: a seed that lost its source outside gets another one there") {
  far_scene s;
  const incarnation second = s.server.join_at(9, "trainer-b", {.datacenter = "east"});
  s.server.finish(second, s.server.start_update(second));
  const auto x = s.server.start_shown(s.x);
  REQUIRE(x.size() == 1);
  s.server.start_shown(s.y);
  const auto reply = s.server.lose_source(s.x, x[0]);
  REQUIRE(reply.result.ok());
  REQUIRE(!reply.sources.empty());
  CHECK(reply.sources[0].source != x[0].source);
  CHECK(s.crossings() == 1);
}

/// Drained by an order: nobody is sent to it.
static void bar_as_source(driver<>& server, const char* replica) {
  const messages::manage_request drain{messages::manage_kind::drain, "policy", replica, {}};
  REQUIRE(server.ask<messages::manage_reply>({77}, drain).result.ok());
}

TEST_CASE("catalog: those that nobody may read do not wait for each other outside of their datacenter") {
  far_scene s;
  bar_as_source(s.server, "rollout-x");
  bar_as_source(s.server, "rollout-y");
  CHECK(s.server.start_update(s.x).source == s.trainer);
  CHECK(s.server.start_update(s.y).source == s.trainer);
  CHECK(s.server.start_shown(s.z)[0].source == s.trainer);  // and holds up nobody
  CHECK(s.crossings() == 3);
  // This one is a seed.
  const incarnation w = s.server.join_at(5, "rollout-w", {.datacenter = "west"});
  for (const auto& source : s.server.start_shown(w)) CHECK(source.source == s.z);
  CHECK(s.crossings() == 3);
}

TEST_CASE("catalog: one that nobody may read waits for the seed of its datacenter") {
  far_scene s;
  bar_as_source(s.server, "rollout-y");
  const auto seed = s.server.start_update(s.x);
  const auto waiting = s.server.update(s.y);
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.y, waiting).has_value());
  s.server.finish(s.x, seed);
  CHECK(s.server.sources_of(s.y, waiting)[0].source == s.x);
}

TEST_CASE("catalog: a seed that is drained holds up nobody, and is not one again when it is resumed") {
  far_scene s;
  s.server.start_update(s.x);
  const auto waiting = s.server.update_shown(s.y);
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.y, waiting).has_value());
  bar_as_source(s.server, "rollout-x");
  CHECK(s.server.sources_of(s.y, waiting)[0].source == s.trainer);
  const messages::manage_request resume{messages::manage_kind::resume, "policy", "rollout-x", {}};
  REQUIRE(s.server.ask<messages::manage_reply>({77}, resume).result.ok());
  CHECK(s.crossings() == 2);
  for (const auto& source : s.server.start_shown(s.z)) CHECK(source.source != s.trainer);
}

TEST_CASE("catalog: a reader of a seed that is drained becomes the next seed") {
  far_scene s;
  s.server.start_shown(s.x);
  const auto y = s.server.start_shown(s.y);
  REQUIRE(y[0].source == s.x);
  s.server.clear();
  bar_as_source(s.server, "rollout-x");
  const auto moved = s.server.push<messages::reassign_push>(s.y);
  REQUIRE(moved.has_value());
  CHECK(moved->old_lease == y[0].lease);
  CHECK(moved->source.source == s.trainer);
}

TEST_CASE("catalog: one that nobody may read moves outside beside the seed") {
  far_scene s;
  const incarnation second = s.server.join_at(9, "trainer-b", {.datacenter = "east"});
  s.server.finish(second, s.server.start_update(second));
  bar_as_source(s.server, "rollout-x");
  const auto x = s.server.start_update(s.x);
  const auto z = s.server.start_update(s.z);
  s.server.clear();
  const bool from_second = x.source == second;
  s.server.unpublish(from_second ? second : s.trainer, 1);
  const auto moved = s.server.push<messages::reassign_push>(s.x);
  REQUIRE(moved.has_value());
  CHECK(moved->source.source == (from_second ? s.trainer : second));
  CHECK(z.version == x.version);
}

TEST_CASE("catalog: what is reserved for a late shard of a replica that nobody may read holds up no other") {
  driver<> server;
  const incarnation t0 = server.join_at(1, "trainer", {.datacenter = "east"}, {0, 2});
  const incarnation t1 = server.join_at(2, "trainer", {.datacenter = "east"}, {1, 2});
  REQUIRE(server.publish(t0, 1).ok());
  REQUIRE(server.publish(t1, 1).ok());
  const incarnation x0 = server.join_at(3, "rollout-x", {.datacenter = "west"}, {0, 2});
  const incarnation y0 = server.join_at(4, "rollout-y", {.datacenter = "west"}, {0, 2});
  const incarnation y1 = server.join_at(5, "rollout-y", {.datacenter = "west"}, {1, 2});
  SUBCASE("drained before") {
    bar_as_source(server, "rollout-x");
    static_cast<void>(server.start_update(x0));
  }
  SUBCASE("drained afterwards") {
    static_cast<void>(server.start_update(x0));
    bar_as_source(server, "rollout-x");
  }
  const auto first = server.update(y0), second = server.update(y1);
  CHECK(server.sources_of(y0, first)[0].source == t0);
  CHECK(server.sources_of(y1, second)[0].source == t1);
}

TEST_CASE("catalog: each datacenter has a seed of its own") {
  far_scene s;
  const incarnation n = s.server.join_at(9, "rollout-n", {.datacenter = "north"});
  s.server.start_shown(s.x);
  CHECK(s.crossings() == 1);
  s.server.start_shown(n);
  CHECK(s.crossings() == 2);
}

TEST_CASE("catalog: readers of other datacenters leave some credits of a trainer to those of its own") {
  for (const std::uint32_t credits : {1u, 2u, 8u}) {
    CAPTURE(credits);
    driver<> server{{}, nearest_source{{.most = {.sources = 8, .credits = credits}}}};
    const incarnation trainer = server.join_at(1, "trainer", {.datacenter = "east"});
    REQUIRE(server.publish(trainer, 1).ok());
    for (std::uint64_t i = 0; i < 2 * credits; ++i) {
      const std::string number = std::to_string(i);
      const incarnation far =
          server.join_at(10 + i, "rollout-" + number, {.datacenter = "datacenter " + number});
      server.start_shown(far);
    }
    CHECK(server.leases_on(trainer) == std::max(credits / 2, 1u));
    if (credits > 1)
      CHECK(server.start_update(server.join_at(5, "near", {.datacenter = "east"})).source == trainer);
    server.check_rules();
  }
}

TEST_CASE("catalog: prefer_local takes only what its datacenter has, and keeps what it holds else") {
  far_scene s;
  const auto ask = [&](incarnation worker) {
    auto message = s.server.update_message(worker);
    message.reach = messages::update_reach::prefer_local;
    return s.server.send(worker, std::move(message));
  };
  // Who holds nothing takes whatever there is.
  const auto seed = s.server.sources_of(s.x, ask(s.x));
  CHECK(seed[0].source == s.trainer);
  s.server.finish(s.x, seed[0]);
  const auto follower = s.server.sources_of(s.y, ask(s.y));
  CHECK(follower[0].source == s.x);
  s.server.finish(s.y, follower[0]);
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  const auto kept = s.server.answer<messages::update_reply>(s.y, ask(s.y));
  REQUIRE(kept.has_value());
  CHECK(kept->keep);
  CHECK(kept->version == version_number{1});
  auto wanted = s.server.update_message(s.y, exactly(2), 300ms);
  wanted.reach = messages::update_reach::prefer_local;
  const auto sequence = s.server.send(s.y, std::move(wanted));
  s.server.pass_alive(400ms, {s.x, s.y, s.z, s.trainer});
  const auto refused = s.server.answer<messages::update_reply>(s.y, sequence);
  REQUIRE(refused.has_value());
  CHECK(refused->result.code == errc::timed_out);
  CHECK(refused->result.sentence ==
        "no version (exactly 2) of model 'policy' became available; the latest was 2, but no worker of this "
        "shard's datacenter holds it, and the call asked for those alone (prefer_local): does a seeder run "
        "there?");
  // Somebody brings it into the datacenter.
  s.server.finish(s.z, s.server.start_update(s.z));
  const auto local = s.server.sources_of(s.y, ask(s.y));
  CHECK(local[0].source == s.z);
  CHECK(local[0].version == version_number{2});
}

TEST_CASE("catalog: prefer_local of a stage, or of the other of two memories, knows what its replica holds") {
  for (const char* other : {"rollout", "rollout@a"}) {
    driver<> server;
    const incarnation trainer = server.join_at(1, "trainer", {.datacenter = "eu"});
    REQUIRE(server.publish(trainer, 1).ok());
    const incarnation live = server.join_at(2, other, {.datacenter = "us"});
    server.finish(live, server.start_update(live));
    server.unpublish(trainer, 1);
    REQUIRE(server.publish(trainer, 2).ok());
    const incarnation idle = server.join_at(3, "rollout@b", {.datacenter = "us"});
    auto message = server.update_message(idle);
    message.reach = messages::update_reach::prefer_local;
    const auto reply = server.ask<messages::update_reply>(idle, std::move(message));
    CHECK(reply.version == version_number{1});
    REQUIRE(reply.sources.size() == 1);
    CHECK(reply.sources.front().source == live);
  }
}

TEST_CASE("catalog: prefer_local does not count a copy of a retained version in the same process") {
  driver<> server;
  const incarnation trainer = server.join_at(1, "trainer", {.datacenter = "eu"});
  REQUIRE(server.publish(trainer, 1).ok());
  auto copy = server.join_message("rollout~1");
  copy.location.datacenter = "us";
  copy.temporary = true;
  REQUIRE(server.ask<messages::join_reply>({2}, std::move(copy)).result.ok());
  server.finish({2}, server.start_update({2}, exactly(1)));
  server.unpublish(trainer, 1);
  REQUIRE(server.publish(trainer, 2).ok());
  const incarnation rollout = server.join_at(3, "rollout", {.datacenter = "us"});
  auto message = server.update_message(rollout);
  message.reach = messages::update_reach::prefer_local;
  CHECK(server.ask<messages::update_reply>(rollout, std::move(message)).version == version_number{2});
}

TEST_CASE("catalog: prefer_local begins no version that is open in another datacenter only") {
  far_scene s;
  s.server.finish(s.y, s.server.start_update(s.y));
  const auto open = [&](incarnation worker) {
    messages::publish_request request{{}, s.server.reference(2)};
    request.held.open = true;
    REQUIRE(s.server.ask<messages::status_reply>(worker, request).result.ok());
  };
  auto message = s.server.update_message(s.y, at_least(2));
  message.reach = messages::update_reach::prefer_local;
  message.ahead = true;
  const auto sequence = s.server.send(s.y, std::move(message));
  open(s.trainer);
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.y, sequence).has_value());
  const incarnation near = s.server.join_at(9, "trainer-near", {.datacenter = "west"});
  open(near);
  CHECK(s.server.sources_of(s.y, sequence).front().source == near);
}

TEST_CASE(
    "catalog: a call that waits for a local copy goes on when the first one arrives in its datacenter") {
  far_scene s;
  s.server.finish(s.y, s.server.start_update(s.y));
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  version_selector wanted = at_least(2);
  SUBCASE("of a later version") {}
  SUBCASE("of exactly that version") {
    wanted = exactly(2);
  }
  auto message = s.server.update_message(s.y, wanted);
  message.reach = messages::update_reach::prefer_local;
  const auto waiting = s.server.send(s.y, std::move(message));
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.y, waiting).has_value());
  s.server.finish(s.z, s.server.start_update(s.z));
  CHECK(s.server.sources_of(s.y, waiting)[0].source == s.z);
}

TEST_CASE("catalog: a call that waits for a local copy of one version ends when nobody has that any more") {
  far_scene s;
  s.server.finish(s.y, s.server.start_update(s.y));
  REQUIRE(s.server.publish(s.trainer, 2).ok());
  auto message = s.server.update_message(s.y, exactly(2));
  message.reach = messages::update_reach::prefer_local;
  const auto waiting = s.server.send(s.y, std::move(message));
  CHECK_FALSE(s.server.answer<messages::update_reply>(s.y, waiting).has_value());
  s.server.unpublish(s.trainer, 2);
  const auto ended = s.server.answer<messages::update_reply>(s.y, waiting);
  REQUIRE(ended.has_value());
  CHECK(ended->result.code == errc::unavailable);
}

// ---- why

TEST_CASE("catalog: why tells each decision in a line") {
  scene s;
  s.server.start_shown(s.a);
  s.server.start_shown(s.b);
  const auto a = s.server.why("rollout-a");
  CHECK(a.find("rollout-a/0, version 1, upstream: trainer/0 (same datacenter, 0 readers), of 1 candidates: "
               "nearest, then least loaded\n"
               "rollout-a/0, version 1, trade: no candidate\n") == 0);
  CHECK(a.find("\nrollout-a/0, version 1, trade: rollout-b/0 (same datacenter, 0 readers), of 1 candidates: "
               "nearest, then least loaded\n") != std::string::npos);
  const auto b = s.server.why("rollout-b");
  CHECK(b.find("upstream: rollout-a/0 (same datacenter, 0 readers), of 2 candidates") != std::string::npos);
}

TEST_CASE("catalog: why remembers a few decisions, and names who is not there") {
  scene s;
  const auto unknown =
      s.server.ask<messages::why_reply>({50}, messages::why_request{"policy", "nobody", 0}).result;
  CHECK(unknown.code == errc::not_found);
  CHECK(unknown.sentence == "no worker of model 'policy' has joined as shard 0 of replica 'nobody'");
  CHECK(s.server.ask<messages::why_reply>({50}, messages::why_request{"policy", "trainer", 7}).result.code ==
        errc::not_found);
  CHECK(s.server.why("rollout-a").empty());
  for (version_number version = 2; version < version_number{20}; ++version.value) {
    REQUIRE(s.server.publish(s.trainer, version).ok());
    s.server.finish(s.a, s.server.start_update(s.a));
  }
  const auto text = s.server.why("rollout-a");
  CHECK(std::ranges::count(text, '\n') == 16);
  CHECK(text.find("version 19") != std::string::npos);
}

TEST_CASE("catalog: why tells the latest decisions where not all of them fit") {
  driver<> server;
  const std::string name(400, 'r');
  const incarnation trainer = server.join(1, std::string(400, 't'));
  const incarnation reader = server.join(2, name);
  for (version_number version = 1; version < version_number{20}; ++version.value) {
    REQUIRE(server.publish(trainer, version).ok());
    server.finish(reader, server.start_update(reader));
  }
  const auto text = server.why(name);
  CHECK(text.size() <= limits::text_bytes);
  CHECK(text.size() > limits::text_bytes - 1200);
  CHECK(text.starts_with(name + "/0, version "));
  const auto last = text.rfind('\n', text.size() - 2);
  CHECK(text.find(", version 19, ", last) != std::string::npos);
}

TEST_CASE("catalog: decisions are logged if that is asked for") {
  catalog_options options;
  options.recovery_grace = 0ms;
  options.log_decisions = true;
  driver server{options};
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(trainer, 1).ok());
  static_cast<void>(server.core.take_log());
  server.start_update(reader);
  const auto lines = server.core.take_log();
  CHECK(std::ranges::any_of(lines, [](const log_line& line) {
    return line.level == log_level::debug && line.text.find("rollout/0, version 1, upstream: trainer/0") == 0;
  }));
}

}  // namespace
