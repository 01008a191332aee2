/// \file time_limits.cpp
/// Every time-out is the caller's: one look at the clock of every public call, with no server there, with one
/// that has gone, and with one that is there. The bounds are generous; each was broken by far once.

#include <doctest/doctest.h>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tensorhub/leave_on_signal.hpp>
#include <tensorhub/shared_copy.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "hub.hpp"
#include "support/sanitizers.hpp"

using namespace system_tests;
using std::chrono::milliseconds;
using tensorhub::snapshot;
using tensorhub::version_number;

namespace {

constexpr milliseconds given = 100ms;       // what most calls are given
constexpr milliseconds generous = 10s;      // for a loaded machine, beyond that; `patient` is 30 s
constexpr milliseconds at_once = generous;  // of what waits for nothing

constexpr std::size_t large_words = 1u << 20;
constexpr std::uint64_t begun_bytes = 3u << 20;

const std::string nobody = "tcp://127.0.0.1:9";  // discard: nobody listens there

using gate_pointer = std::shared_ptr<tensorhub::testing::read_gate>;

/// How a call has ended, and when.
struct outcome {
  errc code;
  std::string sentence;
  milliseconds took;
};

template <typename Call>
outcome outcome_of(Call&& call) {
  const auto started = std::chrono::steady_clock::now();
  outcome seen{};
  seen.code = code_of(call, &seen.sentence);
  seen.took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - started);
  return seen;
}
/// How long `call` takes, which is to end in this way.
template <typename Call>
milliseconds time_of(Call&& call, errc expected = errc::ok) {
  const outcome seen = outcome_of(call);
  CHECK_MESSAGE(seen.code == expected, seen.sentence);
  return seen.took;
}

struct timed_call {
  std::string name;
  std::function<void()> call;
  milliseconds most;
  errc answered = errc::ok;   ///< how it ends with a server there
  bool is_by_itself = false;  ///< it ends so without a server, too, unless it has something to tell one
};

void check_all(const std::vector<timed_call>& calls, bool is_served) {
  for (const timed_call& each : calls) {
    const outcome seen = outcome_of(each.call);
    const bool is_unanswered = seen.code == errc::disconnected || seen.code == errc::timed_out;
    if (is_served)  // a loaded machine may need all of a call's time
      CHECK_MESSAGE((seen.code == each.answered || (is_unanswered && seen.took >= given)),
                    each.name << ": " << seen.sentence);
    else if (each.is_by_itself)
      CHECK_MESSAGE((seen.code == each.answered || seen.code == errc::disconnected),
                    each.name << ": " << seen.sentence);
    else
      CHECK_MESSAGE(is_unanswered, each.name << ": " << to_string(seen.code) << " " << seen.sentence);
    CHECK_MESSAGE(seen.took <= each.most, each.name << " took " << seen.took.count()
                                                    << " ms, expected at most " << each.most.count()
                                                    << " ms");
  }
}

/// Everything that a worker can ask the server, of any door.
template <typename Worker>
void add_questions(std::vector<timed_call>& calls, Worker& worker, const std::string& door) {
  const milliseconds most = given + generous;
  calls.push_back({door + "::wait", [&] { worker.wait(at_least(9), given); }, most, errc::timed_out});
  calls.push_back({door + "::list", [&] { static_cast<void>(worker.list("policy", given)); }, most});
  calls.push_back({door + "::describe_model", [&] { static_cast<void>(worker.describe_model(7, given)); },
                   most, errc::timed_out});
  calls.push_back({door + "::why", [&] { static_cast<void>(worker.why(given)); }, most});
  calls.push_back({door + "::stuck", [&] { static_cast<void>(worker.stuck(0ms, given)); }, most});
  calls.push_back({door + "::retain", [&] { worker.retain(1, given); }, most});
  calls.push_back({door + "::pin", [&] { worker.pin(3, given); }, most});
  calls.push_back({door + "::release", [&] { worker.release(3, given); }, most});
}
template <typename Worker>
void add_reading(std::vector<timed_call>& calls, Worker& worker, const std::string& door) {
  const milliseconds most = given + generous;
  calls.push_back({door + "::update", [&] { worker.update(at_least(9), given); }, most, errc::timed_out});
  calls.push_back({door + "::newer", [&] { static_cast<void>(worker.newer()); }, at_once, errc::ok, true});
}
template <typename Worker>
void add_staging(std::vector<timed_call>& calls, Worker& worker, const std::string& door) {
  const milliseconds most = given + generous;
  calls.push_back({door + "::stage", [&] { worker.stage(at_least(9), given); }, most, errc::timed_out});
  calls.push_back({door + "::stage_async",
                   [&] { static_cast<void>(worker.stage_async(at_least(9), given).wait(60s)); }, most,
                   errc::timed_out});
  calls.push_back({door + "::newer", [&] { static_cast<void>(worker.newer()); }, at_once, errc::ok, true});
}

