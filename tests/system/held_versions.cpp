/// \file held_versions.cpp
/// `wait_held`: a trainer, or a process that looks after others, waits until replicas hold a version.

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hub.hpp"
#include "tensorhub/arena_publisher.hpp"
#include "tensorhub/server_client.hpp"

using namespace system_tests;
using tensorhub::server_client;
using tensorhub::snapshot;
using names = std::vector<std::string>;

namespace {

constexpr std::size_t few_words = 1000;

/// One that does not wait for the workers of an earlier one for long.
[[nodiscard]] tensorhub::reference_server_options started_at(const std::string& address) {
  tensorhub::reference_server_options how;
  how.address = address;
  how.catalog.recovery_grace = 200ms;
  return how;
}

/// A server and a trainer; rollouts come as they are asked for.
struct scene {
  system_tests::hub::reference_server server{started_at("tcp://127.0.0.1:0")};
  trainer source{who(server.address(), "trainer-0"), few_words};
  std::vector<std::unique_ptr<rollout>> readers{};
  rollout& reader(std::size_t index) {
    while (readers.size() <= index)
      readers.push_back(std::make_unique<rollout>(
          who(server.address(), "rollout-" + std::to_string(readers.size())), few_words));
    return *readers[index];
  }
};

/// A replica of two shards.
template <typename Member>
struct both_shards {
  Member shards[2];
  both_shards(const std::string& server, const std::string& replica)
      : shards{{who(server, replica, {0, 2}), few_words}, {who(server, replica, {1, 2}), few_words}} {}
  void publish(std::uint64_t version) {
    for (auto& each : shards) each.publish(version);
  }
  void unpublish() {
    for (auto& each : shards) each.worker.unpublish();
  }
  void update(std::uint64_t version) {
    auto first = shards[0].worker.update_async(exactly(version), 60s);
    shards[1].worker.update(exactly(version), 60s);
    first.wait(60s);
  }
};

/// How a wait ends at its time-out: again with a longer one where the server has not answered in time.
template <typename Wait>
[[nodiscard]] error late_end_of(Wait&& wait) {
  for (auto timeout = 100ms;; timeout *= 2) {
    error ended = calls::error_of([&] { static_cast<void>(wait(timeout)); });
    if (ended.code() == errc::ok || contains(ended.what(), "replicas hold version") || timeout > 60s)
      return ended;
  }
}
/// So many as are held already, and no more.
template <typename Worker>
[[nodiscard]] bool held_by_no_more_than(Worker& worker, std::uint64_t version, std::uint32_t replicas) {
  const error late =
      late_end_of([&](auto timeout) { return worker.wait_held(version, replicas + 1, timeout); });
  return late.code() == errc::timed_out && contains(late.what(), std::to_string(replicas) + " of ");
}

[[nodiscard]] auto in_background(auto&& call) {
  return std::async(std::launch::async, std::forward<decltype(call)>(call));
}

}  // namespace

TEST_CASE("wait_held: by number and by name, through each door") {
  scene here;
  server_client client{{.server = here.server.address()}};
  auto& trained = here.source.worker;
  CHECK(code_of([&] { trained.wait_held(1, 1, 20s); }) == errc::not_found);
  CHECK(code_of([&] { client.wait_held("policy", 1, {"rollout-0"}, 20s); }) == errc::not_found);
  here.source.publish(1);
  auto one = in_background([&] { return trained.wait_held(1, 1, 60s); });
  auto both = in_background([&] { return trained.wait_held(1, names{"rollout-1", "rollout-0"}, 60s); });
  auto outside = in_background([&] {
    return client.wait_held("policy", 1, {"rollout-0", "trainer-0", "rollout-1"}, 60s);
  });
  here.reader(0).worker.update(exactly(1));
  CHECK(one.get() == names{"rollout-0"});
  CHECK(both.wait_for(50ms) == std::future_status::timeout);
  here.reader(1).worker.update(exactly(1));
  CHECK(both.get() == names{"rollout-0", "rollout-1"});
  CHECK(outside.get() == names{"rollout-0", "rollout-1", "trainer-0"});
  trained.unpublish();
  CHECK(trained.wait_held(1, 2, 20s) == names{"rollout-0", "rollout-1"});  // they hold it still
}

