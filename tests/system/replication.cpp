// Readers that are sources while they receive: who reads from whom, and what a reader that dies, is cancelled
// or is in another datacenter does to the others.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <tensorhub/server.hpp>
#include <tensorhub/testing/throttled.hpp>
#include <thread>
#include <vector>

#include "hub.hpp"
#include "support/child_process.hpp"

using namespace processes;
using namespace system_tests;
using tensorhub::testing::network_link;
using tensorhub::testing::read_gate;

namespace {

constexpr std::size_t large_words = 600'000;  // with the rest of a member's weights: 7.2 MB
constexpr std::uint64_t half_bytes = 3'600'000;

/// Readers that can be held in the middle, and a trainer whose link is slow, so that nobody has everything
/// before the others have begun.
using paced = tensorhub::testing::gated<tensorhub::testing::throttled<tensorhub::transports::tcp>>;
template <typename Integrity>
using paced_hub_of = tensorhub::hub<paced, tensorhub::nearest_source, tensorhub::group_consistent, Integrity>;
using paced_hub = paced_hub_of<tensorhub::xxh3_128>;
using paced_trainer = member<paced_hub::publisher>;
using paced_rollout = member<paced_hub::subscriber>;

paced::options slow_source() {
  const tensorhub::testing::network_link_options rate{.bytes_per_second = 10e6};
  return {.inner = {.inner = {}, .receiving = {}, .sending = std::make_shared<network_link>(rate)},
          .gate = {}};
}
paced::options gated_by(std::shared_ptr<read_gate> gate) {
  return {.inner = {}, .gate = std::move(gate)};
}

/// Small chunks: a hundred of them.
tensorhub::worker_options in_small_chunks(const std::string& server, const std::string& replica) {
  auto out = who(server, replica);
  out.chunk_bytes = 64u << 10;
  return out;
}

/// What a reader got from the sources whose names begin so.
std::uint64_t bytes_from(const tensorhub::update_report& report, const std::string& beginning) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < report.sources.size(); ++i)
    if (report.sources[i].rfind(beginning, 0) == 0) sum += report.source_bytes[i];
  return sum;
}
bool names(const tensorhub::update_report& report, const std::string& source) {
  return std::ranges::find(report.sources, source) != report.sources.end();
}

/// All at once; empty where an update failed.
std::vector<std::optional<tensorhub::update_report>> update_all(
    const std::vector<std::unique_ptr<paced_rollout>>& readers) {
  std::vector<std::optional<tensorhub::update_report>> reports(readers.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        reports[i] = readers[i]->worker.update(latest, 60s);
      } catch (const error& e) {
        std::cerr << e.what() << std::endl;
      }
    });
  }
  threads.clear();
  return reports;
}

}  // namespace

TEST_CASE("four readers at once: the trainer sends less than two models") {
  paced_hub::reference_server server;
  paced_trainer source{in_small_chunks(server.address(), "trainer-0"), large_words, slow_source()};
  source.publish(1);
  std::vector<std::unique_ptr<paced_rollout>> readers;
  for (int i = 0; i < 4; ++i) {
    const auto options = in_small_chunks(server.address(), "rollout-" + std::to_string(i));
    readers.push_back(std::make_unique<paced_rollout>(options, large_words));
    readers.back()->worker.join();
  }
  const auto reports = update_all(readers);
  std::uint64_t from_trainer = 0, model_bytes = 0;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    REQUIRE(reports[i]);
    CHECK(reports[i]->version == 1);
    CHECK(readers[i]->memory.holds(1));
    model_bytes = reports[i]->bytes;
    CHECK(bytes_from(*reports[i], "") == model_bytes);  // every byte has one source
    from_trainer += bytes_from(*reports[i], "trainer-0");
  }
  CHECK(from_trainer >= model_bytes);
  CHECK_MESSAGE(from_trainer < 2 * model_bytes, from_trainer << " of " << model_bytes << " bytes");
}

TEST_CASE("a reader that joins while another is in the middle reads from it too") {
  paced_hub::reference_server server;
  paced_trainer source{in_small_chunks(server.address(), "trainer-0"), large_words, slow_source()};
  source.publish(1);
  const auto gate = std::make_shared<read_gate>(half_bytes);
  paced_rollout first{in_small_chunks(server.address(), "rollout-0"), large_words, gated_by(gate)};
  auto running = first.worker.update_async(latest, 60s);
  REQUIRE(gate->wait_until_shut(30s));
  paced_rollout second{in_small_chunks(server.address(), "rollout-1"), large_words};
  const auto done = second.worker.update(latest, 60s);
  CHECK_MESSAGE(!running.done(), "the first reader was to be held in the middle");
  CHECK(bytes_from(done, "rollout-0") > 0);
  CHECK(bytes_from(done, "rollout-0") <= half_bytes);
  CHECK(second.memory.holds(1));
  gate->open();
  CHECK(running.wait(60s).version == 1);
  CHECK(first.memory.holds(1));
}

/// The default with one source for each reader, and two readers for each source.
struct one_source : tensorhub::nearest_source {
  struct options {};
  explicit one_source(options) : nearest_source{{.most = {1, 2}}} {}
};

