// A whole hub over verbs: reference server, publisher and subscribers, in threads and in processes of their
// own.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/transports/verbs.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "rdma_addresses.hpp"
#include "support/child_process.hpp"
#include "system/hub.hpp"

template class tensorhub::reference_server<>;

using namespace processes;
using namespace system_tests;
using softroce_tests::rdma_addresses;
using tensorhub::transports::verbs;

namespace {

using verbs_hub = tensorhub::hub<verbs>;
using gated_verbs = tensorhub::testing::gated<verbs>;
using publisher = member<verbs_hub::publisher>;
using subscriber = member<verbs_hub::subscriber>;
using gated_subscriber = member<tensorhub::hub<gated_verbs>::subscriber>;

constexpr std::size_t large_words = 1u << 20;   // 8 MiB, and half of it again in plain memory
constexpr std::uint64_t gate_bytes = 4u << 20;  // where an update is held

/// Sources are on the first device, readers on the last: with two devices, all bytes cross the wire.
verbs::options of_source() {
  verbs::options options;
  options.listen_addresses = {rdma_addresses().front()};
  return options;
}
verbs::options of_reader() {
  verbs::options options;
  options.listen_addresses = {rdma_addresses().back()};
  return options;
}
gated_verbs::options held_at(const std::shared_ptr<tensorhub::testing::read_gate>& gate) {
  return {.inner = of_reader(), .gate = gate};
}
std::shared_ptr<tensorhub::testing::read_gate> make_gate() {
  return std::make_shared<tensorhub::testing::read_gate>(gate_bytes);
}

/// This program once more, in a process of its own, running one of the skipped test cases below. (Started
/// anew and not only forked: the libraries under verbs do not survive a fork.)
child_process another(const std::string& part, const std::string& server) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  return child_process{
      {"/usr/bin/env", "TENSORHUB_TEST_SERVER=" + server, self, "--no-skip", "--test-case=" + part}};
}
std::string server_of_parent() {
  const char* const text = std::getenv("TENSORHUB_TEST_SERVER");
  REQUIRE(text != nullptr);
  return text;
}
/// Waits for a line; doctest's own lines come before it.
void wait_for(child_process& other, const std::string& line) {
  while (other.output_line(60s) != line) continue;
}

}  // namespace

TEST_CASE("part: publishes version 1 and stays" * doctest::skip()) {
  publisher own{who(server_of_parent(), "trainer-0"), large_words, of_source()};
  own.memory.fill(1);
  own.worker.publish(1);
  std::cout << "published" << std::endl;
  std::this_thread::sleep_for(300s);
}

TEST_CASE("part: stays in the middle of an update" * doctest::skip()) {
  const auto gate = make_gate();
  gated_subscriber own{who(server_of_parent(), "rollout-0"), large_words, held_at(gate)};
  auto running = own.worker.update_async(latest, 300s);
  REQUIRE(gate->wait_until_shut(60s));
  std::cout << "reading" << std::endl;
  std::this_thread::sleep_for(300s);
}

TEST_CASE("hub over verbs: versions are published, read in place by two subscribers, and withdrawn") {
  verbs_hub::reference_server server;
  publisher source{who(server.address(), "trainer-0"), large_words, of_source()};
  subscriber first{who(server.address(), "rollout-0"), large_words, of_reader()};
  subscriber second{who(server.address(), "rollout-1"), large_words, of_reader()};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source.memory.fill(version);
    CHECK(source.worker.publish(version).version == version);
    std::jthread beside{[&] { CHECK(first.worker.update().version == version); }};
    CHECK(second.worker.update().version == version);
    beside.join();
    CHECK(first.memory.holds(version));
    CHECK(second.memory.holds(version));
    CHECK(!source.worker.unpublish().forced);
    CHECK(source.worker.held_version() == 0);
    CHECK(first.worker.held_version() == version);
  }
}

