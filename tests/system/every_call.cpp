// Calls that no other test makes, through each door: publisher, subscriber in each mode, seeder. Each must do
// what its name says; what the calls are for is tested elsewhere.

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
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
  void fill(std::uint32_t with) { words.assign(words.size(), with); }
  template <typename Worker>
  void add_to(Worker& worker) {
    worker.add("w", words.data(), std::span<const std::uint64_t>{shape}, dtype::u32);
  }
};

template <typename Worker>
struct plain_member {
  plain_weights memory;
  Worker worker;
  explicit plain_member(const tensorhub::worker_options& options,
                        typename Worker::transport_options through = {})
      : worker{options, std::move(through)} {
    memory.add_to(worker);
  }
};

/// What every door that joins a model answers. One version is published, and held by a trainer.
template <typename Worker>
void ask_everything(Worker& worker) {
  const auto models = worker.list();
  REQUIRE(models.size() == 1);
  CHECK(models.front().name == "policy");
  const auto described = worker.describe_model(0);
  CHECK(described.shards > 0);
  REQUIRE(described.tensors.size() == 1);
  CHECK(described.tensors.front().name == "w");
  CHECK(worker.stuck().left_out == 0);
  CHECK(worker.wait(latest, 10s) == 1);
  worker.pin(1);
  worker.release(1);
  worker.retain(1);
  worker.retain(0);
  CHECK(worker.offloaded_bytes() == 0);
}

struct scene {
  hub::reference_server server;
  plain_member<hub::publisher> trainer{who(server.address(), "trainer-0")};
  scene() {
    trainer.memory.fill(1);
    trainer.worker.publish(1);
  }
};

}  // namespace

TEST_CASE("every call: a publisher") {
  scene here;
  auto& worker = here.trainer.worker;
  ask_everything(worker);
  static_cast<void>(worker.why());  // it has read from nobody
  CHECK(worker.cost().bytes >= here.trainer.memory.words.size() * 4);
  CHECK(worker.statistics().publishes.of(errc::ok) == 1);
  CHECK(worker.held_version() == 1);
}

TEST_CASE("every call: a subscriber") {
  scene here;
  plain_member<hub::subscriber> reader{who(here.server.address(), "rollout-0")};
  reader.worker.join();
  ask_everything(reader.worker);
  CHECK(comes_true([&] { return reader.worker.newer() == tensorhub::version_number{1}; }));
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.memory.words == here.trainer.memory.words);
  CHECK_FALSE(reader.worker.newer());
  CHECK(contains(reader.worker.why(), "trainer-0"));
  CHECK(reader.worker.cost().bytes >= reader.memory.words.size() * 4);
  // A handle that is given another update: the first one is over, or ends.
  here.trainer.worker.unpublish();
  auto running = reader.worker.update_async(at_least(2), 10s);
  CHECK_FALSE(running.done());
  here.trainer.memory.fill(2);
  here.trainer.worker.publish(2);
  CHECK(running.wait(10s).version == 2);
  running = reader.worker.update_async(latest, 10s);
  CHECK(running.wait(10s).version == 2);
}

TEST_CASE("every call: a subscriber in mode staged") {
  scene here;
  plain_member<staged_of<hub::subscriber>> reader{who(here.server.address(), "rollout-0")};
  reader.worker.join();
  ask_everything(reader.worker);
  CHECK(comes_true([&] { return reader.worker.newer() == tensorhub::version_number{1}; }));
  CHECK(reader.worker.stage().version == 1);
  CHECK(reader.worker.install().version == 1);
  CHECK(reader.memory.words == here.trainer.memory.words);
  CHECK(reader.worker.statistics().updates.of(errc::ok) == 1);
  CHECK(reader.worker.stage_statistics().updates.of(errc::ok) == 1);
  CHECK(reader.worker.stage_statistics().received_bytes() >= reader.memory.words.size() * 4);
  static_cast<void>(reader.worker.why());
  CHECK(reader.worker.cost().bytes > 0);
  CHECK_FALSE(reader.worker.unpublish().forced);
  CHECK(reader.worker.held_version() == 0);
  auto running = reader.worker.update_async(latest, 10s);
  CHECK(running.wait(10s).version == 1);
}

TEST_CASE("every call: a subscriber in mode double_buffered") {
  scene here;
  double_buffered_of<hub::subscriber> reader{who(here.server.address(), "rollout-0")};
  reader.add("w", std::span<const std::uint64_t>{shape}, dtype::u32);
  reader.join();
  ask_everything(reader);
  CHECK(comes_true([&] { return reader.newer() == tensorhub::version_number{1}; }));
  auto running = reader.stage_async(latest, 10s);
  CHECK(running.wait(10s).version == 1);
  static_cast<void>(reader.why());
  CHECK(reader.install().version == 1);
  const auto& expected = here.trainer.memory.words;
  CHECK(std::memcmp(reader.tensor("w"), expected.data(), expected.size() * 4) == 0);
  CHECK(reader.statistics().updates.of(errc::ok) + reader.stage_statistics().updates.of(errc::ok) == 1);
  CHECK(reader.cost().bytes >= 2 * expected.size() * 4);
  reader.unpublish();
  CHECK(reader.held_version() == 1);  // unpublished, and live as before
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
  refusal_of([&] { static_cast<void>(staged.tensor("w")); });

  hub::subscriber flipping{who(here.server.address(), "flipping"), subscriber_mode::double_buffered};
  CHECK(contains(refusal_of([&] { memory.add_to(flipping); }), "in mode in_place or staged"));
  refusal_of([&] { flipping.update(); });
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
  CHECK(seed.statistics().updates.of(errc::ok) >= 1);
  std::atomic<bool> has_ended{false};
  std::jthread waiting{[&] {
    CHECK(code_of([&] { seed.wait(2, 30s); }) == errc::cancelled);
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

TEST_CASE("every call: a worker that listens on another interface than its peers' default") {
  hub::reference_server server;
  tensorhub::transports::tcp_options everywhere{.listen_host = "0.0.0.0"};
  everywhere.advertised_host = "127.0.0.2";
  member<worker_of_both_doors> trainer{who(server.address(), "trainer-0"), 1000, everywhere};
  CHECK(contains(trainer.worker.data().address().text, "tcp://127.0.0.2:"));
  trainer.memory.fill(1);
  trainer.worker.publish(1);
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
