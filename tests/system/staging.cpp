// Versions that are received beside the live weights: staged and copied, or staged and flipped.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <tensorhub/detail/peer_read.hpp>
#include <tensorhub/server.hpp>
#include <thread>

#include "hub.hpp"

using namespace system_tests;

namespace {

constexpr std::uint32_t shards = 2;
constexpr std::size_t large_words = 1u << 20;  // 8 MiB, and half of it again in plain memory
constexpr std::uint64_t begun_bytes = 3u << 20;

using gate_pointer = std::shared_ptr<tensorhub::testing::read_gate>;
using staged = member<staged_of<gated_hub::subscriber>>;

template <typename Call>
void in_every_shard(Call&& call) {
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < shards; ++i) threads.emplace_back([&call, i] { call(i); });
}

/// A replica of two shards.
template <typename Member>
struct group {
  std::vector<std::unique_ptr<Member>> of;
  group(const std::string& server, const std::string& replica) {
    for (std::uint32_t i = 0; i < shards; ++i)
      of.push_back(std::make_unique<Member>(who(server, replica, {i, shards}), large_words));
  }
  Member& operator[](std::uint32_t shard) { return *of[shard]; }
  [[nodiscard]] bool holds(std::uint64_t version) const {
    for (std::uint32_t i = 0; i < shards; ++i)
      if (!of[i]->memory.holds(version, i)) return false;
    return true;
  }
};

void publish(group<trainer>& sources, std::uint64_t version) {
  for (std::uint32_t i = 0; i < shards; ++i) {
    sources[i].worker.unpublish();
    sources[i].memory.fill(version, i);
    sources[i].worker.publish(version);
  }
}

/// Another replica gets the version, from whoever holds it: its sources are returned.
std::vector<std::string> sources_of(const std::string& server, const std::string& replica,
                                    std::uint64_t version) {
  group<rollout> readers{server, replica};
  std::array<std::vector<std::string>, shards> sources;
  in_every_shard(
      [&](std::uint32_t i) { sources[i] = readers[i].worker.update(exactly(version), 20s).sources; });
  CHECK(readers.holds(version));
  return sources[0];
}

/// Version 1 is live, version 2 is staged; the trainer has version 2.
struct staged_rollout {
  trainer source;
  member<staged_of<hub::subscriber>> holder;
  explicit staged_rollout(const std::string& server)
      : source{who(server, "trainer-0"), large_words}, holder{who(server, "rollout-0"), large_words} {
    source.publish(1);
    holder.worker.update();
    source.worker.unpublish();
    source.publish(2);
    holder.worker.stage(2);
  }
};

}  // namespace

