/// \file pull_driver.cpp
/// Whole transfers over the memory transport: lanes, stopping, sources that die or are exchanged.

#include "tensorhub/transfer/pull_driver.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fragile_transport.hpp"
#include "support/few_threads.hpp"
#include "support/gated.hpp"
#include "support/sanitizers.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/testing/memory_transport.hpp"
#include "tensorhub/transfer/digest_table.hpp"
#include "tensorhub/transfer/shard_memory.hpp"
#include "tensorhub/transfer/transport_pull.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using testing::memory_transport;

namespace {

/// Connecting to this process ends with the time-out: it accepts connections, and says nothing.
constexpr incarnation stopped_process{7000};

struct gated_transport : testing::gated<pull_test::fragile_transport> {
  using base = testing::gated<pull_test::fragile_transport>;
  using base::base;
  std::atomic<bool> somebody_hangs = true;  ///< false: ends all at once
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout) {
    if (peer != stopped_process) return base::connect(on, where, peer, timeout);
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (somebody_hangs && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
    throw error(errc::timed_out, "accepted the connection and said nothing");
  }
};
constexpr std::uint64_t chunk = 1024;
constexpr digest_seeds seeds{99, 101};
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
          seeds.chunks, i, {memory_.places()[slice.segment].data + slice.offset, slice.bytes}));
    }
    block_->set_digests(table);
    for (std::size_t i = 0; i < shape_.segments().size(); ++i) block_->set_segment(i, memory_.remote(i));
    block_->show(3, 5);
    const memory_range range{block_->memory().data(), block_->memory().size()};
    control_ = transport.register_memory({&range, 1}, region_access::remote_read);
  }
  /// It will receive, with the same bytes in the end; nothing is shown yet.
  void will_receive() {
    receiving_ = true;
    block_->raise_epoch(4);
  }
  void begin() {
    block_->raise_epoch(5);
    block_->show_receiving(3, 5);
  }
  /// Its lease has the number of the process.
  [[nodiscard]] pull_target target() {
    const digest128 root = Integrity::enabled ? Integrity::root(seeds.root, table) : digest128{};
    return {{{number_}, {number_}, 3, 5, root, receiving_},
            transport.address(),
            transport.describe(control_[0]),
            "source " + std::to_string(number_)};
  }
  [[nodiscard]] pull_target target_of_open_version() {
    pull_target out = target();
    out.facts.root = {};
    return out;
  }
  [[nodiscard]] pull_target far_target() {
    pull_target out = target();
    out.facts.far = true;
    return out;
  }
  /// A source in another datacenter, of whose lease the server says where its segments lie.
  [[nodiscard]] pull_target named_far_target() {
    pull_target out = target();
    out.facts.far = true;
    out.facts.segments = *read_control_segments(block_->memory(), shape_);
    return out;
  }
  [[nodiscard]] std::vector<digest128> digests(std::size_t lanes) const {
    return digest_table<Integrity>(shape_, memory_.places(), seeds.chunks, lanes);
  }
  [[nodiscard]] const layout& shape() const { return shape_; }
  [[nodiscard]] control_block& block() { return *block_; }

  memory_transport transport;
  weights bytes;
  std::vector<digest128> table;

 private:
  shard_memory<memory_transport, host_memory> memory_;
  std::uint64_t number_;
  bool receiving_ = false;
  layout shape_;
  std::unique_ptr<control_block> block_;
  std::vector<memory_transport::memory_region> control_;
};

/// What the driver has called back, from whichever lane.
struct record {
  std::mutex mutex;
  std::vector<source_failure> failures;
  std::vector<lease_id> released;
  std::vector<std::string> stalls;
  std::vector<digest128> believed;
  int times_believed = 0;
  int times_settled = 0;
  std::vector<digest128> left;
  std::vector<chunk_index> confirmed;
  std::size_t traced = 0;
  bool confirmed_too_early = false;  ///< before `believed`
};

/// One process that reads.
template <typename Integrity = xxh3_128>
class reader_process {
 public:
  using driver_type = transport_pull<gated_transport, Integrity>;

  /// `allowance_bytes` may be read before the gate is opened.
  explicit reader_process(const layout& shape, pull_driver_options options = {},
                          std::uint64_t allowance_bytes = UINT64_MAX)
      : gate{std::make_shared<testing::read_gate>(allowance_bytes)},
        transport_{{.inner = {}, .gate = gate}, incarnation{1000}},
        memory_{transport_},
        shape_{shape} {
    bytes.add_to(memory_);
    memory_.register_all(shape_);
    prepare(options);
  }
  ~reader_process() { end(); }
  reader_process(const reader_process&) = delete;
  reader_process& operator=(const reader_process&) = delete;

