// Workers whose weights live in device memory: here the fake device's, whose addresses fault when the CPU
// touches them. What is said here of it is said of every device.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <span>
#include <tensorhub/server.hpp>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "hub.hpp"

using tensorhub::all_done;
using tensorhub::testing::fake_device;
using tensorhub::testing::fake_device_memory;

using namespace system_tests;

namespace {

template <typename Transport>
using device_hub = tensorhub::hub<Transport, fake_device_memory>;

/// Two large tensors and some small ones on the device, one small one on the host.
struct device_weights {
  static constexpr std::uint64_t large_bytes = 5'000'001;
  fake_device_memory space{};
  std::array<fake_device_memory::allocation, 2> large{space.allocate(large_bytes),
                                                      space.allocate(large_bytes)};
  std::vector<fake_device_memory::allocation> small{};
  std::vector<std::byte> on_host = std::vector<std::byte>(333);

  device_weights() {
    for (std::size_t i = 0; i < 20; ++i) small.push_back(space.allocate(small_bytes(i)));
  }
  [[nodiscard]] static std::uint64_t small_bytes(std::size_t i) { return 7 + 101 * i; }

  [[nodiscard]] static std::vector<std::byte> bytes_of(std::uint64_t version, std::uint64_t tensor,
                                                       std::uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    std::uint64_t word = version * 1'000'003 + tensor;
    for (std::byte& each : out) {
      word = word * 6364136223846793005ull + 1442695040888963407ull;
      each = static_cast<std::byte>(word >> 56);
    }
    return out;
  }
  template <typename Visit>
  void visit(Visit&& each) {
    for (std::size_t i = 0; i < 2; ++i) each(i, large[i].data(), large_bytes);
    for (std::size_t i = 0; i < small.size(); ++i) each(10 + i, small[i].data(), small_bytes(i));
  }
  void fill(std::uint64_t version) {
    visit([&](std::uint64_t tensor, std::byte* at, std::uint64_t bytes) {
      fake_device::instance().fill(at, bytes_of(version, tensor, bytes));
    });
    std::ranges::copy(bytes_of(version, 99, on_host.size()), on_host.begin());  // where it is
  }
  [[nodiscard]] bool holds(std::uint64_t version) {
    bool same = on_host == bytes_of(version, 99, on_host.size());
    visit([&](std::uint64_t tensor, const std::byte* at, std::uint64_t bytes) {
      same = same && fake_device::instance().bytes_of(at, bytes) == bytes_of(version, tensor, bytes);
    });
    return same;
  }
  template <typename Worker>
  void add_to(Worker& worker) {
    visit([&](std::uint64_t tensor, std::byte* at, std::uint64_t bytes) {
      worker.add("t" + std::to_string(tensor), at, {bytes}, tensorhub::dtype::u8);
    });
    worker.add("host", on_host.data(), {on_host.size()}, tensorhub::dtype::u8);
  }
};

template <typename Worker>
using device_member = member<Worker, device_weights>;

struct failing_device {
  explicit failing_device(std::uint64_t after) { fake_device::instance().set.fail_after = after; }
  ~failing_device() { fake_device::instance().set.fail_after = UINT64_MAX; }
};

/// Versions from device to device, and on. How each update's bytes came.
template <typename Hub>
std::vector<std::string> versions_travel(const typename Hub::subscriber::transport_options& of_readers = {}) {
  std::vector<std::string> paths;
  const auto note = [&](const tensorhub::update_report& done) {
    paths.insert(paths.end(), done.paths.begin(), done.paths.end());
    return done.version;
  };
  typename Hub::reference_server server;
  device_member<typename Hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<typename Hub::subscriber> first{who(server.address(), "rollout-0"), of_readers};
  device_member<typename Hub::subscriber> second{who(server.address(), "rollout-1"), of_readers};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    trainer.publish(version, all_done);
    CHECK(note(first.worker.update(exactly(version), all_done)) == version);
    CHECK(first.memory.holds(version));
    trainer.worker.unpublish();
    CHECK(note(second.worker.update(exactly(version), all_done)) ==
          version);  // from the first: nobody else has it
    CHECK(second.memory.holds(version));
  }
  CHECK(paths.size() == 6);
  return paths;
}

using memory_hub = device_hub<tensorhub::testing::memory_transport>;