using staged = member<staged_of<hub::subscriber>>;

/// A double-buffered subscriber allocates its own memory.
struct flipping {
  double_buffered_of<hub::subscriber> worker;
  explicit flipping(const tensorhub::worker_options& options, std::size_t words = 1000) : worker{options} {
    worker.add("mapped", {words}, tensorhub::dtype::u64);  // as `weights`
    worker.add("bias", {17}, tensorhub::dtype::u16);
    worker.add("plain", {words / 2 + 1, 1}, tensorhub::dtype::u64);
    worker.add("norm", {3}, tensorhub::dtype::u8);
    worker.add("nothing", {0}, tensorhub::dtype::f32);
  }
};

/// Runs `call` in a thread of its own, and interrupts its worker until it has ended. Returns how it
/// has ended.
template <typename Worker, typename Call>
outcome interrupted(Worker& worker, Call&& call) {
  std::atomic<bool> ended = false;
  outcome seen{};
  {
    const std::jthread running{[&] {
      seen = outcome_of(call);
      ended = true;
    }};
    std::this_thread::sleep_for(100ms);
    while (!ended) {
      worker.interrupt();
      std::this_thread::sleep_for(20ms);
    }
  }
  return seen;
}

/// One of each door, and every call of each.
struct every_door {
  trainer publishing;
  rollout reading;
  staged staging;
  flipping flipping_sides;
  std::optional<hub::seeder> seeding;

  explicit every_door(const std::function<tensorhub::worker_options(std::string)>& options)
      : publishing{options("trainer-1"), 1000},
        reading{options("rollout-1"), 1000},
        staging{options("rollout-2"), 1000},
        flipping_sides{options("rollout-3")} {
    seeding.emplace(options("seed"));
  }

  [[nodiscard]] std::vector<timed_call> calls() {
    const milliseconds most = given + generous;
    std::vector<timed_call> all;
    add_questions(all, publishing.worker, "publisher");
    add_questions(all, reading.worker, "subscriber");
    add_questions(all, staging.worker, "staged subscriber");
    add_questions(all, flipping_sides.worker, "double-buffered subscriber");
    add_reading(all, reading.worker, "subscriber");
    all.push_back({"subscriber::update_async",
                   [&] { static_cast<void>(reading.worker.update_async(at_least(9), given).wait(60s)); },
                   most, errc::timed_out});
    add_reading(all, staging.worker, "staged subscriber");
    add_reading(all, flipping_sides.worker, "double-buffered subscriber");
    add_staging(all, staging.worker, "staged subscriber");
    add_staging(all, flipping_sides.worker, "double-buffered subscriber");
    all.push_back({"publisher::publish", [&] { publishing.worker.publish(1, given); }, most});
    all.push_back(
        {"publisher::wait_held", [&] { publishing.worker.wait_held(9, 1, given); }, most, errc::timed_out});
    all.push_back(
        {"publisher::unpublish", [&] { publishing.worker.unpublish(given); }, most, errc::ok, true});
    all.push_back(
        {"publisher::publish, snapshot", [&] { publishing.worker.publish(2, snapshot, given); }, most});
    all.push_back({"publisher::unpublish, snapshot", [&] { publishing.worker.unpublish(given); }, most,
                   errc::ok, true});
    all.push_back(
        {"staged subscriber::install", [&] { staging.worker.install(given); }, most, errc::not_found, true});
    all.push_back({"staged subscriber::release_stage", [&] { staging.worker.release_stage(given); }, most,
                   errc::ok, true});
    all.push_back({"double-buffered subscriber::install", [&] { flipping_sides.worker.install(); }, at_once,
                   errc::not_found, true});
    all.push_back({"double-buffered subscriber::unpublish", [&] { flipping_sides.worker.unpublish(given); },
                   most, errc::ok, true});
    all.push_back({"seeder::wait", [&] { seeding->wait(9, given); }, most, errc::timed_out});
    all.push_back({"publisher::leave", [&] { publishing.worker.leave(given); }, most, errc::ok, true});
    all.push_back({"subscriber::leave", [&] { reading.worker.leave(given); }, most, errc::ok, true});
    all.push_back({"staged subscriber::leave", [&] { staging.worker.leave(given); }, most, errc::ok, true});
    all.push_back({"double-buffered subscriber::leave", [&] { flipping_sides.worker.leave(given); }, most,
                   errc::ok, true});
    return all;
  }
};