TEST_CASE("what is staged is beside the live weights; install puts it in their place, in every shard") {
  hub::reference_server server;
  group<trainer> sources{server.address(), "trainer-0"};
  std::vector<gate_pointer> gates;
  std::vector<std::unique_ptr<staged>> rollouts;
  for (std::uint32_t i = 0; i < shards; ++i) {
    gates.push_back(std::make_shared<tensorhub::testing::read_gate>(begun_bytes + (32u << 20)));
    rollouts.push_back(std::make_unique<staged>(who(server.address(), "rollout-0", {i, shards}), large_words,
                                                gated_hub::subscriber::transport_options{.gate = gates[i]}));
  }
  publish(sources, 1);
  in_every_shard([&](std::uint32_t i) { rollouts[i]->worker.update(); });
  publish(sources, 2);
  // A version has 12 MiB: the gates shut in the middle of the third one.
  in_every_shard([&](std::uint32_t i) { rollouts[i]->worker.stage(2); });
  for (std::uint32_t i = 0; i < shards; ++i) {
    CHECK(rollouts[i]->worker.staged_version() == 2);
    CHECK(rollouts[i]->worker.held_version() == 1);
    CHECK(rollouts[i]->memory.holds(1, i));
  }
  publish(sources, 3);
  {
    std::vector<staged_of<gated_hub::subscriber>::update_handle> running;
    for (auto& each : rollouts) running.push_back(each->worker.stage_async(3, 60s));
    for (const auto& gate : gates) REQUIRE(gate->wait_until_shut(20s));
    for (std::uint32_t i = 0; i < shards; ++i) {
      CHECK(rollouts[i]->worker.staged_version() == 0);
      CHECK(rollouts[i]->worker.held_version() == 1);
      CHECK(rollouts[i]->memory.holds(1, i));
      const auto progress = running[i].progress();
      CHECK(progress.version == 3);
      CHECK(progress.bytes < progress.total_bytes);
      CHECK(code_of([&] { rollouts[i]->worker.install(1s); }) == errc::busy);
    }
    CHECK(sources_of(server.address(), "rollout-1", 1) == std::vector<std::string>{"rollout-0/0"});
    for (const auto& gate : gates) gate->open();
    for (auto& each : running) CHECK(each.wait(30s).version == 3);
  }
  std::array<tensorhub::install_report, shards> done;
  const auto assignments = server.statistics().assignments;
  for (std::uint32_t i = 0; i < shards; ++i)  // each by itself: no shard waits for another
    done[i] = rollouts[i]->worker.install(30s);
  CHECK(server.statistics().assignments == assignments);
  for (std::uint32_t i = 0; i < shards; ++i) {
    CHECK(done[i].version == 3);
    CHECK(!done[i].kept);
    CHECK(done[i].bytes == rollouts[i]->worker.shard_layout().bytes());
    CHECK(done[i].copy_seconds > 0);
    CHECK(done[i].seconds >= done[i].copy_seconds + done[i].drain_seconds);
    CHECK(rollouts[i]->memory.holds(3, i));
    CHECK(rollouts[i]->worker.held_version() == 3);
    CHECK_MESSAGE(code_of([&] { rollouts[i]->worker.install(1s); }) == errc::not_found, "installed twice");
    rollouts[i]->worker.release_stage();
    CHECK(rollouts[i]->worker.staged_version() == 0);
    sources[i].worker.unpublish();
  }
  CHECK(sources_of(server.address(), "rollout-2", 3) == std::vector<std::string>{"rollout-0/0"});
}

TEST_CASE("a stage that fails in one shard fails in all, and all go on serving what is live") {
  hub::reference_server server;
  group<trainer> sources{server.address(), "trainer-0"};
  std::vector<gate_pointer> gates;
  std::vector<std::unique_ptr<staged>> rollouts;
  for (std::uint32_t i = 0; i < shards; ++i) {
    gates.push_back(std::make_shared<tensorhub::testing::read_gate>(begun_bytes + (12u << 20)));
    rollouts.push_back(std::make_unique<staged>(who(server.address(), "rollout-0", {i, shards}), large_words,
                                                gated_hub::subscriber::transport_options{.gate = gates[i]}));
  }
  publish(sources, 1);
  in_every_shard([&](std::uint32_t i) { rollouts[i]->worker.update(); });
  publish(sources, 2);
  {
    std::vector<staged_of<gated_hub::subscriber>::update_handle> running;
    for (auto& each : rollouts) running.push_back(each->worker.stage_async(2, 60s));
    for (const auto& gate : gates) REQUIRE(gate->wait_until_shut(20s));
    running[1].cancel();
    for (const auto& gate : gates) gate->open();
    CHECK(code_of([&] { running[1].wait(30s); }) == errc::cancelled);
    CHECK(code_of([&] { running[0].wait(30s); }) == errc::cancelled);
  }
  for (std::uint32_t i = 0; i < shards; ++i) {
    CHECK(code_of([&] { rollouts[i]->worker.install(1s); }) == errc::not_found);
    CHECK(rollouts[i]->worker.held_version() == 1);
    CHECK(rollouts[i]->memory.holds(1, i));
  }
  CHECK(sources_of(server.address(), "rollout-1", 1) == std::vector<std::string>{"rollout-0/0"});
  in_every_shard([&](std::uint32_t i) {
    rollouts[i]->worker.stage(2, 30s);
    rollouts[i]->worker.install(30s);
  });
  for (std::uint32_t i = 0; i < shards; ++i) CHECK(rollouts[i]->memory.holds(2, i));
}

