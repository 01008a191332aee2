/// \file exceptions.cpp
/// What is thrown by a callback, by a thread that cannot be started: an operation fails with an `error`, and
/// nothing else happens. No thread of the library ends the process, and what follows works.

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <future>
#include <new>
#include <stdexcept>
#include <string>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/leave_on_signal.hpp>
#include <tensorhub/server_client.hpp>
#include <thread>

#include "hub.hpp"
#include "support/few_allocations.hpp"
#include "support/few_threads.hpp"

using namespace system_tests;

namespace {

void throwing_log(const tensorhub::log_line&) {
  throw std::runtime_error{"the log's disk is full"};
}

}  // namespace

TEST_CASE("a trace that throws fails its update with an error; the next update works") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  std::atomic<bool> throws = true;
  auto options = who(server.address(), "rollout-0");
  options.trace = [&](const tensorhub::chunk_event&) {
    if (throws) throw std::runtime_error{"the trace is full"};
  };
  rollout reader{options};
  std::string sentence;
  CHECK(code_of([&] { reader.worker.update(latest, 5s); }, &sentence) == errc::system_failed);
  CHECK_MESSAGE(contains(sentence, "the trace callback of the worker's options has thrown"), sentence);
  CHECK(contains(sentence, "the trace is full"));
  throws = false;
  CHECK(reader.worker.update(latest, 20s).version == 1);
  CHECK(reader.memory.holds(1));
  CHECK_FALSE(source.worker.unpublish().forced);
}

TEST_CASE("logs that throw end no thread: server, worker, seeder") {
  hub::reference_server server{{.level = tensorhub::log_level::debug, .log = throwing_log}};
  auto options = who(server.address(), "seed");
  options.log = throwing_log;
  const hub::seeder early{options};  // there is no layout yet, which it logs
  std::this_thread::sleep_for(300ms);
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  options.replica = "rollout-0";
  rollout reader{options};
  CHECK(reader.worker.update(latest, 20s).version == 1);
  CHECK(reader.memory.holds(1));
}

TEST_CASE("leave_on_signal: its log gets one line at a time, and may forget a worker meanwhile") {
  struct stuck {
    void leave(std::chrono::milliseconds) { throw std::runtime_error{"stuck"}; }
  };
  std::array<stuck, 3> all{};
  std::atomic<int> lines = 0, running = 0;
  std::atomic<bool> forgets = true, overlap = false;
  std::array<std::future<void>, 3> forgetting{};
  tensorhub::leave_on_signal* self = nullptr;
  const auto log = [&](const tensorhub::log_line& line) {
    if (++running > 1) overlap = true;
    const auto number = static_cast<std::size_t>(lines++);
    CHECK(contains(line.text, "stuck"));
    if (number >= forgetting.size()) return;
    forgetting[number] = std::async(std::launch::async, [&, number] { self->forget(all[number]); });
    if (forgetting[number].wait_for(2s) != std::future_status::ready) forgets = false;
    --running;
  };
  tensorhub::leave_on_signal on_notice{1s, {SIGUSR1}, log};
  self = &on_notice;
  for (stuck& each : all) on_notice.watch(each);
  std::raise(SIGUSR1);
  for (int i = 0; i < 3000 && !on_notice.done(); ++i) std::this_thread::sleep_for(10ms);
  CHECK(on_notice.done());
  CHECK(lines == 3);
  CHECK(!overlap);
  CHECK(forgets);
}

#if TENSORHUB_UNDER_ADDRESS_SANITIZER

TEST_CASE("descriptors that cannot be had") {
  std::puts(
      "SKIPPED: system.exceptions: descriptors that cannot be had: the sanitizer needs some itself, to see "
      "whether memory can be read");
}

#else