  /// Another update through the same lanes, with the connections that they have kept.
  void prepare_next(pull_driver_options options) {
    memory_.expect();
    prepare(options);
  }

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
  /// In the calling thread; it waits for as long as it takes.
  [[nodiscard]] bool run_here() {
    const bool complete = driver->run();
    memory_.unpack();
    return complete;
  }

  [[nodiscard]] pull_test::fragile_transport& connections() { return transport_.inner(); }

  /// Of all sources, in the order in which they came.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const source_progress& source : driver->progress().sources) out.push_back(source.name);
    return out;
  }

  weights bytes;
  std::shared_ptr<testing::read_gate> gate;
  record seen;
  std::function<void(const source_failure&)> on_failure = [](const source_failure&) {};
  std::function<void()> on_stall = [] {};
  std::function<void()> on_shortage = [] {};
  std::function<void()> on_believed = [] {};
  std::function<void(std::span<const chunk_index>)> on_confirmed = [](std::span<const chunk_index>) {};
  std::unique_ptr<driver_type> driver;

 private:
  void prepare(const pull_driver_options& options) {
    const typename driver_type::memory_type into{&shape_, memory_.regions(), memory_.places()};
    driver = std::make_unique<driver_type>(lanes_, into, seeds, 17, options, callbacks());
  }
  [[nodiscard]] pull_driver::callbacks callbacks() {
    pull_driver::callbacks to;
    to.source_failed = [this](const source_failure& failure) {
      {
        const std::lock_guard lock{seen.mutex};
        seen.failures.push_back(failure);
      }
      on_failure(failure);
    };
    to.source_released = [this](lease_id lease) {
      const std::lock_guard lock{seen.mutex};
      seen.released.push_back(lease);
    };
    to.stalled = [this](const std::string& detail) {
      {
        const std::lock_guard lock{seen.mutex};
        seen.stalls.push_back(detail);
      }
      on_stall();
    };
    to.ran_short = [this] { on_shortage(); };
    to.believed = [this](std::span<const digest128> table) {
      on_believed();
      const std::lock_guard lock{seen.mutex};
      ++seen.times_believed;
      seen.believed.assign(table.begin(), table.end());
    };
    to.confirmed = [this](std::span<const chunk_index> chunks, std::span<const digest128>) {
      {
        const std::lock_guard lock{seen.mutex};
        seen.confirmed_too_early = seen.confirmed_too_early || seen.times_believed == 0;
        seen.confirmed.insert(seen.confirmed.end(), chunks.begin(), chunks.end());
      }
      on_confirmed(chunks);
    };
    to.settled = [this](std::span<const digest128>) {
      const std::lock_guard lock{seen.mutex};
      ++seen.times_settled;
    };
    to.left = [this](std::span<const digest128> present) {
      seen.left.assign(present.begin(), present.end());
    };
    to.traced = [this](const chunk_event& event) {
      const std::lock_guard lock{seen.mutex};
      CHECK(event.posted <= event.arrived);
      CHECK(event.source.starts_with("source "));
      ++seen.traced;
    };
    return to;
  }
  void end() {
    gate->open();
    transport_.somebody_hangs = false;
    driver->stop();
  }
  gated_transport transport_;
  lane_pool<gated_transport> lanes_{transport_};
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
    CHECK(reader.names() == std::vector<std::string>{"source 1"});
    CHECK(reader.seen.failures.empty());
    CHECK(reader.seen.released.empty());
    CHECK(reader.seen.stalls.empty());
    CHECK(reader.seen.times_believed == 1);
    CHECK(reader.seen.believed == source.table);
    CHECK_FALSE(reader.seen.confirmed_too_early);
    CHECK(reader.seen.traced == source.shape().chunk_count());
    // Every chunk is told once, so that it may be shown.
    std::ranges::sort(reader.seen.confirmed);
    CHECK(std::ranges::adjacent_find(reader.seen.confirmed) == reader.seen.confirmed.end());
    CHECK(reader.seen.confirmed.size() == source.shape().chunk_count());
    const pull_progress progress = reader.driver->progress();
    REQUIRE(progress.sources.size() == 1);
    CHECK(progress.sources[0].chunks == progress.total_chunks);
    CHECK(progress.sources[0].bytes == progress.total_bytes);
    CHECK(progress.sources[0].path == "memory");
    CHECK_FALSE(progress.sources[0].lost);
  }
}

