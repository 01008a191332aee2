/// A process that is no worker asks a reference server, and gives it orders (server_client.hpp).

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hub.hpp"
#include "tensorhub/detail/server_groups.hpp"
#include "tensorhub/server_client.hpp"

using namespace system_tests;
using tensorhub::server_client;

TEST_CASE("server client: questions") {
  const system_tests::hub::reference_server server;
  server_client client{{.server = server.address()}};
  CHECK(client.list().empty());
  CHECK(code_of([&] { static_cast<void>(client.list("policy")); }) == errc::not_found);
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.worker.publish(1);
  reader.worker.update(exactly(1));
  const auto models = client.list("policy");
  REQUIRE(models.size() == 1);
  CHECK(models.front().latest == 1);
  CHECK(models.front().replicas.size() == 2);
  CHECK(client.describe_model("policy", 0).tensors.size() == 5);
  CHECK(client.why("policy", "rollout-0").find("trainer-0") != std::string::npos);
  const auto waiting = reader.worker.update_async(2, 60s);
  for (int tries = 0; client.stuck("policy", 0ms).entries.empty(); ++tries) {
    REQUIRE(tries < 400);
    std::this_thread::sleep_for(10ms);
  }
  CHECK(client.stuck().left_out == 0);
}

TEST_CASE("server client: orders about versions") {
  const system_tests::hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  server_client client{{.server = server.address()}};
  source.publish(1);
  client.pin("policy", 1);
  source.worker.unpublish();  // it is retained: a copy is made first
  CHECK(source.worker.offloaded_bytes() > 0);
  client.release("policy", 1);
  client.retain("policy", 1);
  client.retain("policy", 0);
  source.worker.publish(2);
  source.worker.unpublish();
  rollout reader{who(server.address(), "rollout-0")};
  client.roll_back_to("policy", 1);
  source.memory.fill(5);
  source.worker.publish(2);  // with other bytes
  CHECK(reader.worker.update(exactly(2)).version == 2);
  CHECK(reader.memory.holds(5));
}

