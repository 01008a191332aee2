// What a reader's memory has already of a version is read from nobody: of an earlier version, or of an update
// that was broken off.

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <tensorhub/server.hpp>

#include "blake3_hub.hpp"
#include "near_hub.hpp"

using namespace system_tests;

namespace {

[[nodiscard]] std::uint64_t bytes_of(const std::vector<std::uint64_t>& plain) {
  return plain.size() * sizeof plain[0];
}

/// What was read came from the sources.
[[nodiscard]] bool adds_up(const tensorhub::update_report& report, std::uint64_t version_bytes) {
  const std::uint64_t read =
      std::accumulate(report.source_bytes.begin(), report.source_bytes.end(), std::uint64_t{0});
  return report.bytes == read && read + report.unchanged_bytes == version_bytes;
}

template <typename Trainer>
std::uint64_t publish_with_other_plain(Trainer& trainer, std::uint64_t version) {
  trainer.worker.unpublish(20s);
  for (std::uint64_t& word : trainer.memory.plain) word += version;
  trainer.worker.publish(version);
  return bytes_of(trainer.memory.plain);
}

}  // namespace

TEST_CASE_TEMPLATE("unchanged: of the next version a reader in place reads what has changed", Hub, hub,
                   blake3_hub, near_hub) {
  typename Hub::reference_server server;
  member<typename Hub::publisher> source{who_here(server.address(), "trainer-0")};
  member<typename Hub::subscriber> reader{who_here(server.address(), "rollout-0")};
  source.publish(1);
  const auto first = reader.worker.update(exactly(1), 20s);
  CHECK(first.unchanged_bytes == 0);
  CHECK(adds_up(first, first.bytes));

  const std::uint64_t changed_bytes = publish_with_other_plain(source, 2);
  const auto second = reader.worker.update(exactly(2), 20s);
  CHECK(second.bytes == changed_bytes);
  CHECK(adds_up(second, first.bytes));
  CHECK(are_equal(reader.memory, source.memory));

  source.worker.unpublish(20s);
  source.worker.publish(3);  // the same bytes
  const auto third = reader.worker.update(exactly(3), 20s);
  CHECK(third.bytes == 0);
  CHECK(third.unchanged_bytes == first.bytes);
  CHECK(are_equal(reader.memory, source.memory));
}

TEST_CASE("unchanged: what the user has overwritten since is read") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(1);
  const auto first = reader.worker.update(exactly(1), 20s);
  reader.worker.unpublish(20s);
  reader.memory.mapped_word(7) ^= 1;
  reader.memory.norm[1] ^= 1;  // a small tensor: received again from its packed copy
  const std::uint64_t changed_bytes = publish_with_other_plain(source, 2);
  const auto second = reader.worker.update(exactly(2), 20s);
  CHECK(second.bytes == changed_bytes + (1u << 20));
  CHECK(adds_up(second, first.bytes));
  CHECK(are_equal(reader.memory, source.memory));
}

TEST_CASE("unchanged: a reader that keeps what it has serves it on") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout first{who(server.address(), "rollout-0")};
  rollout second{who(server.address(), "rollout-1")};
  source.publish(1);
  first.worker.update(exactly(1), 20s);
  publish_with_other_plain(source, 2);
  first.worker.update(exactly(2), 20s);
  source.worker.unpublish(20s);
  const auto report = second.worker.update(exactly(2), 20s);
  CHECK(report.sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(are_equal(second.memory, source.memory));
}

TEST_CASE("unchanged: each of two buffers knows what lies in it") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  double_buffered_of<hub::subscriber> reader{who(server.address(), "rollout-0")};
  for (const auto& each : source.worker.shard_layout().tensors())
    reader.add(each.name, each.shape, each.type);
  const std::uint64_t all = reader.update(exactly(1), 20s).bytes;
  for (std::uint64_t version = 2; version <= 4; ++version) {
    CAPTURE(version);
    const std::uint64_t changed_bytes = publish_with_other_plain(source, version);
    const auto report = reader.update(exactly(version), 20s);
    CHECK(report.bytes == (version == 2 ? all : changed_bytes));
    CHECK(std::memcmp(reader.tensor("mapped"), source.memory.mapped.data(), 1000) == 0);
    CHECK(std::memcmp(reader.tensor("plain"), source.memory.plain.data(), changed_bytes) == 0);
  }
}

TEST_CASE("unchanged: an update that was broken off goes on where it was") {
  hub::reference_server server;
  constexpr std::size_t large_words = 2'000'000;
  trainer source{who(server.address(), "trainer-0"), large_words};
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(12u << 20, 16u << 10);
  gated_rollout reader{who(server.address(), "rollout-0"), large_words, {.gate = gate}};
  source.publish(1);
  auto running = reader.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  while (running.progress().bytes < (8u << 20)) std::this_thread::sleep_for(1ms);
  running.cancel();
  CHECK(code_of([&] { running.wait(20s); }) == errc::cancelled);
  gate->open();
  const auto report = reader.worker.update(exactly(1), 20s);
  CHECK(report.unchanged_bytes >= (8u << 20));
  CHECK(are_equal(reader.memory, source.memory));
}

TEST_CASE("unchanged: tensors that are here arrive as the others do") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(1);
  reader.worker.update(exactly(1), 20s);
  publish_with_other_plain(source, 2);
  auto running = reader.worker.update_async(exactly(2), 20s);
  auto arriving = running.tensors(std::vector<std::string>{"mapped", "plain", "norm"});
  for (const char* name : {"mapped", "plain", "norm"}) {
    const auto tensor = arriving.next(20s);
    REQUIRE(tensor.has_value());
    CHECK(tensor->name == name);
  }
  CHECK(reader.memory.plain == source.memory.plain);
  CHECK(reader.memory.norm == source.memory.norm);
  CHECK(running.wait(20s).bytes == bytes_of(source.memory.plain));
  CHECK(are_equal(reader.memory, source.memory));
}