TEST_CASE_TEMPLATE("pull driver: a shard whose memory the server has named is read ahead of its block",
                   Integrity, xxh3_128, no_integrity) {
  source_process<Integrity> source{1};
  pull_driver_options how{.lanes = 2};
  how.rules.far_window_chunks = source.shape().chunk_count();
  reader_process<Integrity> reader{source.shape(), how, source.shape().bytes()};  // the block has to wait
  reader.driver->add_source(source.named_far_target());
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  CHECK(reader.driver->progress().chunks == 0);
  {
    const std::lock_guard lock{reader.seen.mutex};
    CHECK(reader.seen.times_believed == 0);
  }
  reader.gate->open();
  REQUIRE(reader.result());
  CHECK(reader.bytes == source.bytes);
  CHECK(reader.seen.traced == source.shape().chunk_count());
  CHECK(reader.seen.confirmed.size() == source.shape().chunk_count());
  CHECK_FALSE(reader.seen.confirmed_too_early);
  CHECK(reader.seen.failures.empty());
}

TEST_CASE("pull driver: two sources from the start serve one reader") {
  source_process<> one{1};
  source_process<> two{2};
  reader_process<> reader{one.shape(), {.lanes = 2}};
  reader.driver->add_source(one.target());
  reader.driver->add_source(two.target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == one.bytes);
  CHECK(reader.names() == std::vector<std::string>{"source 1", "source 2"});
}

TEST_CASE("pull driver: a source may come after the start") {
  source_process<> source{1};
  reader_process<> reader{source.shape(), {.lanes = 2}};
  reader.start();
  reader.driver->add_source(source.target());
  REQUIRE(reader.result());
  CHECK(reader.bytes == source.bytes);
}

// ---- sources that receive

TEST_CASE("pull driver: a source that receives is followed until it has everything") {
  for (const std::size_t lanes : {1u, 2u, 4u}) {
    CAPTURE(lanes);
    source_process<> source{1};
    source.will_receive();
    reader_process<> reader{source.shape(), {.lanes = lanes, .rules = {.poll_longest = 1ms}}};
    // Each chunk that is told here makes the source show some more: nothing but its map drives the transfer.
    chunk_index shown = 0;
    std::mutex mutex;
    const auto show_more = [&](std::uint64_t count) {
      const std::lock_guard lock{mutex};
      for (std::uint64_t i = 0; i < count && shown < source.shape().chunk_count(); ++i)
        source.block().add_chunk(shown++);
    };
    reader.on_confirmed = [&](std::span<const chunk_index> chunks) { show_more(2 * chunks.size()); };
    reader.driver->add_source(source.target());
    reader.start();
    source.begin();
    show_more(3);
    REQUIRE(reader.result());
    CHECK(reader.bytes == source.bytes);
    CHECK(reader.seen.failures.empty());
  }
}

