#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hub.hpp"

using namespace system_tests;

TEST_CASE("a published version arrives in place, small tensors and large ones") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source.memory.fill(version);
    const auto shown = source.worker.publish(version);
    CHECK(shown.version == version);
    const auto done = reader.worker.update();
    CHECK(done.version == version);
    CHECK(!done.kept);
    CHECK(done.sources == std::vector<std::string>{"trainer-0/0"});
    CHECK(reader.memory.holds(version));
    CHECK(reader.worker.held_version() == version);
    CHECK(!source.worker.unpublish().forced);
    CHECK(source.worker.held_version() == 0);
  }
}

namespace {
/// Tensors between a quarter of a chunk and a chunk, and small ones: a shard of a mixture of experts.
struct experts {
  static constexpr std::uint64_t chunk_bytes = 64u << 10;
  std::vector<std::vector<std::uint8_t>> tensors{};
  experts() {
    for (std::size_t i = 0; i < 200; ++i) tensors.emplace_back(i % 10 == 0 ? 100 : 40'000 + i);
  }
  template <typename Worker>
  void add_to(Worker& worker) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      worker.add(std::to_string(i), tensors[i].data(), {tensors[i].size()}, tensorhub::dtype::u8);
  }
  void fill(std::uint64_t version) {
    for (auto& each : tensors)
      for (std::size_t i = 0; i < each.size(); ++i)
        each[i] = static_cast<std::uint8_t>((version * 31 + i + each.size()) * 0x9e3779b1u >> 13);
  }
  [[nodiscard]] bool holds(std::uint64_t version) const {
    experts expected;
    expected.fill(version);
    return tensors == expected.tensors;
  }
};

template <typename Subscriber>
void read_experts_with(const std::string& server, const std::string& name) {
  INFO(name);
  const auto options = [&](const std::string& replica) {
    auto out = who(server, replica);
    out.model = name;
    out.chunk_bytes = experts::chunk_bytes;
    return out;
  };
  member<hub::publisher, experts> source{options("trainer-0")};
  member<Subscriber, experts> reader{options("rollout-0")};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source.publish(version);
    CHECK(source.worker.cost().packed_tensors == 20);
    CHECK(source.worker.cost().packed_bytes == 20 * 128);
    CHECK(reader.worker.update().version == version);
    CHECK(reader.memory.holds(version));
    source.worker.unpublish();
  }
}
}  // namespace

TEST_CASE("tensors below a chunk are read in place where there are many") {
  hub::reference_server server;
  read_experts_with<hub::subscriber>(server.address(), "in place");
  read_experts_with<staged_of<hub::subscriber>>(server.address(), "staged");
}

TEST_CASE("the same with integrity off") {
  unchecked_hub::reference_server server;
  member<unchecked_hub::publisher> source{who(server.address(), "trainer-0")};
  member<unchecked_hub::subscriber> reader{who(server.address(), "rollout-0")};
  source.publish(1);
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.memory.holds(1));
}

TEST_CASE("a small version is read as soon as the server has answered, before its control block") {
  hub::reference_server server;
  std::vector<std::uint8_t> given(64 * 1000, 7), taken(given.size());
  hub::publisher source{who(server.address(), "trainer-0")};
  source.add("w", given.data(), {given.size()}, tensorhub::dtype::u8);
  source.publish(1);
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(given.size());  // nothing else may pass
  std::atomic<bool> has_arrived = false;
  auto options = who(server.address(), "rollout-0");
  options.trace = [&](const tensorhub::chunk_event&) { has_arrived = true; };
  gated_hub::subscriber reader{options, {.gate = gate}};
  reader.add("w", taken.data(), {taken.size()}, tensorhub::dtype::u8);
  auto running = reader.update_async(latest, 60s);
  REQUIRE(gate->wait_until_shut(20s));
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!has_arrived && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK(has_arrived);
  CHECK(!running.done());
  gate->open();
  CHECK(running.wait(60s).version == 1);
  CHECK(taken == given);
}

TEST_CASE("a subscriber is a source: the version outlives its publisher") {
  hub::reference_server server;
  rollout first{who(server.address(), "rollout-0")};
  rollout second{who(server.address(), "rollout-1")};
  {
    trainer source{who(server.address(), "trainer-0")};
    source.publish(5);
    first.worker.update();
    source.worker.leave();
  }
  const auto done = second.worker.update(exactly(5));
  CHECK(done.sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(second.memory.holds(5));
}

TEST_CASE("selectors: latest, exactly, at_least; what is held is kept; waiting ends by itself") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(10);
  reader.worker.join();
  CHECK(reader.worker.newer() == tensorhub::version_number{10});
  CHECK(reader.worker.update(at_least(7)).version == 10);
  CHECK(!reader.worker.newer());
  const auto again = reader.worker.update(latest);
  CHECK(again.kept);
  CHECK(again.version == 10);
  CHECK(reader.worker.update(exactly(10)).kept);

  std::string sentence;
  CHECK(code_of([&] { reader.worker.update(at_least(11), 200ms); }, &sentence) == errc::timed_out);
  CHECK(contains(sentence, "11"));
  CHECK_MESSAGE(reader.memory.holds(10), "an update that found nothing has touched the weights");
  CHECK(reader.worker.held_version() == 10);
  CHECK(code_of([&] { static_cast<void>(reader.worker.wait(at_least(11), 200ms)); }) == errc::timed_out);

  source.worker.unpublish();
  source.memory.fill(11);
  std::jthread later{[&] {
    std::this_thread::sleep_for(100ms);
    source.worker.publish(11);
  }};
  CHECK(reader.worker.wait(at_least(11), 10s) == 11);
  CHECK(reader.worker.update(exactly(11), 10s).version == 11);
  CHECK(reader.memory.holds(11));
}

