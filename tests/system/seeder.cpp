/// \file seeder.cpp
/// Offload seeding: who prefers what is near keeps its version until the seed has brought a newer one.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/server_client.hpp>
#include <thread>
#include <vector>

#include "throttled_hub.hpp"

using namespace system_tests;

namespace {

tensorhub::worker_options in(const std::string& datacenter, const std::string& server, std::string replica) {
  tensorhub::worker_options options = who_here(server, std::move(replica));
  options.location.datacenter = datacenter;
  return options;
}

}  // namespace

TEST_CASE("a seed brings a version into its datacenter; the rollouts there read it from the seed alone") {
  hub::reference_server server;
  trainer source{in("eu-1", server.address(), "trainer")};
  source.publish(1);

  rollout reader{in("us-2", server.address(), "rollout")};
  // Whoever holds nothing takes what there is, wherever it is.
  CHECK(reader.worker.update(latest, 20s, tensorhub::prefer_local).version == 1);

  source.worker.unpublish();
  source.publish(2);
  const auto kept = reader.worker.update(latest, 20s, tensorhub::prefer_local);
  CHECK(kept.kept);
  CHECK(kept.version == 1);
  CHECK(reader.memory.holds(1));

  hub::seeder seed{in("us-2", server.address(), "seed")};
  CHECK(seed.wait(2, 20s) == 2);
  const auto local = reader.worker.update(latest, 20s, tensorhub::prefer_local);
  CHECK(local.version == 2);
  CHECK(reader.memory.holds(2));
  CHECK(local.sources == std::vector<std::string>{"seed/0"});

  source.worker.unpublish();
  source.publish(3);
  CHECK(reader.worker.update(at_least(3), 20s, tensorhub::prefer_local).sources ==
        std::vector<std::string>{"seed/0"});
  CHECK(reader.memory.holds(3));
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
  trainer source{in("eu-1", server.address(), "trainer")};
  source.publish(7);
  CHECK(seed.wait(7, 20s) == 7);
}

TEST_CASE("a seed that cannot go on says so once") {
  hub::reference_server server;
  trainer source{in("eu-1", server.address(), "trainer")};
  source.publish(1);
  std::atomic<int> lines = 0;
  auto options = in("us-2", server.address(), "seed");
  options.log = [&](const tensorhub::log_line& line) { lines += line.text.starts_with("seed: ") ? 1 : 0; };
  hub::seeder seed{options};
  CHECK(seed.wait(1, 20s) == 1);
  lines = 0;
  tensorhub::server_client orders{{.server = server.address()}};
  CHECK(orders.evict("policy", "seed") == 1);
  CHECK(comes_true([&] { return lines >= 1; }));
  std::this_thread::sleep_for(1500ms);  // it would try again five times a second
  CHECK(lines <= 2);
}

TEST_CASE("a seed gives up a transfer that does not advance, says so, and begins again") {
  hub::reference_server server;
  trainer source{in("eu-1", server.address(), "trainer")};
  source.publish(1);
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(1u << 20);
  auto options = in("us-2", server.address(), "seed");
  options.drain_timeout = 300ms;
  gated_hub::seeder seed{options, {.gate = gate}};
  REQUIRE(gate->wait_until_shut(20s));
  CHECK(comes_true([&] { return contains(seed.last_failure(), "nothing new has arrived for 300 ms"); }));
  gate->open();
  CHECK(seed.wait(1, 20s) == 1);
}

TEST_CASE("a seed's transfer may take longer than drain_timeout, if it advances") {
  hub::reference_server server;
  auto options = in("eu-1", server.address(), "trainer");
  options.chunk_bytes = 64u << 10;
  trainer source{options, 300'001};  // 3.6 MB
  source.publish(1);
  options = in("eu-1", server.address(), "seed");
  options.chunk_bytes = 64u << 10;
  options.drain_timeout = 1s;
  const tensorhub::testing::network_link_options rate{.bytes_per_second = 1.5e6};
  throttled_hub::seeder seed{options,
                             throttled_hub::subscriber::transport_options{
                                 .receiving = std::make_shared<tensorhub::testing::network_link>(rate)}};
  CHECK(seed.wait(1, 60s) == 1);
  CHECK(seed.last_failure().empty());
  CHECK(seed.statistics().pull.sum_nanoseconds > 1'500'000'000);  // else the link was not slow
}

TEST_CASE("a seed goes on with a new server, as does the reader that waits for what the seed will hold") {
  tensorhub::reference_server_options how;
  how.catalog.recovery_grace = 500ms;
  auto server = std::make_unique<hub::reference_server>(how);
  how.address = server->address();
  const std::string address = how.address;
  trainer source{in("eu-1", address, "trainer"), 1000};
  source.publish(1);
  hub::seeder seed{in("us-2", address, "seed")};
  CHECK(seed.wait(1, 20s) == 1);
  rollout reader{in("us-2", address, "rollout"), 1000};
  CHECK(reader.worker.update(latest, 20s, tensorhub::prefer_local).version == 1);
  auto running = reader.worker.update_async(at_least(2), 60s, tensorhub::prefer_local);
  REQUIRE(comes_true([&] {
    return std::ranges::any_of(source.worker.stuck(0ms).entries,
                               [](const auto& entry) { return entry.replica == "rollout"; });
  }));
  server.reset();
  REQUIRE(comes_true([&] {  // ZeroMQ gives the port back a moment after the old server is gone
    return code_of([&] { server = std::make_unique<hub::reference_server>(how); }) == errc::ok;
  }));
  source.worker.unpublish();
  source.publish(2);
  const auto done = running.wait(60s);
  CHECK(done.version == 2);
  CHECK(done.sources == std::vector<std::string>{"seed/0"});
  CHECK(reader.memory.holds(2));
}

TEST_CASE("a seed whose first server is silent asks the next one, though none of its calls waits so long") {
  hub::reference_server server;
  trainer source{in("eu-1", server.address(), "trainer")};
  source.publish(1);
  auto options = in("us-2", "tcp://127.0.0.1:1," + server.address(), "seed");
  options.server_timeout = 1s;
  hub::seeder seed{options};
  CHECK(seed.wait(1, 20s) == 1);
}
