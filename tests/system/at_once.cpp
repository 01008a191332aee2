// What is several workers behind one door: all of them end at the same time, none after another.

#include <doctest/doctest.h>

#include <memory>
#include <thread>

#include "throttled_hub.hpp"

using namespace system_tests;
using tensorhub::snapshot;

namespace {

constexpr std::size_t large_words = 1u << 20;
constexpr std::uint64_t begun_bytes = 3u << 20;

/// A reader that stops in the middle of a version.
struct stopped_reader {
  std::shared_ptr<tensorhub::testing::read_gate> gate =
      std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
  gated_rollout reader;
  tensorhub::update_handle reading;

  static tensorhub::worker_options unreliable(const std::string& server) {
    auto options = who(server, "rollout-stopped");
    options.spot = true;
    return options;
  }
  stopped_reader(const std::string& server, std::uint64_t version)
      : reader{unreliable(server), large_words, {.gate = gate}},
        reading{reader.worker.update_async(exactly(version), 60s)} {
    REQUIRE(gate->wait_until_shut(20s));
  }
  ~stopped_reader() { gate->open(); }
};

/// While one of its versions is read, `source` takes all back: the other one is offered no more.
template <typename Source>
void check_hides(Source& source, const std::string& server, std::uint64_t read, std::uint64_t other) {
  stopped_reader stopped{server, read};
  rollout late{who(server, "rollout-late"), large_words};
  late.worker.join();
  std::jthread takes_back{[&] { CHECK(source.unpublish(5s).forced); }};
  std::this_thread::sleep_for(1s);
  CHECK(code_of([&] { late.worker.update(exactly(other), 1s); }) != errc::ok);
}

}  // namespace

TEST_CASE("unpublish of a trainer hides all its versions, whichever of them is read") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.publish(2, snapshot);
  SUBCASE("two snapshots") {
    source.worker.publish(3, snapshot);
    check_hides(source.worker, server.address(), 2, 3);
  }
  SUBCASE("a snapshot, and one in place") {
    source.worker.publish(3);
    check_hides(source.worker, server.address(), 3, 2);
  }
  CHECK(source.worker.held_version() == 0);
}

TEST_CASE("unpublish of a double-buffered subscriber hides both sides, whichever of them is read") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  double_buffered_of<hub::subscriber> both{who(server.address(), "rollout-0")};
  both.add("mapped", {source.memory.words()}, tensorhub::dtype::u64);
  both.add("bias", {source.memory.bias.size()}, tensorhub::dtype::u16);
  both.add("plain", {source.memory.plain.size(), 1}, tensorhub::dtype::u64);
  both.add("norm", {source.memory.norm.size()}, tensorhub::dtype::u8);
  both.add("nothing", {0}, tensorhub::dtype::f32);
  for (std::uint64_t version = 1; version <= 2; ++version) {
    source.publish(version);
    both.stage(exactly(version));
    both.install();
    source.worker.unpublish();
  }
  check_hides(both, server.address(), 1, 2);
  CHECK(both.held_version() == 2);
}

TEST_CASE("leave: what a process keeps for others is handed over while its own version drains") {
  hub::reference_server server;
  const tensorhub::testing::network_link_options rate{.bytes_per_second = 12e6};  // a version takes a second
  member<throttled_hub::subscriber> host{
      who(server.address(), "rollout-host"), large_words,
      throttled_hub::subscriber::transport_options{
          .receiving = std::make_shared<tensorhub::testing::network_link>(rate)}};
  rollout late{who(server.address(), "rollout-late"), large_words};
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.publish(1);
  source.worker.pin(1);
  CHECK_FALSE(source.worker.unpublish().lost);
  REQUIRE(source.worker.offloaded_bytes() > 0);
  source.publish(2);
  stopped_reader stopped{server.address(), 2};
  host.worker.join();
  CHECK(host.worker.offloaded_bytes() == 0);
  CHECK(source.worker.leave(8s).forced);
  CHECK(comes_true([&] { return source.worker.offloaded_bytes() == 0; }));
  CHECK(host.worker.offloaded_bytes() > 0);
  CHECK(late.worker.update(exactly(1), 20s).version == 1);
  CHECK(late.memory.holds(1));
}