// No call on tensors of a device goes without their stream or `all_done`.
template <typename Worker>
concept publishes_without_stream = requires(Worker& worker) {
  worker.publish(1);
}
|| requires(Worker& worker) {
  worker.publish(1, 5s);
}
|| requires(Worker& worker) {
  worker.publish(1, tensorhub::snapshot);
};
template <typename Worker>
concept updates_without_stream = requires(Worker& worker) {
  worker.update();
}
|| requires(Worker& worker) {
  worker.update(latest, 5s);
}
|| requires(Worker& worker) {
  worker.update_async();
};
template <typename Worker>
concept installs_without_stream = requires(Worker& worker) {
  worker.install();
}
|| requires(Worker& worker) {
  worker.install(5s);
};
static_assert(!publishes_without_stream<memory_hub::publisher>);
static_assert(!updates_without_stream<memory_hub::subscriber>);
static_assert(!updates_without_stream<staged_of<memory_hub::subscriber>>);
static_assert(!installs_without_stream<staged_of<memory_hub::subscriber>>);
using plain_hub = tensorhub::hub<tensorhub::testing::memory_transport>;
static_assert(publishes_without_stream<plain_hub::publisher>);
static_assert(updates_without_stream<staged_of<plain_hub::subscriber>>);
static_assert(installs_without_stream<staged_of<plain_hub::subscriber>>);

/// Runs `call` in a thread, and sets the stream's mark half a second later. Whether the call was still
/// waiting then, and `as_before()` true.
template <typename Call, typename AsBefore>
bool waits_for(std::atomic<bool>& mark, Call&& call, AsBefore&& as_before) {
  std::atomic<bool> ended{false};
  bool has_waited = false;
  {
    std::jthread caller{[&] {
      call();
      ended = true;
    }};
    std::this_thread::sleep_for(500ms);
    has_waited = !ended && as_before();
    mark = true;
  }
  return has_waited;
}

}  // namespace

TEST_CASE("device hub: versions travel from device to device, and on") {
  versions_travel<memory_hub>();
}

TEST_CASE("device hub: over tcp, through pinned staging on both sides") {
  versions_travel<device_hub<tensorhub::transports::tcp>>();
}

TEST_CASE("device hub: what has not changed in device memory is digested there, and read from nobody") {
  memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<memory_hub::subscriber> reader{who(server.address(), "rollout-0")};
  trainer.publish(1, all_done);
  const std::uint64_t all = reader.worker.update(exactly(1), all_done).bytes;
  trainer.worker.unpublish();
  const auto fresh = device_weights::bytes_of(7, 0, device_weights::large_bytes);
  fake_device::instance().fill(trainer.memory.large[0].data(), fresh);
  trainer.worker.publish(2, all_done);
  const auto report = reader.worker.update(exactly(2), all_done);
  CHECK(report.bytes == device_weights::large_bytes);
  CHECK(report.unchanged_bytes == all - report.bytes);
  CHECK(fake_device::instance().bytes_of(reader.memory.large[0].data(), fresh.size()) == fresh);
  fake_device::instance().fill(reader.memory.large[0].data(),
                               device_weights::bytes_of(1, 0, device_weights::large_bytes));
  CHECK(reader.memory.holds(1));  // all else is as it was
}

// What a process maps of another's devices: tests/conformance/same_host_device_process.cpp.
TEST_CASE("device hub: over same_host, at the source's own address (it is this process), or staged by it") {
  using host_hub = device_hub<tensorhub::transports::same_host>;
  for (const std::string& path : versions_travel<host_hub>()) CHECK(path == "same_host");
  tensorhub::transports::same_host_options always_staged;
  always_staged.device = tensorhub::transports::device_memory::stage;
  for (const std::string& path : versions_travel<host_hub>(always_staged)) {
    CHECK_MESSAGE(contains(path, "same_host (memory of the peer is staged"), path);
  }
}

