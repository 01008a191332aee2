// Options that no other test would miss: each has a value here under which something ends otherwise than by
// default.

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tensorhub/server.hpp>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "hub.hpp"
#include "support/child_process.hpp"

using namespace system_tests;
using processes::child_process;
using processes::text_pipe;
using tensorhub::testing::read_gate;

namespace {

constexpr std::uint64_t chunk_bytes = 64u << 10;
constexpr std::size_t small_words = 100'000;

/// This process's connections to the port that an address ends with.
std::size_t connections_to(const std::string& address) {
  const std::string rest = address.substr(address.rfind(':') + 1);
  const int port = std::stoi(rest);
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    sockaddr_in peer{};
    socklen_t bytes = sizeof peer;
    const int socket = std::stoi(entry.path().filename().string());
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
        peer.sin_family == AF_INET && ntohs(peer.sin_port) == port)
      ++found;
  }
  return found;
}

/// Every lane's first chunk waits until so many lanes have one.
class all_lanes {
 public:
  explicit all_lanes(std::size_t count) : count_{count} {}
  void meet(std::size_t lane) {
    std::unique_lock lock{mutex_};
    seen_.insert(lane);
    changed_.notify_all();
    if (!gave_up_) gave_up_ = !changed_.wait_for(lock, 10s, [this] { return seen_.size() >= count_; });
  }
  [[nodiscard]] std::set<std::size_t> seen() const {
    const std::lock_guard lock{mutex_};
    return seen_;
  }

 private:
  const std::size_t count_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::size_t> seen_;
  bool gave_up_ = false;
};

}  // namespace

TEST_CASE("every option: lanes and window_chunks") {
  hub::reference_server server;
  auto options = who(server.address(), "trainer-0");
  options.chunk_bytes = chunk_bytes;
  trainer source{options, small_words};
  source.publish(1);
  all_lanes lanes{3};
  struct interval {
    std::size_t lane = 0;
    std::int64_t posted = 0, arrived = 0;
  };
  std::mutex mutex;
  std::vector<interval> reads;
  options.replica = "rollout-0";
  options.lanes = 3;
  options.window_chunks = 2;
  options.trace = [&](const tensorhub::chunk_event& seen) {
    lanes.meet(seen.lane);
    const std::lock_guard lock{mutex};
    reads.push_back({seen.lane, seen.posted.nanoseconds, seen.arrived.nanoseconds});
  };
  rollout reader{options, small_words};
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.memory.holds(1));
  CHECK(lanes.seen() == std::set<std::size_t>{0, 1, 2});
  std::ptrdiff_t most = 0;
  for (const interval& one : reads) {
    const auto is_under_way = [&one](const interval& other) {
      return other.lane == one.lane && other.posted <= one.posted && one.posted < other.arrived;
    };
    most = std::max(most, std::ranges::count_if(reads, is_under_way));
  }
  CHECK(most == 2);
}

TEST_CASE("every option: streams, and those of a path between datacenters") {
  hub::reference_server server;
  for (const bool is_far : {false, true}) {
    CAPTURE(is_far);
    auto options = who(server.address(), "trainer-0");
    options.location.datacenter = "eu-1";
    member<worker_of_both_doors> source{options, small_words};
    source.publish(1);
    const auto gate = std::make_shared<read_gate>(0);
    auto mine = who(server.address(), "rollout-0");
    mine.location.datacenter = is_far ? "us-2" : "eu-1";
    mine.lanes = 1;
    gated_rollout reader{
        mine, small_words, {.inner = {.streams = 3, .wide_area = {.streams = 2}}, .gate = gate}};
    auto running = reader.worker.update_async(latest, 20s);
    REQUIRE(gate->wait_until_shut(20s));
    const std::string address = source.worker.data().address().text;
    CHECK(connections_to(address.substr(0, address.find('?'))) == (is_far ? 2u : 3u));
    gate->open();
    CHECK(running.wait(20s).version == 1);
  }
}

TEST_CASE("every option: request_retry, to a server that says nothing") {
  zmq::context_t context;
  zmq::socket_t silent{context, zmq::socket_type::router};
  silent.set(zmq::sockopt::rcvtimeo, 100);
  silent.bind("tcp://127.0.0.1:*");
  auto options = who(silent.get(zmq::sockopt::last_endpoint), "trainer-0");
  options.request_retry = 20ms;  // by default it would ask once or twice
  options.join_timeout = 1s;
  trainer source{options, 100};
  CHECK(code_of([&] { source.worker.join(); }) == errc::disconnected);
  std::size_t asked = 0;
  for (zmq::message_t part; asked < 5 && silent.recv(part);) asked += part.more() ? 0 : 1;
  CHECK(asked == 5);
}

TEST_CASE("every option: connect_timeout, to a process that has stopped") {
  text_pipe pipe;
  child_process source{[&] { return publish_and_stay(pipe.hear(), small_words); }};
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 60s;
  hub::reference_server server{how};
  pipe.tell(server.address());
  REQUIRE(source.output_line() == "published");
  source.signal(SIGSTOP);
  auto options = who(server.address(), "rollout-0");
  options.connect_timeout = 100ms;
  rollout reader{options, small_words};
  const auto begun = std::chrono::steady_clock::now();
  std::string sentence;
  CHECK(code_of([&] { reader.worker.update(latest, 30s); }, &sentence) == errc::unavailable);
  CHECK_MESSAGE(contains(sentence, "sent no welcome"), sentence);
  CHECK(std::chrono::steady_clock::now() - begun < tensorhub::defaults::connect_timeout - 1s);
}

