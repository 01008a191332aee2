/// The TCP transport between memories that the CPU cannot touch: what the staging rings do while copies are
/// under way, and when they fail.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/testing/conformance/guarded_memory.hpp>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "gated_device.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using gated_devices::gated_device;
using tensorhub::transports::tcp;
using testing::fake_device;
using ring = tensorhub::transports::tcp_detail::staging_ring;

namespace {

constexpr incarnation source_id{31};
constexpr incarnation reader_id{32};
constexpr std::uint64_t pieces_in_ring = ring::ring_bytes / ring::piece_bytes;

/// Every test leaves the device as it found it.
struct device_settings {
  fake_device::settings& set = fake_device::instance().set;
  ~device_settings() {
    set.delay_ns = 0;
    set.fail_after = UINT64_MAX;
  }
};

std::vector<std::byte> pattern(std::uint64_t seed, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> out;
  out.reserve(bytes);
  testing::for_pattern(seed, offset, bytes, [&](std::span<const std::byte> piece, std::uint64_t) {
    out.insert(out.end(), piece.begin(), piece.end());
  });
  return out;
}

/// Memory of the fake device, or of the host, with a pattern.
struct memory {
  std::vector<std::byte> on_host;
  std::unique_ptr<testing::fake_device_memory::allocation> on_device;
  std::uint64_t bytes;

  memory(std::uint64_t size, bool of_device, std::uint64_t seed) : bytes{size} {
    if (of_device) {
      on_device = std::make_unique<testing::fake_device_memory::allocation>(size);
      fake_device::instance().fill(on_device->data(), pattern(seed, 0, size));
    } else {
      on_host = pattern(seed, 0, size);
    }
  }
  [[nodiscard]] memory_range range(gated_device* through = nullptr) {
    if (!on_device) return {on_host.data(), bytes};
    memory_range all = on_device->range();
    all.bytes = bytes;
    return through == nullptr ? all : through->over(all);
  }
  [[nodiscard]] bool holds(std::uint64_t offset, std::uint64_t size, std::uint64_t seed,
                           std::uint64_t seed_offset) const {
    const auto expected = pattern(seed, seed_offset, size);
    if (!on_device) return std::memcmp(on_host.data() + offset, expected.data(), size) == 0;
    return fake_device::instance().bytes_of(on_device->data() + offset, size) == expected;
  }
};

constexpr std::uint64_t from_seed = 5;
constexpr std::uint64_t to_seed = 6;

/// One source with one region, one reader with one region, a queue and an endpoint.
struct pair {
  memory from;
  memory to;
  tcp source;
  tcp reader{{}, reader_id};
  std::vector<tcp::memory_region> given;
  std::vector<tcp::memory_region> taken;
  remote_region remote;
  std::optional<tcp::queue> queue;
  std::optional<tcp::endpoint> endpoint;
  std::map<request_id, std::vector<completion_status>> ended;

  struct sides {
    bool source_on_device = true;
    bool target_on_device = true;
    gated_device* source_gate = nullptr;
    gated_device* target_gate = nullptr;
    std::size_t depth = 16;
    tcp::options source_options{};
  };