tensorhub::worker_options patient(const std::string& server, std::string replica) {
  tensorhub::worker_options options = who(server, std::move(replica));
  options.join_timeout = 30s;
  return options;
}

}  // namespace

TEST_CASE("time-outs: with no server there every call ends within its own, and newer() at once") {
  every_door doors{[](std::string replica) { return patient(nobody, std::move(replica)); }};
  check_all(doors.calls(), false);
  CHECK(time_of([&] { doors.seeding.reset(); }) <= given + generous);
}

TEST_CASE("time-outs: a call that joins first ends within its own") {
  tensorhub::shared_copy<tensorhub::transports::tcp> copy{patient(nobody, "host-0"),
                                                          "time-limits-" + std::to_string(::getpid())};
  copy.add("w", {4}, tensorhub::dtype::u64);
  CHECK(time_of([&] { copy.update(latest, given); }, errc::disconnected) <= given + generous);
  hub::arena_publisher arena{patient(nobody, "trainer-0")};
  arena.add("w", {4}, tensorhub::dtype::u64);
  CHECK(time_of([&] { arena.commit(1, given); }, errc::disconnected) <= given + generous);
}

TEST_CASE("time-outs: with a server there that has nothing to tell") {
  hub::reference_server server;
  every_door doors{[&](std::string replica) { return patient(server.address(), std::move(replica)); }};
  check_all(doors.calls(), true);
  CHECK(time_of([&] { doors.seeding.reset(); }) <= given + generous);
}

TEST_CASE("time-outs: with a server that has gone since") {
  auto server = std::make_unique<hub::reference_server>();
  every_door doors{[&](std::string replica) { return patient(server->address(), std::move(replica)); }};
  trainer source{patient(server->address(), "trainer-0"), 1000};
  source.worker.publish(1);
  CHECK(doors.reading.worker.update(latest, 20s).version == 1);
  CHECK(doors.staging.worker.stage(latest, 20s).version == 1);
  doors.flipping_sides.worker.join();
  server.reset();
  SUBCASE("each call") {
    check_all(doors.calls(), false);
    CHECK(time_of([&] { source.worker.leave(given); }, errc::disconnected) <= given + generous);
  }
  SUBCASE("an update that is cancelled") {
    auto running = doors.reading.worker.update_async(at_least(9), 60s);
    std::this_thread::sleep_for(50ms);
    running.cancel();
    // Two intervals of request_retry.
    CHECK(time_of([&] { running.wait(60s); }, errc::cancelled) <= 2s + generous);
  }
  SUBCASE("an update that is cancelled while it joins") {
    rollout late{patient(nobody, "rollout-4"), 1000};
    auto running = late.worker.update_async(latest, 60s);
    std::this_thread::sleep_for(50ms);
    running.cancel();
    CHECK(time_of([&] { running.wait(60s); }, errc::cancelled) <= generous);
  }
  SUBCASE("the ends of all objects") {}
}

