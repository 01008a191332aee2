// Calls that no other test makes, through each door: publisher, subscriber in each mode, seeder. Each must do
// what its name says; what the calls are for is tested elsewhere.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tensorhub/leave_on_signal.hpp>
#include <tensorhub/server.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "hub.hpp"

using namespace system_tests;
using tensorhub::dtype;

namespace {

constexpr std::array<std::uint64_t, 2> shape{1000, 200};

/// One tensor, added by a span of dimensions.
struct plain_weights {
  std::vector<std::uint32_t> words = std::vector<std::uint32_t>(shape[0] * shape[1]);
  void fill(std::uint64_t with) { words.assign(words.size(), static_cast<std::uint32_t>(with)); }
  template <typename Worker>
  void add_to(Worker& worker) {
    worker.add("w", words.data(), std::span<const std::uint64_t>{shape}, dtype::u32);
  }
};

template <typename Worker>
using plain_member = member<Worker, plain_weights>;

struct scene {
  hub::reference_server server;
  plain_member<hub::publisher> trainer;
  explicit scene(std::uint64_t offload_limit_bytes = 0) : trainer{of_trainer(offload_limit_bytes)} {
    trainer.publish(1);
  }
  [[nodiscard]] tensorhub::worker_options of_trainer(std::uint64_t offload_limit_bytes) const {
    auto out = who(server.address(), "trainer-0");
    out.offload_limit_bytes = offload_limit_bytes;
    return out;
  }
  void publish(std::uint64_t version) { trainer.publish(version); }
  /// What the server knows of a replica; of one that has not joined, nothing.
  [[nodiscard]] tensorhub::replica_entry known(const std::string& replica) {
    const auto models = trainer.worker.list();
    for (const auto& each : models.front().replicas)
      if (each.name == replica) return each;
    return {};
  }
};

/// What every door that joins a model answers. One version is published.
template <typename Worker>
void ask_everything(Worker& worker, scene& here) {
  const auto models = worker.list();
  REQUIRE(models.size() == 1);
  CHECK(models.front().name == "policy");
  CHECK(models.front().latest == here.trainer.worker.held_version());
  CHECK(code_of([&] { static_cast<void>(worker.list("of another name", 200ms)); }) != errc::ok);
  const auto described = worker.describe_model(0);
  CHECK(described.shards == 1);
  REQUIRE(described.tensors.size() == 1);
  CHECK(described.tensors.front().name == "w");
  plain_member<hub::subscriber> other{who(here.server.address(), "waits")};
  const auto waiting = other.worker.update_async(at_least(99), 60s);
  const auto waits = [&](std::chrono::milliseconds older_than) {
    return std::ranges::any_of(worker.stuck(older_than).entries,
                               [](const auto& entry) { return entry.replica == "waits"; });
  };
  CHECK(comes_true([&] { return waits(0ms); }));
  CHECK_FALSE(waits(600s));
}

/// What every door that joins a model can retain. Version 1 is published, and held by the trainer alone, who
/// may keep none for others unless it is the worker; at last version 3 is.
template <typename Worker>
void retain_in_turn(Worker& worker, scene& here) {
  CHECK(worker.offloaded_bytes() == 0);
  worker.pin(1);
  CHECK_FALSE(here.trainer.worker.unpublish().lost);
  CHECK(worker.offloaded_bytes() > 0);
  worker.release(1);
  CHECK(comes_true([&] { return worker.offloaded_bytes() == 0; }));
  here.publish(2);
  worker.retain(1);
  CHECK_FALSE(here.trainer.worker.unpublish().lost);
  CHECK(worker.offloaded_bytes() > 0);
  worker.retain(0);
  CHECK(comes_true([&] { return worker.offloaded_bytes() == 0; }));
  here.publish(3);
}

}  // namespace

