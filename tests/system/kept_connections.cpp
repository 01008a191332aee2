// Data connections live from one update to the next, and nobody minds when they do not.

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tensorhub/server.hpp>

#include "hub.hpp"

using namespace system_tests;

namespace {

/// The descriptors of this process's connections to the data port at this address, by their own ports.
[[nodiscard]] std::map<std::uint16_t, int> connections_to(const std::string& address) {
  const auto port = static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
  std::map<std::uint16_t, int> out;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    const int each = std::stoi(entry.path().filename().string());
    sockaddr_in own{}, peer{};
    socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer;
    if (::getsockname(each, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
        ::getpeername(each, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
        peer.sin_family == AF_INET && ntohs(peer.sin_port) == port)
      out[ntohs(own.sin_port)] = each;
  }
  return out;
}

[[nodiscard]] std::set<std::uint16_t> own_ports(const std::map<std::uint16_t, int>& connections) {
  std::set<std::uint16_t> out;
  for (const auto& [port, descriptor] : connections) out.insert(port);
  return out;
}

/// A trainer, a rollout that has version 1 from it, and the connections over which it came.
struct scene {
  hub::reference_server server{{.catalog = {.recovery_grace = 0ms}}};
  member<worker_of_both_doors> source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  std::uint64_t version = 0;

  scene() { next_version(); }
  [[nodiscard]] std::string address() { return source.worker.data().address().text; }
  [[nodiscard]] std::map<std::uint16_t, int> connections() { return connections_to(address()); }
  void next_version() {
    source.worker.unpublish();
    source.memory.fill(++version);
    source.worker.publish(version);
    CHECK(reader.worker.update(exactly(version)).version == version);
    CHECK(reader.memory.holds(version));
    CHECK(server.statistics().sources_failed.failed() == 0);
  }
};

}  // namespace

TEST_CASE("kept connections: not every update makes one") {
  // A lane that comes late, or has a read outstanding in the end, makes another one; a new one each time
  // would be 30 at least.
  scene s;
  std::set<std::uint16_t> all;
  while (s.version < 30) {
    s.next_version();
    all.merge(own_ports(s.connections()));
  }
  CHECK(!all.empty());  // some were there between two updates
  CHECK(all.size() < 30);
}

TEST_CASE("kept connections: those that have ended are made again, and no source is reported lost for it") {
  scene s;
  std::size_t ended = 0;
  for (int i = 0; i < 10; ++i) {
    const auto present = s.connections();
    ended += present.size();
    for (const auto& [port, descriptor] : present) CHECK(::shutdown(descriptor, SHUT_RDWR) == 0);
    s.next_version();
    for (const auto& [port, descriptor] : present) CHECK(!s.connections().contains(port));
  }
  CHECK(ended > 0);
}

TEST_CASE("kept connections: a source that is gone is left, and the next one is read") {
  scene s;
  member<worker_of_both_doors> other{who(s.server.address(), "trainer-1")};
  s.source.worker.unpublish();
  s.source.worker.leave();
  other.publish(7);
  CHECK(s.reader.worker.update(exactly(7)).version == 7);
  CHECK(s.reader.memory.holds(7));
}

TEST_CASE("kept connections: their number is bounded, whatever the number of sources that there were") {
  using pool = tensorhub::lane_pool<tensorhub::transports::tcp>;
  tensorhub::transports::tcp through{{}, {1}}, source{{}, {2}};
  pool lanes{through};
  auto lane = lanes.borrow(0, 4, 64);
  const auto ends_of = [&](std::uint64_t number) {
    return tensorhub::connection_ends{source.address().text, {2}, {number}};
  };
  for (std::uint64_t i = 0; i < 3 * pool::most_kept; ++i)
    lane->keep(ends_of(i), through.connect(lane->queue(), source.address(), {2}, 10s));
  lanes.give_back(0, std::move(lane));
  CHECK(connections_to(source.address().text).size() == pool::most_kept);
  lane = lanes.borrow(0, 4, 64);
  CHECK(!lane->take(ends_of(0)).has_value());
  CHECK(lane->take(ends_of(3 * pool::most_kept - 1)).has_value());
  CHECK(!lane->take({"tcp://127.0.0.1:1", {2}, {3 * pool::most_kept - 2}}).has_value());
}
