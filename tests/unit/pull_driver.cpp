/// \file pull_driver.cpp
/// Whole transfers over the memory transport: lanes, stopping, sources that die or are exchanged.

#include "tensorhub/transfer/pull_driver.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorhub/memory/host.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/testing/gated.hpp"
#include "tensorhub/testing/memory_transport.hpp"
#include "tensorhub/transfer/shard_memory.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using testing::memory_transport;

namespace {

using gated_transport = testing::gated<memory_transport>;
constexpr std::uint64_t chunk = 1024;
constexpr std::uint64_t seed = 99;
constexpr auto patience = 30s;

/// Tensors in ordinary memory: 300 chunks and a half in two large ones that lie next to each other, so that
/// they share a region, and a small one.
struct weights {
  static constexpr std::size_t large_bytes = 200 * chunk + 512;
  static constexpr std::size_t other_bytes = 100 * chunk;
  std::vector<std::byte> large_and_other = std::vector<std::byte>(large_bytes + other_bytes);
  std::vector<std::byte> small = std::vector<std::byte>(100);

  void fill(unsigned value) {
    for (auto* bytes : {&large_and_other, &small}) {
      for (std::size_t i = 0; i < bytes->size(); ++i)
        (*bytes)[i] = static_cast<std::byte>((i * 31 + i / 251 + value) & 255u);
    }
  }
  template <typename Shard>
  void add_to(Shard& shard) {
    shard.add({"other", dtype::u8, {other_bytes}}, large_and_other.data() + large_bytes);
    shard.add({"small", dtype::u8, {small.size()}}, small.data());
    shard.add({"large", dtype::u8, {large_bytes}}, large_and_other.data());
  }
  [[nodiscard]] bool operator==(const weights&) const = default;
};

/// One process that serves version 3.
template <typename Integrity = xxh3_128>
class source_process {
 public:
  explicit source_process(std::uint64_t number)
      : transport{{}, {number}}, memory_{transport}, number_{number} {
    bytes.fill(1);
    bytes.add_to(memory_);
    shape_ = memory_.build_layout(chunk, {});
    memory_.register_all(shape_);
    memory_.pack();
    block_ = std::make_unique<control_block>(incarnation{number}, shape_);
    for (chunk_index i = 0; Integrity::enabled && i < shape_.chunk_count(); ++i) {
      const chunk_slice slice = shape_.slice(i);
      table.push_back(Integrity::chunk_digest(
          seed, i, {memory_.places()[slice.segment].data + slice.offset, slice.bytes}));
    }
    block_->set_digests(table);
    for (std::size_t i = 0; i < shape_.segments().size(); ++i) block_->set_segment(i, memory_.remote(i));
    block_->show(3, 5);
    const memory_range range{block_->memory().data(), block_->memory().size()};
    control_ = transport.register_memory({&range, 1}, region_access::remote_read);
  }
  /// Its lease has the number of the process.
  [[nodiscard]] pull_target target() {
    const digest128 root = Integrity::enabled ? Integrity::root(seed, table) : digest128{};
    return {{{number_}, {number_}, 3, 5, root},
            transport.address(),
            transport.describe(control_[0]),
            "source " + std::to_string(number_)};
  }
  [[nodiscard]] const layout& shape() const { return shape_; }
  [[nodiscard]] control_block& block() { return *block_; }

  memory_transport transport;
  weights bytes;
  std::vector<digest128> table;

 private:
  shard_memory<memory_transport, host_memory> memory_;
  std::uint64_t number_;
  layout shape_;
  std::unique_ptr<control_block> block_;
  std::vector<memory_transport::memory_region> control_;
};

/// What the driver has called back, from whichever lane.
struct record {
  std::mutex mutex;
  std::vector<source_failure> failures;
  std::vector<lease_id> released;
};

/// One process that reads.
template <typename Integrity = xxh3_128>
class reader_process {
 public:
  using driver_type = pull_driver<gated_transport, Integrity>;

  /// `allowance_bytes` may be read before the gate is opened.
  explicit reader_process(const layout& shape, pull_driver_options options = {},
                          std::uint64_t allowance_bytes = UINT64_MAX)
      : gate{std::make_shared<testing::read_gate>(allowance_bytes)},
        transport_{{.inner = {}, .gate = gate}, incarnation{1000}},
        memory_{transport_},
        shape_{shape} {
    bytes.add_to(memory_);
    memory_.register_all(shape_);
    driver =
        std::make_unique<driver_type>(transport_, shape_, memory_.places(), seed, 17, options, callbacks());
  }
  ~reader_process() { end(); }
  reader_process(const reader_process&) = delete;
  reader_process& operator=(const reader_process&) = delete;