TEST_CASE("time-outs: readers that do not end hold nobody longer than its call may take") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), large_words};
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
  gated_rollout slow{patient(server.address(), "rollout-0"), large_words, {.gate = gate}};
  SUBCASE("unpublish") {
    source.worker.publish(1);
    auto reading = slow.worker.update_async(exactly(1), 60s);
    REQUIRE(gate->wait_until_shut(20s));
    tensorhub::unpublish_report report;
    CHECK(time_of([&] { report = source.worker.unpublish(given); }) <= given + generous);
    CHECK(report.forced);
    CHECK_FALSE(report.lost);  // nothing is retained
    gate->open();
  }
  SUBCASE("an update of the worker that is read: the readers of its old version") {
    source.worker.publish(1);
    rollout middle{patient(server.address(), "rollout-1"), large_words};
    CHECK(middle.worker.update(exactly(1), 20s).version == 1);
    source.worker.unpublish();
    auto reading = slow.worker.update_async(exactly(1), 60s);
    REQUIRE(gate->wait_until_shut(20s));
    source.worker.publish(2);
    CHECK(time_of([&] { middle.worker.update(exactly(2), given); }, errc::timed_out) <= given + generous);
    gate->open();
  }
  SUBCASE("leave") {
    source.worker.publish(1);
    auto reading = slow.worker.update_async(exactly(1), 60s);
    REQUIRE(gate->wait_until_shut(20s));
    CHECK(time_of([&] { source.worker.leave(given); }) <= given + generous);
    gate->open();
  }
  SUBCASE("leave of a publisher with two snapshots: one deadline for all of it") {
    constexpr milliseconds grace = 5s;
    const auto second_gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
    gated_rollout second{patient(server.address(), "rollout-2"), large_words, {.gate = second_gate}};
    source.worker.publish(1, snapshot);
    auto reading = slow.worker.update_async(exactly(1), 60s);
    REQUIRE(gate->wait_until_shut(20s));
    source.worker.publish(2, snapshot);
    auto reading_second = second.worker.update_async(exactly(2), 60s);
    REQUIRE(second_gate->wait_until_shut(20s));
    CHECK(time_of([&] { source.worker.leave(grace); }) < 2 * grace);
    gate->open();
    second_gate->open();
  }
}

TEST_CASE("interrupt: whatever a call of another thread waits for, the call ends") {
  const auto check = [](auto& worker, const std::string& name, auto&& call, errc expected = errc::cancelled) {
    const outcome seen = interrupted(worker, call);
    CHECK_MESSAGE(seen.code == expected, name << ": " << seen.sentence);
    CHECK_MESSAGE(seen.took <= generous, name << " took " << seen.took.count() << " ms");
  };
  std::optional<hub::reference_server> server;
  bool is_there = false;
  SUBCASE("with no server there") {}
  SUBCASE("with a server there that has nothing to tell") {
    is_there = true;
  }
  if (is_there) server.emplace();
  const auto options = [&](std::string replica) {
    return patient(is_there ? server->address() : nobody, std::move(replica));
  };
  trainer publishing{options("trainer-1"), 1000};
  rollout reading{options("rollout-1"), 1000};
  staged staging{options("rollout-2"), 1000};
  flipping sides{options("rollout-3")};
  check(reading.worker, "update", [&] { reading.worker.update(at_least(9), 60s); });
  check(reading.worker, "wait", [&] { reading.worker.wait(at_least(9), 60s); });
  check(staging.worker, "stage", [&] { staging.worker.stage(at_least(9), 60s); });
  check(sides.worker, "double-buffered stage", [&] { sides.worker.stage(at_least(9), 60s); });
  if (is_there) return;  // it answers the following at once
  check(publishing.worker, "publish", [&] { publishing.worker.publish(1, 60s); });
  check(publishing.worker, "publish a snapshot", [&] { publishing.worker.publish(1, snapshot, 60s); });
  check(reading.worker, "list", [&] { static_cast<void>(reading.worker.list("policy", 60s)); });
  check(reading.worker, "why", [&] { static_cast<void>(reading.worker.why(60s)); });
  check(publishing.worker, "retain", [&] { publishing.worker.retain(1, 60s); });
  // As at its deadline.
  check(
      publishing.worker, "leave", [&] { publishing.worker.leave(60s); }, errc::ok);
}

TEST_CASE("interrupt: a publish that waits for a server that has gone is cancelled") {
  std::optional<hub::reference_server> server{std::in_place};
  trainer publishing{patient(server->address(), "trainer-1"), 1000};
  publishing.worker.join();
  server.reset();
  const outcome seen = interrupted(publishing.worker, [&] { publishing.worker.publish(1, 60s); });
  CHECK_MESSAGE(seen.code == errc::cancelled, seen.sentence);
  CHECK_MESSAGE(seen.took <= generous, "it took " << seen.took.count() << " ms");
  CHECK_FALSE(publishing.worker.held_version());
}