TEST_CASE("a reader whose source does not keep up gets the trainer in exchange for it") {
  using narrow_hub = tensorhub::hub<paced, one_source, tensorhub::group_consistent, tensorhub::xxh3_128>;
  narrow_hub::reference_server server;
  member<narrow_hub::publisher> source{in_small_chunks(server.address(), "trainer-0"), large_words,
                                       slow_source()};
  source.publish(1);
  const auto gate = std::make_shared<read_gate>(half_bytes);
  member<narrow_hub::subscriber> first{in_small_chunks(server.address(), "rollout-0"), large_words,
                                       gated_by(gate)};
  auto running = first.worker.update_async(latest, 60s);
  REQUIRE(gate->wait_until_shut(30s));
  member<narrow_hub::subscriber> second{in_small_chunks(server.address(), "rollout-1"), large_words};
  const auto done = second.worker.update(latest, 60s);
  CHECK_MESSAGE(!running.done(), "the first reader was to be held in the middle");
  CHECK(bytes_from(done, "trainer-0") > 0);
  CHECK(bytes_from(done, "rollout-0") > 0);
  CHECK(second.memory.holds(1));
  CHECK(second.worker.why().find("has every chunk; after a shortage") != std::string::npos);
  gate->open();
  CHECK(running.wait(60s).version == 1);
}

TEST_CASE("a source that is killed in the middle of its own transfer costs nobody the version") {
  text_pipe pipe;
  child_process doomed{[&] {
    const auto gate = std::make_shared<read_gate>(half_bytes);
    paced_rollout own{in_small_chunks(pipe.hear(), "doomed"), large_words, gated_by(gate)};
    auto running = own.worker.update_async(latest, 60s);
    if (!gate->wait_until_shut(30s)) return 4;
    std::cout << "reading" << std::endl;
    std::this_thread::sleep_for(60s);
    return 0;
  }};
  paced_hub::reference_server server;
  paced_trainer source{in_small_chunks(server.address(), "trainer-0"), large_words, slow_source()};
  source.publish(1);
  pipe.tell(server.address());
  REQUIRE(doomed.output_line(60s) == "reading");
  std::vector<std::unique_ptr<paced_rollout>> readers;
  std::vector<std::shared_ptr<read_gate>> gates;
  for (int i = 0; i < 3; ++i) {
    gates.push_back(std::make_shared<read_gate>(half_bytes / 2));
    const auto options = in_small_chunks(server.address(), "rollout-" + std::to_string(i));
    readers.push_back(std::make_unique<paced_rollout>(options, large_words, gated_by(gates.back())));
  }
  std::vector<std::optional<tensorhub::update_report>> reports;
  {
    std::jthread all{[&] { reports = update_all(readers); }};
    for (const auto& gate : gates) CHECK(gate->wait_until_shut(30s));
    doomed.signal(SIGKILL);
    for (const auto& gate : gates) gate->open();
  }
  std::size_t were_reading_from_it = 0;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    REQUIRE(reports[i]);
    CHECK(readers[i]->memory.holds(1));
    if (names(*reports[i], "doomed/0")) ++were_reading_from_it;
  }
  CHECK_MESSAGE(were_reading_from_it > 0, "nobody read from the source that was killed: this tests nothing");
}

namespace {

/// The cancelled reader's memory is its own again, and it uses it at once.
template <typename Hub>
void cancel_in_the_middle() {
  typename Hub::reference_server server;
  member<typename Hub::publisher> source{in_small_chunks(server.address(), "trainer-0"), large_words,
                                         slow_source()};
  source.publish(1);
  const auto first_gate = std::make_shared<read_gate>(half_bytes);
  const auto second_gate = std::make_shared<read_gate>(half_bytes / 4);
  using rollout_type = member<typename Hub::subscriber>;
  rollout_type first{in_small_chunks(server.address(), "rollout-0"), large_words, gated_by(first_gate)};
  rollout_type second{in_small_chunks(server.address(), "rollout-1"), large_words, gated_by(second_gate)};
  auto cancelled = first.worker.update_async(latest, 60s);
  REQUIRE(first_gate->wait_until_shut(30s));
  auto running = second.worker.update_async(latest, 60s);
  REQUIRE(second_gate->wait_until_shut(30s));
  cancelled.cancel();
  first_gate->open();
  CHECK(code_of([&] { static_cast<void>(cancelled.wait(60s)); }) == errc::cancelled);
  first.memory.fill(1'000'000);
  second_gate->open();
  const auto done = running.wait(60s);
  CHECK(done.version == 1);
  CHECK(second.memory.holds(1));
  CHECK(names(done, "rollout-0/0"));
  CHECK(first.worker.update(latest, 60s).version == 1);
  CHECK(first.memory.holds(1));
}

}  // namespace

TEST_CASE("a reader that is cancelled in the middle does not spoil those that read from it") {
  SUBCASE("with digests") {
    cancel_in_the_middle<paced_hub>();
  }
  SUBCASE("without digests") {
    cancel_in_the_middle<paced_hub_of<tensorhub::no_integrity>>();
  }
}