TEST_CASE("every call: a publisher") {
  scene here{UINT64_MAX};
  auto& worker = here.trainer.worker;
  plain_member<hub::publisher> second{who(here.server.address(), "trainer-1")};
  CHECK(here.known("trainer-1").shards_joined == 0);
  second.worker.join();
  CHECK(here.known("trainer-1").shards_joined == 1);
  ask_everything(worker, here);
  CHECK(worker.wait(latest, 10s) == 1);
  CHECK(code_of([&] { worker.wait(2, 50ms); }) == errc::timed_out);
  retain_in_turn(worker, here);
  CHECK(worker.why().empty());  // it has read from nobody
  CHECK(worker.cost().bytes >= here.trainer.memory.words.size() * 4);
  CHECK(worker.statistics().publishes.of(errc::ok) == 3);
  CHECK(worker.statistics().unpublishes.of(errc::ok) == 2);
  CHECK(worker.held_version() == 3);
}

TEST_CASE("every call: a subscriber") {
  scene here;
  plain_member<hub::subscriber> reader{who(here.server.address(), "rollout-0")};
  reader.worker.join();
  CHECK(here.known("rollout-0").shards_joined == 1);
  ask_everything(reader.worker, here);
  CHECK(reader.worker.wait(latest, 10s) == 1);
  retain_in_turn(reader.worker, here);
  CHECK(comes_true([&] { return reader.worker.newer() == tensorhub::version_number{3}; }));
  CHECK(reader.worker.update().version == 3);
  CHECK(reader.memory.words == here.trainer.memory.words);
  CHECK_FALSE(reader.worker.newer());
  CHECK(contains(reader.worker.why(), "upstream: trainer-0/0"));
  CHECK(reader.worker.cost().bytes >= reader.memory.words.size() * 4);
  CHECK(reader.worker.statistics().updates.of(errc::ok) == 1);
  CHECK_FALSE(reader.worker.unpublish().forced);
  CHECK(reader.worker.held_version() == 0);
  CHECK(here.known("rollout-0").version == 0);
}

TEST_CASE("every call: a subscriber in mode staged") {
  scene here;
  plain_member<staged_of<hub::subscriber>> reader{who(here.server.address(), "rollout-0")};
  reader.worker.join();
  CHECK(here.known("rollout-0").shards_joined == 1);
  ask_everything(reader.worker, here);
  CHECK(reader.worker.wait(latest, 10s) == 1);
  retain_in_turn(reader.worker, here);
  CHECK(comes_true([&] { return reader.worker.newer() == tensorhub::version_number{3}; }));
  CHECK(reader.worker.stage().version == 3);
  CHECK(reader.worker.install().version == 3);
  CHECK(reader.memory.words == here.trainer.memory.words);
  CHECK(comes_true([&] { return here.known("rollout-0").version == 3; }));  // it is told afterwards
  CHECK(reader.worker.statistics().updates.of(errc::ok) == 1);
  CHECK(reader.worker.stage_statistics().updates.of(errc::ok) == 1);
  CHECK(reader.worker.stage_statistics().received_bytes() >= reader.memory.words.size() * 4);
  CHECK(reader.worker.cost().bytes >= 2 * reader.memory.words.size() * 4);  // and the stage's
  CHECK_FALSE(reader.worker.unpublish().forced);
  CHECK(reader.worker.held_version() == 0);
  CHECK(here.known("rollout-0").version == 0);
  reader.worker.release_stage();
  CHECK(reader.worker.why().empty());  // of the live weights' worker, which has read from nobody
  CHECK(reader.worker.update(latest, 10s).version == 3);
  CHECK(reader.worker.held_version() == 3);
}

TEST_CASE("every call: a subscriber in mode double_buffered") {
  scene here;
  double_buffered_of<hub::subscriber> reader{who(here.server.address(), "rollout-0")};
  reader.add("w", std::span<const std::uint64_t>{shape}, dtype::u32);
  reader.join();
  CHECK(here.known("rollout-0@a").shards_joined == 1);
  ask_everything(reader, here);
  CHECK(reader.wait(latest, 10s) == 1);
  retain_in_turn(reader, here);
  CHECK(comes_true([&] { return reader.newer() == tensorhub::version_number{3}; }));
  auto running = reader.stage_async(latest, 10s);
  CHECK(running.wait(10s).version == 3);
  CHECK(contains(reader.why(), "upstream: trainer-0/0"));
  CHECK(reader.install().version == 3);
  const auto& expected = here.trainer.memory.words;
  CHECK(std::memcmp(reader.tensor("w"), expected.data(), expected.size() * 4) == 0);
  CHECK(reader.statistics().updates.of(errc::ok) + reader.stage_statistics().updates.of(errc::ok) == 1);
  CHECK(reader.cost().bytes >= 2 * expected.size() * 4);
  CHECK(here.known("rollout-0@a").version == 3);
  reader.unpublish();
  CHECK(here.known("rollout-0@a").version == 0);
  CHECK(reader.held_version() == 3);  // unpublished, and live as before
  CHECK(std::memcmp(reader.tensor("w"), expected.data(), expected.size() * 4) == 0);
}