TEST_CASE("interrupt: an unpublish and a leave end as at their deadline, and the memory is the caller's") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), large_words};
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
  gated_rollout slow{patient(server.address(), "rollout-0"), large_words, {.gate = gate}};
  source.worker.publish(1);
  auto reading = slow.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  tensorhub::unpublish_report report;
  outcome ended{};
  SUBCASE("unpublish") {
    ended = interrupted(source.worker, [&] { report = source.worker.unpublish(60s); });
  }
  SUBCASE("leave") {
    ended = interrupted(source.worker, [&] { report = source.worker.leave(60s); });
  }
  CHECK_MESSAGE(ended.code == errc::ok, ended.sentence);
  CHECK(ended.took <= generous);
  CHECK(report.forced);
  gate->open();
  CHECK(code_of([&] { reading.wait(20s); }) != errc::ok);
}

TEST_CASE("a handle's descriptor is readable once the update has ended") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), 1000};
  rollout reader{patient(server.address(), "rollout-0"), 1000};
  const auto is_readable = [](int descriptor, milliseconds longest) {
    pollfd entry{descriptor, POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(longest.count())) == 1;
  };
  auto running = reader.worker.update_async(at_least(1), 60s);
  CHECK_FALSE(is_readable(running.descriptor(), 100ms));
  source.worker.publish(1);
  CHECK(is_readable(running.descriptor(), 20s));
  CHECK(running.done());
  CHECK(running.wait(0ms).version == 1);
  const auto ended = reader.worker.update_async(latest, 20s);
  while (!ended.done()) std::this_thread::sleep_for(1ms);
  CHECK(is_readable(ended.descriptor(), 0ms));  // asked for afterwards
}

TEST_CASE("time-outs: the end of a process that takes a version into host memory, and the server has gone") {
  auto server = std::make_unique<hub::reference_server>();
  auto without_room = patient(server->address(), "trainer-0");
  without_room.offload_limit_bytes = 100;
  trainer source{without_room, 1000};
  // What it takes, it cannot read.
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(0);
  std::optional<gated_rollout> host;
  host.emplace(patient(server->address(), "rollout-0"), 1000,
               gated_hub::subscriber::transport_options{.gate = gate});
  host->worker.join();
  source.worker.publish(1);
  source.worker.retain(1);
  std::jthread lets_go{[&] { CHECK(source.worker.unpublish(60s).forced); }};
  for (int i = 0; i < 2000 && host->worker.offloaded_bytes() == 0; ++i) std::this_thread::sleep_for(10ms);
  CHECK(host->worker.offloaded_bytes() > 0);
  source.worker.interrupt();
  lets_go.join();
  server.reset();
  CHECK(time_of([&] { host.reset(); }) <= generous);
}

TEST_CASE("leave: an update that runs is cancelled first, and the worker has left by the grace") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), large_words};
  source.publish(1);
  const auto is_listed = [&](const std::string& replica) {
    for (const auto& model : source.worker.list("policy"))
      for (const auto& each : model.replicas)
        if (each.name == replica && each.shards_joined > 0) return true;
    return false;
  };
  SUBCASE("while it waits for a version") {
    rollout leaving{patient(server.address(), "rollout-0"), large_words};
    CHECK(leaving.worker.update(latest, 20s).version == 1);
    auto running = leaving.worker.update_async(at_least(2), 60s);
    CHECK(time_of([&] { leaving.worker.leave(2s); }) <= 2s + generous);
    CHECK(code_of([&] { running.wait(5s); }) == errc::cancelled);
    CHECK_FALSE(is_listed("rollout-0"));
    CHECK(code_of([&] { leaving.worker.update(latest, 1s); }) == errc::invalid_argument);  // it has left
  }
  SUBCASE("while it reads") {
    const auto gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
    gated_rollout leaving{patient(server.address(), "rollout-0"), large_words, {.gate = gate}};
    auto running = leaving.worker.update_async(exactly(1), 60s);
    REQUIRE(gate->wait_until_shut(20s));
    CHECK(time_of([&] { leaving.worker.leave(2s); }) <= 2s + generous);
    CHECK(code_of([&] { running.wait(5s); }) == errc::cancelled);
    CHECK_FALSE(is_listed("rollout-0"));
    CHECK_FALSE(source.worker.unpublish(5s).forced);  // no lease is left
  }
  SUBCASE("while it stages") {
    staged leaving{patient(server.address(), "rollout-0"), large_words};
    CHECK(leaving.worker.update(latest, 20s).version == 1);
    auto running = leaving.worker.stage_async(at_least(2), 60s);
    CHECK(time_of([&] { leaving.worker.leave(2s); }) <= 2s + generous);
    CHECK(code_of([&] { running.wait(5s); }) == errc::cancelled);
    CHECK_FALSE(is_listed("rollout-0"));
    CHECK_FALSE(is_listed("rollout-0@stage"));
  }
  SUBCASE("while it stages into one of two memories") {
    flipping leaving{patient(server.address(), "rollout-0"), large_words};
    leaving.worker.join();
    auto running = leaving.worker.stage_async(at_least(2), 60s);
    CHECK(time_of([&] { leaving.worker.leave(2s); }) <= 2s + generous);
    CHECK(code_of([&] { running.wait(5s); }) != errc::ok);
    CHECK_FALSE(is_listed("rollout-0@a"));
    CHECK_FALSE(is_listed("rollout-0@b"));
  }
  SUBCASE("while it waits for the server's first answer") {
    rollout leaving{patient(nobody, "rollout-0"), 1000};
    auto running = leaving.worker.update_async(latest, 60s);
    std::this_thread::sleep_for(100ms);
    CHECK(time_of([&] { leaving.worker.leave(1s); }) <= 1s + generous);
    CHECK(code_of([&] { running.wait(5s); }) == errc::cancelled);
  }
}

