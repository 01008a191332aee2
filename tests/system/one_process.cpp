/// What the workers of one process share: a transport, a control connection, and their threads; and what they
/// do not share: incarnations, leases, and the end of one of them.

#include <dirent.h>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "near_hub.hpp"

using namespace system_tests;
using tensorhub::transports::tcp;

namespace {

/// Inodes of the sockets that this process has open.
[[nodiscard]] std::set<std::uint64_t> own_sockets() {
  std::set<std::uint64_t> out;
  for (const auto& each : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    struct stat facts {};
    if (::stat(each.path().c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode)) out.insert(facts.st_ino);
  }
  return out;
}

struct footprint {
  std::size_t tcp_listeners = 0;
  std::size_t unix_listeners = 0;
  std::size_t control_connections = 0;
  std::size_t control_threads = 0;
  std::size_t threads = 0;
};

[[nodiscard]] std::vector<std::vector<std::string>> table(const char* path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);  // the heading
  std::vector<std::vector<std::string>> rows;
  while (std::getline(file, line)) {
    std::istringstream words{line};
    rows.emplace_back();
    for (std::string word; words >> word;) rows.back().push_back(word);
  }
  return rows;
}

/// What this process has; `server` is a reference server's address, which may be in this process too. (The
/// kernel's tables change while they are read, and may then name a socket twice.)
[[nodiscard]] footprint look(const std::string& server) {
  footprint out;
  const auto own = own_sockets();
  const int port = std::stoi(server.substr(server.rfind(':') + 1));
  std::set<std::uint64_t> tcp_listeners, unix_listeners, control_connections;
  for (const auto& row : table("/proc/net/tcp")) {
    if (row.size() < 10 || !own.contains(std::stoull(row[9]))) continue;
    if (row[3] == "0A") tcp_listeners.insert(std::stoull(row[9]));
    const bool goes_there = std::stoi(row[2].substr(row[2].rfind(':') + 1), nullptr, 16) == port;
    if (row[3] == "01" && goes_there) control_connections.insert(std::stoull(row[9]));
  }
  for (const auto& row : table("/proc/net/unix")) {
    if (row.size() < 7 || !own.contains(std::stoull(row[6]))) continue;
    if (row[3] == "00010000") unix_listeners.insert(std::stoull(row[6]));
  }
  out.tcp_listeners = tcp_listeners.size();
  out.unix_listeners = unix_listeners.size();
  out.control_connections = control_connections.size();
  for (const auto& each : std::filesystem::directory_iterator{"/proc/self/task"}) {
    std::ifstream file{each.path() / "comm"};
    std::string name;
    std::getline(file, name);
    ++out.threads;
    if (name == "tensorhub-ctrl") ++out.control_threads;
  }
  return out;
}

}  // namespace

TEST_CASE(
    "one process: a publisher with snapshots, a stage, an offloaded copy and a seed are one on the network") {
  const system_tests::hub::reference_server server;
  const footprint before = look(server.address());
  {
    member<near_hub::publisher> source{who_here(server.address(), "trainer-0")};
    // Spot workers are not relied upon: what is retained is the trainer's alone.
    const auto spot = [&](const std::string& replica) {
      auto options = who_here(server.address(), replica);
      options.spot = true;
      return options;
    };
    member<staged_of<near_hub::subscriber>> reader{spot("rollout-0")};
    near_hub::seeder seed{spot("seed-0")};
    source.worker.retain(1);
    source.memory.fill(1);
    source.worker.publish(1, tensorhub::snapshot);
    source.memory.fill(2);
    source.worker.publish(2, tensorhub::snapshot);
    CHECK(reader.worker.stage(exactly(2)).version == 2);
    reader.worker.install();
    CHECK(reader.memory.holds(2));
    seed.wait(2);
    source.worker.unpublish();
    source.publish(3);
    source.worker.unpublish();  // the last holder of what is retained: the version goes into host memory
    CHECK(source.worker.offloaded_bytes() > 0);

    const footprint now = look(server.address());
    CHECK(now.tcp_listeners == before.tcp_listeners + 1);
    CHECK(now.unix_listeners == before.unix_listeners + 1);
    CHECK(now.control_connections == before.control_connections + 1);
    CHECK(now.control_threads == before.control_threads + 1);
  }
  CHECK(comes_true([&] { return look(server.address()).threads == before.threads; }));
  const footprint after = look(server.address());
  CHECK(after.tcp_listeners == before.tcp_listeners);
  CHECK(after.unix_listeners == before.unix_listeners);
  CHECK(after.control_threads == before.control_threads);
}

