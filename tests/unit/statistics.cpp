/// \file statistics.cpp
/// Counters and histograms: what the catalog counts, buckets, and values that threads share.

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "catalog_driver.hpp"
#include "tensorhub/service/recorders.hpp"
#include "tensorhub/service/statistics.hpp"
#include "tensorhub/worker/recorder.hpp"

using namespace catalog_test;

TEST_CASE("statistics: the catalog counts what was done, once") {
  driver<> server{{.heartbeat_interval = 200ms, .worker_timeout = 1000ms}};
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  REQUIRE(server.publish(trainer, 1).ok());
  const auto source = server.start_update(reader);
  CHECK(server.core.statistics().leases == 1);
  CHECK(server.core.statistics().operations == 1);
  const auto sequence = server.finish(reader, source);
  server.send_as(reader, sequence, messages::finish_request{});  // a repetition
  server.update(reader);                                         // keeps
  const auto waiting = server.update(reader, exactly(9), 500ms);
  server.pass_alive(800ms, {trainer, reader});
  REQUIRE(server.answer<messages::update_reply>(reader, waiting).has_value());
  server.unpublish(trainer, 1);
  auto seen = server.core.statistics();
  CHECK(seen.workers == 2);
  CHECK(seen.replicas == 2);
  CHECK(seen.models == 1);
  CHECK(seen.leases == 0);
  CHECK(seen.workers_joined == 2);
  CHECK(seen.publishes.of(errc::ok) == 1);
  CHECK(seen.updates.of(errc::ok) == 2);
  CHECK(seen.updates_kept == 1);
  CHECK(seen.updates.of(errc::timed_out) == 1);
  CHECK(seen.updates.failed() == 1);
  CHECK(seen.assignments == 1);
  CHECK(seen.drain.count() == 1);
  CHECK(seen.update_wait.count() == 3);
  CHECK(seen.update_wait.sum_seconds() >= 0.5);
  CHECK(seen.update_wait.sum_seconds() < 0.7);
  for (int i = 0; i < 20; ++i) {
    server.send_as(reader, 0, messages::heartbeat_request{});
    server.pass(100ms);
  }
  seen = server.core.statistics();
  CHECK(seen.workers_dead == 1);
  CHECK(seen.workers == 1);
  server.send(reader, messages::leave_request{});
  CHECK(server.core.statistics().workers_left == 1);
  auto refused = server.join_message("x");
  refused.form.consistency = "other";
  server.send(incarnation{7}, refused);
  CHECK(server.core.statistics().joins_refused.of(errc::policy_mismatch) == 1);
}

TEST_CASE("statistics: an update that kept its version is counted as such at once") {
  worker_recorder recorder;
  std::atomic<bool> ends = false;
  std::jthread updates{[&] {
    while (!ends) static_cast<void>(recorder.update([] { return update_report{.kept = true}; }));
  }};
  std::uint64_t others = 0;
  for (int i = 0; i < 100'000; ++i) {
    const worker_statistics seen = recorder.values({}, {});
    others += seen.updates.of(errc::ok) == seen.updates_kept ? 0 : 1;
  }
  ends = true;
  CHECK(others == 0);  // a scrape would take them for updates that were read
  updates.join();
  static_cast<void>(recorder.update([] { return update_report{}; }));
  const worker_statistics seen = recorder.values({}, {});
  CHECK(seen.updates.of(errc::ok) == seen.updates_kept + 1);
  CHECK(seen.update.count() == seen.updates_kept + 1);
}

TEST_CASE("statistics: a histogram's buckets") {
  seconds_histogram seen;
  for (const auto took : {0ns, 100'000ns, 100'001ns, 1'000'000'000ns, 3'600'000'000'000ns}) seen.add(took);
  CHECK(seen.counts[0] == 2);  // bounds are inclusive
  CHECK(seen.counts[1] == 1);
  CHECK(seen.counts[seconds_histogram::bucket_of(1s)] == 1);
  CHECK(seen.counts.back() == 1);
  CHECK(seen.count() == 5);
  CHECK(seen.sum_seconds() == doctest::Approx(3601.0002));
}

TEST_CASE("statistics: recorders count the same as the plain values") {
  detail::seconds_recorder recorder;
  detail::outcomes ended;
  seconds_histogram plain;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) {
          recorder.add(std::chrono::microseconds{i});
          ended.add(errc::ok);
        }
        ended.add(static_cast<errc>(60'000));  // of a newer release
      });
    }
  }
  for (int i = 0; i < 1000; ++i) plain.add(std::chrono::microseconds{i});
  const auto seen = recorder.values();
  for (std::size_t i = 0; i < plain.counts.size(); ++i) CHECK(seen.counts[i] == 2 * plain.counts[i]);
  CHECK(seen.sum_nanoseconds == 2 * plain.sum_nanoseconds);
  CHECK(ended.values().of(errc::ok) == 2000);
  CHECK(ended.values().failed() == 2);
}

TEST_CASE("statistics: a mirror never shows a mixture of two states") {
  struct pair_of_equals {
    std::array<std::uint64_t, 32> values{};
  };
  detail::mirrored<pair_of_equals> mirror;
  std::atomic<bool> stop = false;
  std::jthread writer{[&] {
    pair_of_equals value;
    while (!stop) {
      for (auto& each : value.values) ++each;
      mirror.show(value);
    }
  }};
  std::uint64_t last = 0;
  for (int i = 0; i < 20'000; ++i) {
    const pair_of_equals seen = mirror.look();
    for (const auto each : seen.values) REQUIRE(each == seen.values[0]);
    REQUIRE(seen.values[0] >= last);
    last = seen.values[0];
  }
  stop = true;
}