  void start() {
    running_ = std::async(std::launch::async, [this] { return driver->run(); });
  }
  /// What `run` returned; false too if it did not return in time.
  [[nodiscard]] bool result() {
    const bool in_time = running_.wait_for(patience) == std::future_status::ready;
    CHECK(in_time);
    if (!in_time) end();
    const bool complete = running_.get();
    memory_.unpack();
    return complete && in_time;
  }
  [[nodiscard]] bool run() {
    start();
    return result();
  }

  weights bytes;
  std::shared_ptr<testing::read_gate> gate;
  record seen;
  std::function<void(const source_failure&)> on_failure = [](const source_failure&) {};
  std::unique_ptr<driver_type> driver;

 private:
  [[nodiscard]] typename driver_type::callbacks callbacks() {
    return {[this](const source_failure& failure) {
              {
                const std::lock_guard lock{seen.mutex};
                seen.failures.push_back(failure);
              }
              on_failure(failure);
            },
            [this](lease_id lease) {
              const std::lock_guard lock{seen.mutex};
              seen.released.push_back(lease);
            }};
  }
  void end() {
    gate->open();
    driver->stop();
  }
  gated_transport transport_;
  shard_memory<gated_transport, host_memory> memory_;
  layout shape_;
  std::future<bool> running_;
};

// ---- the whole way

TEST_CASE_TEMPLATE("pull driver: a transfer is complete with any number of lanes", Integrity, xxh3_128,
                   no_integrity) {
  for (const std::size_t lanes : {0u, 1u, 2u, 4u}) {
    CAPTURE(lanes);
    source_process<Integrity> source{1};
    reader_process<Integrity> reader{source.shape(), {.lanes = lanes, .window_chunks = 3}};
    CHECK(reader.driver->progress().bytes == 0);
    CHECK(reader.driver->progress().total_bytes == source.shape().bytes());
    CHECK(reader.driver->progress().total_chunks == source.shape().chunk_count());
    reader.driver->add_source(source.target());
    REQUIRE(reader.run());
    CHECK(reader.bytes == source.bytes);
    CHECK(reader.driver->progress().bytes == source.shape().bytes());
    CHECK(reader.driver->progress().chunks == source.shape().chunk_count());
    CHECK_FALSE(reader.driver->intact());
    CHECK(std::ranges::equal(reader.driver->table(), source.table));
    CHECK(reader.driver->source_names() == std::vector<std::string>{"source 1"});
    CHECK(reader.seen.failures.empty());
    CHECK(reader.seen.released.empty());
  }
}

TEST_CASE("pull driver: two sources from the start serve one reader") {
  source_process<> one{1};
  source_process<> two{2};
  reader_process<> reader{one.shape(), {.lanes = 2}};
  reader.driver->add_source(one.target());
  reader.driver->add_source(two.target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == one.bytes);
  CHECK(reader.driver->source_names() == std::vector<std::string>{"source 1", "source 2"});
}

TEST_CASE("pull driver: a source may come after the start") {
  source_process<> source{1};
  reader_process<> reader{source.shape(), {.lanes = 2}};
  reader.start();
  reader.driver->add_source(source.target());
  REQUIRE(reader.result());
  CHECK(reader.bytes == source.bytes);
}

// ---- stopping

TEST_CASE("pull driver: stopped before it runs, it touches nothing") {
  source_process<> source{1};
  reader_process<> reader{source.shape(), {.lanes = 2}};
  const weights before = reader.bytes;
  reader.driver->add_source(source.target());
  reader.driver->stop();
  reader.driver->stop();
  CHECK_FALSE(reader.run());
  CHECK(reader.driver->intact());
  CHECK(reader.bytes == before);
}

TEST_CASE("pull driver: stopped without any source, it ends") {
  source_process<> source{1};
  reader_process<> reader{source.shape(), {.lanes = 3}};
  reader.start();
  reader.driver->stop();
  CHECK_FALSE(reader.result());
  CHECK(reader.driver->intact());
}

TEST_CASE("pull driver: stopped in the middle, it ends incomplete and not intact") {
  source_process<> source{1};
  reader_process<> reader{source.shape(), {.lanes = 2}, 200 * chunk};
  reader.driver->add_source(source.target());
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  reader.driver->stop();
  CHECK_FALSE(reader.result());
  CHECK_FALSE(reader.driver->intact());
  CHECK(reader.driver->progress().chunks < source.shape().chunk_count());
  CHECK(reader.seen.failures.empty());
}

// ---- sources that go

TEST_CASE("pull driver: a source that dies in the middle is reported once, and another one finishes") {
  for (const std::size_t lanes : {1u, 2u, 4u}) {
    CAPTURE(lanes);
    source_process<> first{1};
    source_process<> second{2};
    reader_process<> reader{first.shape(), {.lanes = lanes}, 200 * chunk};
    reader.on_failure = [&](const source_failure&) { reader.driver->switch_source(second.target(), {}); };
    reader.driver->add_source(first.target());
    reader.start();
    REQUIRE(reader.gate->wait_until_shut(patience));
    if (lanes == 1) CHECK(reader.driver->progress().chunks >= 64);  // a header has confirmed some
    first.transport.kill();
    reader.gate->open();
    REQUIRE(reader.result());
    CHECK(reader.bytes == second.bytes);
    REQUIRE(reader.seen.failures.size() == 1);
    CHECK(reader.seen.failures[0].lease == lease_id{1});
    CHECK(reader.seen.failures[0].reason == errc::source_lost);
    CHECK(reader.driver->source_names() == std::vector<std::string>{"source 1", "source 2"});
    CHECK(std::ranges::equal(reader.driver->table(), second.table));
  }
}

TEST_CASE("pull driver: a source that lets go in the middle broke the contract; nothing of it is kept") {
  source_process<> first{1};
  source_process<> second{2};
  reader_process<> reader{first.shape(), {.lanes = 2, .window_chunks = 2}, 30 * chunk};
  reader.on_failure = [&](const source_failure&) { reader.driver->switch_source(second.target(), {}); };
  reader.driver->add_source(first.target());
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  first.block().raise_epoch(6);
  reader.gate->open();
  REQUIRE(reader.result());
  REQUIRE(reader.seen.failures.size() == 1);
  CHECK(reader.seen.failures[0].reason == errc::contract_broken);
  CHECK(reader.bytes == second.bytes);
}

TEST_CASE("pull driver: an exchanged source is reported free once, and is no failure") {
  source_process<> first{1};
  source_process<> second{2};
  reader_process<> reader{first.shape(), {.lanes = 2}, 100 * chunk};
  reader.driver->add_source(first.target());
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  reader.driver->switch_source(second.target(), {1});
  reader.gate->open();
  REQUIRE(reader.result());
  CHECK(reader.bytes == second.bytes);
  CHECK(reader.seen.released == std::vector<lease_id>{{1}});
  CHECK(reader.seen.failures.empty());
}

TEST_CASE("pull driver: a source that cannot be reached is a failure with its name") {
  source_process<> gone{1};
  source_process<> other{2};
  const pull_target nobody = gone.target();
  gone.transport.kill();
  pull_target mistaken = other.target();  // another process is at this address
  mistaken.facts.holder = {77};
  mistaken.facts.lease = {77};
  reader_process<> reader{other.shape(), {.lanes = 2}};
  reader.on_failure = [&](const source_failure& failure) {
    reader.driver->switch_source(failure.lease == lease_id{1} ? mistaken : other.target(), {});
  };
  reader.driver->add_source(nobody);
  REQUIRE(reader.run());
  REQUIRE(reader.seen.failures.size() == 2);
  CHECK(reader.seen.failures[0].reason == errc::source_lost);
  CHECK(reader.seen.failures[0].detail.find("source 1: connecting: ") == 0);
  CHECK(reader.seen.failures[1].lease == lease_id{77});
  CHECK(reader.bytes == other.bytes);
}

TEST_CASE("pull driver: bytes that are not the published ones are corrupt, and read elsewhere") {
  source_process<> bad{1};
  source_process<> good{2};
  bad.bytes.large_and_other[5 * chunk] ^= std::byte{1};
  reader_process<> reader{good.shape(), {.lanes = 2}};
  reader.on_failure = [&](const source_failure&) { reader.driver->switch_source(good.target(), {}); };
  reader.driver->add_source(bad.target());
  REQUIRE(reader.run());
  REQUIRE(reader.seen.failures.size() == 1);
  CHECK(reader.seen.failures[0].reason == errc::corrupt);
  const chunk_slice slice = good.shape().slice(reader.seen.failures[0].chunk.value_or(0));
  CHECK(slice.segment == 2);  // after the packed one and "other"
  CHECK(slice.offset == 5 * chunk);
  CHECK(reader.bytes == good.bytes);
}

}  // namespace