TEST_CASE("every call: one that the mode does not have is refused, with the modes that have it") {
  using tensorhub::subscriber_mode;
  scene here;
  plain_weights memory;
  const auto refusal_of = [](auto&& call) {
    std::string sentence;
    CHECK(code_of(call, &sentence) == errc::invalid_argument);
    CHECK_MESSAGE(contains(sentence, "is for subscribers in mode "), sentence);
    return sentence;
  };
  hub::subscriber in_place{who(here.server.address(), "in-place")};
  memory.add_to(in_place);
  CHECK(contains(refusal_of([&] { in_place.stage(); }), "stage() is for subscribers in mode staged or"));
  CHECK(contains(refusal_of([&] { in_place.install(); }), "this one is in_place"));
  refusal_of([&] { in_place.release_stage(); });
  refusal_of([&] { static_cast<void>(in_place.stage_statistics()); });
  refusal_of([&] { static_cast<void>(in_place.tensor("w")); });
  refusal_of([&] { in_place.add("x", {4}, dtype::u32); });
  CHECK(in_place.staged_version() == 0);
  CHECK(in_place.update().version == 1);

  hub::subscriber staged{who(here.server.address(), "staged"), subscriber_mode::staged};
  refusal_of([&] { staged.add("x", {4}, dtype::u32); });
  CHECK(contains(refusal_of([&] { static_cast<void>(staged.update_async()); }), "stage_async"));
  refusal_of([&] { static_cast<void>(staged.tensor("w")); });

  hub::subscriber flipping{who(here.server.address(), "flipping"), subscriber_mode::double_buffered};
  CHECK(contains(refusal_of([&] { memory.add_to(flipping); }), "in mode in_place or staged"));
  refusal_of([&] { static_cast<void>(flipping.update_async()); });

  for (const auto mode : {subscriber_mode::in_place, subscriber_mode::double_buffered})
    CHECK(tensorhub::subscriber_mode_named(to_string(mode)) == mode);
  CHECK(code_of([] { static_cast<void>(tensorhub::subscriber_mode_named("beside")); }) ==
        errc::invalid_argument);
}

TEST_CASE("every call: a seeder") {
  scene here;
  hub::seeder seed{who(here.server.address(), "seed")};
  CHECK(seed.wait(1, 30s) == 1);
  CHECK(seed.held_version() == 1);
  CHECK(seed.last_failure().empty());
  CHECK(seed.statistics().updates.of(errc::ok) == 1);
  CHECK(seed.cost().bytes >= here.trainer.memory.words.size() * 4);
  CHECK(seed.self() != here.trainer.worker.self());
  ask_everything(seed, here);
  CHECK(contains(seed.why(), "upstream: trainer-0/0"));
  seed.pin(1);
  here.trainer.worker.unpublish();
  here.publish(2);
  CHECK(seed.wait(2, 30s) == 2);  // over what was the last copy of version 1
  CHECK(seed.offloaded_bytes() > 0);
  seed.release(1);
  CHECK(comes_true([&] { return seed.offloaded_bytes() == 0; }));
  seed.retain(2);
  here.trainer.worker.unpublish();
  here.publish(3);
  CHECK(seed.wait(3, 30s) == 3);
  CHECK(seed.offloaded_bytes() > 0);
  std::atomic<bool> has_ended{false};
  std::jthread waiting{[&] {
    CHECK(code_of([&] { seed.wait(4, 30s); }) == errc::cancelled);
    has_ended = true;
  }};
  while (!has_ended) {
    seed.interrupt();
    std::this_thread::sleep_for(10ms);
  }
  here.trainer.worker.leave();
  plain_member<hub::subscriber> reader{who(here.server.address(), "rollout-0")};
  const auto done = reader.worker.update(latest, 20s);
  CHECK(done.sources == std::vector<std::string>{"seed/0"});
}