  pair(std::uint64_t bytes, const sides& how)
      : from{bytes, how.source_on_device, from_seed},
        to{bytes, how.target_on_device, to_seed},
        source{how.source_options, source_id} {
    const memory_range given_range = from.range(how.source_gate);
    given = source.register_memory({&given_range, 1}, region_access::remote_read);
    const memory_range taken_range = to.range(how.target_gate);
    taken = reader.register_memory({&taken_range, 1}, region_access::local_write);
    remote = source.describe(given.front());
    queue.emplace(reader.make_queue(how.depth));
    connect();
  }
  void connect() {
    endpoint.reset();
    endpoint.emplace(reader.connect(*queue, source.address(), source_id, 5s));
  }
  bool post(request_id id, std::uint64_t offset, std::uint64_t bytes) {
    return queue->post_read(*endpoint, taken.front(), offset, {&remote, offset, bytes}, id) ==
           post_result::posted;
  }
  std::size_t poll() {
    std::array<completion, 8> done;
    const std::size_t count = queue->poll(done);
    for (std::size_t i = 0; i < count; ++i) ended[done[i].id].push_back(done[i].status);
    return count;
  }
  /// Until nothing is outstanding.
  void drain() {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (queue->outstanding() > 0 && std::chrono::steady_clock::now() < until) {
      if (poll() == 0) queue->wait(1s);
    }
    REQUIRE(queue->outstanding() == 0);
  }
  /// Goes on polling until the condition holds.
  template <typename Condition>
  void poll_until(Condition&& holds) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!holds() && std::chrono::steady_clock::now() < until) {
      if (poll() == 0) queue->wait(1ms);
    }
    REQUIRE(holds());
  }
  [[nodiscard]] std::optional<completion_status> status(request_id id) {
    const auto& all = ended[id];
    CHECK(all.size() == 1);
    return all.empty() ? std::nullopt : std::optional{all.front()};
  }
  /// Alone.
  std::optional<completion_status> read(std::uint64_t offset, std::uint64_t bytes) {
    constexpr request_id alone = 999'999;
    ended.erase(alone);
    REQUIRE(post(alone, offset, bytes));
    drain();
    return status(alone);
  }
};

/// Calls `end`, in another thread, with the gate closed and a copy under way: the call waits for the copy.
/// It goes on when the gate is opened.
template <typename End>
void end_behind(gated_device& gate, End&& end) {
  const std::uint64_t before = gate.waits;
  std::atomic<bool> returned = false;
  std::thread ending{[&] {
    end();
    returned = true;
  }};
  CHECK(gate.wait_for_a_wait(before, [&] { return returned.load(); }));
  CHECK(!returned);
  gate.open();
  ending.join();
}

}  // namespace