TEST_CASE("descriptors that cannot be had: constructors fail with an error that says so, and then work") {
  const hub::reference_server server;
  const auto without_descriptors = [](auto&& make) {
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const tensorhub::detail::unique_fd lowest{::dup(STDERR_FILENO)};
    const rlimit few{static_cast<rlim_t>(lowest.get()) + 1, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const errc out = code_of(make);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    return out;
  };
  const auto make_server = [] { const hub::reference_server another; };
  const auto make_client = [&] {
    const tensorhub::server_client client{{server.address(), {}, tensorhub::process::separate()}};
  };
  const auto make_worker = [&] {
    auto options = who(server.address(), "rollout-0");
    options.process = tensorhub::process::separate();
    const rollout reader{options};
  };
  CHECK(without_descriptors(make_server) == errc::system_failed);
  CHECK(without_descriptors(make_client) == errc::system_failed);
  CHECK(without_descriptors(make_worker) != errc::ok);  // with the code of its transport
  CHECK(code_of(make_server) == errc::ok);
  CHECK(code_of(make_client) == errc::ok);
  CHECK(code_of(make_worker) == errc::ok);
}

#endif

#if TENSORHUB_MEMORY_CAN_FAIL

TEST_CASE("no memory to say how a transfer ended: the worker ends with an error, and is not busy") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  auto options = who(server.address(), "rollout-0");
  options.lanes = 1;
  options.trace = [](const tensorhub::chunk_event&) {
    allocations_left = 0;
    throw std::bad_alloc{};
  };
  {
    rollout reader{options};
    CHECK_THROWS(reader.worker.update(latest, 5s));
    allocations_left = -1;
    std::string sentence;
    CHECK(code_of([&] { reader.worker.update(latest, 5s); }, &sentence) == errc::system_failed);
    CHECK(contains(sentence, "construct a new worker"));
  }
  options.trace = {};
  rollout next{options};
  CHECK(next.worker.update(latest, 20s).version == 1);
  CHECK(next.memory.holds(1));
}

TEST_CASE("no memory for a leave: the worker has not left, and a later leave withdraws what it shows") {
  const hub::reference_server server;
  tensorhub::server_client asking{{.server = server.address()}};
  bool has_thrown = true;
  for (int left = 0; has_thrown; ++left) {
    CAPTURE(left);
    trainer source{who(server.address(), "trainer-0")};
    source.publish(1);
    try {
      const with_few_allocations few{left};
      source.worker.leave(100ms);
      has_thrown = false;
    } catch (const std::bad_alloc&) {
    }
    // What has begun without memory keeps it busy until its deadline.
    CHECK(comes_true([&] { return code_of([&] { source.worker.leave(5s); }) == errc::ok; }));
    CHECK(code_of([&] { static_cast<void>(asking.list("policy", 5s)); }) == errc::not_found);
  }
}

#else

TEST_CASE("no memory to say how a transfer ended") {
  std::puts("SKIPPED: system.exceptions: no memory: the sanitizer replaces operator new itself");
}

#endif

#if TENSORHUB_THREADS_CAN_FAIL

namespace {

using staged = member<staged_of<hub::subscriber>>;

struct without_threads {
  without_threads() { threads_left = 0; }
  ~without_threads() { threads_left = -1; }
};

}  // namespace

TEST_CASE("threads that cannot be started: publish and update do everything in the caller's thread") {
  constexpr std::size_t words = 4u << 20;  // many chunks
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), words};
  source.memory.fill(1);
  auto options = who(server.address(), "rollout-0");
  options.lanes = 3;
  rollout reader{options, words};
  source.worker.join();
  reader.worker.join();
  {
    const without_threads limit;
    CHECK(code_of([&] { source.worker.publish(1); }) == errc::ok);
    CHECK(code_of([&] { reader.worker.update(latest, 20s); }) == errc::ok);
  }
  CHECK(reader.memory.holds(1));
}