TEST_CASE("an install that fails in one shard: that shard serves the old version on, and may install later") {
  hub::reference_server server;
  group<trainer> sources{server.address(), "trainer-0"};
  group<member<staged_of<hub::subscriber>>> holders{server.address(), "rollout-0"};
  publish(sources, 1);
  in_every_shard([&](std::uint32_t i) { holders[i].worker.update(); });
  publish(sources, 2);
  in_every_shard([&](std::uint32_t i) { holders[i].worker.stage(2, 30s); });
  // Of version 1, which nobody else has, another replica reads shard 1 for as long as we like.
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
  gated_rollout first{who(server.address(), "rollout-1", {0, shards}), large_words};
  gated_rollout second{who(server.address(), "rollout-1", {1, shards}), large_words, {.gate = gate}};
  auto reading = first.worker.update_async(exactly(1), 60s);
  auto slowly = second.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  CHECK(code_of([&] { holders[1].worker.install(300ms); }) == errc::timed_out);
  CHECK(holders[1].worker.held_version() == 1);
  CHECK(holders[1].worker.staged_version() == 2);
  CHECK(holders[1].memory.holds(1, 1));
  gate->open();
  CHECK(slowly.wait(30s).version == 1);
  CHECK(reading.wait(30s).version == 1);
  CHECK(first.memory.holds(1, 0));
  CHECK(second.memory.holds(1, 1));
  CHECK(holders[0].worker.install(30s).version == 2);
  const auto version_of_holders = [&] {
    const auto models = sources[0].worker.list("policy");
    for (const auto& replica : models.front().replicas)
      if (replica.name == "rollout-0") return replica.version;
    return tensorhub::version_number{};
  };
  CHECK(version_of_holders() == 0);  // its shards hold two versions
  CHECK(holders[1].worker.install(30s).version == 2);
  CHECK(holders.holds(2));
  CHECK(comes_true([&] { return version_of_holders() == 2; }));  // it is told afterwards
}