TEST_CASE("a read larger than the ring goes through it in pieces, on both sides") {
  const device_settings settings;
  const std::uint64_t bytes = 5 * ring::ring_bytes + 12'345;
  for (const std::int64_t delay_ns : {0, 150'000}) {
    settings.set.delay_ns = delay_ns;
    pair both{bytes, {}};
    const auto before = fake_device::instance().counted.copies.load();
    CHECK(both.read(7, bytes - 7) == completion_status::ok);
    CHECK(both.to.holds(7, bytes - 7, from_seed, 7));
    CHECK(both.to.holds(0, 7, to_seed, 0));
    const std::uint64_t pieces = (bytes - 7 + ring::piece_bytes - 1) / ring::piece_bytes;
    CHECK(fake_device::instance().counted.copies.load() - before == 2 * pieces);
  }
}

TEST_CASE("the reader receives into the rest of the ring while a copy is under way, and no further") {
  gated_device gate;
  {
    pair both{4 * ring::ring_bytes, {.source_on_device = false, .target_gate = &gate}};
    gate.close();
    REQUIRE(both.post(1, 0, 4 * ring::ring_bytes));
    both.poll_until([&] { return gate.queued == pieces_in_ring; });
    for (int i = 0; i < 20; ++i) {
      both.queue->wait(1ms);
      CHECK(both.poll() == 0);
    }
    CHECK(gate.queued == pieces_in_ring);
    gate.open();
    both.drain();
    CHECK(both.status(1) == completion_status::ok);
    CHECK(gate.queued == 4 * pieces_in_ring);
    CHECK(both.to.holds(0, both.to.bytes, from_seed, 0));
    CHECK(gate.pinned_bytes == ring::ring_bytes);
  }
  CHECK(gate.pinned_bytes == 0);
}

TEST_CASE("the read is complete only when its last copy is") {
  gated_device gate;
  pair both{1000, {.source_on_device = false, .target_gate = &gate}};
  gate.close();
  REQUIRE(both.post(1, 0, 1000));
  both.poll_until([&] { return gate.queued == 1; });
  for (int i = 0; i < 20; ++i) {
    both.queue->wait(1ms);
    CHECK(both.poll() == 0);
  }
  CHECK(both.queue->outstanding() == 1);
  both.queue->wake();
  both.queue->wait(60s);  // ends by the wake
  gate.open();
  both.drain();
  CHECK(both.status(1) == completion_status::ok);
}

TEST_CASE("the source copies ahead, for the next requests too, and sends nothing before its copy is done") {
  gated_device gate;
  constexpr std::uint64_t slot_bytes = 2 * ring::piece_bytes;
  pair both{3 * slot_bytes, {.target_on_device = false, .source_gate = &gate}};
  gate.close();
  for (request_id id = 0; id < 3; ++id) REQUIRE(both.post(id, id * slot_bytes, slot_bytes));
  both.poll_until([&] { return gate.queued == 6; });
  for (int i = 0; i < 20; ++i) {
    both.queue->wait(1ms);
    CHECK(both.poll() == 0);
  }
  CHECK(both.to.holds(0, both.to.bytes, to_seed, 0));
  gate.open();
  both.drain();
  for (request_id id = 0; id < 3; ++id) CHECK(both.status(id) == completion_status::ok);
  CHECK(both.to.holds(0, both.to.bytes, from_seed, 0));
}

TEST_CASE("the source copies nothing ahead of host memory that an earlier answer has still to send") {
  gated_device gate;
  constexpr std::uint64_t bytes = 1000;
  pair both{3 * bytes, {.target_on_device = false, .source_gate = &gate}};
  memory plain{bytes, false, 9};
  const memory_range range = plain.range();
  const auto regions = both.source.register_memory({&range, 1}, region_access::remote_read);
  const remote_region on_host = both.source.describe(regions.front());
  gate.close();
  REQUIRE(both.post(1, 0, bytes));
  REQUIRE(both.queue->post_read(*both.endpoint, both.taken.front(), bytes, {&on_host, 0, bytes}, 2) ==
          post_result::posted);
  REQUIRE(both.post(3, 2 * bytes, bytes));
  both.poll_until([&] { return gate.queued > 0; });
  for (int i = 0; i < 20; ++i) {
    both.queue->wait(1ms);
    CHECK(both.poll() == 0);
  }
  CHECK(gate.queued == 1);
  gate.open();
  both.drain();
  CHECK(gate.queued == 2);
  for (request_id id = 1; id <= 3; ++id) CHECK(both.status(id) == completion_status::ok);
  CHECK(both.to.holds(0, bytes, from_seed, 0));
  CHECK(both.to.holds(bytes, bytes, 9, 0));
  CHECK(both.to.holds(2 * bytes, bytes, from_seed, 2 * bytes));
}

TEST_CASE("a connection that waits for a copy holds up no other, though one thread serves both") {
  gated_device gate;
  pair both{1u << 20, {.target_on_device = false, .source_gate = &gate, .source_options = {.io_threads = 1}}};
  memory plain{1000, false, 9};
  const memory_range range = plain.range();
  const auto regions = both.source.register_memory({&range, 1}, region_access::remote_read);
  const remote_region described = both.source.describe(regions.front());
  gate.close();
  REQUIRE(both.post(1, 0, 1u << 20));
  both.poll_until([&] { return gate.queued > 0; });
  // Over a connection of its own, and while the first read is outstanding.
  auto other = both.reader.make_queue(1);
  auto through = both.reader.connect(other, both.source.address(), source_id, 5s);
  REQUIRE(other.post_read(through, both.taken.front(), 0, {&described, 0, 1000}, 2) == post_result::posted);
  std::array<completion, 2> done;
  const auto until = std::chrono::steady_clock::now() + 60s;
  std::size_t count = 0;
  while (count == 0 && std::chrono::steady_clock::now() < until) {
    other.wait(1s);
    count = other.poll(done);
  }
  REQUIRE(count == 1);
  CHECK(done[0].status == completion_status::ok);
  CHECK(both.to.holds(0, 1000, 9, 0));
  CHECK(both.poll() == 0);
  gate.open();
  both.drain();
  CHECK(both.status(1) == completion_status::ok);
}

TEST_CASE("many small reads: each once, its bytes there when it completes") {
  const device_settings settings;
  for (const std::int64_t delay_ns : {0, 50'000}) {
    settings.set.delay_ns = delay_ns;
    constexpr std::uint64_t slot_bytes = 777;
    constexpr request_id count = 400;
    pair both{count * slot_bytes, {.depth = 48}};
    for (request_id id = 0; id < count;) {
      if (both.post(id, id * slot_bytes, 1 + (id * 31) % slot_bytes)) {
        ++id;
      } else if (both.poll() == 0) {
        both.queue->wait(1s);
      }
    }
    both.drain();
    for (request_id id = 0; id < count; ++id) {
      CHECK(both.status(id) == completion_status::ok);
      const std::uint64_t bytes = 1 + (id * 31) % slot_bytes;
      CHECK(both.to.holds(id * slot_bytes, bytes, from_seed, id * slot_bytes));
      CHECK(both.to.holds(id * slot_bytes + bytes, slot_bytes - bytes, to_seed, id * slot_bytes + bytes));
    }
  }
}

TEST_CASE("host memory and two devices, mixed on one connection, both ways") {
  const device_settings settings;
  settings.set.delay_ns = 100'000;
  gated_device one;  // never closed: just another device
  constexpr std::uint64_t bytes = 700'000;
  tcp source{{}, source_id};
  tcp reader{{}, reader_id};
  std::vector<std::unique_ptr<memory>> from;
  std::vector<std::unique_ptr<memory>> to;
  std::vector<tcp::memory_region> given;
  std::vector<tcp::memory_region> taken;
  std::vector<remote_region> remote;
  for (std::size_t kind = 0; kind < 3; ++kind) {
    from.push_back(std::make_unique<memory>(bytes, kind > 0, 10 + kind));
    const memory_range served = from.back()->range(kind == 2 ? &one : nullptr);
    for (auto& each : source.register_memory({&served, 1}, region_access::remote_read))
      given.push_back(std::move(each));
    remote.push_back(source.describe(given.back()));
    for (std::size_t k = 0; k < 3; ++k) {
      to.push_back(std::make_unique<memory>(bytes, k > 0, to_seed));
      const memory_range target = to.back()->range(k == 2 ? &one : nullptr);
      for (auto& each : reader.register_memory({&target, 1}, region_access::local_write))
        taken.push_back(std::move(each));
    }
  }
  auto queue = reader.make_queue(9);
  auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 9; ++i) {  // 4 and 9 have no common factor: an order that mixes
      const std::size_t which = (i * 4) % 9;
      REQUIRE(queue.post_read(endpoint, taken[which], 0, {&remote[which / 3], 0, bytes}, which) ==
              post_result::posted);
    }
    std::map<request_id, std::size_t> came;
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
      std::array<completion, 4> done;
      const std::size_t count = queue.poll(done);
      for (std::size_t i = 0; i < count; ++i) {
        ++came[done[i].id];
        CHECK(done[i].status == completion_status::ok);
        CHECK(to[done[i].id]->holds(0, bytes, 10 + done[i].id / 3, 0));
      }
      if (count == 0) queue.wait(1s);
    }
    CHECK(came.size() == 9);
    for (const auto& [id, count] : came) CHECK(count == 1);
  }
}