TEST_CASE("two datacenters: one reader brings the version across, exactly once") {
  paced_hub::reference_server server;
  const auto at = [&](const std::string& datacenter, const std::string& number) {
    auto out = in_small_chunks(server.address(), datacenter + "-" + number);
    out.location = {.datacenter = datacenter, .rack = {}, .host = datacenter + number, .device = {}};
    return out;
  };
  paced_trainer source{at("here", "trainer"), large_words, slow_source()};
  source.publish(1);
  std::vector<std::unique_ptr<paced_rollout>> readers;
  for (const char* number : {"0", "1"})
    readers.push_back(std::make_unique<paced_rollout>(at("here", number), large_words));
  for (const char* number : {"0", "1", "2"})
    readers.push_back(std::make_unique<paced_rollout>(at("there", number), large_words));
  for (const auto& reader : readers) reader->worker.join();
  const auto reports = update_all(readers);
  std::size_t seeds = 0;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    REQUIRE(reports[i]);
    CHECK(readers[i]->memory.holds(1));
    const bool is_there = i >= 2;
    const std::uint64_t crossed = bytes_from(*reports[i], is_there ? "here" : "there");
    if (crossed > 0) ++seeds;
    if (is_there && crossed > 0) CHECK(crossed == reports[i]->bytes);
    if (!is_there) CHECK(crossed == 0);
  }
  CHECK(seeds == 1);
}

TEST_CASE("two datacenters: the one that brings the version across is killed: another takes over") {
  text_pipe pipe;
  const auto at = [](const std::string& server, const std::string& datacenter, const std::string& number) {
    auto out = in_small_chunks(server, datacenter + "-" + number);
    out.location = {.datacenter = datacenter, .rack = {}, .host = datacenter + number, .device = {}};
    return out;
  };
  child_process seed{[&] {
    const auto gate = std::make_shared<read_gate>(half_bytes);
    paced_rollout own{at(pipe.hear(), "there", "seed"), large_words, gated_by(gate)};
    auto running = own.worker.update_async(latest, 60s);
    if (!gate->wait_until_shut(30s)) return 4;
    std::cout << "reading" << std::endl;
    std::this_thread::sleep_for(60s);
    return 0;
  }};
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 1500ms;
  how.catalog.heartbeat_interval = 200ms;
  paced_hub::reference_server server{how};
  paced_trainer source{at(server.address(), "here", "trainer"), large_words, slow_source()};
  source.publish(1);
  pipe.tell(server.address());
  REQUIRE(seed.output_line(60s) == "reading");
  std::vector<std::unique_ptr<paced_rollout>> readers;
  std::vector<std::shared_ptr<read_gate>> gates;
  for (const char* number : {"0", "1"}) {
    gates.push_back(std::make_shared<read_gate>(half_bytes / 4));
    readers.push_back(std::make_unique<paced_rollout>(at(server.address(), "there", number), large_words,
                                                      gated_by(gates.back())));
  }
  std::vector<std::optional<tensorhub::update_report>> reports;
  {
    std::jthread all{[&] { reports = update_all(readers); }};
    for (const auto& gate : gates) CHECK(gate->wait_until_shut(30s));
    seed.signal(SIGKILL);
    for (const auto& gate : gates) gate->open();
  }
  std::uint64_t crossed = 0;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    REQUIRE(reports[i]);
    CHECK(readers[i]->memory.holds(1));
    crossed += bytes_from(*reports[i], "here");
  }
  CHECK(crossed > 0);
  CHECK_MESSAGE(crossed <= reports[0]->bytes, "what the seed had brought was brought again: " << crossed);
}

TEST_CASE("two datacenters: prefer_local takes nothing across") {
  paced_hub::reference_server server;
  auto here = in_small_chunks(server.address(), "trainer-0");
  here.location.datacenter = "here";
  auto there = in_small_chunks(server.address(), "rollout-0");
  there.location.datacenter = "there";
  auto also_there = in_small_chunks(server.address(), "rollout-1");
  also_there.location.datacenter = "there";
  paced_trainer source{here, large_words, slow_source()};
  paced_rollout first{there, large_words}, second{also_there, large_words};
  source.publish(1);
  CHECK(first.worker.update(latest, 60s).version == 1);
  CHECK(second.worker.update(latest, 60s).sources == std::vector<std::string>{"rollout-0/0"});
  source.worker.unpublish();
  source.publish(2);
  CHECK(second.worker.wait(at_least(2), 30s) == 2);
  CHECK(second.worker.update(latest, 60s, tensorhub::prefer_local).kept);
  CHECK(second.memory.holds(1));
  CHECK(first.worker.update(at_least(2), 60s).version == 2);
  tensorhub::update_report done;
  CHECK(comes_true([&] {  // the server hears of the first one's update a moment after it
    done = second.worker.update(latest, 60s, tensorhub::prefer_local);
    return done.version == 2;
  }));
  CHECK(done.sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(second.memory.holds(2));
}