TEST_CASE("server client: a drained replica is read from no more, and is read again when it is resumed") {
  const system_tests::hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout first{who(server.address(), "rollout-0")};
  rollout second{who(server.address(), "rollout-1")};
  server_client client{{.server = server.address()}};
  source.publish(1);
  first.worker.update(exactly(1));
  const auto drained = client.drain("policy", "trainer-0");
  CHECK(drained.workers == 1);
  CHECK(drained.readers == 0);
  CHECK(second.worker.update(exactly(1)).sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(client.drain("policy", "rollout-0").readers == 0);
  CHECK(client.drain("policy", "rollout-1").readers == 0);
  rollout third{who(server.address(), "rollout-2")};
  auto waits = third.worker.update_async(exactly(1), 60s);
  client.resume("policy", "trainer-0");
  CHECK(waits.wait(30s).sources == std::vector<std::string>{"trainer-0/0"});
  CHECK(code_of([&] { client.drain("policy", "nobody"); }) == errc::not_found);
}

TEST_CASE("server client: a drain ends when it is interrupted, whenever that is") {
  const gated_hub::reference_server server;
  member<gated_hub::publisher> source{who(server.address(), "trainer-0"), 300'001};
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(1u << 20);
  gated_rollout reader{who(server.address(), "rollout-0"), 300'001, {{}, gate}};
  server_client client{{.server = server.address()}};
  source.worker.publish(1);
  auto reading = reader.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(30s));
  std::atomic<bool> has_ended{false};
  std::jthread draining{[&] {
    CHECK(code_of([&] { client.drain("policy", "trainer-0", 60s); }) == errc::cancelled);
    has_ended = true;
  }};
  while (!has_ended) {
    client.interrupt();
    std::this_thread::sleep_for(15ms);
  }
  gate->open();
  CHECK(reading.wait(30s).version == 1);
}

TEST_CASE("server client: an evicted worker has to be made anew") {
  const system_tests::hub::reference_server server;
  server_client client{{.server = server.address()}};
  trainer source{who(server.address(), "trainer-0")};
  source.worker.publish(1);
  CHECK(client.evict("policy", "trainer-0") == 1);
  CHECK(code_of([&] { source.worker.wait(2, 20s); }) == errc::replaced);
  trainer again{who(server.address(), "trainer-0")};
  again.worker.publish(2);
  CHECK(client.list("policy").front().latest == 2);
}

TEST_CASE("server client: without a server a call ends at its deadline, or when it is interrupted") {
  server_client client{{.server = "tcp://127.0.0.1:9"}};
  CHECK(code_of([&] { static_cast<void>(client.list({}, 200ms)); }) == errc::disconnected);
  auto asks = std::async(std::launch::async,
                         [&] { return code_of([&] { static_cast<void>(client.list({}, 60s)); }); });
  while (asks.wait_for(20ms) != std::future_status::ready) client.interrupt();
  CHECK(asks.get() == errc::cancelled);
  CHECK(code_of([] { const server_client none{{}}; }) == errc::invalid_argument);
  CHECK(code_of([&] { client.pin(std::string(600, 'm'), 1); }) == errc::limit_exceeded);
}

TEST_CASE("server client: of two servers it asks the one that answers") {
  std::optional<system_tests::hub::reference_server> first{std::in_place};
  const system_tests::hub::reference_server second;
  server_client client{{.server = first->address() + "," + second.address(), .server_timeout = 300ms}};
  CHECK(client.list().empty());
  first.reset();
  CHECK(client.list({}, 30s).empty());
}

namespace {

/// Workers of this model with these servers, one of which publishes what the other one reads.
struct pair_of_workers {
  trainer source;
  rollout reader;
  pair_of_workers(const std::string& servers, const std::string& model,
                  const std::optional<tensorhub::client_security>& security = {})
      : source{of(servers, model, "trainer", security), 100},
        reader{of(servers, model, "rollout", security), 100} {
    source.publish(1);
    CHECK(reader.worker.update(exactly(1), 20s).version == 1);
  }
  static tensorhub::worker_options of(const std::string& servers, const std::string& model,
                                      const std::string& replica,
                                      const std::optional<tensorhub::client_security>& security) {
    auto out = who(servers, replica);
    out.model = model;
    out.security = security;
    return out;
  }
};

}  // namespace

TEST_CASE("models are spread over groups of servers by their names") {
  const system_tests::hub::reference_server first;
  const system_tests::hub::reference_server second;
  // The first group has a server that is not there.
  const std::string servers = "tcp://127.0.0.1:1, " + first.address() + " | " + second.address();
  const std::vector<std::string> names{"actor", "critic", "judge", "policy", "reward", "student"};
  std::vector<std::unique_ptr<pair_of_workers>> all;
  std::size_t of_first = 0;
  for (const std::string& name : names) {
    all.push_back(std::make_unique<pair_of_workers>(servers, name));
    of_first += tensorhub::detail::group_of_model(name, 2) == 0 ? 1 : 0;
  }
  REQUIRE(of_first > 0);
  REQUIRE(of_first < names.size());
  CHECK(first.statistics().models == of_first);
  CHECK(second.statistics().models == names.size() - of_first);
  server_client client{{.server = servers}};
  const auto told = client.list();
  REQUIRE(told.size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    CHECK(told[i].name == names[i]);
    CHECK(client.list(names[i]).front().latest == 1);
    CHECK(client.describe_model(names[i], 0).tensors.size() == 5);
    CHECK(client.why(names[i], "rollout").find("trainer") != std::string::npos);
    client.retain(names[i], 1);
    client.pin(names[i], 1);
    client.release(names[i], 1);
    CHECK(client.drain(names[i], "rollout").workers == 1);
    client.resume(names[i], "rollout");
  }
  CHECK(code_of([&] { static_cast<void>(client.list("none of them")); }) == errc::not_found);
  std::vector<tensorhub::update_handle> waiting;
  for (const auto& each : all) waiting.push_back(each->reader.worker.update_async(2, 60s));
  CHECK(comes_true([&] { return client.stuck({}, 0ms).entries.size() == names.size(); }));
  const auto stuck = client.stuck({}, 0ms).entries;
  CHECK(std::ranges::is_sorted(stuck, std::ranges::greater{}, &tensorhub::stuck_entry::waited_ms));
  for (const std::string& name : names) {
    CHECK(client.stuck(name, 0ms).entries.size() == 1);
    CHECK(client.evict(name, "rollout") == 1);
  }
}

TEST_CASE("groups of servers have keys of their own, or share one") {
  const auto keys = std::array{tensorhub::make_curve_keys(), tensorhub::make_curve_keys()};
  const auto ours = tensorhub::make_curve_keys();
  const auto secured = [&](const tensorhub::curve_key_pair& own) {
    tensorhub::reference_server_options how;
    how.security = tensorhub::server_security{own, {{ours.public_key, {}}}};
    return how;
  };
  const system_tests::hub::reference_server first{secured(keys[0])};
  const system_tests::hub::reference_server second{secured(keys[1])};
  const std::string servers = first.address() + "|" + second.address();
  const tensorhub::client_security security{keys[0].public_key + " | " + keys[1].public_key, ours, true};
  const pair_of_workers policy{servers, "policy", security};
  const pair_of_workers judge{servers, "judge", security};
  CHECK(first.statistics().models == 1);
  CHECK(second.statistics().models == 1);
  server_client client{{.server = servers, .security = security}};
  CHECK(client.list().size() == 2);

  const auto refused = [&](const std::string& list, const std::string& server_keys) {
    std::string sentence;
    CHECK(code_of(
              [&] {
                server_client none{
                    {.server = list, .security = tensorhub::client_security{server_keys, ours, true}}};
              },
              &sentence) == errc::invalid_argument);
    CHECK(code_of([&] {
            pair_of_workers none{list, "policy", tensorhub::client_security{server_keys, ours, true}};
          }) == errc::invalid_argument);
    return sentence;
  };
  const std::string one = keys[0].public_key;
  CHECK(contains(refused(servers + "|", one), "empty group"));
  CHECK(contains(refused("| " + servers, one), "empty group"));
  CHECK(contains(refused(servers, one + "|" + one + "|" + one), "3 groups of keys for 2"));
  CHECK(contains(refused(servers, one + "," + one), "2 keys for 1 servers"));
  const pair_of_workers shared{first.address() + "|" + first.address(), "student",
                               tensorhub::client_security{one, ours, true}};
}