TEST_CASE("a lane of the reader that fails: local_error, once each, and the endpoint is broken") {
  const device_settings settings;
  for (const std::uint64_t good : {0u, 1u, 5u, 11u}) {
    pair both{8u << 20, {.source_on_device = false}};
    settings.set.fail_after = good;
    for (request_id id = 0; id < 8; ++id) REQUIRE(both.post(id, id << 20, 1u << 20));
    both.drain();
    std::size_t failed = 0;
    for (request_id id = 0; id < 8; ++id) {
      const auto status = both.status(id);
      if (status == completion_status::ok) {
        CHECK(both.to.holds(id << 20, 1u << 20, from_seed, id << 20));
      } else {
        CHECK(status == completion_status::local_error);
        ++failed;
      }
    }
    CHECK(failed >= 8 - good / 2);  // two copies each
    CHECK(!both.endpoint->usable());
    CHECK(both.read(0, 1) == completion_status::peer_lost);
    settings.set.fail_after = UINT64_MAX;
    both.connect();
    CHECK(both.read(0, 8u << 20) == completion_status::ok);
    CHECK(both.to.holds(0, 8u << 20, from_seed, 0));
  }
}

TEST_CASE("a lane of the source that fails: the connection ends, nothing wrong arrives") {
  const device_settings settings;
  for (const std::uint64_t good : {0u, 1u, 5u, 11u}) {
    pair both{8u << 20, {.target_on_device = false}};
    settings.set.fail_after = good;
    for (request_id id = 0; id < 8; ++id) REQUIRE(both.post(id, id << 20, 1u << 20));
    both.drain();
    std::size_t failed = 0;
    for (request_id id = 0; id < 8; ++id) {
      const auto status = both.status(id);
      if (status == completion_status::ok) {
        CHECK(both.to.holds(id << 20, 1u << 20, from_seed, id << 20));
      } else {
        CHECK(status == completion_status::peer_lost);
        ++failed;
      }
    }
    CHECK(failed >= 8 - good / 2);
    CHECK(!both.endpoint->usable());
    settings.set.fail_after = UINT64_MAX;
    both.connect();
    CHECK(both.read(0, 8u << 20) == completion_status::ok);
    CHECK(both.to.holds(0, 8u << 20, from_seed, 0));
  }
}