TEST_CASE("every call: a seeder that may not join says so") {
  scene here;
  unchecked_hub::seeder seed{who(here.server.address(), "seed")};
  CHECK(comes_true([&] { return contains(seed.last_failure(), to_string(errc::policy_mismatch).data()); }));
  std::string sentence;
  CHECK(code_of([&] { seed.wait(1, 50ms); }, &sentence) == errc::timed_out);
  CHECK_MESSAGE(contains(sentence, "its last failure: "), sentence);
  CHECK(seed.held_version() == 0);
}

TEST_CASE("every call: keep_alive, for as long as the worker lives") {
  using tensorhub::subscriber_mode;
  hub::reference_server server;
  const auto owner = std::make_shared<int>(1);
  {
    hub::publisher trainer{who(server.address(), "trainer-0")};
    trainer.keep_alive(owner);
    CHECK(owner.use_count() == 2);
    hub::subscriber in_place{who(server.address(), "in-place")};
    hub::subscriber staged{who(server.address(), "staged"), subscriber_mode::staged};
    in_place.keep_alive(owner);
    staged.keep_alive(owner);
    CHECK(owner.use_count() == 4);
    staged.leave();
    CHECK(owner.use_count() == 4);  // others may still be reading what it points to
  }
  CHECK(owner.use_count() == 1);
}

TEST_CASE("every call: a worker that listens on another interface than its peers' default") {
  hub::reference_server server;
  tensorhub::transports::tcp_options everywhere{.listen_host = "0.0.0.0"};
  everywhere.advertised_host = "127.0.0.2";
  member<worker_of_both_doors> trainer{who(server.address(), "trainer-0"), 1000, everywhere};
  CHECK(contains(trainer.worker.data().address().text, "tcp://127.0.0.2:"));
  trainer.publish(1);
  member<worker_of_both_doors> first{who(server.address(), "rollout-0"), 1000, {.listen_host = "127.0.0.3"}};
  CHECK(contains(first.worker.data().address().text, "tcp://127.0.0.3:"));
  CHECK(first.worker.update().version == 1);
  CHECK(first.memory.holds(1));
  trainer.worker.leave();
  rollout second{who(server.address(), "rollout-1"), 1000};
  CHECK(second.worker.update(latest, 20s).sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(second.memory.holds(1));
}

TEST_CASE("every call: leave_on_signal with staged and double-buffered workers, and one that is forgotten") {
  tensorhub::leave_on_signal on_notice{10s, {SIGUSR1}};  // before any thread
  scene here;
  plain_member<staged_of<hub::subscriber>> staged{who(here.server.address(), "staged")};
  plain_member<hub::subscriber> forgotten{who(here.server.address(), "forgotten")};
  double_buffered_of<hub::subscriber> flipping{who(here.server.address(), "flipping")};
  flipping.add("w", std::span<const std::uint64_t>{shape}, dtype::u32);
  CHECK(staged.worker.update().version == 1);
  CHECK(forgotten.worker.update().version == 1);
  CHECK(flipping.stage().version == 1);
  on_notice.watch(staged.worker);
  on_notice.watch(forgotten.worker);
  on_notice.watch(flipping);
  on_notice.forget(forgotten.worker);
  REQUIRE(::kill(::getpid(), SIGUSR1) == 0);
  REQUIRE(comes_true([&] { return on_notice.done(); }));
  CHECK(code_of([&] { staged.worker.update(); }) == errc::invalid_argument);  // it has left
  CHECK(code_of([&] { flipping.stage(); }) == errc::invalid_argument);
  CHECK(forgotten.worker.held_version() == 1);
  forgotten.worker.unpublish();
  CHECK(forgotten.worker.update().version == 1);
}