TEST_CASE("pull driver: the other lanes are woken if a map shows more than one lane has room for") {
  source_process<> source{1};
  source.will_receive();
  reader_process<> reader{source.shape(), {.lanes = 2, .window_chunks = 2}};
  reader.driver->add_source(source.target());
  reader.start();
  source.begin();
  const auto shows = [&](chunk_index first, chunk_index count) {
    const std::size_t before = reader.connections().wakes();
    for (chunk_index i = first; i < first + count; ++i) source.block().add_chunk(i);
    const auto until = std::chrono::steady_clock::now() + patience;
    while (reader.driver->progress().chunks < first + count && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    CHECK(reader.driver->progress().chunks == first + count);
    return reader.connections().wakes() - before;
  };
  static_cast<void>(shows(0, 1));  // both lanes are connected, or soon
  std::this_thread::sleep_for(50ms);
  CHECK(shows(1, 1) == 0);
  CHECK(shows(2, 100) >= 1);
  source.block().show(3, 5);
  REQUIRE(reader.result());
}

TEST_CASE(
    "pull driver: a reader is a source while it receives: two that have half of it each complete each "
    "other") {
  source_process<> even{1};
  source_process<> odd{2};
  for (source_process<>* source : {&even, &odd}) {
    source->will_receive();
    source->begin();
  }
  for (chunk_index i = 0; i < even.shape().chunk_count(); ++i) (i % 2 == 0 ? even : odd).block().add_chunk(i);
  reader_process<> reader{even.shape(), {.lanes = 2}};
  reader.driver->add_source(even.target());
  reader.driver->add_source(odd.target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == even.bytes);
  const auto sources = reader.driver->progress().sources;
  REQUIRE(sources.size() == 2);
  CHECK(sources[0].chunks == (even.shape().chunk_count() + 1) / 2);
  CHECK(sources[1].chunks == even.shape().chunk_count() / 2);
}

TEST_CASE("pull driver: a digest of an open version of which half was read is read again once it is whole") {
  source_process<> source{1};
  const digest128 published = xxh3_128::root(seeds.root, source.table);
  const std::uint64_t chunks = source.shape().chunk_count();
  source.will_receive();
  source.begin();
  source.block().set_digest(7, {1, 2});
  for (chunk_index i = 0; i < chunks; ++i) source.block().add_chunk(i);
  pull_driver_options how{.lanes = 1, .window_chunks = 1};
  how.rules.open = true;
  how.rules.poll_longest = 1ms;
  // The block, and the chunk at which the reader begins: it has to wait before it looks again.
  reader_process<> reader{source.shape(), how, source.block().memory().size() + chunk};
  reader.driver->add_source(source.target_of_open_version());
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  SUBCASE("it was written since") {
    reader.driver->commit(published);
    source.block().set_digests(source.table);
    reader.gate->open();
    CHECK(reader.result());
    CHECK(reader.bytes == source.bytes);
    CHECK(reader.seen.times_settled == 1);
  }
  SUBCASE("it stays as it is") {
    reader.driver->commit(published);
    reader.gate->open();
    CHECK_THROWS_WITH_AS(static_cast<void>(reader.result()), doctest::Contains("[corrupt]"), error);
    CHECK(reader.seen.times_settled == 0);
  }
}

TEST_CASE("pull driver: a source that does not begin is told as a stall, by name; another one helps") {
  source_process<> never{1};
  source_process<> other{2};
  never.will_receive();
  reader_process<> reader{other.shape(), {.lanes = 2, .rules = {.stall_timeout = 50ms}}};
  reader.on_stall = [&] {
    if (reader.names().size() == 1) reader.driver->add_source(other.target());
  };
  reader.driver->add_source(never.target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == other.bytes);
  REQUIRE(!reader.seen.stalls.empty());
  CHECK(reader.seen.stalls[0].find("no new chunk from source 1: 0 of ") == 0);
  CHECK(reader.seen.failures.empty());
}

TEST_CASE("pull driver: a shortage is told before a stall is; a source that has everything helps") {
  source_process<> late{1};
  source_process<> whole{2};
  late.will_receive();
  late.begin();
  late.block().add_chunk(0);
  reader_process<> reader{late.shape(), {.lanes = 2, .rules = {.stall_timeout = patience}}};
  reader.on_shortage = [&] {
    if (reader.names().size() == 1) reader.driver->add_source(whole.target());
  };
  reader.driver->add_source(late.target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == whole.bytes);
  CHECK(reader.seen.stalls.empty());
}

TEST_CASE("pull driver: a stall after the loss of all sources names the last of them") {
  source_process<> gone{1};
  source_process<> other{2};
  const pull_target nobody = gone.target();
  gone.transport.kill();
  reader_process<> reader{other.shape(), {.rules = {.orphan_timeout = 50ms}}};
  reader.on_stall = [&] {
    if (reader.names().size() == 1) reader.driver->add_source(other.target());
  };
  reader.driver->add_source(nobody);
  REQUIRE(reader.run());
  REQUIRE(!reader.seen.stalls.empty());
  CHECK(reader.seen.stalls[0].find("no source is left: the last one was source 1: 0 of ") !=
        std::string::npos);
}

TEST_CASE("pull driver: a source is reported free before the lane connects to another one") {
  source_process<> first{1};
  pull_target silent = first.target();  // connecting to it takes longer than this test
  silent.name = "silent";
  silent.facts.lease = lease_id{2};
  silent.facts.holder = stopped_process;
  first.will_receive();
  reader_process<> reader{first.shape(),
                          {.contacts = {.connect_timeout = 10 * patience}, .rules = {.stall_timeout = 50ms}}};
  std::promise<void> stall;
  reader.on_stall = [&, told = false]() mutable {
    if (!std::exchange(told, true)) stall.set_value();
  };
  reader.driver->add_source(first.target());
  reader.start();
  REQUIRE(stall.get_future().wait_for(patience) == std::future_status::ready);
  reader.driver->release_source({1});
  reader.driver->add_source(silent);
  const auto is_released = [&] {
    const std::lock_guard lock{reader.seen.mutex};
    return reader.seen.released == std::vector<lease_id>{{1}};
  };
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!is_released() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK(is_released());
}

/// A lane connects to a source, or closes its connection to one, for 1.8 times as long as a read may take,
/// while reads from another source have arrived that it has not seen. Empty: the machine was so slow that the
/// reads were late before that; else whether a source counted as slow.
[[nodiscard]] std::optional<bool> is_called_slow_while_its_lane(bool connects) {
  source_process<> whole{1};
  source_process<> fast{2};
  source_process<> late{3};
  constexpr std::chrono::milliseconds slow_after{1000};
  // Both until the reader has closed its connections.
  std::atomic<bool> takes_long = false;
  std::atomic<std::chrono::steady_clock::time_point> took_long = std::chrono::steady_clock::time_point::max();
  reader_process<> reader{whole.shape(), {.lanes = 2, .rules = {.slow_shortest = slow_after}}, 60 * chunk};
  const auto take_long = [&](incarnation peer) {
    if (peer != incarnation{3} || !takes_long.exchange(false)) return;
    took_long = std::chrono::steady_clock::now();
    whole.transport.resume();  // what it was asked for arrives now
    std::this_thread::sleep_for(slow_after * 9 / 5);
  };
  reader.connections().on_close = take_long;
  reader.connections().on_connect = [&](incarnation peer, duration) { take_long(peer); };
  reader.driver->add_source(whole.target());
  reader.driver->add_source(fast.target());
  if (!connects) reader.driver->add_source(late.target());
  const auto begun = std::chrono::steady_clock::now();
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  whole.transport.stall();
  if (!connects) late.transport.stall();
  reader.gate->open();
  while (reader.driver->progress().chunks < 280 && std::chrono::steady_clock::now() < begun + patience)
    std::this_thread::sleep_for(1ms);
  takes_long = true;
  connects ? reader.driver->add_source(late.target()) : late.transport.kill();
  REQUIRE(reader.result());
  CHECK(reader.bytes == whole.bytes);
  if (took_long.load() > begun + slow_after * 3 / 4) return std::nullopt;
  return std::ranges::any_of(reader.seen.failures,
                             [](const source_failure& failure) { return failure.reason == errc::timed_out; });
}

TEST_CASE("pull driver: a source is not slow because the lane that reads from it connects, or closes one") {
  if constexpr (TENSORHUB_UNDER_ADDRESS_SANITIZER || TENSORHUB_UNDER_THREAD_SANITIZER) {
    std::puts("SKIPPED: unit.pull_driver: a lane that is busy: a sanitizer makes the reads themselves slow");
    return;
  }
  for (const bool connects : {true, false}) {
    CAPTURE(connects);
    std::optional<bool> is_slow;
    for (int turn = 0; turn < 10 && !is_slow; ++turn) is_slow = is_called_slow_while_its_lane(connects);
    CHECK(is_slow == false);
  }
}

TEST_CASE("pull driver: who accepts a connection and says nothing does not keep the lanes from the others") {
  for (const std::size_t lanes : {1u, 2u}) {
    CAPTURE(lanes);
    source_process<> whole{1};
    source_process<> further{2};
    reader_process<> reader{whole.shape(), {.lanes = lanes, .contacts = {.connect_timeout = 2 * patience}}};
    for (int i = 0; i < 2; ++i) {
      pull_target stopped = whole.target();
      stopped.facts.holder = stopped_process;
      reader.driver->add_source(stopped);
    }
    reader.driver->add_source(whole.target());
    reader.driver->add_source(further.target());
    REQUIRE(reader.run());
    CHECK(reader.bytes == whole.bytes);
  }
}

TEST_CASE("pull driver: a source that lets go while it receives is lost, and another one finishes") {
  source_process<> first{1};
  source_process<> second{2};
  first.will_receive();
  first.begin();
  for (chunk_index i = 0; i < 50; ++i) first.block().add_chunk(i);
  reader_process<> reader{first.shape(), {.lanes = 2, .rules = {.poll_longest = 1ms}}};
  std::atomic<std::size_t> confirmed{0};
  reader.on_confirmed = [&](std::span<const chunk_index> chunks) {
    if ((confirmed += chunks.size()) == 50) first.block().raise_epoch(6);
  };
  reader.on_failure = [&](const source_failure&) { reader.driver->add_source(second.target()); };
  reader.driver->add_source(first.target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == second.bytes);
  REQUIRE(reader.seen.failures.size() == 1);
  CHECK(reader.seen.failures[0].reason == errc::unavailable);
  const auto sources = reader.driver->progress().sources;
  CHECK(sources[0].lost);
  CHECK(sources[0].chunks == 50);
  CHECK(sources[1].chunks == second.shape().chunk_count() - 50);
}

TEST_CASE("pull driver: more sources than a lane has places for headers come one after the other") {
  source_process<> whole{1};
  std::deque<source_process<>> others;
  reader_process<> reader{whole.shape(), {.lanes = 2}, 20 * chunk};
  for (std::uint64_t i = 0; i < limits::sources + 4; ++i) others.emplace_back(i + 2);
  for (source_process<>& other : others) {
    pull_target target = other.target();
    target.facts.holder = {5000};  // cannot be reached: its places are not used
    reader.driver->add_source(target);
  }
  reader.driver->add_source(whole.target());
  reader.start();
  reader.gate->open();
  REQUIRE(reader.result());
  CHECK(reader.bytes == whole.bytes);
  CHECK(reader.seen.failures.size() == others.size());
}

// ---- connections that are closed

/// Whether the driver answers while a connection is being closed.
struct answers {
  std::future<void> asked;
  int given = 0;
  int missing = 0;

  void ask(reader_process<>& reader) {
    // One that is still waited for was asked under the same lock.
    if (!asked.valid() || asked.wait_for(0s) == std::future_status::ready)
      asked = std::async(std::launch::async, [&] { (void)reader.driver->progress(); });
    const bool is_given = asked.wait_for(patience) == std::future_status::ready;
    ++(is_given ? given : missing);
  }
};

TEST_CASE(
    "pull driver: a slow source is reported before its connection is closed, and nobody waits for that") {
  source_process<> slow{1};
  source_process<> fast{2};
  answers of_driver;
  bool is_reported_first = false;
  reader_process<> reader{fast.shape(), {}, 100 * chunk};
  reader.connections().on_close = [&](incarnation peer) {
    if (peer != incarnation{1}) return;
    is_reported_first = !reader.seen.failures.empty();
    of_driver.ask(reader);
  };
  reader.driver->add_source(slow.target());
  reader.driver->add_source(fast.target());
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  slow.transport.stall();
  reader.gate->open();
  REQUIRE(reader.result());
  CHECK(reader.bytes == fast.bytes);
  REQUIRE(reader.seen.failures.size() == 1);
  CHECK(reader.seen.failures[0].reason == errc::timed_out);
  CHECK(is_reported_first);
  CHECK(of_driver.given == 1);
  CHECK(of_driver.missing == 0);
}

TEST_CASE("pull driver: nobody waits while a connection is closed to keep another one") {
  constexpr std::size_t too_many = lane_pool<gated_transport>::most_kept + 2;
  std::atomic<bool> is_running = true;
  answers of_driver;
  std::deque<source_process<>> sources;
  for (std::uint64_t i = 0; i < too_many; ++i) sources.emplace_back(i + 1);
  reader_process<> reader{sources[0].shape(), {}, 200 * chunk};
  reader.connections().on_close = [&](incarnation) {
    if (is_running) of_driver.ask(reader);
  };
  for (source_process<>& source : sources) reader.driver->add_source(source.target());
  reader.start();
  REQUIRE(reader.gate->wait_until_shut(patience));
  SUBCASE("at the end") {}
  SUBCASE("before the end, because their sources are released") {
    for (std::uint64_t i = 1; i < too_many; ++i) reader.driver->release_source({i});
  }
  reader.gate->open();
  REQUIRE(reader.result());
  is_running = false;
  CHECK(of_driver.given == 2);
  CHECK(of_driver.missing == 0);
}

TEST_CASE("pull driver: a kept connection that ends before anything is read through it is made again") {
  source_process<> first{1};
  source_process<> second{2};
  reader_process<> reader{first.shape()};
  reader.driver->add_source(first.target());
  REQUIRE(reader.run());
  reader.prepare_next({});
  reader.bytes.fill(7);
  second.will_receive();
  int connected_again = 0;
  reader.connections().on_connect = [&](incarnation peer, duration) {
    if (peer == incarnation{2}) reader.connections().end({1});
    if (peer == incarnation{1}) ++connected_again;
  };
  reader.driver->add_source(first.target());
  reader.driver->add_source(second.target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == first.bytes);
  CHECK(connected_again == 1);
  CHECK(reader.seen.failures.empty());
}

TEST_CASE("pull driver: a connection is made again in less time while another source is connected") {
  source_process<> first{1};
  source_process<> second{2};
  source_process<> third{3};
  const contact_options contacts{.connect_timeout = patience, .next_connect_timeout = 1s};
  reader_process<> reader{first.shape(), {.contacts = contacts}};
  for (source_process<>* source : {&first, &second}) reader.driver->add_source(source->target());
  REQUIRE(reader.run());
  reader.prepare_next({.contacts = contacts});
  reader.bytes.fill(7);
  third.will_receive();
  duration longest{};
  reader.connections().on_connect = [&](incarnation peer, duration timeout) {
    if (peer == incarnation{3}) reader.connections().end({1});
    if (peer == incarnation{1}) longest = std::max(longest, timeout);
  };
  for (source_process<>* source : {&first, &second, &third}) reader.driver->add_source(source->target());
  REQUIRE(reader.run());
  CHECK(reader.bytes == first.bytes);
  CHECK(longest == 1s);
}

TEST_CASE("pull driver: no attempt to connect goes on beyond the time that the transfer has left") {
  source_process<> source{1};
  reader_process<> reader{source.shape(),
                          {.contacts = {.connect_timeout = 10 * patience}, .time_left = patience}};
  duration longest{};
  reader.connections().on_connect = [&](incarnation, duration timeout) {
    longest = std::max(longest, timeout);
  };
  std::this_thread::sleep_for(50ms);
  reader.driver->add_source(source.target());
  REQUIRE(reader.run());
  CHECK(longest > 0s);
  CHECK(longest <= patience - 50ms);
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
    reader.on_failure = [&](const source_failure&) { reader.driver->add_source(second.target()); };
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
    CHECK(reader.names() == std::vector<std::string>{"source 1", "source 2"});
    CHECK(std::ranges::equal(reader.driver->table(), second.table));
  }
}

