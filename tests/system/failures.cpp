#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iostream>
#include <memory>
#include <thread>

#include "faulty_hub.hpp"
#include "support/child_process.hpp"

using namespace processes;
using namespace system_tests;

namespace {

constexpr std::size_t large_words = 4u << 20;  // 32 MiB, and half of it again in plain memory

/// Says "reading" in the middle of the transfer, goes on when it gets SIGCONT, then says how the update
/// ended.
int read_and_tell(const std::string& server, const std::string& replica) {
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(8u << 20);
  gated_rollout reader{who(server, replica), large_words, {.gate = gate}};
  auto running = reader.worker.update_async(latest, 60s);
  if (!gate->wait_until_shut(30s)) return 4;
  std::cout << "reading" << std::endl;
  ::raise(SIGSTOP);
  gate->open();
  const auto done = running.wait(60s);
  std::cout << "version " << done.version.value
            << (reader.memory.holds(done.version.value) ? " whole" : " WRONG") << std::endl;
  return reader.memory.holds(done.version.value) ? 0 : 3;
}

[[nodiscard]] tensorhub::reference_server_options soon_sure_of_a_death() {
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 1500ms;
  how.catalog.heartbeat_interval = 200ms;
  return how;
}

/// The only source is a process, which is killed while the reader stands still in the middle of its update.
struct killed_source {
  text_pipe pipe;
  child_process source{[this] { return publish_and_stay(pipe.hear(), large_words); }};
  hub::reference_server server{soon_sure_of_a_death()};
  std::shared_ptr<tensorhub::testing::read_gate> gate =
      std::make_shared<tensorhub::testing::read_gate>(8u << 20);
  gated_rollout reader{who(server.address(), "rollout-0"), large_words, {.gate = gate}};

  killed_source() {
    pipe.tell(server.address());
    REQUIRE(source.output_line() == "published");
  }
  /// Once an update runs.
  void kill() {
    REQUIRE(gate->wait_until_shut(20s));
    source.signal(SIGKILL);
    gate->open();
  }
};

}  // namespace

TEST_CASE("a reader that dies while the trainer unpublishes does not hold it up for ever") {
  bool killed = false;
  SUBCASE("killed") {
    killed = true;
  }
  SUBCASE("stopped") {}
  text_pipe pipe;
  child_process reader{[&] { return read_and_tell(pipe.hear(), "rollout-0"); }};
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 1500ms;
  how.catalog.heartbeat_interval = 200ms;
  hub::reference_server server{how};
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.publish(1);
  pipe.tell(server.address());
  REQUIRE(reader.output_line() == "reading");
  if (killed) reader.signal(SIGKILL);
  const auto started = std::chrono::steady_clock::now();
  const auto report = source.worker.unpublish(20s);
  CHECK(std::chrono::steady_clock::now() - started < 20s);
  CHECK(!report.forced);
  source.publish(2);
  rollout other{who(server.address(), "rollout-1"), large_words};
  CHECK(other.worker.update().version == 2);
  CHECK(other.memory.holds(2));
}

TEST_CASE("a stopped reader is cut off at the deadline of unpublish") {
  text_pipe pipe;
  child_process reader{[&] { return read_and_tell(pipe.hear(), "rollout-0"); }};
  hub::reference_server server;  // its worker time-out is longer than this test's deadline
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.publish(1);
  pipe.tell(server.address());
  REQUIRE(reader.output_line() == "reading");
  const auto report = source.worker.unpublish(500ms);
  CHECK(report.forced);
  source.memory.fill(2);  // the memory is ours again
  source.worker.publish(2);
  reader.signal(SIGCONT);
  const std::string outcome = reader.output_line(60s);
  const bool was_told = contains(outcome, "[unavailable;") || contains(outcome, "[source_lost;");
  CHECK_MESSAGE((outcome == "version 2 whole" || was_told), outcome);
}

TEST_CASE("keys that take longer than worker_timeout to revoke: the source lives on, and its memory waits") {
  static constexpr std::chrono::milliseconds revoke_time{1000};  // per region; there are two
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 1000ms;
  how.catalog.heartbeat_interval = 100ms;
  hub::reference_server server{how};
  member<faulty_hub::publisher> source{
      who(server.address(), "trainer-0"), large_words, {.faults = {.revoke_time = revoke_time}}};
  source.publish(1);
  const auto self = source.worker.self();
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(8u << 20);
  gated_rollout reader{who(server.address(), "rollout-0"), large_words, {.gate = gate}};
  auto running = reader.worker.update_async(latest, 60s);
  REQUIRE(gate->wait_until_shut(30s));
  const auto started = std::chrono::steady_clock::now();
  const auto report = source.worker.unpublish(300ms);
  CHECK(report.forced);
  CHECK(std::chrono::steady_clock::now() - started >= 2 * revoke_time);  // until then it could be read
  CHECK(server.statistics().workers_dead == 0);
  CHECK(source.worker.self() == self);
  source.publish(2);
  gate->open();
  static_cast<void>(code_of([&] { static_cast<void>(running.wait(30s)); }));
  CHECK(reader.worker.update(exactly(2)).version == 2);
  CHECK(reader.memory.holds(2));
}