TEST_CASE("device hub: a report's path says that the bytes took a detour, and why") {
  using host_hub = device_hub<tensorhub::transports::same_host>;
  host_hub::reference_server server;
  device_member<host_hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<host_hub::subscriber> mapping{who(server.address(), "rollout-0")};
  tensorhub::transports::same_host_options always_staged;
  always_staged.device = tensorhub::transports::device_memory::stage;
  device_weights memory;
  host_hub::subscriber staging{who(server.address(), "rollout-1"), always_staged};
  memory.add_to(staging);
  trainer.publish(1, all_done);
  CHECK(mapping.worker.update(latest, all_done).paths == std::vector<std::string>{"same_host"});
  mapping.worker.unpublish();
  CHECK(staging.update(latest, all_done).paths ==
        std::vector<std::string>{"same_host (memory of the peer is staged: the option device says so)"});
  CHECK(memory.holds(1));
  REQUIRE(staging.statistics().received.size() == 1);
  CHECK(staging.statistics().received.front().path == "same_host");
}

TEST_CASE("device hub: interrupt and leave end a call that waits for a stream") {
  const memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  const std::atomic<bool> never{false};
  const auto publish = [&] {
    return code_of([&] { trainer.worker.publish(1, fake_device_memory::stream_type{&never}, 60s); });
  };
  const auto ended_by = [&](auto&& end) {
    auto call = std::async(std::launch::async, publish);
    CHECK(call.wait_for(200ms) == std::future_status::timeout);
    do {
      end();
    } while (call.wait_for(100ms) != std::future_status::ready);  // it may not have begun
    return call.get();
  };
  CHECK(ended_by([&] { trainer.worker.interrupt(); }) == errc::cancelled);
  const errc left = ended_by([&] { trainer.worker.leave(1s); });
  CHECK((left == errc::cancelled || left == errc::invalid_argument));  // it may not have begun
  CHECK(publish() == errc::invalid_argument);
}

TEST_CASE("device hub: publish and update come after what the stream holds") {
  memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<memory_hub::subscriber> rollout{who(server.address(), "rollout-0")};
  trainer.publish(1, all_done);
  rollout.worker.update(latest, all_done);
  trainer.worker.unpublish();

  // The optimizer's kernels write while publish waits.
  std::atomic<bool> optimized{false};
  std::jthread optimizer{[&] {
    std::this_thread::sleep_for(20ms);
    trainer.memory.fill(2);
    optimized = true;
  }};
  trainer.worker.publish(2, fake_device_memory::stream_type{&optimized});
  CHECK(optimized);

  // The kernels that generate read the old weights while update waits.
  std::atomic<bool> generated{false};
  CHECK(waits_for(
      generated,
      [&] {
        const fake_device_memory::stream_type stream{&generated};
        CHECK(rollout.worker.update(latest, stream).version == 2);
      },
      [&] { return rollout.memory.holds(1); }));
  CHECK(rollout.memory.holds(2));

  std::atomic<bool> never{false};
  std::string sentence;
  CHECK(code_of([&] { rollout.worker.update(latest, fake_device_memory::stream_type{&never}, 30ms); },
                &sentence) == errc::timed_out);
  CHECK(contains(sentence, "replica rollout-0"));
  CHECK(rollout.worker.held_version() == 2);  // nothing has begun
}

TEST_CASE("device hub: a snapshot lies in host memory; the device's may change at once") {
  memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<memory_hub::subscriber> rollout{who(server.address(), "rollout-0")};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    trainer.memory.fill(version);
    trainer.worker.publish(version, tensorhub::snapshot, all_done);
    trainer.memory.fill(1000 + version);  // the next step
    CHECK(rollout.worker.update(exactly(version), all_done).version == version);
    CHECK(rollout.memory.holds(version));
  }
  // A snapshot, too, is taken after what the stream holds.
  trainer.memory.fill(1000);
  std::atomic<bool> optimized{false};
  CHECK(waits_for(
      optimized,
      [&] { trainer.worker.publish(4, tensorhub::snapshot, fake_device_memory::stream_type{&optimized}); },
      [&] {
        trainer.memory.fill(4);  // by the optimizer's kernels
        return true;
      }));
  trainer.memory.fill(1004);
  CHECK(rollout.worker.update(exactly(4), all_done).version == 4);
  CHECK(rollout.memory.holds(4));

  const failing_device at_once{0};
  std::string sentence;
  CHECK(code_of([&] { trainer.worker.publish(5, tensorhub::snapshot, all_done); }, &sentence) ==
        errc::system_failed);
  CHECK(contains(sentence, "the device did not copy the tensors"));
  CHECK(contains(sentence, "model policy; version 5; replica trainer; shard 0]"));
}

