/// \file rollback.cpp
/// A trainer goes back to a checkpoint, and publishes its later versions again with other bytes.

#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "hub.hpp"

using namespace system_tests;
using tensorhub::snapshot;

namespace {

/// A rollout holds version 1, the checkpoint; the trainer has published version 2, and has taken it back.
struct scene {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout keeper{who(server.address(), "rollout-keeper")};

  scene() {
    source.publish(1);
    CHECK(keeper.worker.update(exactly(1)).version == 1);
    source.worker.unpublish();
  }
  /// Version 2 is what `reader` holds, and nobody else.
  template <typename Reader>
  void publish_two_for(Reader& reader) {
    source.publish(2);
    CHECK(reader.worker.update(exactly(2)).version == 2);
    source.worker.unpublish();
  }
};

}  // namespace

TEST_CASE("roll back: later versions are gone, and their numbers can be used again") {
  scene s;
  rollout reader{who(s.server.address(), "rollout-0")};
  s.publish_two_for(reader);
  s.source.worker.roll_back_to(1);
  CHECK(comes_true([&] { return !reader.worker.held_version(); }));
  CHECK(comes_true([&] { return reader.worker.newer() == tensorhub::version_number{1}; }));
  rollout late{who(s.server.address(), "rollout-late")};
  CHECK(late.worker.update().version == 1);
  CHECK(late.memory.holds(1));
  s.source.memory.fill(22);
  s.source.worker.publish(2);
  const auto again = reader.worker.update(exactly(2));
  CHECK(again.version == 2);
  CHECK_FALSE(again.kept);
  CHECK(reader.memory.holds(22));
  CHECK(reader.worker.held_version() == 2);
  CHECK(reader.worker.wait(tensorhub::at_least(2), 10s) == 2);
  CHECK(reader.worker.list("policy").front().latest == 2);
}

TEST_CASE("roll back: a trainer that was restarted") {
  scene s;
  rollout reader{who(s.server.address(), "rollout-0")};
  s.publish_two_for(reader);
  trainer restarted{who(s.server.address(), "trainer-0")};
  restarted.worker.roll_back_to(1);
  restarted.memory.fill(22);
  restarted.worker.publish(2);
  CHECK(reader.worker.update().version == 2);
  CHECK(reader.memory.holds(22));
}

TEST_CASE("roll back: what this publisher still shows is taken back first") {
  scene s;
  s.source.publish(2);
  try {
    s.source.worker.roll_back_to(1);
    FAIL("it rolled back");
  } catch (const tensorhub::error& e) {
    CHECK(e.code() == errc::still_published);
    CHECK(contains(e.sentence(), "call unpublish() first"));
  }
  CHECK(s.keeper.worker.update().version == 2);
}

TEST_CASE("roll back: snapshots are withdrawn too, and their memory takes the next ones") {
  scene s;
  s.source.publish(2, snapshot);
  s.source.worker.roll_back_to(1);
  CHECK(comes_true([&] { return !s.source.worker.held_version(); }));
  s.source.memory.fill(22);
  s.source.worker.publish(2, snapshot);
  CHECK(s.keeper.worker.update().version == 2);
  CHECK(s.keeper.memory.holds(22));
}

TEST_CASE("roll back: retained copies of withdrawn versions go") {
  scene s;
  s.source.publish(2);
  s.source.worker.retain(1);
  CHECK_FALSE(s.source.worker.unpublish().lost);
  CHECK(s.source.worker.offloaded_bytes() > 0);
  s.source.worker.roll_back_to(1);
  CHECK(comes_true([&] { return s.source.worker.offloaded_bytes() == 0; }));
}

TEST_CASE("roll back: a seed and a subscriber of two memories follow") {
  scene s;
  hub::seeder seed{who(s.server.address(), "seed-0")};
  double_buffered_of<hub::subscriber> engine{who(s.server.address(), "rollout-0")};
  engine.add("mapped", {300'001}, tensorhub::dtype::u64);  // as `weights` has them
  engine.add("bias", {17}, tensorhub::dtype::u16);
  engine.add("plain", {150'001, 1}, tensorhub::dtype::u64);
  engine.add("norm", {3}, tensorhub::dtype::u8);
  engine.add("nothing", {0}, tensorhub::dtype::f32);
  s.source.publish(2);
  engine.stage(exactly(2));
  engine.install();
  CHECK(seed.wait(2, 30s) == 2);
  s.source.worker.unpublish();
  s.source.worker.roll_back_to(1);
  CHECK(comes_true([&] { return engine.newer() == tensorhub::version_number{1}; }));
  CHECK(engine.stage().version == 1);
  CHECK(engine.install().version == 1);
  CHECK(comes_true([&] { return seed.held_version() == 1; }));
}

TEST_CASE("roll back: what lies staged beside the live version is not installed any more") {
  scene s;
  member<staged_of<hub::subscriber>> engine{who(s.server.address(), "rollout-0")};
  CHECK(engine.worker.update().version == 1);
  s.source.publish(2);
  CHECK(engine.worker.stage(exactly(2)).version == 2);
  s.source.worker.unpublish();
  s.source.worker.roll_back_to(1);
  REQUIRE(comes_true([&] { return !engine.worker.staged_version(); }));
  CHECK(code_of([&] { engine.worker.install(); }) == errc::not_found);
  CHECK(engine.worker.held_version() == 1);
  CHECK(engine.memory.holds(1));
  s.source.memory.fill(22);
  s.source.worker.publish(2);
  CHECK(engine.worker.stage().version == 2);
  CHECK(engine.worker.install().version == 2);
  CHECK(engine.memory.holds(22));
}