TEST_CASE("a dead reader whose cut-off takes longer than worker_timeout: its source lives on") {
  static constexpr std::chrono::milliseconds cut_off_time{2500};
  text_pipe pipe;
  child_process reader{[&] { return read_and_tell(pipe.hear(), "rollout-0"); }};
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 1000ms;
  how.catalog.heartbeat_interval = 100ms;
  hub::reference_server server{how};
  member<faulty_hub::publisher> source{
      who(server.address(), "trainer-0"), large_words, {.faults = {.cut_off_time = cut_off_time}}};
  source.publish(1);
  const auto self = source.worker.self();
  pipe.tell(server.address());
  REQUIRE(reader.output_line() == "reading");
  const auto started = std::chrono::steady_clock::now();
  reader.signal(SIGKILL);
  while (server.statistics().workers_dead == 0) std::this_thread::sleep_for(5ms);
  const auto report = source.worker.unpublish(20s);
  const auto waited = std::chrono::steady_clock::now() - started;
  CHECK(waited >= cut_off_time);  // until then it could be read
  // The order, which the server repeats, is carried out once.
  CHECK(waited < how.catalog.worker_timeout + 2 * cut_off_time);
  CHECK(!report.forced);
  CHECK(report.cut_off == 1);
  CHECK(server.statistics().workers_dead == 1);
  CHECK(source.worker.self() == self);
}

TEST_CASE(
    "the only source dies during an update: the reader is told, by name, and is torn until the next one") {
  killed_source scene;
  auto& reader = scene.reader;
  auto running = reader.worker.update_async(latest, 30s);
  scene.kill();
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(running.wait(30s)); }, &sentence);
  CHECK_MESSAGE((code == errc::unavailable || code == errc::source_lost), sentence);
  CHECK(contains(sentence, "trainer-0"));
  CHECK(contains(sentence, "replica rollout-0"));
  CHECK(reader.worker.held_version() == 0);
  trainer next{who(scene.server.address(), "trainer-1"), large_words};
  next.publish(2);
  CHECK(reader.worker.update(at_least(2), 30s).version == 2);
  CHECK(reader.memory.holds(2));
}

TEST_CASE("one of two sources dies: the readers finish with the other") {
  text_pipe pipe;
  child_process doomed{[&] {
    rollout own{who(pipe.hear(), "rollout-0"), large_words};
    own.worker.update(latest, 30s);
    std::cout << "held" << std::endl;
    std::this_thread::sleep_for(60s);
    return 0;
  }};
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.publish(1);
  pipe.tell(server.address());
  REQUIRE(doomed.output_line() == "held");
  std::atomic<int> whole = 0;
  std::atomic<int> were_reading_from_it = 0;
  std::vector<std::shared_ptr<tensorhub::testing::read_gate>> gates;
  for (int i = 0; i < 3; ++i) gates.push_back(std::make_shared<tensorhub::testing::read_gate>(8u << 20));
  {
    std::vector<std::jthread> readers;
    for (std::size_t i = 0; i < 3; ++i) {
      readers.emplace_back([&, i] {
        const auto options = who(server.address(), "rollout-" + std::to_string(i + 1));
        gated_rollout reader{options, large_words, {.gate = gates[i]}};
        const auto done = reader.worker.update(latest, 60s);
        if (done.version == 1 && reader.memory.holds(1)) ++whole;
        if (std::ranges::find(done.sources, "rollout-0/0") != done.sources.end()) ++were_reading_from_it;
      });
    }
    for (const auto& gate : gates) CHECK(gate->wait_until_shut(30s));
    doomed.signal(SIGKILL);
    for (const auto& gate : gates) gate->open();
  }
  CHECK(whole == 3);
  CHECK_MESSAGE(were_reading_from_it > 0, "nobody read from the source that was killed: this tests nothing");
}

