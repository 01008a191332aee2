/// \file device_memory.cpp
/// What the library does with memory that the CPU cannot touch: here that of the fake device, whose addresses
/// fault.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tensorhub/policy/integrity/blake3_128.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/testing/fake_device.hpp"
#include "tensorhub/testing/memory_transport.hpp"
#include "tensorhub/transfer/chunk_digests.hpp"
#include "tensorhub/transfer/digest_table.hpp"
#include "tensorhub/transfer/parallel_copy.hpp"
#include "tensorhub/transfer/shard_memory.hpp"
#include "tensorhub/worker/stream_order.hpp"

using namespace tensorhub;
using tensorhub::testing::fake_device;
using tensorhub::testing::fake_device_memory;

namespace {

std::vector<std::byte> pattern(std::size_t bytes, unsigned salt) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>((i * 131 + salt * 17 + i / 251) & 255u);
  return out;
}

/// So many pieces of work succeed, then lanes fail, until the end of the scope.
struct failing_device {
  explicit failing_device(std::uint64_t after) { fake_device::instance().set.fail_after = after; }
  ~failing_device() { fake_device::instance().set.fail_after = UINT64_MAX; }
};

/// Not known to any device.
struct own_digest {
  using concept_tag = integrity_tag;
  static constexpr std::string_view name = "own";
  static constexpr bool enabled = true;
  static digest_seeds bind(std::string_view, version_number version, shard_of) noexcept {
    return {1, version.value};
  }
  static digest128 chunk_digest(std::uint64_t seed, std::uint64_t chunk,
                                std::span<const std::byte> bytes) noexcept {
    digest128 sum{seed + 1, chunk};
    for (const std::byte each : bytes) sum.high = sum.high * 31 + static_cast<std::uint64_t>(each);
    return sum;
  }
  static digest128 root(std::uint64_t, std::span<const digest128> table) noexcept { return table.front(); }
};
static_assert(integrity<own_digest> && !device_integrity<own_digest> && !keyed_device_integrity<own_digest>);