TEST_CASE("the source's memory is freed under its region: an error, and the source goes on") {
  pair both{1u << 20, {}};
  CHECK(both.read(0, 1000) == completion_status::ok);
  memory other{5000, true, 8};
  const memory_range range = other.range();
  const auto regions = both.source.register_memory({&range, 1}, region_access::remote_read);
  both.from.on_device.reset();
  CHECK(both.read(0, 1u << 20) == completion_status::peer_lost);
  CHECK(!both.endpoint->usable());
  both.connect();
  CHECK(both.read(0, 8) == completion_status::peer_lost);
  both.connect();
  both.remote = both.source.describe(regions.front());
  CHECK(both.read(0, 5000) == completion_status::ok);
  CHECK(both.to.holds(0, 5000, 8, 0));
}

TEST_CASE("the reader's memory is freed under its region: local_error") {
  pair both{1u << 20, {}};
  CHECK(both.read(0, 1000) == completion_status::ok);
  both.to.on_device.reset();
  CHECK(both.read(0, 1u << 20) == completion_status::local_error);
  CHECK(!both.endpoint->usable());
}

TEST_CASE("a permission that ends with a copy under way: the call waits for it, no later byte is delivered") {
  enum class end { deregister, revoke, cut_off };
  for (const end how : {end::deregister, end::revoke, end::cut_off}) {
    gated_device gate;
    pair both{1u << 20, {.target_on_device = false, .source_gate = &gate}};
    gate.close();
    REQUIRE(both.post(1, 0, 1u << 20));
    both.poll_until([&] { return gate.queued == 2; });
    end_behind(gate, [&] {
      if (how == end::deregister) both.given.clear();
      if (how == end::revoke) both.source.revoke(both.given.front());
      if (how == end::cut_off) both.source.cut_off(reader_id);
    });
    fake_device::instance().fill(both.from.on_device->data(), pattern(77, 0, 1u << 20));
    if (how == end::deregister) both.from.on_device.reset();
    both.drain();
    // `ok` if the gate was faster than the other thread.
    CHECK((both.status(1) == completion_status::peer_lost || both.to.holds(0, 1u << 20, from_seed, 0)));
    CHECK(gate.queued == 2);
  }
}

