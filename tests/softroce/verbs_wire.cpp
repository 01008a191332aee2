// The verbs transport between two devices with a wire between them: every rule again, over one rail and
// over two, and what happens when the wire breaks.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/verbs.hpp>
#include <thread>
#include <vector>

#include "rdma_addresses.hpp"
#include "run_rules.hpp"

using namespace std::chrono_literals;
using namespace tensorhub;
using namespace tensorhub::testing;
using softroce_tests::rdma_addresses;
using tensorhub::transports::verbs;

namespace {

constexpr conformance_options of_a_guest{
    .deadline = 60s, .largest_read_bytes = 1u << 20, .rounds = 4, .concurrent_overwrites = true};

/// Without these rules (see guest_devices.sh) packets that come in by the wire are not for this machine:
/// they are dropped in silence.
void set_wire(bool whole) {
  static bool is_whole = true;
  if (is_whole == whole) return;
  for (const std::string end : {"0", "1"}) {
    const std::string rule = (whole ? "ip rule add" : "ip rule delete") + std::string{" pref 1"} + end +
                             " iif veth" + end + " lookup local";
    if (std::system(rule.c_str()) != 0)
      throw std::runtime_error{"the guest's wire cannot be changed: " + rule};
  }
  is_whole = whole;
}

/// Processes take turns on the ends of the wire. `stall` breaks it; it is whole again for the next process.
conformance_subject<verbs> across_the_wire(verbs::options options, std::size_t rails) {
  conformance_subject<verbs> subject;
  subject.make = [options, rails, count = std::size_t{0}](incarnation self) mutable {
    set_wire(true);
    const auto addresses = rdma_addresses();
    const std::size_t first = count++ % 2;
    options.listen_addresses = {addresses.at(first)};
    if (rails == 2) options.listen_addresses.push_back(addresses.at(1 - first));
    options.peer_timeout = 4s;  // the wire loses packets; the device sends them again after a second
    return std::make_unique<verbs>(options, self);
  };
  subject.stall = [](verbs&) { set_wire(false); };
  subject.stalls_all = true;
  return subject;
}

struct whole_wire {
  ~whole_wire() { set_wire(true); }
};

}  // namespace

TEST_CASE("two devices: verbs: every rule, across the wire") {
  const whole_wire afterwards;
  run_rules(across_the_wire({}, 1), of_a_guest);
}

TEST_CASE("two devices: verbs: every rule, two rails with two queue pairs each, small work requests") {
  const whole_wire afterwards;
  verbs::options options;
  options.queue_pairs = 2;
  options.work_request_bytes = 60'000;
  options.largest_registration_bytes = 256u << 10;
  run_rules(across_the_wire(options, 2), of_a_guest);
}

TEST_CASE(
    "two devices: verbs: a wire that breaks in the middle of reads: an error within the peer time-out") {
  const whole_wire afterwards;
  constexpr std::uint64_t bytes = 4u << 20;
  constexpr std::size_t reads = 8;
  const auto addresses = rdma_addresses();
  verbs::options options;
  options.listen_addresses = {addresses.at(0)};
  verbs source{options, {1}};
  options.listen_addresses = {addresses.at(1)};
  options.peer_timeout = 4s;
  verbs reader{options, {2}};
  const host_memory::allocation memory{bytes};
  const host_memory::allocation target{bytes};
  const auto from = memory.range();
  const auto to = target.range();
  const auto regions = source.register_memory(std::span{&from, 1}, region_access::remote_read);
  const auto into = reader.register_memory(std::span{&to, 1}, region_access::local_write);
  const auto described = source.describe(regions.front());
  auto queue = reader.make_queue(reads);
  auto endpoint = reader.connect(queue, source.address(), {1}, 5s);
  for (request_id id = 0; id < reads; ++id) {
    REQUIRE(queue.post_read(endpoint, into.front(), 0, {&described, 0, bytes}, id) == post_result::posted);
  }
  std::array<std::size_t, reads> times{};
  std::array<completion, 1> done;
  bool broken = false;
  std::size_t lost = 0;
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
    if (queue.poll(done) == 0) {
      queue.wait(10s);
      continue;
    }
    ++times.at(done[0].id);
    // Some had arrived before the wire was cut, and are good; after the first that is lost all are.
    const bool good = done[0].status == completion_status::ok && lost == 0;
    CHECK((good || done[0].status == completion_status::peer_lost));
    lost += good ? 0 : 1;
    if (!broken) set_wire(false);
    broken = true;
  }
  CHECK(lost > 0);
  CHECK(queue.outstanding() == 0);
  for (const std::size_t count : times) CHECK(count == 1);
  CHECK(!endpoint.usable());
}

