/// \file statistics.cpp
/// What workers count and log of themselves, with real transfers: bad chunks, lost sources, paths, calls.

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <tensorhub/server.hpp>
#include <vector>

#include "faulty_hub.hpp"

using namespace system_tests;
using tensorhub::testing::fault_counts;
using faulty_rollout = member<faulty_hub::subscriber>;

namespace {

/// What a worker has logged.
struct line_keeper {
  std::mutex mutex;
  std::vector<tensorhub::log_line> lines;
  [[nodiscard]] bool has_chunk() {
    const std::lock_guard lock{mutex};
    return std::ranges::any_of(
        lines, [](const auto& line) { return line.about.chunk && line.about.code == errc::corrupt; });
  }
  [[nodiscard]] auto taker() {
    return [this](const tensorhub::log_line& line) {
      const std::lock_guard lock{mutex};
      lines.push_back(line);
    };
  }
};

}  // namespace

TEST_CASE("statistics: a reader counts what it refused, and logs from whom, of which version, which chunk") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  const auto counts = std::make_shared<fault_counts>();
  line_keeper log;
  auto options = who(server.address(), "rollout-0");
  options.log = log.taker();
  faulty_rollout reader{options, 300'001, {.seed = 7, .faults = {.torn_bytes = 0.3}, .counts = counts}};
  std::uint64_t ok = 0;
  std::uint64_t failed = 0;
  for (int i = 0; i < 200 && !log.has_chunk(); ++i) {
    ++(code_of([&] { reader.worker.update(exactly(1), 10s); }) == errc::ok ? ok : failed);
    reader.worker.unpublish(10s);  // so that the next one reads again
  }
  REQUIRE(log.has_chunk());
  REQUIRE(counts->torn_bytes > 0);

  const auto seen = reader.worker.statistics();
  CHECK(seen.model == "policy");
  CHECK(seen.replica == "rollout-0");
  CHECK(seen.updates.of(errc::ok) == ok);
  CHECK(seen.updates.failed() == failed);
  CHECK(seen.chunks_refused() > 0);
  CHECK(seen.chunks_refused() <= counts->torn_bytes);  // no more than the transport has spoilt
  CHECK(seen.update.count() == ok);
  const auto count = [&] {
    const std::lock_guard lock{log.mutex};
    return log.lines.size();
  };
  for (int tries = 0; tries < 1000 && count() < seen.sources_failed.failed(); ++tries)
    std::this_thread::sleep_for(10ms);
  const std::lock_guard lock{log.mutex};
  CHECK(log.lines.size() == seen.sources_failed.failed());
  for (const tensorhub::log_line& line : log.lines) {
    CHECK(line.level == tensorhub::log_level::warning);
    CHECK(line.about.worker == reader.worker.self());
    CHECK(line.about.peer == source.worker.self());
    CHECK(line.about.version == 1);
    CHECK(line.about.lease);
    CHECK(line.about.code != errc::ok);
    // A control block whose spoilt byte is one of a region's key is believed, and the source denies that key.
    const bool is_denied = line.text.find("access denied") != std::string::npos;
    if (line.about.chunk && !is_denied) CHECK(line.about.code == errc::corrupt);
  }
  CHECK(source.worker.unpublish().changed.empty());  // the fault was on the reader's way
}

TEST_CASE("statistics: a trainer that overwrites what it has published is told which tensor, and logs it") {
  hub::reference_server server;
  line_keeper log;
  auto options = who(server.address(), "trainer-0");
  options.log = log.taker();
  trainer source{options};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(1);
  reader.worker.update(exactly(1), 20s);
  reader.worker.unpublish();
  CHECK(source.worker.unpublish().changed.empty());
  source.publish(2);
  source.memory.plain.back() += 1;  // breaks the contract
  CHECK(code_of([&] { reader.worker.update(exactly(2), 1s); }) != errc::ok);
  CHECK(source.worker.unpublish().changed == "plain");
  {
    REQUIRE(comes_true([&] {
      const std::lock_guard lock{log.mutex};
      return !log.lines.empty();
    }));
    const std::lock_guard lock{log.mutex};
    const tensorhub::log_line& line = log.lines.back();
    CHECK(line.level == tensorhub::log_level::error);
    CHECK(line.text.find("tensor 'plain' has changed") == 0);
    CHECK(line.about.version == 2);
    CHECK(line.about.chunk.has_value());
    CHECK(line.about.code == errc::contract_broken);
  }
  source.publish(3);
  reader.worker.update(exactly(3), 20s);
  CHECK(reader.memory.holds(3));
  CHECK(source.worker.unpublish().changed.empty());
}

TEST_CASE("statistics: a worker's calls, bytes by path, and times") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  auto far = who(server.address(), "rollout-0");
  far.location.datacenter = "elsewhere";
  rollout reader{far};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source.publish(version);
    CHECK(code_of([&] { source.worker.publish(version); }) == errc::still_published);
    reader.worker.update(version, 20s);
    source.worker.unpublish(10s);
  }
  CHECK(code_of([&] { reader.worker.update(exactly(2), 5s); }) == errc::unavailable);
  const auto sent = source.worker.statistics();
  CHECK(sent.publishes.of(errc::ok) == 3);
  CHECK(sent.publishes.of(errc::still_published) == 3);
  CHECK(sent.publish.count() == 3);
  CHECK(sent.digest.count() == 3);
  CHECK(sent.unpublishes.of(errc::ok) == 3);
  CHECK(sent.unpublish.count() == 3);
  CHECK(sent.received.empty());
  CHECK(sent.registration.regions > 0);
  const auto got = reader.worker.statistics();
  CHECK(got.updates.of(errc::ok) == 3);
  CHECK(got.updates.of(errc::unavailable) == 1);
  CHECK(got.update.count() == 3);
  CHECK(got.pull.count() == 3);
  CHECK(got.update.sum_seconds() >= got.pull.sum_seconds());
  REQUIRE(got.received.size() == 1);
  CHECK(got.received[0].path == "tcp");
  CHECK(got.received[0].crossing);
  CHECK(got.received_bytes() == 3 * reader.worker.shard_layout().bytes());
  CHECK(got.chunks == 3 * reader.worker.shard_layout().chunk_count());
}