TEST_CASE("memory that is only copied ahead, for a later request, is waited for as well") {
  gated_device gate;
  pair both{1u << 20, {.target_on_device = false, .source_gate = &gate}};
  memory later{1000, true, 8};
  const memory_range range = later.range(&gate);
  auto regions = both.source.register_memory({&range, 1}, region_access::remote_read);
  gate.close();
  REQUIRE(both.post(1, 0, 1000));
  both.remote = both.source.describe(regions.front());
  REQUIRE(both.post(2, 1000, 0));  // no byte of it: only the key is looked at
  REQUIRE(both.queue->post_read(*both.endpoint, both.taken.front(), 2000, {&both.remote, 0, 1000}, 3) ==
          post_result::posted);
  both.poll_until([&] { return gate.queued == 2; });
  end_behind(gate, [&] { regions.clear(); });
  later.on_device.reset();
  both.drain();
  CHECK(gate.queued == 2);
  for (request_id id = 1; id <= 3; ++id) static_cast<void>(both.status(id));
  CHECK((both.status(3) != completion_status::ok || both.to.holds(2000, 1000, 8, 0)));
}

TEST_CASE("an endpoint that is destroyed with copies under way: no byte of its targets changes afterwards") {
  for (const bool queue_too : {false, true}) {
    gated_device gate;
    pair both{16u << 20, {.source_on_device = false, .target_gate = &gate}};
    gate.close();
    for (request_id id = 0; id < 16; ++id) REQUIRE(both.post(id, id << 20, 1u << 20));
    both.poll_until([&] { return gate.queued == pieces_in_ring; });
    end_behind(gate, [&] {
      both.endpoint.reset();
      if (queue_too) both.queue.reset();
    });
    fake_device::instance().fill(both.to.on_device->data(), pattern(44, 0, 16u << 20));
    if (!queue_too) {
      both.drain();
      for (request_id id = 0; id < 16; ++id) {
        const auto status = both.status(id);
        CHECK((status == completion_status::ok || status == completion_status::cancelled));
      }
    }
    CHECK(gate.queued == pieces_in_ring);
    CHECK(both.to.holds(0, 16u << 20, 44, 0));
  }
}

TEST_CASE("no pinned memory: an error with a sentence where it can be said, else a failed read") {
  gated_device gate;
  {
    gate.has_pinned = false;
    memory target{1000, true, to_seed};
    pair both{1000, {.target_on_device = false, .source_gate = &gate}};
    CHECK(both.read(0, 1000) == completion_status::peer_lost);  // the source has none
    CHECK(both.to.holds(0, 1000, to_seed, 0));

    // The reader has none, and was connected before it knew of the device.
    memory plain{1000, false, 9};
    const memory_range range = plain.range();
    const auto regions = both.source.register_memory({&range, 1}, region_access::remote_read);
    both.remote = both.source.describe(regions.front());
    both.connect();
    const memory_range taken_range = target.range(&gate);
    std::swap(both.taken, both.given);  // keeps the old ones
    both.taken = both.reader.register_memory({&taken_range, 1}, region_access::local_write);
    CHECK(both.read(0, 1000) == completion_status::local_error);
    CHECK(both.endpoint->usable());
    std::string sentence;
    try {
      both.connect();
    } catch (const error& e) {
      CHECK(e.code() == errc::transport_failed);
      sentence = e.what();
    }
    CHECK_MESSAGE(sentence.find("no pinned memory is left") != std::string::npos, sentence);
    gate.has_pinned = true;
    both.connect();
    CHECK(both.read(0, 1000) == completion_status::ok);
    CHECK(target.holds(0, 1000, 9, 0));
  }
  CHECK(gate.pinned_bytes == 0);
}

TEST_CASE("pinned memory is bounded, and used again by the next connection") {
  gated_device at_source;
  gated_device at_target;
  {
    // With one I/O thread, which gives the ring back before it meets the next connection.
    pair both{3u << 20,
              {.source_gate = &at_source, .target_gate = &at_target, .source_options = {.io_threads = 1}}};
    for (int i = 0; i < 6; ++i) {
      CHECK(both.read(0, 3u << 20) == completion_status::ok);
      both.connect();
    }
    // A source's connection that is asked for nothing has none: the first stays open, another one reads.
    CHECK(both.read(0, 1000) == completion_status::ok);
    const std::optional<tcp::endpoint> first = std::exchange(both.endpoint, std::nullopt);
    both.connect();
    CHECK(both.read(0, 1000) == completion_status::ok);
    CHECK(at_source.pinned_bytes == ring::ring_bytes);
    CHECK(at_source.lanes == 1);
    CHECK(at_target.pinned_bytes == 2 * ring::ring_bytes);
    CHECK(at_target.lanes == 2);
  }
  CHECK(at_source.pinned_bytes == 0);
  CHECK(at_target.pinned_bytes == 0);
}