TEST_CASE("leave_on_signal: workers that are busy leave, too, all within the grace") {
  hub::reference_server server;
  tensorhub::leave_on_signal on_notice{2s};
  trainer source{patient(server.address(), "trainer-0"), 1000};
  source.worker.publish(1);
  rollout waiting{patient(server.address(), "rollout-0"), 1000};
  staged staging{patient(server.address(), "rollout-1"), 1000};
  on_notice.watch(source.worker);
  on_notice.watch(waiting.worker);
  on_notice.watch(staging.worker);
  auto updating = waiting.worker.update_async(at_least(2), 60s);
  auto being_staged = staging.worker.stage_async(at_least(2), 60s);
  std::this_thread::sleep_for(200ms);
  const auto started = std::chrono::steady_clock::now();
  REQUIRE(::kill(::getpid(), SIGTERM) == 0);
  while (!on_notice.done() && std::chrono::steady_clock::now() < started + 30s)
    std::this_thread::sleep_for(10ms);
  CHECK(std::chrono::steady_clock::now() - started <= 2s + generous);
  CHECK(code_of([&] { updating.wait(5s); }) == errc::cancelled);
  CHECK(code_of([&] { being_staged.wait(5s); }) == errc::cancelled);
  rollout asking{patient(server.address(), "rollout-2"), 1000};
  for (const auto& model : asking.worker.list())
    for (const auto& replica : model.replicas) CHECK_MESSAGE(replica.shards_joined == 0, replica.name);
}

TEST_CASE("leave_on_signal: a program that this process executes ends at a SIGTERM of its own") {
  struct handling {
    void (*before)(int) = std::signal(SIGTERM, SIG_DFL);
    ~handling() { std::signal(SIGTERM, before); }
  } const not_that_of_the_tests;
  const tensorhub::leave_on_signal on_notice{2s};
  const auto status_of = [](auto&& run) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      run();
      ::_exit(7);
    }
    std::this_thread::sleep_for(200ms);
    CHECK(::kill(child, SIGTERM) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
  };
  const int executed = status_of([] { ::execlp("sleep", "sleep", "3", nullptr); });
  CHECK((WIFSIGNALED(executed) && WTERMSIG(executed) == SIGTERM));
#if TENSORHUB_UNDER_THREAD_SANITIZER
  std::puts(
      "SKIPPED: system.time_limits: a child that is only forked: the thread sanitizer delivers its signals "
      "late");
#else
  const int forked = status_of([] { ::sleep(3); });  // as if the signal were not taken
  CHECK((WIFSIGNALED(forked) && WTERMSIG(forked) == SIGTERM));
  const int with_its_own = status_of([] {
    try {
      const tensorhub::leave_on_signal own{2s};
      while (!own.requested()) ::usleep(10'000);
      ::_exit(9);
    } catch (const tensorhub::error&) {
      ::_exit(8);
    }
  });
  CHECK((WIFEXITED(with_its_own) && WEXITSTATUS(with_its_own) == 9));
#endif
  CHECK_FALSE(on_notice.requested());
}