TEST_CASE("install waits for the readers of what is live; they end right") {
  hub::reference_server server;
  staged_rollout all{server.address()};
  trainer& source = all.source;
  member<staged_of<hub::subscriber>>& holder = all.holder;
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
  gated_rollout reader{who(server.address(), "rollout-1"), large_words, {.gate = gate}};
  auto reading = reader.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  std::optional<rollout> other;
  SUBCASE("nobody else has it") {}
  SUBCASE("they may go on with another holder") {
    other.emplace(who(server.address(), "rollout-2"), large_words);
    other->worker.update(exactly(1), 20s);
  }
  SUBCASE("they do not end in time: the old version is shown again") {
    CHECK(code_of([&] { holder.worker.install(300ms); }) == errc::timed_out);
    CHECK(holder.worker.held_version() == 1);
    CHECK(holder.worker.staged_version() == 2);
    rollout late{who(server.address(), "rollout-3"), large_words};
    const auto sources = late.worker.update(exactly(1), 20s).sources;  // the reader is another one
    CHECK(std::ranges::count(sources, "rollout-0/0") == 1);
    CHECK(late.memory.holds(1));
  }
  tensorhub::version_number installed{};
  std::jthread installing{
      [&] { CHECK(code_of([&] { installed = holder.worker.install(30s).version; }) == errc::ok); }};
  const auto holds_one = [&] {
    const auto models = source.worker.list("policy");
    for (const auto& replica : models.front().replicas)
      if (replica.name == "rollout-0") return replica.version == 1;
    return false;
  };
  const auto give_up = std::chrono::steady_clock::now() + 20s;
  while (holds_one() && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(5ms);
  CHECK_MESSAGE(!holds_one(), "install() does not take the old version back");
  {
    // The server orders this and the copy; the thread sanitizer does not see that.
    const tensorhub::detail::peer_read reading_as_one;
    CHECK_MESSAGE(holder.memory.holds(1), "overwritten under a reader");
  }
  gate->open();
  CHECK(reading.wait(30s).version == 1);
  CHECK(reader.memory.holds(1));
  installing.join();
  CHECK(installed == 2);
  CHECK(holder.memory.holds(2));
  CHECK(holder.worker.held_version() == 2);
}

TEST_CASE("install needs no server: a later one learns what is live") {
  auto server = std::make_unique<hub::reference_server>();
  const std::string address = server->address();
  staged_rollout all{address};
  server.reset();
  CHECK(all.holder.worker.install(10s).version == 2);  // it ends after server_timeout, 2 s
  CHECK(all.holder.memory.holds(2));
  CHECK(all.holder.worker.held_version() == 2);
  REQUIRE(comes_true([&] {  // ZeroMQ gives the port back a moment after the old server is gone
    return code_of([&] {
             server = std::make_unique<hub::reference_server>(
                 tensorhub::reference_server_options{.address = address});
           }) == errc::ok;
  }));
  REQUIRE(comes_true([&] {
    const auto models = all.source.worker.list("policy");
    return !models.empty() && std::ranges::any_of(models.front().replicas, [](const auto& each) {
      return each.name == "rollout-0" && each.version == 2;
    });
  }));
  all.source.worker.unpublish();
  all.holder.worker.release_stage();
  rollout reader{who(address, "rollout-1"), large_words};
  CHECK(reader.worker.update(exactly(2), 20s).sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(reader.memory.holds(2));
}

TEST_CASE("a stage is a source for others") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  member<staged_of<hub::subscriber>> holder{who(server.address(), "rollout-0"), large_words, {}};
  source.publish(1);
  CHECK(holder.worker.stage().version == 1);
  CHECK(holder.worker.held_version() == 0);
  source.worker.unpublish();
  rollout reader{who(server.address(), "rollout-1"), large_words};
  CHECK(reader.worker.update(exactly(1), 20s).sources == std::vector<std::string>{"rollout-0@stage/0"});
  CHECK(reader.memory.holds(1));
  CHECK(holder.worker.install().version == 1);
  CHECK(holder.memory.holds(1));
}

TEST_CASE("a stage can be given up as soon as it is installed; nothing staged cannot be installed") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  weights memory;
  hub::subscriber holder{who(server.address(), "rollout-0"), tensorhub::subscriber_mode::staged};
  memory.add_to(holder);
  CHECK(code_of([&] { holder.install(1s); }) == errc::not_found);
  source.publish(1);
  holder.stage();
  CHECK(code_of([&] { memory.add_to(holder); }) == errc::invalid_argument);
  CHECK(holder.install().version == 1);
  CHECK(holder.staged_version() == 1);
  holder.release_stage();
  CHECK(holder.staged_version() == 0);
  CHECK(holder.held_version() == 1);
  holder.stage();  // what is live is received again, and found to be there
  const auto again = holder.install();
  CHECK(again.kept);
  CHECK(again.bytes == 0);
  CHECK(memory.holds(1));
  holder.leave();
}