TEST_CASE("a reader that goes while its answer is copied: the source gives it up and serves others") {
  gated_device gate;
  pair both{8u << 20, {.target_on_device = false, .source_gate = &gate, .source_options = {.io_threads = 1}}};
  gate.close();
  REQUIRE(both.post(1, 0, 8u << 20));
  both.poll_until([&] { return gate.queued == pieces_in_ring; });
  both.endpoint.reset();
  gate.open();
  both.connect();  // by the same I/O thread
  both.remote.key.bytes[0] ^= std::byte{1};
  CHECK(both.read(0, 1) == completion_status::access_denied);
  CHECK(gate.queued < 2 * pieces_in_ring);
  both.drain();
  CHECK(both.status(1) == completion_status::cancelled);
}

TEST_CASE("a device that does not finish a copy is not waited for without end") {
  gated_device gate;
  memory from{1000, true, from_seed};
  ring stuck{gate, 10ms};
  CHECK(stuck.settle());  // nothing was asked of it
  REQUIRE(stuck.reserve(1000) != nullptr);
  REQUIRE(stuck.load(from.range().data, 1000));
  gate.close();
  CHECK(!stuck.settle());
  CHECK(stuck.is_stuck());
  gate.open();
  CHECK(stuck.wait(stuck.newest(), 60s) == lane_state::done);
  CHECK(stuck.settle());
  CHECK(!stuck.is_stuck());
}

TEST_CASE("the ring's room: pieces of any length, in order, never two in one place") {
  ring staging{fake_device::instance()};
  const std::byte* const base = staging.reserve(1);
  std::vector<std::byte> source(ring::piece_bytes);
  std::map<std::uint64_t, std::uint64_t> taken;  // begin -> end, of the pieces in the ring
  std::uint64_t refused = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const std::uint64_t word = testing::pattern_word(3, i);
    const std::uint64_t bytes = 1 + (word % 3 == 0 ? (word >> 8) % 300 : (word >> 8) % ring::piece_bytes);
    const std::byte* const room = staging.reserve(bytes);
    if (room != nullptr) {
      const auto begin = static_cast<std::uint64_t>(room - base);
      REQUIRE(begin + bytes <= ring::ring_bytes);
      const auto after = taken.lower_bound(begin);
      REQUIRE((after == taken.end() || begin + bytes <= after->first));
      REQUIRE((after == taken.begin() || std::prev(after)->second <= begin));
      taken[begin] = begin + bytes;
      REQUIRE(staging.load(source.data(), bytes));
    }
    refused += room == nullptr ? 1 : 0;
    // Filled and emptied in turns.
    if (room != nullptr && i % 200 < 100) continue;
    while (!staging.empty() && (room == nullptr || word % 5 != 0)) {
      taken.erase(static_cast<std::uint64_t>(staging.oldest().data - base));
      staging.drop_oldest();
      if (word % 7 != 0) break;
    }
  }
  CHECK(refused > 50);
  CHECK(staging.settle());
}

TEST_CASE("device memory without its device is refused, with the others") {
  tcp through{{}, reader_id};
  memory good{100, true, 1};
  memory_range bad = good.range();
  bad.device = nullptr;
  const std::array<memory_range, 2> ranges{good.range(), bad};
  std::string sentence;
  try {
    static_cast<void>(through.register_memory(ranges, region_access::both));
  } catch (const error& e) {
    CHECK(e.code() == errc::invalid_argument);
    sentence = e.what();
  }
  CHECK_MESSAGE(sentence.find("range 1 of 2") != std::string::npos, sentence);
  CHECK_MESSAGE(sentence.find("device") != std::string::npos, sentence);
  CHECK(through.registered_bytes() == 0);
  static_assert(tcp::capabilities.reads_device_memory);
}