TEST_CASE("newer() asks in the background before the worker has joined, and never says busy") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), 1000};
  source.worker.publish(4);
  SUBCASE("it learns of a version without joining") {
    rollout asking{patient(server.address(), "rollout-0"), 1000};
    std::optional<version_number> newer;
    for (int tries = 0; tries < 400 && !newer; ++tries) {
      CHECK(time_of([&] { newer = asking.worker.newer(); }) <= at_once);
      std::this_thread::sleep_for(10ms);
    }
    CHECK(newer == version_number{4});
    CHECK(source.worker.list("policy").front().replicas.size() == 1);
  }
  SUBCASE("beside an update that joins") {
    rollout asking{patient(nobody, "rollout-0"), 1000};
    auto running = asking.worker.update_async(latest, 2s);
    CHECK(code_of([&] { CHECK(!asking.worker.newer()); }) == errc::ok);
  }
}

TEST_CASE("calls that only join say busy for no other call, and no other call says busy for them") {
  rollout asking{patient(nobody, "rollout-0"), 1000};
  SUBCASE("beside an update") {
    auto running = asking.worker.update_async(latest, 2s);
    CHECK(code_of([&] { asking.worker.wait(at_least(1), given); }) == errc::disconnected);
    CHECK(code_of([&] { asking.worker.pin(3, given); }) == errc::disconnected);
    running.cancel();  // ends its own call alone
    CHECK(code_of([&] { asking.worker.wait(at_least(1), given); }) == errc::disconnected);
  }
  SUBCASE("before an update, and beside each other") {
    const auto waits = [&] { CHECK(code_of([&] { asking.worker.wait(latest, 1s); }) == errc::disconnected); };
    const std::jthread first{waits}, second{waits};
    std::this_thread::sleep_for(100ms);
    CHECK(code_of([&] { asking.worker.update(latest, given); }) == errc::disconnected);
  }
}

TEST_CASE("a call that is repeated ends by one interrupt, also between two attempts") {
  auto options = patient(nobody, "rollout-0");
  options.join_timeout = given;
  rollout asking{options, 1000};
  errc outcome = errc::ok;
  std::chrono::steady_clock::time_point ended;
  std::jthread repeating{[&] {
    outcome = code_of([&] { asking.worker.update(latest, tensorhub::retry, 60s); });
    ended = std::chrono::steady_clock::now();
  }};
  std::this_thread::sleep_for(2500ms);  // pauses of a second by now
  const auto interrupted_at = std::chrono::steady_clock::now();
  asking.worker.interrupt();
  repeating.join();
  CHECK(outcome == errc::cancelled);
  CHECK(ended - interrupted_at <= generous);
}

TEST_CASE("a double-buffered subscriber joins beside a stage, and unpublishes nothing beside one") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), 1000};
  source.worker.publish(1);
  flipping rollout{patient(server.address(), "rollout-0")};
  CHECK(rollout.worker.stage(latest, 20s).version == 1);
  rollout.worker.install();
  auto running = rollout.worker.stage_async(at_least(2), 60s);
  CHECK(code_of([&] { rollout.worker.join(); }) == errc::ok);
  CHECK(code_of([&] { rollout.worker.retain(0, 20s); }) == errc::ok);
  CHECK(code_of([&] { rollout.worker.unpublish(); }) == errc::busy);
  CHECK(source.worker.list("policy").front().replicas.size() == 3);
  source.worker.unpublish();
  CHECK(code_of([&] { rollout.worker.wait(exactly(1), 1s); }) == errc::ok);  // the live side shows it
  running.cancel();
}

TEST_CASE("the end of a process does not wait for a copy of its own that a silent server has ordered") {
  std::atomic<bool> is_deaf = false;
  hub::reference_server server{{.log =
                                    [&](const tensorhub::log_line& line) {
                                      if (contains(line.text, "takes it into host memory")) is_deaf = true;
                                    },
                                .may_serve = [&] { return !is_deaf.load(); }}};
  std::optional<trainer> source;
  source.emplace(patient(server.address(), "trainer-0"), 1000);
  source->worker.publish(1);
  source->worker.retain(1);
  CHECK(source->worker.unpublish(1s).forced);
  REQUIRE(is_deaf);
  CHECK(time_of([&] { source.reset(); }) <= generous);
}

