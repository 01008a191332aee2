/// \file seeder.cpp
/// Offload seeding: who prefers what is near keeps its version until the seed has brought a newer one.

#include <doctest/doctest.h>

#include "hub.hpp"

using namespace system_tests;

namespace {

tensorhub::worker_options in(const std::string& datacenter, const std::string& server, std::string replica) {
  tensorhub::worker_options options;
  options.server = server;
  options.model = "policy";
  options.replica = std::move(replica);
  options.location.datacenter = datacenter;
  return options;
}

}  // namespace

TEST_CASE("a seed brings a version into its datacenter; the rollouts there read it from the seed alone") {
  hub::reference_server server;
  weights trained;
  hub::publisher trainer{in("eu-1", server.address(), "trainer")};
  trained.add_to(trainer);
  trained.fill(1);
  trainer.publish(1);

  weights here;
  hub::subscriber rollout{in("us-2", server.address(), "rollout")};
  here.add_to(rollout);
  // Whoever holds nothing takes what there is, wherever it is.
  CHECK(rollout.update(latest, 20s, tensorhub::prefer_local).version == 1);

  trainer.unpublish();
  trained.fill(2);
  trainer.publish(2);
  const auto kept = rollout.update(latest, 20s, tensorhub::prefer_local);
  CHECK(kept.kept);
  CHECK(kept.version == 1);
  CHECK(here.holds(1));

  hub::seeder seed{in("us-2", server.address(), "seed")};
  CHECK(seed.wait(2, 20s) == 2);
  const auto local = rollout.update(latest, 20s, tensorhub::prefer_local);
  CHECK(local.version == 2);
  CHECK(here.holds(2));
  CHECK(local.sources == std::vector<std::string>{"seed/0"});

  trainer.unpublish();
  trained.fill(3);
  trainer.publish(3);
  CHECK(rollout.update(at_least(3), 20s, tensorhub::prefer_local).sources ==
        std::vector<std::string>{"seed/0"});
  CHECK(here.holds(3));
}

TEST_CASE("a seed waits for a layout, and names what it waits for") {
  hub::reference_server server;
  hub::seeder seed{in("us-2", server.address(), "seed")};
  try {
    seed.wait(1, 300ms);
    FAIL("there is no version");
  } catch (const error& e) {
    CHECK(e.code() == errc::timed_out);
    CHECK(std::string{e.what()}.find("holds version 0, not yet 1") != std::string::npos);
  }
  weights trained;
  hub::publisher trainer{in("eu-1", server.address(), "trainer")};
  trained.add_to(trainer);
  trained.fill(7);
  trainer.publish(7);
  CHECK(seed.wait(7, 20s) == 7);
}