TEST_CASE("two devices: verbs: retry_timeout and retry_count: how soon the device itself gives up") {
  const whole_wire afterwards;
  const auto addresses = rdma_addresses();
  verbs::options options;
  options.listen_addresses = {addresses.at(0)};
  verbs source{options, {1}};
  options.listen_addresses = {addresses.at(1)};
  options.peer_timeout = 60s;
  options.retry_timeout = 19;  // 2.1 s; by default 1.1 s
  options.retry_count = 0;     // by default it would take eight times as long
  verbs reader{options, {2}};
  const host_memory::allocation memory{4096};
  const host_memory::allocation target{4096};
  const auto from = memory.range();
  const auto to = target.range();
  const auto regions = source.register_memory(std::span{&from, 1}, region_access::remote_read);
  const auto into = reader.register_memory(std::span{&to, 1}, region_access::local_write);
  const auto described = source.describe(regions.front());
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), {1}, 20s);
  set_wire(false);
  const auto begun = std::chrono::steady_clock::now();
  REQUIRE(queue.post_read(endpoint, into.front(), 0, {&described, 0, 4096}, 7) == post_result::posted);
  std::array<completion, 1> done;
  while (queue.poll(done) == 0 && std::chrono::steady_clock::now() < begun + 30s) queue.wait(1s);
  const auto taken = std::chrono::steady_clock::now() - begun;
  CHECK(done[0].id == 7);
  CHECK(done[0].status == completion_status::peer_lost);
  CHECK(taken > 1500ms);
  CHECK(taken < 12s);
}

TEST_CASE(
    "two devices: verbs: when a read has ended in an error, nothing of it arrives, though the wire comes "
    "back") {
  const whole_wire afterwards;
  constexpr std::uint64_t bytes = 1u << 20;
  constexpr std::size_t reads = 4;
  enum class end { endpoint_destroyed, peer_timeout };
  for (const end how : {end::endpoint_destroyed, end::peer_timeout}) {
    CAPTURE(static_cast<int>(how));
    const auto addresses = rdma_addresses();
    verbs::options options;
    options.listen_addresses = {addresses.at(0)};
    verbs source{options, {1}};
    options.listen_addresses = {addresses.at(1)};
    options.peer_timeout = 1500ms;
    verbs reader{options, {2}};
    guarded_memory memory{bytes};
    guarded_memory target{reads * bytes};
    memory.fill(11);
    target.fill(22);
    const auto from = memory.range();
    const auto to = target.range();
    const auto regions = source.register_memory(std::span{&from, 1}, region_access::remote_read);
    const auto into = reader.register_memory(std::span{&to, 1}, region_access::local_write);
    const auto described = source.describe(regions.front());
    auto queue = reader.make_queue(reads);
    std::optional<verbs::endpoint> endpoint{reader.connect(queue, source.address(), {1}, 20s)};
    set_wire(false);
    for (request_id id = 0; id < reads; ++id) {
      REQUIRE(queue.post_read(*endpoint, into.front(), id * bytes, {&described, 0, bytes}, id) ==
              post_result::posted);
    }
    if (how == end::endpoint_destroyed) endpoint.reset();
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
      std::array<completion, 1> done;
      if (queue.poll(done) == 0) {
        queue.wait(10s);
        continue;
      }
      CHECK(done[0].status ==
            (how == end::peer_timeout ? completion_status::peer_lost : completion_status::cancelled));
    }
    CHECK(queue.outstanding() == 0);
    const std::vector<std::byte> before{to.data, to.data + to.bytes};
    set_wire(true);
    std::this_thread::sleep_for(4s);  // a living queue pair would have asked again
    CHECK(std::memcmp(before.data(), to.data, to.bytes) == 0);
  }
}

TEST_CASE("two devices: verbs: the device is chosen by name; an address of the other one is refused") {
  const auto addresses = rdma_addresses();
  for (std::size_t i = 0; i < 2; ++i) {
    verbs::options options;
    options.device = "rxe" + std::to_string(i);
    CHECK(verbs{options, {1}}.address().text.find(addresses.at(i)) != std::string::npos);
    options.listen_addresses = {addresses.at(1 - i)};
    CHECK_THROWS_AS((verbs{options, {1}}), error);
  }
}