namespace {

struct flipping {
  double_buffered_of<hub::subscriber> worker;
  explicit flipping(const tensorhub::worker_options& options) : worker{options} {
    worker.add("mapped", {words}, tensorhub::dtype::u64);
    worker.add("bias", {small}, tensorhub::dtype::u16);
    worker.add("nothing", {0}, tensorhub::dtype::f32);
  }
  static constexpr std::uint64_t words = 200'000, small = 17;
  [[nodiscard]] bool holds(std::uint64_t value) const {
    const auto* large = static_cast<const std::uint64_t*>(worker.tensor("mapped"));
    const auto* bias = static_cast<const std::uint16_t*>(worker.tensor("bias"));
    for (std::uint64_t i = 0; i < words; ++i)
      if (large[i] != value * words + i) return false;
    for (std::uint64_t i = 0; i < small; ++i)
      if (bias[i] != static_cast<std::uint16_t>(value + i)) return false;
    return true;
  }
};

struct flipping_source {
  std::vector<std::uint64_t> large = std::vector<std::uint64_t>(flipping::words);
  std::vector<std::uint16_t> bias = std::vector<std::uint16_t>(flipping::small);
  hub::publisher worker;
  explicit flipping_source(const tensorhub::worker_options& options) : worker{options} {
    worker.add("mapped", large.data(), {large.size()}, tensorhub::dtype::u64);
    worker.add("bias", bias.data(), {bias.size()}, tensorhub::dtype::u16);
    worker.add("nothing", nullptr, {0}, tensorhub::dtype::f32);
  }
  void publish(std::uint64_t version, std::uint64_t value) {
    worker.unpublish();
    for (std::uint64_t i = 0; i < large.size(); ++i) large[i] = value * flipping::words + i;
    for (std::uint64_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<std::uint16_t>(value + i);
    worker.publish(version);
  }
};

/// The two kinds of readers with a trainer each, whose bytes are a function of the version.
struct staged_scene {
  trainer source;
  member<staged_of<hub::subscriber>> reader;
  explicit staged_scene(const std::string& server)
      : source{who(server, "trainer-0"), 1000}, reader{who(server, "rollout-0"), 1000} {}
  void publish(std::uint64_t version) {
    source.worker.unpublish();
    source.publish(version);
  }
  [[nodiscard]] bool holds(std::uint64_t version) const { return reader.memory.holds(version); }
};
struct flipping_scene {
  flipping_source source;
  flipping reader;
  explicit flipping_scene(const std::string& server)
      : source{who(server, "trainer-0")}, reader{who(server, "rollout-0")} {}
  void publish(std::uint64_t version) { source.publish(version, version); }
  [[nodiscard]] bool holds(std::uint64_t version) const { return reader.holds(version); }
};

}  // namespace

TEST_CASE_TEMPLATE("update where there are two memories is stage and install, and keeps what is live", Scene,
                   staged_scene, flipping_scene) {
  hub::reference_server server;
  Scene s{server.address()};
  auto& reader = s.reader.worker;
  s.publish(1);
  auto report = reader.update();
  CHECK(report.version == 1);
  CHECK_FALSE(report.kept);
  CHECK(report.bytes > 0);
  CHECK(report.seconds >= report.pull_seconds);
  CHECK(s.holds(1));
  for (const tensorhub::version_selector same : {latest, exactly(1), at_least(1)}) {
    report = reader.update(same);
    CHECK(report.version == 1);
    CHECK(report.kept);
    CHECK(report.bytes == 0);
  }
  s.publish(2);
  CHECK(code_of([&] { reader.update(exactly(9), 300ms); }) == errc::timed_out);
  CHECK(reader.held_version() == 1);  // what is live is untouched
  CHECK(s.holds(1));
  CHECK(reader.update(at_least(2), tensorhub::retry).version == 2);
  CHECK(s.holds(2));
  s.publish(3);
  reader.stage(exactly(3));
  report = reader.update(exactly(3));  // it is staged already, and becomes live now
  CHECK(report.version == 3);
  CHECK_FALSE(report.kept);
  CHECK(s.holds(3));
}

TEST_CASE("update in mode staged: several shards stage and install the same version") {
  hub::reference_server server;
  group<trainer> sources{server.address(), "trainer-0"};
  group<member<staged_of<hub::subscriber>>> readers{server.address(), "rollout-0"};
  for (const std::uint64_t version : {1u, 2u}) {
    publish(sources, version);
    for (int time = 0; time < 2; ++time) {  // the second one knows of nothing newer
      in_every_shard([&](std::uint32_t i) {
        CHECK(readers[i].worker.update().version == version);
        CHECK(readers[i].memory.holds(version, i));
      });
    }
    in_every_shard(
        [&](std::uint32_t i) { CHECK(readers[i].worker.update(exactly(version)).version == version); });
  }
}

TEST_CASE("two memories: install flips, the version before stays where it is and is served") {
  hub::reference_server server;
  std::vector<std::unique_ptr<flipping_source>> sources;
  std::vector<std::unique_ptr<flipping>> rollouts;
  for (std::uint32_t i = 0; i < shards; ++i) {
    const tensorhub::shard_of shard{i, shards};
    sources.push_back(std::make_unique<flipping_source>(who(server.address(), "trainer-0", shard)));
    rollouts.push_back(std::make_unique<flipping>(who(server.address(), "rollout-0", shard)));
    CHECK(code_of([&] { static_cast<void>(rollouts[i]->worker.tensor("mapped")); }) == errc::not_found);
    CHECK(code_of([&] { rollouts[i]->worker.install(); }) == errc::not_found);
  }
  const auto round = [&](std::uint64_t version, std::uint64_t before) {
    for (std::uint32_t i = 0; i < shards; ++i) sources[i]->publish(version, 10 * version + i);
    in_every_shard([&](std::uint32_t i) {
      rollouts[i]->worker.stage(version, 30s);
      if (before != 0) CHECK(rollouts[i]->holds(10 * before + i));
      CHECK(rollouts[i]->worker.held_version() == before);
      CHECK(rollouts[i]->worker.install().version == version);
      CHECK(rollouts[i]->holds(10 * version + i));
      CHECK(rollouts[i]->worker.tensor("nothing") == nullptr);
    });
  };
  round(1, 0);
  const void* const first = rollouts[0]->worker.tensor("mapped");
  round(2, 1);
  const void* const second = rollouts[0]->worker.tensor("mapped");
  CHECK(first != second);
  for (auto& source : sources) source->worker.unpublish();
  for (std::uint32_t i = 0; i < shards; ++i) CHECK(rollouts[i]->worker.staged_version() == 1);
  {
    std::vector<std::unique_ptr<flipping>> others;
    for (std::uint32_t i = 0; i < shards; ++i)
      others.push_back(std::make_unique<flipping>(who(server.address(), "rollout-1", {i, shards})));
    for (const std::uint64_t version : {1u, 2u}) {
      in_every_shard([&](std::uint32_t i) {
        others[i]->worker.stage(version, 30s);
        others[i]->worker.install();
        CHECK(others[i]->holds(10 * version + i));
      });
    }
  }
  in_every_shard([&](std::uint32_t i) {  // back to the version before, which nobody needs to read again
    CHECK(rollouts[i]->worker.stage(1, 30s).kept);
    CHECK(rollouts[i]->worker.install().version == 1);
    CHECK(rollouts[i]->holds(10 + i));
  });
  CHECK(rollouts[0]->worker.tensor("mapped") == first);
  CHECK(rollouts[0]->worker.newer() == tensorhub::version_number{2});
  round(3, 1);
  CHECK(rollouts[0]->worker.tensor("mapped") == second);
}

TEST_CASE("two memories: a stage that finds nothing leaves nothing to install") {
  hub::reference_server server;
  flipping_source source{who(server.address(), "trainer-0")};
  flipping holder{who(server.address(), "rollout-0")};
  for (const std::uint64_t version : {1u, 2u}) {
    source.publish(version, version);
    holder.worker.stage(version);
    holder.worker.install();
  }
  CHECK(code_of([&] { holder.worker.stage(at_least(3), 200ms); }) == errc::timed_out);
  CHECK_MESSAGE(holder.worker.staged_version() == 1, "what was live before is there still");
  CHECK_MESSAGE(code_of([&] { holder.worker.install(); }) == errc::not_found, "but was not asked for");
  {
    const auto running = holder.worker.stage_async(at_least(3), 20s);
    CHECK(code_of([&] { holder.worker.install(); }) == errc::busy);
  }
  CHECK(holder.worker.held_version() == 2);
  CHECK(holder.holds(2));
  CHECK(code_of([&] { static_cast<void>(holder.worker.tensor("other")); }) == errc::invalid_argument);
  CHECK(code_of([&] { holder.worker.add("late", {1}, tensorhub::dtype::u8); }) == errc::invalid_argument);
  holder.worker.leave();
}