TEST_CASE("device hub: what is staged waits in host memory, install brings it to the device") {
  memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<staged_of<memory_hub::subscriber>> rollout{who(server.address(), "rollout-0")};
  trainer.publish(1, all_done);
  rollout.worker.update(latest, all_done);
  trainer.worker.unpublish();
  trainer.publish(2, all_done);
  CHECK(rollout.worker.stage().version == 2);
  CHECK(rollout.memory.holds(1));
  std::atomic<bool> idle{false};
  CHECK(waits_for(
      idle, [&] { CHECK(rollout.worker.install(fake_device_memory::stream_type{&idle}).version == 2); },
      [&] { return rollout.memory.holds(1); }));
  CHECK(rollout.memory.holds(2));

  // An update of a staged subscriber comes after what the stream holds, as any other.
  trainer.worker.unpublish();
  trainer.publish(3, all_done);
  std::atomic<bool> never{false};
  CHECK(code_of([&] { rollout.worker.update(latest, fake_device_memory::stream_type{&never}, 30ms); }) ==
        errc::timed_out);
  CHECK(rollout.memory.holds(2));
  CHECK(rollout.worker.update(latest, fake_device_memory::stream_type{&idle}, 20s).version == 3);
  CHECK(rollout.memory.holds(3));
}

TEST_CASE("device hub: the last copy of a retained version is saved to host memory") {
  memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<memory_hub::subscriber> rollout{who(server.address(), "rollout-0")};
  trainer.publish(1, all_done);
  trainer.worker.retain(1);
  CHECK_FALSE(trainer.worker.unpublish().lost);
  CHECK(trainer.worker.offloaded_bytes() > 0);
  trainer.memory.fill(77);
  CHECK(rollout.worker.update(exactly(1), all_done).version == 1);
  CHECK(rollout.memory.holds(1));
}

TEST_CASE("device hub: a seed in host memory feeds devices") {
  memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  memory_hub::seeder seed{who(server.address(), "seed")};
  device_member<memory_hub::subscriber> rollout{who(server.address(), "rollout-0")};
  trainer.publish(4, all_done);
  CHECK(seed.wait(4, 20s) == 4);
  trainer.worker.unpublish();
  CHECK(rollout.worker.update(exactly(4), all_done).version == 4);
  CHECK(rollout.memory.holds(4));
}

TEST_CASE("device hub: a device that fails makes no version and no silent damage") {
  memory_hub::reference_server server;
  device_member<memory_hub::publisher> trainer{who(server.address(), "trainer")};
  device_member<memory_hub::subscriber> rollout{who(server.address(), "rollout-0")};
  trainer.memory.fill(1);
  trainer.worker.join();
  {
    const failing_device at_once{0};
    std::string sentence;
    CHECK(code_of([&] { trainer.worker.publish(1, all_done); }, &sentence) == errc::system_failed);
    CHECK(contains(sentence, "did not copy the small tensors, which fake device keeps together"));
    CHECK(contains(sentence, "model policy; version 1; replica trainer; shard 0]"));
  }
  CHECK_FALSE(trainer.worker.held_version());
  {
    const failing_device after_packing{1};
    std::string sentence;
    CHECK(code_of([&] { trainer.worker.publish(1, all_done); }, &sentence) == errc::system_failed);
    CHECK(contains(sentence, "fake device could not compute digests"));
    CHECK(contains(sentence, "retry, and restart the process"));
    CHECK(contains(sentence, "model policy; version 1; replica trainer; shard 0; chunk 0]"));
  }
  trainer.worker.publish(1, all_done);
  rollout.worker.update(latest, all_done);
  trainer.worker.unpublish();
  trainer.publish(2, all_done);
  for (std::uint64_t pieces = 0; pieces < 6; ++pieces) {
    const failing_device later{pieces};
    std::string sentence;
    const errc code = code_of([&] { rollout.worker.update(latest, all_done, 5s); }, &sentence);
    CHECK_MESSAGE((code == errc::system_failed || code == errc::unavailable), sentence);
    CHECK_FALSE(rollout.worker.held_version() == 2);
  }
  CHECK(rollout.worker.update(latest, all_done).version == 2);  // repairs what was torn
  CHECK(rollout.memory.holds(2));
}