TEST_CASE("shards of a replica get one version, from the shards of others") {
  constexpr std::uint32_t shards = 2;
  hub::reference_server server;
  std::vector<std::unique_ptr<trainer>> sources;
  std::vector<std::unique_ptr<rollout>> readers;
  for (std::uint32_t i = 0; i < shards; ++i) {
    sources.push_back(std::make_unique<trainer>(who(server.address(), "trainer-0", {i, shards})));
    readers.push_back(std::make_unique<rollout>(who(server.address(), "rollout-0", {i, shards})));
  }
  for (std::uint64_t version = 1; version <= 3; ++version) {
    for (std::uint32_t i = 0; i < shards; ++i) {
      sources[i]->memory.fill(version, i);
      sources[i]->worker.publish(version);
    }
    std::vector<tensorhub::update_report> done(shards);
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t i = 0; i < shards; ++i)
        threads.emplace_back([&, i] { done[i] = readers[i]->worker.update(); });
    }
    for (std::uint32_t i = 0; i < shards; ++i) {
      CHECK(done[i].version == version);
      CHECK(done[i].sources == std::vector<std::string>{"trainer-0/" + std::to_string(i)});
      CHECK(readers[i]->memory.holds(version, i));
    }
    for (auto& source : sources) source->worker.unpublish();
  }
}

TEST_CASE("a version that only some shards have published is not there yet") {
  hub::reference_server server;
  trainer first{who(server.address(), "trainer-0", {0, 2})};
  trainer second{who(server.address(), "trainer-0", {1, 2})};
  rollout reader{who(server.address(), "rollout-0", {0, 2})};
  first.memory.fill(1, 0);
  first.worker.publish(1);
  CHECK(code_of([&] { static_cast<void>(reader.worker.wait(latest, 150ms)); }) == errc::timed_out);
  second.memory.fill(1, 1);
  second.worker.publish(1);
  CHECK(reader.worker.wait(latest, 10s) == 1);
}

TEST_CASE("list and describe tell what the server knows") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(4);
  reader.worker.join();
  const auto models = reader.worker.list();
  REQUIRE(models.size() == 1);
  CHECK(models.front().name == "policy");
  CHECK(models.front().latest == 4);
  CHECK(models.front().shards == 1);
  REQUIRE(models.front().replicas.size() == 2);
  hub::subscriber stranger{who(server.address(), "stranger")};
  const auto description = stranger.describe_model(0, 5s);
  REQUIRE(description.tensors.size() == 5);
  CHECK(description.tensors[0].name == "mapped");
  CHECK(code_of([&] { static_cast<void>(stranger.list("other")); }) == errc::not_found);
}

TEST_CASE("update_async: progress, result, cancel") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  {
    auto pending = reader.worker.update_async(latest, 20s);
    for (int i = 0; i < 100; ++i) CHECK(!pending.progress().done);  // at once, while it still prepares
    CHECK(!pending.done());
    CHECK(code_of([&] { static_cast<void>(pending.wait(50ms)); }) == errc::timed_out);
    CHECK(code_of([&] { reader.worker.update(); }) == errc::busy);
    pending.cancel();
    CHECK(code_of([&] { static_cast<void>(pending.wait(10s)); }) == errc::cancelled);
    CHECK(pending.done());
  }
  {
    const auto dropped = reader.worker.update_async(latest, 20s);  // its destruction cancels
  }
  source.publish(1);
  auto running = reader.worker.update_async();
  CHECK(running.wait(20s).version == 1);
  const auto progress = running.progress();
  CHECK(progress.done);
  CHECK(progress.bytes == progress.total_bytes);
  CHECK(progress.total_bytes == reader.worker.shard_layout().bytes());
  CHECK(reader.memory.holds(1));
}

TEST_CASE("a server that is restarted at the same address learns everything again") {
  auto server = std::make_unique<hub::reference_server>();
  const std::string address = server->address();
  said_lines said;
  auto of_source = who(address, "trainer-0");
  of_source.server_timeout = 200ms;
  of_source.log = said.writer();
  trainer source{of_source};
  source.publish(3);
  server.reset();
  CHECK(comes_true([&] { return contains(said.text(), "at " + address + " is silent"); }));
  CHECK(!contains(said.text(), "answers again"));
  REQUIRE(comes_true([&] {  // ZeroMQ gives the port back a moment after the old server is gone
    return code_of([&] {
             server = std::make_unique<hub::reference_server>(
                 tensorhub::reference_server_options{.address = address});
           }) == errc::ok;
  }));
  rollout reader{who(address, "rollout-0")};
  CHECK(reader.worker.update(latest, 20s).version == 3);
  CHECK(reader.memory.holds(3));
  CHECK(comes_true([&] { return contains(said.text(), "at " + address + " answers again"); }));
  CHECK(!source.worker.unpublish().forced);
}