template <integrity Integrity>
void compare_digests() {
  const auto bytes = pattern(70'000, 3);
  fake_device_memory space;
  const auto there = space.allocate(bytes.size());
  fake_device::instance().fill(there.data(), bytes);
  device_access* const device = there.range().device;
  const std::vector<placed_chunk> chunks{{0, there.data(), 1000, device},
                                         {1, bytes.data() + 1000, 2000, nullptr},
                                         {2, there.data() + 3000, 1, device},
                                         {3, there.data() + 3001, 66'999, device}};
  std::vector<digest128> made(chunks.size());
  chunk_digests<Integrity>{}.make(77, chunks, made);
  const std::vector<std::span<const std::byte>> parts{
      std::span{bytes}.first(1000), std::span{bytes}.subspan(1000, 2000), std::span{bytes}.subspan(3000, 1),
      std::span{bytes}.subspan(3001)};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    INFO("chunk ", i);
    CHECK(made[i] == Integrity::chunk_digest(77, i, parts[i]));
  }
}

}  // namespace

TEST_CASE("device memory: a chunk's digest is the same wherever it lies") {
  for (const bool keyed : {false, true}) {
    CAPTURE(keyed);
    const auto before = fake_device::instance().counted.digests.load();
    keyed ? compare_digests<blake3_128>() : compare_digests<xxh3_128>();
    CHECK(fake_device::instance().counted.digests.load() == before + 3);  // the fourth lies on the host
  }
}

TEST_CASE("device memory: chunks of a policy that the device does not know are brought to the host") {
  compare_digests<own_digest>();
}

TEST_CASE("device memory: digests of many chunks are one piece of work") {
  fake_device_memory space;
  const auto there = space.allocate(64 * 4096);
  std::vector<placed_chunk> chunks;
  for (std::size_t i = 0; i < 64; ++i)
    chunks.push_back({i, there.data() + 4096 * i, 4096, there.range().device});
  std::vector<digest128> made(chunks.size());
  const failing_device second_piece{1};
  chunk_digests<xxh3_128>{}.make(5, chunks, made);
  CHECK(made[63] == xxh3_128::chunk_digest(5, 63, std::vector<std::byte>(4096)));
}

TEST_CASE("device memory: a device that fails is named, and no digest is believed") {
  fake_device_memory space;
  const auto there = space.allocate(4096);
  const std::array chunks{placed_chunk{7, there.data(), 4096, there.range().device}};
  std::array<digest128, 1> made{};
  chunk_digests<xxh3_128> digests;
  {
    const failing_device at_once{0};
    CHECK_THROWS_WITH_AS(digests.make(5, chunks, made),
                         doctest::Contains("fake device could not compute digests from chunk 7"), error);
  }
  digests.make(5, chunks, made);  // with a new lane
  CHECK(made[0] == xxh3_128::chunk_digest(5, 7, std::vector<std::byte>(4096)));
}

TEST_CASE("device memory: a shard may mix it with host memory, and small tensors go in one copy each way") {
  testing::memory_transport through{{}, incarnation{1}};
  shard_memory<testing::memory_transport, fake_device_memory> memory{through};
  fake_device_memory space;
  std::vector<fake_device_memory::allocation> small;
  std::vector<std::vector<std::byte>> expected;
  for (unsigned i = 0; i < 40; ++i) {
    small.push_back(space.allocate(100 + i));
    expected.push_back(pattern(100 + i, i));
    fake_device::instance().fill(small.back().data(), expected.back());
    memory.add({"small-" + std::to_string(i), dtype::u8, {100 + i}}, small.back().data());
  }
  auto on_host = pattern(300, 99);
  memory.add({"host", dtype::u8, {300}}, on_host.data());
  const auto large = space.allocate(9000);
  memory.add({"large", dtype::u8, {9000}}, large.data());
  const layout shape = memory.build_layout(4096, {});
  memory.register_all(shape);
  CHECK(memory.places()[0].device == &fake_device::instance());
  CHECK(memory.places()[1].device == &fake_device::instance());

  const auto before = fake_device::instance().counted.copies.load();
  memory.pack();
  CHECK(fake_device::instance().counted.copies - before == 1);
  const auto packed = fake_device::instance().bytes_of(memory.places()[0].data, shape.packed_bytes());
  for (unsigned i = 0; i < 40; ++i) {
    const auto* const at = packed.data() + *shape.packed_offset(i);
    CHECK(std::memcmp(at, expected[i].data(), expected[i].size()) == 0);
  }
  const std::vector<std::byte> nothing(400);
  for (unsigned i = 0; i < 40; ++i)
    fake_device::instance().fill(small[i].data(), std::span{nothing}.first(100 + i));
  std::memset(on_host.data(), 0, on_host.size());
  memory.unpack();
  for (unsigned i = 0; i < 40; ++i)
    CHECK(fake_device::instance().bytes_of(small[i].data(), 100 + i) == expected[i]);
  CHECK(on_host == pattern(300, 99));

  const auto table = digest_table<xxh3_128>(shape, memory.places(), 11, 2);
  const auto again = fake_device::instance().bytes_of(memory.places()[0].data, shape.packed_bytes());
  CHECK(table[0] == xxh3_128::chunk_digest(11, 0, std::span{again}.first(4096)));
  CHECK(table.back() == xxh3_128::chunk_digest(11, table.size() - 1, std::vector<std::byte>(9000 % 4096)));

  const failing_device at_once{0};
  CHECK_THROWS_WITH_AS(
      memory.pack(), doctest::Contains("the device did not copy the small tensors, which fake device keeps"),
      error);
}

TEST_CASE("device memory: what was freed is refused by name when it is added") {
  testing::memory_transport through{{}, incarnation{1}};
  shard_memory<testing::memory_transport, fake_device_memory> memory{through};
  void* gone = nullptr;
  {
    fake_device_memory space;
    const auto there = space.allocate(1 << 20);
    gone = there.data();
  }
  CHECK_THROWS_WITH_AS(memory.add({"w", dtype::u8, {4096}}, gone), doctest::Contains("was it freed?"), error);
}

TEST_CASE("device memory: segments of a device and of the host copy over each other") {
  fake_device_memory space;
  const auto bytes = pattern(100'000, 1);
  const auto there = space.allocate(bytes.size());
  std::vector<std::byte> back(bytes.size());
  const std::array to{copy_run{there.data(), bytes.data(), bytes.size()}};
  const std::array from{copy_run{back.data(), there.data(), bytes.size()}};
  parallel_copy<fake_device_memory>(to, 3);
  parallel_copy<fake_device_memory>(from, 3);
  CHECK(back == bytes);
  const failing_device at_once{0};
  CHECK_THROWS_WITH_AS(parallel_copy<fake_device_memory>(to, 3),
                       doctest::Contains("the device did not copy the tensors"), error);
}

constexpr auto never = [] { return false; };

TEST_CASE("stream order: a call that is interrupted does not wait for its stream") {
  fake_device_memory space;
  const std::atomic<bool> done{false};
  int asked = 0;
  try {
    static_cast<void>(await_mark(space.mark({&done}), std::chrono::minutes{5}, [&] { return ++asked > 3; }));
    FAIL("it did not end");
  } catch (const error& e) {
    CHECK(e.code() == errc::cancelled);
  }
}

TEST_CASE("stream order: a call waits for the stream, and for nothing longer than its time") {
  fake_device_memory space;
  std::atomic<bool> done{false};
  CHECK_THROWS_WITH_AS(await_mark(space.mark({&done}), std::chrono::milliseconds{20}, never),
                       doctest::Contains("did not finish within 20 ms"), error);
  std::jthread work{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    done = true;
  }};
  const auto left = await_mark(space.mark({&done}), std::chrono::seconds{60}, never);
  CHECK(done);
  CHECK(left < std::chrono::seconds{60});
  CHECK(await_mark(space.mark({}), std::chrono::milliseconds{0}, never) == std::chrono::milliseconds{0});
}

TEST_CASE("stream order: work that has failed makes no version") {
  struct broken_space : fake_device_memory {
    struct mark_type {
      [[nodiscard]] lane_state state() const noexcept { return lane_state::failed; }
      [[nodiscard]] std::string trouble() const { return "an illegal address"; }
    };
    [[nodiscard]] mark_type mark(const stream_type&) const noexcept { return {}; }
  } space;
  CHECK_THROWS_WITH_AS(await_mark(space.mark({}), std::chrono::seconds{1}, never),
                       doctest::Contains("are no version; an illegal address"), error);
}