TEST_CASE("one process: other options, other servers and separate processes share nothing") {
  const system_tests::hub::reference_server server;
  const system_tests::hub::reference_server other_server;
  const footprint before = look(server.address());
  const trainer one{who_here(server.address(), "a")};
  const trainer alike{who_here(server.address(), "b")};
  CHECK(look(server.address()).tcp_listeners == before.tcp_listeners + 1);
  const trainer other_options{who_here(server.address(), "c"), 1000, tcp::options{.streams = 2}};
  CHECK(look(server.address()).tcp_listeners == before.tcp_listeners + 2);
  CHECK(look(server.address()).control_threads == before.control_threads + 1);
  const trainer elsewhere{who_here(other_server.address(), "d")};
  CHECK(look(server.address()).tcp_listeners == before.tcp_listeners + 2);
  CHECK(look(server.address()).control_threads == before.control_threads + 2);
  auto apart = who_here(server.address(), "e");
  apart.process = tensorhub::process::separate();
  const trainer separate{apart};
  CHECK(look(server.address()).tcp_listeners == before.tcp_listeners + 3);
  CHECK(look(server.address()).control_threads == before.control_threads + 3);
}

TEST_CASE("one process: workers read from each other, and the end of one does not disturb the others") {
  const system_tests::hub::reference_server server;
  auto source = std::make_unique<trainer>(who_here(server.address(), "trainer-0"));
  rollout first{who_here(server.address(), "rollout-0")};
  rollout second{who_here(server.address(), "rollout-1")};
  source->memory.fill(1);
  source->worker.publish(1);
  CHECK(first.worker.update(exactly(1)).version == 1);
  source.reset();  // it was the first of the transport
  CHECK(second.worker.update(exactly(1)).version == 1);
  CHECK(second.memory.holds(1));
  trainer next{who_here(server.address(), "trainer-0")};
  next.publish(2);
  CHECK(first.worker.update(exactly(2)).version == 2);
  CHECK(second.worker.update(exactly(2)).version == 2);
  CHECK(second.memory.holds(2));
}

TEST_CASE("one process: more workers one after the other than a connection may have at a time") {
  const system_tests::hub::reference_server server;
  trainer source{who_here(server.address(), "trainer-0")};
  source.publish(1);
  for (std::size_t i = 0; i < tensorhub::limits::workers_of_connection + 20; ++i) {
    rollout reader{who_here(server.address(), "rollout-" + std::to_string(i))};
    REQUIRE(reader.worker.update(exactly(1)).version == 1);
  }
  CHECK(server.statistics().crowded_messages == 0);
}

TEST_CASE("one process: a log that takes long, and locks of its own, holds nobody up") {
  const system_tests::hub::reference_server server;
  std::mutex of_the_application;
  std::atomic<bool> called = false;
  std::atomic<bool> was_in_time = false;
  auto options = who_here(server.address(), "trainer-0");
  options.log = [&](const tensorhub::log_line&) {
    called = true;
    // (The thread sanitizer does not know what std::timed_mutex calls.)
    for (int tries = 0; tries < 2000 && !was_in_time; ++tries) {
      const std::unique_lock lock{of_the_application, std::try_to_lock};
      was_in_time = lock.owns_lock();
      if (!was_in_time) std::this_thread::sleep_for(10ms);
    }
  };
  member<worker_of_both_doors> source{options};
  source.worker.join();
  std::unique_lock lock{of_the_application};
  tcp stranger{{}, {99}};
  auto queue = stranger.make_queue(1);
  const tensorhub::transport_address where{source.worker.data().address().text, {}};
  CHECK(code_of([&] { static_cast<void>(stranger.connect(queue, where, source.worker.self(), 5s)); }) ==
        errc::transport_failed);
  REQUIRE(comes_true([&] { return called.load(); }));
  CHECK(source.worker.held_version() == 0);
  rollout other{who_here(server.address(), "rollout-0")};  // of the same control connection
  source.publish(1);
  CHECK(other.worker.update(exactly(1)).version == 1);
  lock.unlock();
  CHECK(comes_true([&] { return was_in_time.load(); }));
}

TEST_CASE("one process: a refused data connection is logged once, by whichever of its workers sees it") {
  const system_tests::hub::reference_server server;
  std::atomic<int> lines = 0;
  const auto logging = [&](std::string replica) {
    auto options = who_here(server.address(), std::move(replica));
    options.log = [&](const tensorhub::log_line& line) {
      lines += contains(line.text, "capability") ? 1 : 0;
    };
    return options;
  };
  member<worker_of_both_doors> first{logging("trainer-0")};
  member<worker_of_both_doors> second{logging("trainer-1")};
  first.worker.join();
  second.worker.join();
  tcp stranger{{}, {99}};
  auto queue = stranger.make_queue(1);
  const tensorhub::transport_address where{first.worker.data().address().text, {}};
  CHECK(code_of([&] { static_cast<void>(stranger.connect(queue, where, first.worker.self(), 5s)); }) ==
        errc::transport_failed);
  CHECK(comes_true([&] { return lines >= 1; }));
  member<worker_of_both_doors> late{logging("trainer-2")};
  late.worker.join();
  std::this_thread::sleep_for(1500ms);  // heartbeats: every worker has had an occasion
  CHECK(lines == 1);
}