TEST_CASE("update(latest) takes what is there now, or keeps what is held: it waits for nothing that is not") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), 1000};
  rollout reader{patient(server.address(), "rollout-0"), 1000};
  source.worker.publish(1);
  CHECK(reader.worker.update(latest, 20s).version == 1);
  source.worker.unpublish();
  source.worker.publish(2);
  source.worker.unpublish();  // hidden again before the reader has asked
  for (int tries = 0; tries < 400 && !reader.worker.newer(); ++tries) std::this_thread::sleep_for(5ms);
  CHECK(reader.worker.newer() == version_number{2});
  tensorhub::update_report report;
  CHECK(time_of([&] { report = reader.worker.update(latest, 60s); }) <= at_once);
  CHECK(report.kept);
  CHECK(report.version == 1);
}

TEST_CASE("a handle that another one is assigned to cancels its update, as its end does") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), 1000};
  source.worker.publish(1);
  rollout first{patient(server.address(), "rollout-0"), 1000};
  rollout second{patient(server.address(), "rollout-1"), 1000};
  auto running = first.worker.update_async(at_least(5), 60s);
  CHECK(time_of([&] { running = second.worker.update_async(latest, 20s); }) <= generous);
  CHECK(running.wait(20s).version == 1);
  CHECK(first.worker.update(latest, 20s).version == 1);  // its own has ended
}

TEST_CASE("a worker may be destroyed once its update has ended, while another thread cancels that") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), 1000};
  source.worker.publish(1);
  for (int round = 0; round < 20; ++round) {
    auto reader = std::make_unique<rollout>(patient(server.address(), "rollout-0"), 1000);
    auto running = reader->worker.update_async(latest, 20s);
    const std::jthread canceller{[&] {
      std::this_thread::sleep_for(round * 1ms);
      do running.cancel();
      while (!running.done());
    }};
    const errc code = code_of([&] { static_cast<void>(running.wait(20s)); });
    reader.reset();
    CHECK((code == errc::ok || code == errc::cancelled));
  }
}

TEST_CASE("the handle of an update that has ended may be destroyed after its worker") {
  hub::reference_server server;
  trainer source{patient(server.address(), "trainer-0"), 1000};
  source.worker.publish(1);
  std::optional<rollout> reader{std::in_place, patient(server.address(), "rollout-0"), 1000};
  auto ended = reader->worker.update_async(latest, 20s);
  CHECK(ended.wait(20s).version == 1);
  reader.reset();
  ended.cancel();  // of nothing
  CHECK(ended.done());
}

TEST_CASE("time-outs: the largest one means for ever, and is not over at once") {
  constexpr milliseconds for_ever = milliseconds::max();
  hub::reference_server server{
      {.catalog = {.worker_timeout = for_ever, .progress_timeout = for_ever, .group_timeout = for_ever}}};
  auto patient_for_ever = patient(server.address(), "rollout-0");
  patient_for_ever.join_timeout = patient_for_ever.drain_timeout = for_ever;
  patient_for_ever.connect_timeout = patient_for_ever.request_retry = for_ever;
  trainer source{patient(server.address(), "trainer-0"), large_words};
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(begun_bytes);
  gated_rollout slow{patient_for_ever, large_words, {.inner = {.peer_timeout = for_ever}, .gate = gate}};
  version_number seen{};
  errc ended = errc::ok;
  {
    const std::jthread waiting{
        [&] { ended = code_of([&] { seen = slow.worker.wait(at_least(2), for_ever); }); }};
    std::this_thread::sleep_for(given);
    CHECK(code_of([&] { source.worker.publish(2, for_ever); }) == errc::ok);
  }
  CHECK(ended == errc::ok);
  CHECK(seen == 2);
  auto reading = slow.worker.update_async(exactly(2), for_ever);
  REQUIRE(gate->wait_until_shut(20s));
  auto arriving = reading.tensors(std::vector<std::string>{"mapped"});
  const std::jthread opening{[&] {
    std::this_thread::sleep_for(3 * given);
    gate->open();
  }};
  tensorhub::unpublish_report report;
  CHECK(time_of([&] { report = source.worker.unpublish(for_ever); }) >= given);
  CHECK_FALSE(report.forced);
  CHECK(code_of([&] { CHECK(arriving.next(for_ever).has_value()); }) == errc::ok);
  CHECK(code_of([&] { CHECK(reading.wait(for_ever).version == 2); }) == errc::ok);
  CHECK(code_of([&] { source.worker.leave(for_ever); }) == errc::ok);
}