TEST_CASE("threads that cannot be started: a stage and leave_on_signal fail with an error, and then work") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.worker.publish(1);
  staged holder{who(server.address(), "rollout-0")};
  holder.worker.join();
  const auto take_signal = [] { const tensorhub::leave_on_signal on_notice{1s, {SIGUSR1}}; };
  {
    const without_threads limit;
    CHECK(code_of([&] { holder.worker.stage(latest, 5s); }) == errc::system_failed);
    CHECK(code_of(take_signal) == errc::system_failed);
  }
  CHECK(code_of(take_signal) == errc::ok);
  CHECK(holder.worker.stage(latest, 20s).version == 1);
}

TEST_CASE("threads that cannot be started: constructors fail with an error that says so") {
  const hub::reference_server server;
  const trainer source{who(server.address(), "trainer-0")};
  const auto says = [](auto&& make) {
    const without_threads limit;
    std::string sentence;
    CHECK(code_of(make, &sentence) == errc::system_failed);
    return contains(sentence, "a thread cannot be started");
  };
  auto apart = who(server.address(), "rollout-0");
  apart.process = tensorhub::process::separate();
  CHECK(says([&] { const hub::reference_server another; }));
  CHECK(says([&] { const hub::seeder seed{who(server.address(), "seed-0")}; }));
  CHECK(says([&] { const rollout reader{apart}; }));
  CHECK(says([&] { const tensorhub::server_client client{{server.address(), {}, apart.process}}; }));
}

/// With how many threads `make` works; with fewer it ends with an error that says so. (ZeroMQ ends the
/// process if it cannot start one of its own.)
template <typename Make>
static int threads_of(Make&& make) {
  for (int threads = 0;; ++threads) {
    CAPTURE(threads);
    std::string sentence;
    threads_left = threads;
    const errc ended = code_of(make, &sentence);
    threads_left = -1;
    if (ended == errc::ok) return threads;
    REQUIRE(ended == errc::system_failed);
    CHECK_MESSAGE(contains(sentence, "a thread cannot be started"), sentence);
  }
}

TEST_CASE("threads that cannot be started: a want of ZeroMQ's threads ends no process") {
  tensorhub::reference_server_options with_keys;
  with_keys.security =
      tensorhub::server_security{tensorhub::make_curve_keys(),
                                 {{tensorhub::make_curve_keys().public_key, tensorhub::client_rules{"x"}}}};
  CHECK(threads_of([] { const hub::reference_server plain; }) == 3);
  CHECK(threads_of([&] { const hub::reference_server guarded{with_keys}; }) == 5);
  CHECK(threads_of([] {
          const tensorhub::server_client client{{"tcp://127.0.0.1:9", {}, tensorhub::process::separate()}};
        }) == 3);
}

TEST_CASE("threads that cannot be started: those that leave on a signal share its grace") {
  struct slow {
    std::chrono::milliseconds given{-1};
    void leave(std::chrono::milliseconds grace) {
      given = grace;
      std::this_thread::sleep_for(grace);
    }
  };
  std::array<slow, 2> all{};
  tensorhub::leave_on_signal on_notice{500ms, {SIGUSR1}};
  for (slow& each : all) on_notice.watch(each);
  {
    const without_threads limit;
    std::raise(SIGUSR1);
    for (int i = 0; i < 3000 && !on_notice.done(); ++i) std::this_thread::sleep_for(10ms);
  }
  CHECK(all[0].given > 0ms);
  CHECK(all[1].given == 0ms);
}

TEST_CASE("threads that cannot be started: the last copy of a retained version is said to be lost") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  source.worker.retain(1);
  {
    const without_threads limit;
    CHECK(source.worker.unpublish(5s).lost);
  }
  source.publish(2);
  CHECK_FALSE(source.worker.unpublish().lost);
}

#else

TEST_CASE("threads that cannot be started") {
  std::puts(
      "SKIPPED: system.exceptions: threads that cannot be started: the sanitizer replaces pthread_create "
      "itself");
}

#endif