TEST_CASE("wait_held: a publisher's own copies do not count, and a newer version does") {
  scene here;
  here.source.publish(1, snapshot);
  CHECK(held_by_no_more_than(here.source.worker, 1, 0));
  here.source.publish(2, snapshot);
  here.reader(0).worker.update(exactly(2));
  CHECK(here.source.worker.wait_held(1, 1, 20s) == names{"rollout-0"});
}

TEST_CASE("wait_held: an arena publisher has it, and a double-buffered rollout counts once it has received") {
  const system_tests::hub::reference_server server;
  system_tests::hub::arena_publisher source{who(server.address(), "trainer-0")};
  source.add("w", {1000}, tensorhub::dtype::f32);
  double_buffered_of<system_tests::hub::subscriber> flips{who(server.address(), "rollout-0")};
  flips.add("w", {1000}, tensorhub::dtype::f32);
  const std::vector<float> bytes(1000, 1.5f);
  for (const std::uint64_t version : {1u, 2u}) {
    source.put("w", std::as_bytes(std::span{bytes}));
    source.commit(version);
    CHECK(held_by_no_more_than(source, version, 0));
    flips.stage(exactly(version));
    CHECK(source.wait_held(version, 1, 20s) == names{"rollout-0"});
    CHECK(source.wait_held(version, names{"rollout-0"}, 20s) == names{"rollout-0"});
    CHECK(flips.held_version() < version);
    flips.install();
  }
  CHECK(held_by_no_more_than(source, 2, 1));  // two memories, one replica
}

TEST_CASE("wait_held: of several shards all have to hold it") {
  const system_tests::hub::reference_server server;
  both_shards<trainer> source{server.address(), "trainer-0"};
  both_shards<rollout> reader{server.address(), "rollout-0"};
  source.shards[0].publish(1);
  auto& trained = source.shards[0].worker;
  error late = late_end_of([&](auto timeout) { return trained.wait_held(1, 1, timeout); });
  CHECK_MESSAGE(contains(late.what(), "not been published, or not in all shards"), late.what());
  auto held = in_background([&] { return trained.wait_held(1, 1, 60s); });
  source.shards[1].publish(1);
  auto first = reader.shards[0].worker.update_async(exactly(1), 60s);
  CHECK(held.wait_for(100ms) == std::future_status::timeout);
  late = late_end_of([&](auto timeout) { return trained.wait_held(1, names{"rollout-0"}, timeout); });
  CHECK_MESSAGE(contains(late.what(), "rollout-0 (1 of 2 shards have joined)"), late.what());
  reader.shards[1].worker.update(exactly(1), 60s);
  first.wait(60s);
  CHECK(held.get() == names{"rollout-0"});
}

TEST_CASE("wait_held: the time-out says who holds it and what the others have; a torn replica does not") {
  tensorhub::reference_server_options how;
  how.catalog.group_timeout = 200ms;
  const system_tests::hub::reference_server server{how};
  both_shards<trainer> source{server.address(), "trainer-0"};
  both_shards<rollout> whole{server.address(), "whole"};
  both_shards<rollout> older{server.address(), "older"};
  both_shards<rollout> half{server.address(), "half"};
  source.publish(1);
  older.update(1);
  source.unpublish();
  source.publish(2);
  whole.update(2);
  half.shards[1].worker.join();
  CHECK(code_of([&] { half.shards[0].worker.update(exactly(2), 20s); }) == errc::torn);  // the other is late
  const names asked{"whole", "older", "half", "absent"};
  server_client client{{.server = server.address()}};
  error late = late_end_of([&](auto timeout) { return client.wait_held("policy", 2, asked, timeout); });
  std::string sentence = late.what();
  CHECK(late.code() == errc::timed_out);
  CHECK_MESSAGE(contains(sentence, "1 of 4 replicas hold version 2, or a newer one: whole; "), sentence);
  CHECK_MESSAGE(contains(sentence, "absent (has not joined), half (torn), older (version 1); "), sentence);
  CHECK_MESSAGE(contains(sentence, "model policy; version 2"), sentence);
  late = late_end_of([&](auto timeout) { return source.shards[0].worker.wait_held(2, 2, timeout); });
  sentence = late.what();
  CHECK_MESSAGE(contains(sentence, "1 of 2 replicas hold version 2, or a newer one: whole; "), sentence);
  CHECK_MESSAGE(contains(sentence, "half (torn), older (version 1)"), sentence);
  CHECK_MESSAGE(contains(sentence, "replica trainer-0"), sentence);
  half.update(2);
  CHECK(source.shards[0].worker.wait_held(2, 2, 20s) == names{"half", "whole"});
}