TEST_CASE(
    "pull driver: a source that dies under kept connections loses none of the chunks that were asked for") {
  constexpr pull_driver_options options{.lanes = 4};
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    source_process<> first{1};
    source_process<> second{2};
    reader_process<> reader{first.shape(), options};
    reader.driver->add_source(first.target());
    REQUIRE(reader.run());
    reader.prepare_next(options);
    // The other lanes ask for chunks before their connections have been seen to work.
    reader.on_believed = [&] { first.transport.stall(); };
    reader.on_failure = [&](const source_failure&) { reader.driver->add_source(second.target()); };
    reader.driver->add_source(first.target());
    reader.start();
    std::this_thread::sleep_for(50ms);
    first.transport.kill();
    REQUIRE(reader.result());
    CHECK(reader.bytes == second.bytes);
    CHECK(reader.seen.failures.size() == 1);
  }
}

/// A reader of a source in another datacenter, in the middle, and what happens then. A second source comes if
/// the first one is lost.
struct far_reading {
  explicit far_reading(std::size_t lanes) : reader{first.shape(), {.lanes = lanes}, 100 * chunk} {
    reader.on_failure = [&](const source_failure&) { reader.driver->add_source(second.target()); };
    reader.connections().on_connect = [&](incarnation peer, duration) {
      connected += peer == incarnation{1};
    };
    reader.driver->add_source(first.far_target());
    reader.start();
    REQUIRE(reader.gate->wait_until_shut(patience));
  }
  void go_on() {
    reader.gate->open();
    REQUIRE(reader.result());
    CHECK(reader.bytes == first.bytes);
  }
  source_process<> first{1};
  source_process<> second{2};
  std::atomic<std::size_t> connected = 0;  ///< to the first one
  reader_process<> reader;
};