namespace {

/// A read was disturbed: the error is that of this source, and says so.
[[nodiscard]] bool names_the_source(const error& e, const std::string& source) {
  const bool is_of_a_source =
      e.code() == errc::source_lost || e.code() == errc::unavailable || e.code() == errc::corrupt;
  return is_of_a_source && contains(e.sentence(), source);
}

/// Readers update as fast as they can while `write` makes versions; every update that succeeds must have
/// brought the bytes of one version only.
template <typename Hub>
void overwrite_under_load(const std::function<void(member<typename Hub::publisher>&, std::uint64_t)>& write) {
  typename Hub::reference_server server;
  member<typename Hub::publisher> source{who(server.address(), "trainer-0"), large_words / 8};
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> good = 0, disturbed = 0, by_neighbour = 0, late = 0, mixed = 0;
  std::array<std::string, 2> nameless;  // errors, the last one of each reader
  std::vector<std::jthread> readers;
  for (std::size_t i = 0; i < nameless.size(); ++i) {
    readers.emplace_back([&, i] {
      auto options = who(server.address(), "rollout-" + std::to_string(i));
      options.drain_timeout = 200ms;
      member<typename Hub::subscriber> reader{options, large_words / 8};
      reader.worker.join();
      while (!over) {
        try {
          const auto done = reader.worker.update(latest, 300ms);
          reader.memory.holds(done.version.value) ? ++good : ++mixed;
          reader.worker.unpublish(200ms);  // always read from the trainer, who breaks the rules
        } catch (const error& e) {
          const std::string neighbour = "rollout-" + std::to_string(1 - i);
          const bool is_named = names_the_source(e, "trainer-0") || names_the_source(e, neighbour);
          if (e.code() == errc::timed_out || e.code() == errc::disconnected)
            ++late;
          else if (is_named)
            ++(names_the_source(e, neighbour) ? by_neighbour : disturbed);
          else
            nameless[i] = e.what();
        }
      }
    });
  }
  std::uint64_t version = 0;
  const auto has_met_both = [&] { return version >= 10 && good > 0 && disturbed > 0; };
  const auto begun = std::chrono::steady_clock::now();
  const auto lasted = [&] { return std::chrono::steady_clock::now() - begun; };
  while (lasted() < 4s || (!has_met_both() && lasted() < 60s)) write(source, ++version);
  over = true;
  readers.clear();
  MESSAGE(version << " versions, " << good.load() << " whole updates, " << disturbed.load() << " disturbed, "
                  << late.load() << " without a version in time, " << by_neighbour.load()
                  << " disturbed by the other reader");
  CHECK(mixed == 0);
  for (const std::string& error : nameless) CHECK_MESSAGE(error.empty(), "it names no source: " << error);
  CHECK_MESSAGE(good > 0, "no update succeeded: the library refuses everything");
  CHECK_MESSAGE(disturbed > 0, "nobody was disturbed: this test tests nothing");
}

}  // namespace

TEST_CASE("a trainer that gives its readers no time: they get an error, never mixed bytes") {
  const auto write = [](auto& source, std::uint64_t version) {
    source.publish(version);
    std::this_thread::sleep_for(std::chrono::milliseconds{version % 7 * 3});
    source.worker.unpublish(0ms);  // forced: what is being read is cut off
  };
  SUBCASE("with digests") {
    overwrite_under_load<hub>(write);
  }
  SUBCASE("without digests") {
    overwrite_under_load<unchecked_hub>(write);
  }
}

TEST_CASE("a trainer that overwrites what it has published: readers get an error, never mixed bytes") {
  overwrite_under_load<hub>([](auto& source, std::uint64_t version) {
    source.publish(version);
    std::this_thread::sleep_for(std::chrono::milliseconds{version % 5 * 2});
    source.memory.fill(version + 1'000'000);  // breaks the contract
    source.worker.unpublish(100ms);
  });
}

TEST_CASE("the only source dies during an update with `retry`: the reader takes the next one that comes") {
  killed_source scene;
  auto& reader = scene.reader;
  tensorhub::update_report taken;
  std::jthread updating{[&] { taken = reader.worker.update(latest, tensorhub::retry, 60s); }};
  scene.kill();
  const auto failed = [&] {
    const auto seen = reader.worker.statistics().updates;
    return seen.of(errc::unavailable) + seen.of(errc::source_lost);
  };
  REQUIRE(comes_true([&] { return failed() > 0; }));
  trainer next{who(scene.server.address(), "trainer-1"), large_words};
  next.publish(2);
  updating.join();
  CHECK(taken.version == 2);
  CHECK(reader.memory.holds(2));
}