TEST_CASE("wait_held: it ends when it is interrupted, also between two questions") {
  scene here;
  here.source.publish(1);
  server_client client{{.server = here.server.address()}};
  auto trained = in_background([&] { return code_of([&] { here.source.worker.wait_held(1, 1, 60s); }); });
  auto outside =
      in_background([&] { return code_of([&] { client.wait_held("policy", 1, {"rollout-0"}, 60s); }); });
  std::this_thread::sleep_for(100ms);
  const auto end = [](auto& waits, auto& door) {  // rarely, so that no question would be met by chance
    do door.interrupt();
    while (waits.wait_for(3s) != std::future_status::ready);
    return waits.get();
  };
  CHECK(end(trained, here.source.worker) == errc::cancelled);
  CHECK(end(outside, client) == errc::cancelled);
}

TEST_CASE("wait_held: a replica that has died does not count any more") {
  scene here;
  here.source.publish(1);
  here.reader(1).worker.update(exactly(1));
  CHECK(here.source.worker.wait_held(1, 1, 20s) == names{"rollout-1"});
  server_client client{{.server = here.server.address()}};
  CHECK(client.evict("policy", "rollout-1") == 1);
  CHECK(held_by_no_more_than(here.source.worker, 1, 0));
  here.reader(0).worker.update(exactly(1));
  CHECK(here.source.worker.wait_held(1, 1, 20s) == names{"rollout-0"});
}

TEST_CASE("wait_held: it goes on with a server that is started again") {
  std::optional<system_tests::hub::reference_server> server{std::in_place};
  const std::string address = server->address();
  trainer source{who(address, "trainer-0"), few_words};
  rollout reader{who(address, "rollout-0"), few_words};
  source.publish(1);
  auto held = in_background([&] { return source.worker.wait_held(1, 1, 60s); });
  CHECK(held.wait_for(100ms) == std::future_status::timeout);
  server.reset();
  CHECK(held.wait_for(100ms) == std::future_status::timeout);
  server.emplace(started_at(address));
  reader.worker.update(exactly(1), 60s);
  CHECK(held.get() == names{"rollout-0"});
}

TEST_CASE("wait_held: a version that nobody can get any more is unavailable") {
  scene here;
  here.source.publish(1);
  here.reader(0);
  here.readers[0]->worker.join();
  here.source.worker.unpublish();
  std::string sentence;
  CHECK(code_of([&] { here.source.worker.wait_held(1, 1, 60s); }, &sentence) == errc::unavailable);
  CHECK_MESSAGE(contains(sentence, "rollout-0 (no version)"), sentence);
}

TEST_CASE(
    "wait_held: what was rolled back counts no more, and the number counts again when it is published anew") {
  scene here;
  here.source.publish(5);
  here.reader(0).worker.update(exactly(5));
  here.source.worker.unpublish();
  CHECK(here.source.worker.wait_held(4, 1, 20s) == names{"rollout-0"});
  here.source.worker.roll_back_to(3);
  here.source.publish(4);
  CHECK(held_by_no_more_than(here.source.worker, 4, 0));
  here.reader(0).worker.update();
  CHECK(here.source.worker.wait_held(4, 1, 20s) == names{"rollout-0"});
}