TEST_CASE("pull driver: a connection to another datacenter that breaks is made again") {
  for (const std::size_t lanes : {1u, 2u, 4u}) {
    CAPTURE(lanes);
    far_reading far{lanes};
    far.reader.connections().end({1});
    far.go_on();
    CHECK(far.reader.seen.failures.empty());
    CHECK(far.connected <= 2 * lanes);
  }
}

TEST_CASE("pull driver: a far source that dies, or never works again, is lost once") {
  for (const std::size_t lanes : {1u, 2u, 4u}) {
    for (const bool dies : {true, false}) {
      CAPTURE(lanes);
      CAPTURE(dies);
      far_reading far{lanes};
      if (dies)
        far.first.transport.kill();
      else
        far.reader.connections().always_ends = {1};
      far.reader.connections().end({1});
      far.go_on();
      REQUIRE(far.reader.seen.failures.size() == 1);
      CHECK(far.reader.seen.failures[0].reason == errc::source_lost);
      CHECK(far.connected > 1);
      CHECK(far.connected <= 2 * lanes);
    }
  }
}

TEST_CASE("pull driver: a far source of which headers arrive, and chunks never, is lost") {
  source_process<> first{1};
  source_process<> second{2};
  first.will_receive();
  reader_process<> reader{first.shape(), {.lanes = 1, .rules = {.poll_longest = 1ms}}};
  std::size_t connected = 0;
  reader.connections().on_connect = [&](incarnation peer, duration) { connected += peer == incarnation{1}; };
  reader.on_failure = [&](const source_failure&) {
    reader.connections().fatal_bytes = 0;
    reader.driver->add_source(second.target());
  };
  reader.connections().fatal_bytes = chunk;
  reader.driver->add_source(first.far_target());
  reader.start();
  first.begin();
  first.block().add_chunk(17);  // and its map is polled for others
  REQUIRE(reader.result());
  CHECK(reader.bytes == second.bytes);
  CHECK(reader.seen.failures.size() == 1);
  CHECK(connected == 2);
}