TEST_CASE("hub over verbs: a subscriber is a source for the next one; what is held is kept") {
  verbs_hub::reference_server server;
  subscriber first{who(server.address(), "rollout-0"), large_words, of_source()};
  subscriber second{who(server.address(), "rollout-1"), large_words, of_reader()};
  {
    publisher source{who(server.address(), "trainer-0"), large_words, of_source()};
    source.memory.fill(5);
    source.worker.publish(5);
    first.worker.update();
    source.worker.leave();
  }
  const auto done = second.worker.update(exactly(5));
  CHECK(done.sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(second.memory.holds(5));
  CHECK(second.worker.update(exactly(5)).kept);
}

TEST_CASE("hub over verbs: what is staged is installed, and goes on to the next one") {
  verbs_hub::reference_server server;
  publisher source{who(server.address(), "trainer-0"), large_words, of_source()};
  member<staged_of<verbs_hub::subscriber>> rollout{who(server.address(), "rollout-0"), large_words,
                                                   of_reader()};
  for (std::uint64_t version = 1; version <= 2; ++version) {
    CAPTURE(version);
    source.memory.fill(version);
    source.worker.publish(version);
    CHECK(rollout.worker.stage(version).version == version);
    CHECK(rollout.worker.held_version() == version - 1);
    if (version > 1) CHECK(rollout.memory.holds(version - 1));
    source.worker.unpublish();
    CHECK(rollout.worker.install().version == version);
    CHECK(rollout.memory.holds(version));
  }
  subscriber next{who(server.address(), "rollout-1"), large_words, of_source()};
  for (const std::string& from : next.worker.update(exactly(2)).sources)
    CHECK_MESSAGE(from.starts_with("rollout-0"), from);
  CHECK(next.memory.holds(2));
}

TEST_CASE(
    "hub over verbs: a forced unpublish in the middle of an update: an error, or all of the next version") {
  verbs_hub::reference_server server;
  publisher source{who(server.address(), "trainer-0"), large_words, of_source()};
  const auto gate = make_gate();
  gated_subscriber reader{who(server.address(), "rollout-0"), large_words, held_at(gate)};
  source.memory.fill(1);
  source.worker.publish(1);
  auto running = reader.worker.update_async(latest, 60s);
  REQUIRE(gate->wait_until_shut(60s));
  CHECK(source.worker.unpublish(0ms).forced);
  source.memory.fill(2);  // the memory is the trainer's again
  source.worker.publish(2);
  gate->open();
  tensorhub::version_number brought{};
  const errc code = code_of([&] { brought = running.wait(90s).version; });
  if (code == errc::ok) CHECK(brought == 2);
  if (code != errc::ok) CHECK(reader.worker.update(at_least(2), 60s).version == 2);
  CHECK(reader.memory.holds(2));
}

TEST_CASE(
    "hub over verbs: the only source is killed in the middle of an update: the reader is told, by name") {
  verbs_hub::reference_server server;
  child_process source = another("part: publishes version 1 and stays", server.address());
  wait_for(source, "published");
  const auto gate = make_gate();
  gated_subscriber reader{who(server.address(), "rollout-0"), large_words, held_at(gate)};
  auto running = reader.worker.update_async(latest, 60s);
  REQUIRE(gate->wait_until_shut(60s));
  source.signal(SIGKILL);
  gate->open();
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(running.wait(90s)); }, &sentence);
  CHECK_MESSAGE((code == errc::unavailable || code == errc::source_lost), sentence);
  CHECK_MESSAGE(contains(sentence, "trainer-0"), sentence);
  CHECK_MESSAGE(contains(sentence, "replica rollout-0"), sentence);
  CHECK(reader.worker.held_version() == 0);
  publisher next{who(server.address(), "trainer-1"), large_words, of_source()};
  next.memory.fill(2);
  next.worker.publish(2);
  CHECK(reader.worker.update(at_least(2), 60s).version == 2);
  CHECK(reader.memory.holds(2));
}

TEST_CASE(
    "hub over verbs: one of two sources is killed in the middle of an update: the other one finishes it") {
  verbs_hub::reference_server server;
  child_process doomed = another("part: publishes version 1 and stays", server.address());
  wait_for(doomed, "published");
  publisher other{who(server.address(), "trainer-1"), large_words, of_source()};
  other.memory.fill(1);
  other.worker.publish(1);
  const auto gate = make_gate();
  gated_subscriber reader{who(server.address(), "rollout-0"), large_words, held_at(gate)};
  auto running = reader.worker.update_async(latest, 90s);
  REQUIRE(gate->wait_until_shut(60s));
  doomed.signal(SIGKILL);
  gate->open();
  const auto done = running.wait(90s);
  CHECK(done.version == 1);
  const bool was_read = std::ranges::find(done.sources, "trainer-0/0") != done.sources.end();
  CHECK_MESSAGE(was_read, "nobody read from the source that was killed: this tests nothing");
  CHECK(reader.memory.holds(1));
}

TEST_CASE("hub over verbs: a reader is killed in the middle of an update: the trainer gets its memory back") {
  verbs_hub::reference_server server;
  publisher source{who(server.address(), "trainer-0"), large_words, of_source()};
  source.memory.fill(1);
  source.worker.publish(1);
  child_process reader = another("part: stays in the middle of an update", server.address());
  wait_for(reader, "reading");
  reader.signal(SIGKILL);
  CHECK(!source.worker.unpublish(60s).forced);
  source.memory.fill(2);
  source.worker.publish(2);
  subscriber other{who(server.address(), "rollout-1"), large_words, of_reader()};
  CHECK(other.worker.update().version == 2);
  CHECK(other.memory.holds(2));
}