TEST_CASE("every option: drain_timeout, when an update overwrites what somebody reads") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), small_words};
  auto options = who(server.address(), "rollout-0");
  options.drain_timeout = 200ms;
  rollout reader{options, small_words};
  source.publish(1);
  CHECK(reader.worker.update().version == 1);
  source.worker.unpublish();
  const auto gate = std::make_shared<read_gate>(0);
  gated_rollout slow{who(server.address(), "rollout-1"), small_words, {.gate = gate}};
  auto running = slow.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  source.publish(2);
  CHECK(reader.worker.update(exactly(2), 20s).version == 2);  // by default it would wait for 30 s
  CHECK(reader.memory.holds(2));
  gate->open();
  std::string sentence;
  CHECK(code_of([&] { static_cast<void>(running.wait(20s)); }, &sentence) == errc::unavailable);
  CHECK_MESSAGE(contains(sentence, "rollout-0/0"), sentence);
  CHECK_FALSE(slow.worker.held_version());
}

TEST_CASE("every option: group_timeout, when a shard does not call") {
  tensorhub::reference_server_options how;
  how.catalog.group_timeout = 200ms;
  hub::reference_server server{how};
  std::vector<std::unique_ptr<trainer>> sources;
  std::vector<std::unique_ptr<rollout>> readers;
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    const tensorhub::shard_of place{shard, 2};
    sources.push_back(std::make_unique<trainer>(who(server.address(), "trainer-0", place), 1000));
    sources.back()->memory.fill(1, shard);
    sources.back()->worker.publish(1);
    readers.push_back(std::make_unique<rollout>(who(server.address(), "rollout-0", place), 1000));
    readers.back()->worker.join();
  }
  std::string sentence;
  CHECK(code_of([&] { readers[0]->worker.update(latest, 20s); }, &sentence) == errc::torn);
  CHECK_MESSAGE(contains(sentence, "shard 1"), sentence);
}

TEST_CASE("every option: retained_versions, of which the server knows the digests") {
  for (const std::size_t kept : {1u, 2u}) {
    CAPTURE(kept);
    tensorhub::reference_server_options how;
    how.catalog.retained_versions = kept;
    hub::reference_server server{how};
    trainer source{who(server.address(), "trainer-0"), 1000};
    for (std::uint64_t version = 1; version <= 3; ++version) {
      source.worker.unpublish();
      source.publish(version);
    }
    trainer other{who(server.address(), "trainer-1"), 1000};
    other.memory.fill(4);
    // The records of what nobody holds: of version 2, and of version 1 if two are kept.
    std::string sentence;
    const errc code = code_of([&] { other.worker.publish(1); }, &sentence);
    CHECK(code == errc::version_conflict);
    CHECK_MESSAGE(contains(sentence, kept == 1 ? "goes backwards" : "other bytes"), sentence);
  }
}

TEST_CASE("every option: a stride of snapshots chooses their memory") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), 1000};
  for (const std::uint64_t version : {10u, 20u}) {
    source.memory.fill(version);
    source.worker.publish(version, tensorhub::snapshot.every(10));
  }
  rollout reader{who(server.address(), "rollout-0"), 1000};
  CHECK(reader.worker.update(exactly(10), 20s).version == 10);
  CHECK(reader.memory.holds(10));
}

TEST_CASE("every option: location.rack, by which the nearer one of two sources is chosen") {
  for (const std::string nearer : {"a", "b"}) {
    CAPTURE(nearer);
    hub::reference_server server;
    const auto in_rack = [&](const std::string& rack, const std::string& replica) {
      auto out = who(server.address(), replica);
      out.location.rack = rack;
      out.location.host = replica;  // no two are on one host
      return out;
    };
    trainer first{in_rack("rack-a", "a"), small_words};
    trainer second{in_rack("rack-b", "b"), small_words};
    for (trainer* each : {&first, &second}) {
      each->memory.fill(1);
      each->worker.publish(1);
    }
    rollout reader{in_rack("rack-" + nearer, "rollout-0"), small_words};
    CHECK(reader.worker.update().version == 1);
    const std::string why = reader.worker.why();
    CHECK_MESSAGE(contains(why, "upstream: " + nearer + "/0"), why);
  }
}

TEST_CASE("every option: offload_limit_bytes, which is enough for one version and not for two") {
  hub::reference_server server;
  auto options = who(server.address(), "trainer-0");
  options.offload_limit_bytes = small_words * sizeof(std::uint64_t) * 9 / 4;
  trainer source{options, small_words};
  source.worker.retain(2);
  for (const std::uint64_t version : {1u, 2u}) {
    CAPTURE(version);
    source.publish(version);
    CHECK(source.worker.unpublish().lost == (version == 2));
  }
  CHECK(source.worker.offloaded_bytes() > 0);
  CHECK(source.worker.offloaded_bytes() <= options.offload_limit_bytes);
}