TEST_CASE("pull driver: a source that lets go in the middle broke the contract; nothing of it is kept") {
  source_process<> first{1};
  source_process<> second{2};
  reader_process<> reader{first.shape(), {.lanes = 2, .window_chunks = 2}, 30 * chunk};
  reader.on_failure = [&](const source_failure&) { reader.driver->add_source(second.target()); };
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
  reader.driver->add_source(second.target());
  reader.driver->release_source({1});
  reader.driver->release_source({1});
  reader.driver->release_source({7});  // nobody's
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
    reader.driver->add_source(failure.lease == lease_id{1} ? mistaken : other.target());
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
  const auto times_confirmed = [&](chunk_index which) {
    const std::lock_guard lock{reader.seen.mutex};
    return std::ranges::count(reader.seen.confirmed, which);
  };
  reader.on_failure = [&](const source_failure& failure) {
    CHECK(times_confirmed(failure.chunk.value_or(0)) == 0);  // whoever confirms it serves it on
    reader.driver->add_source(good.target());
  };
  reader.driver->add_source(bad.target());
  REQUIRE(reader.run());
  REQUIRE(reader.seen.failures.size() == 1);
  CHECK(reader.seen.failures[0].reason == errc::corrupt);
  const chunk_index refused = reader.seen.failures[0].chunk.value_or(0);
  CHECK(times_confirmed(refused) == 1);
  const chunk_slice slice = good.shape().slice(refused);
  CHECK(slice.segment == 2);  // after the packed one and "other"
  CHECK(slice.offset == 5 * chunk);
  CHECK(reader.bytes == good.bytes);
}

// ---- threads that cannot be started

}  // namespace

#if TENSORHUB_THREADS_CAN_FAIL

TEST_CASE("pull driver: the lanes whose threads can be started do it all, and so do those that digest") {
  for (const int startable : {0, 1, 2}) {
    CAPTURE(startable);
    source_process<> source{1};
    reader_process<> reader{source.shape(), {.lanes = 4}};
    reader.driver->add_source(source.target());
    threads_left = startable;
    CHECK_NOTHROW(CHECK(reader.run_here()));
    threads_left = startable;
    std::vector<digest128> table;
    CHECK_NOTHROW(table = source.digests(4));
    threads_left = -1;
    CHECK(reader.bytes == source.bytes);
    CHECK(table == source.table);
  }
}

#endif

// ---- what is here already

TEST_CASE("pull driver: what an earlier transfer has left is read only if it is not there any more") {
  for (const std::size_t lanes : {1u, 2u, 4u}) {
    CAPTURE(lanes);
    source_process<> source{1};
    reader_process<> reader{source.shape(), {.lanes = lanes}};
    reader.driver->add_source(source.target());
    REQUIRE(reader.run());
    CHECK(reader.driver->progress().unchanged_bytes == 0);
    CHECK(reader.seen.left == source.table);
    reader.seen.confirmed.clear();
    reader.seen.traced = 0;
    reader.prepare_next({.lanes = lanes});
    reader.driver->assume(reader.seen.left);
    reader.bytes.large_and_other[17 * chunk + 5] ^= std::byte{1};
    reader.driver->add_source(source.target());
    REQUIRE(reader.run());
    CHECK(reader.bytes == source.bytes);
    const pull_progress progress = reader.driver->progress();
    CHECK(progress.bytes == progress.total_bytes);
    CHECK(progress.unchanged_bytes == progress.total_bytes - chunk);
    REQUIRE(progress.sources.size() == 1);
    CHECK(progress.sources[0].bytes == chunk);
    CHECK(reader.seen.traced == 1);
    CHECK(reader.seen.confirmed.size() == source.shape().chunk_count());
    CHECK(reader.seen.left == source.table);
  }
}
