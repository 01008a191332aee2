// Two datacenters of real processes: what crosses goes over one emulated wide-area path that all the
// processes share (testing/wide_area.hpp), with a rate, a delay and a count of its own.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <tensorhub/server.hpp>
#include <tensorhub/testing/wide_area.hpp>
#include <tensorhub/types/xxh3.hpp>
#include <vector>

#include "harness.hpp"
#include "hub.hpp"
#include "support/child_process.hpp"

using namespace system_tests;
using tensorhub::testing::network_link;
using tensorhub::testing::read_gate;

namespace {

/// Reads across can be held in the middle, besides.
using far_path = tensorhub::testing::gated<tensorhub::testing::throttled<tensorhub::transports::tcp>>;
using data_path = tensorhub::testing::wide_area<tensorhub::transports::tcp, far_path>;
using two_datacenters = tensorhub::hub<data_path>;

constexpr std::size_t large_words = 600'000;  // with the rest of a shard's weights: 7.2 MB
constexpr std::uint64_t chunk_bytes = 16u << 10;
/// About half of a shard, and a multiple of what two lanes have in flight on a wide-area path (2 x 32
/// chunks), so that some chunks are confirmed and shown before a reader is held.
constexpr std::uint64_t held_after_bytes = 4'000'000;
constexpr std::uint64_t followed_bytes = 20 * chunk_bytes;
/// What readers look at besides chunks, at most: a header of 128 bytes for each of 440 chunks, and the whole
/// control block once per lane.
constexpr std::uint64_t control_bytes = 128u << 10;
constexpr std::uint32_t shards = 2;
constexpr std::uint32_t rollouts_here = 1, rollouts_there = 3;
constexpr int patience_ms = 120'000;

std::shared_ptr<network_link> new_path() {
  return std::make_shared<network_link>(
      tensorhub::testing::network_link_options{.bytes_per_second = 20e6, .latency = 20ms});
}

/// Who a process is; `into` is the path from the other datacenter to its own.
struct person {
  std::string server{};
  std::string datacenter{};
  std::string name{};
  std::uint32_t shard = 0;
  std::shared_ptr<network_link> into{};
  bool held = false;  ///< reads across stop after `held_after_bytes`, until "open"

  [[nodiscard]] std::string replica() const { return datacenter + "-" + name; }
  [[nodiscard]] tensorhub::worker_options options() const {
    auto out = who(server, replica(), {shard, shards});
    out.location = {
        .datacenter = datacenter, .rack = {}, .host = replica() + "-" + std::to_string(shard), .device = {}};
    out.chunk_bytes = chunk_bytes;
    out.join_timeout = out.connect_timeout = 30s;  // many processes on few cores
    return out;
  }
  [[nodiscard]] data_path::options path(std::shared_ptr<read_gate> gate = nullptr) const {
    return data_path::with(
        far_path::options{.inner = {.inner = {}, .receiving = into, .sending = {}}, .gate = std::move(gate)});
  }
};

/// Of every byte of a shard.
std::string digest_of(const weights& memory) {
  std::string out;
  const auto append = [&](const void* data, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    out += tensorhub::to_hex(tensorhub::detail::xxh3_128(std::span{begin, bytes}, 0));
  };
  append(memory.mapped.data(), memory.mapped.range().bytes);
  append(memory.plain.data(), memory.plain.size() * sizeof memory.plain[0]);
  append(memory.bias.data(), memory.bias.size() * sizeof memory.bias[0]);
  append(memory.norm.data(), memory.norm.size());
  return out;
}

// ---- what the processes do: one line in, one line out

std::string next_order(const processes::channel& line) {
  if (!line.ready(std::chrono::milliseconds{patience_ms}))
    throw std::runtime_error("no order for a long time");
  return line.hear();
}

void serve(processes::channel& line) {
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 5s;
  how.catalog.heartbeat_interval = 250ms;
  two_datacenters::reference_server server{how};
  line.say(server.address());
  static_cast<void>(line.hear());  // ends when the test does
}

/// "publish V": "published BYTES DIGEST".
void train(const person& self, processes::channel& line) {
  member<two_datacenters::publisher> own{self.options(), large_words, self.path()};
  own.worker.join();
  line.say("ready");
  for (;;) {
    std::istringstream order{next_order(line)};
    std::string word;
    std::uint64_t version = 0;
    order >> word >> version;
    own.worker.unpublish(30s);
    own.memory.fill(version, self.shard);
    const auto done = own.worker.publish(version);
    line.say("published " + std::to_string(done.bytes) + " " + digest_of(own.memory));
  }
}

/// Bytes of chunks by a worker's own count, from its datacenter and from the other one.
struct received {
  std::uint64_t near = 0, far = 0;
  void add(const tensorhub::worker_statistics& counted) {
    for (const auto& part : counted.received) (part.crossing ? far : near) += part.bytes;
  }
};

/// "update V": perhaps "held", when its reads across have come to the gate; perhaps "follows", when it has
/// some from neighbours; then "done NEAR FAR DIGEST" or "failed CODE SENTENCE". "open" may come at any time
/// and has no answer.
class roller {
 public:
  roller(const person& self, processes::channel& line)
      : line_{line},
        gate_{self.held ? std::make_shared<read_gate>(held_after_bytes) : nullptr},
        own_{self.options(), large_words, self.path(gate_)} {
    own_.worker.join();
    line_.say("ready");
    for (;;) {
      std::istringstream order{next_order(line_)};
      std::string word;
      std::uint64_t version = 0;
      order >> word >> version;
      word == "open" ? gate_->open() : update(version);
    }
  }

 private:
  void update(std::uint64_t version) {
    const received before = counted();
    bool said_held = !gate_, said_follows = !gate_;
    try {
      auto running = own_.worker.update_async(exactly(version), 90s);
      while (!running.done()) {
        if (!said_held && gate_->wait_until_shut(0ms)) {
          line_.say("held");
          said_held = true;
        }
        if (!said_follows && near_bytes(running.progress()) >= followed_bytes) {
          line_.say("follows");
          said_follows = true;
        }
        if (line_.ready(std::chrono::milliseconds{2}) && line_.hear() == "open") gate_->open();
      }
      static_cast<void>(running.wait(1s));
    } catch (const error& e) {
      line_.say("failed " + std::string{to_string(e.code())} + " " + e.what());
      return;
    }
    const received after = counted();
    line_.say("done " + std::to_string(after.near - before.near) + " " +
              std::to_string(after.far - before.far) + " " + digest_of(own_.memory));
  }
  [[nodiscard]] static std::uint64_t near_bytes(const tensorhub::update_progress& now) {
    std::uint64_t sum = 0;
    for (const auto& source : now.sources) sum += source.far ? 0 : source.bytes;
    return sum;
  }
  [[nodiscard]] received counted() const {
    received out;
    out.add(own_.worker.statistics());
    return out;
  }

  processes::channel& line_;
  std::shared_ptr<read_gate> gate_;
  member<two_datacenters::subscriber> own_;
};

// ---- what the test sees of them

/// A process, and what it has said of its update.
struct party {
  explicit party(person self, bool trains = false)
      : who{std::move(self)}, process{[this, trains](processes::channel& line) {
          trains ? train(who, line) : static_cast<void>(roller{who, line});
        }} {}

  [[nodiscard]] std::string hear(int milliseconds = patience_ms) const {
    if (!process.line().ready(std::chrono::milliseconds{milliseconds}))
      throw std::runtime_error(who.replica() + " says nothing");
    return process.line().hear();
  }
  void begin(std::uint64_t version) {
    held = follows = ended = failed = false;
    process.line().say("update " + std::to_string(version));
  }
  /// Takes what it has said within that time.
  void look(int milliseconds) {
    if (ended || killed || !process.line().ready(std::chrono::milliseconds{milliseconds})) return;
    std::istringstream said{process.line().hear()};
    std::string word;
    said >> word;
    if (word == "held") held = true;
    if (word == "follows") follows = true;
    ended = word == "done" || word == "failed";
    failed = word == "failed";
    if (word == "done") said >> bytes.near >> bytes.far >> digest;
    if (failed) said >> code >> std::ws, std::getline(said, sentence);
  }
  void wait_for_end() {
    const double until = bench::now_seconds() + patience_ms * 1e-3;
    while (!ended && !killed && bench::now_seconds() < until) look(100);
    if (!ended && !killed) throw std::runtime_error(who.replica() + " does not end");
  }
  void kill() {
    killed = true;
    process.signal(SIGKILL);
  }

  person who;
  processes::child_process process;
  bool held = false, follows = false, ended = false, failed = false, killed = false;
  received bytes{};
  std::string digest{}, code{}, sentence{};
};

/// A reference server and a trainer group in datacenter "here", rollouts here and "there".
class world {
 public:
  explicit world(bool held) {
    if (!server_.line().ready(std::chrono::milliseconds{patience_ms}))
      throw std::runtime_error("the reference server does not start");
    address_ = server_.line().hear();
    for (std::uint32_t shard = 0; shard < shards; ++shard)
      trainers_.push_back(
          std::make_unique<party>(person{address_, "here", "trainer", shard, into_here}, true));
    for (std::uint32_t i = 0; i < rollouts_here; ++i) add("here", i, false);
    for (std::uint32_t i = 0; i < rollouts_there; ++i) add("there", i, held);
    for (const auto& one : trainers_) REQUIRE(one->hear() == "ready");
    for (const auto& one : rollouts) REQUIRE(one->hear() == "ready");
  }
  /// Returns each shard's digest; `shard_bytes` is set.
  std::vector<std::string> publish(std::uint64_t version) {
    std::vector<std::string> digests;
    for (const auto& one : trainers_) one->process.line().say("publish " + std::to_string(version));
    for (const auto& one : trainers_) {
      std::istringstream said{one->hear()};
      std::string word;
      said >> word >> shard_bytes >> digests.emplace_back();
      REQUIRE(word == "published");
    }
    return digests;
  }
  void begin(std::uint64_t version) {
    for (const auto& one : rollouts)
      if (!one->killed) one->begin(version);
  }
  void wait_for_all() {
    for (const auto& one : rollouts) one->wait_for_end();
  }
  /// In the place of one that was killed.
  party& replace(const party& dead) {
    person self = dead.who;
    self.held = false;
    rollouts.push_back(std::make_unique<party>(std::move(self)));
    REQUIRE(rollouts.back()->hear() == "ready");
    return *rollouts.back();
  }
  /// What crossed to the rollouts that ended well, by their own statistics.
  [[nodiscard]] std::uint64_t crossed(std::uint32_t shard) const {
    std::uint64_t sum = 0;
    for (const auto& one : rollouts)
      if (one->who.shard == shard && one->ended && !one->failed) sum += one->bytes.far;
    return sum;
  }

  // One direction each. Made before any process.
  std::shared_ptr<network_link> into_here = new_path();
  std::shared_ptr<network_link> into_there = new_path();
  std::vector<std::unique_ptr<party>> rollouts{};
  std::uint64_t shard_bytes = 0;

 private:
  void add(const std::string& datacenter, std::uint32_t number, bool held) {
    for (std::uint32_t shard = 0; shard < shards; ++shard)
      rollouts.push_back(
          std::make_unique<party>(person{address_, datacenter, std::to_string(number), shard,
                                         datacenter == "here" ? into_here : into_there, held}));
  }

  processes::child_process server_{serve};
  std::string address_;
  std::vector<std::unique_ptr<party>> trainers_{};
};

/// A version that nobody disturbs: everybody has it, and one model crossed.
void check_calm(world& all, std::uint64_t version) {
  CAPTURE(version);
  const std::uint64_t carried = all.into_there->carried_bytes();
  const auto digests = all.publish(version);
  all.begin(version);
  all.wait_for_all();
  for (const auto& one : all.rollouts) {
    if (one->killed) continue;
    CHECK_MESSAGE(!one->failed, one->who.replica() << ": " << one->sentence);
    CHECK(one->digest == digests[one->who.shard]);
    CHECK(one->bytes.near + one->bytes.far == all.shard_bytes);
    if (one->who.datacenter == "here") CHECK(one->bytes.far == 0);
  }
  for (std::uint32_t shard = 0; shard < shards; ++shard) CHECK(all.crossed(shard) == all.shard_bytes);
  // The path's own count has the control blocks in it.
  const std::uint64_t passed = all.into_there->carried_bytes() - carried;
  CHECK(passed > shards * all.shard_bytes);
  CHECK(passed - shards * all.shard_bytes <= shards * control_bytes);
  CHECK(all.into_here->carried_bytes() == 0);
}

}  // namespace

TEST_CASE("real processes, two datacenters: each version crosses the wide-area path once per shard") {
  world all{false};
  for (std::uint64_t version = 1; version <= 3; ++version) check_calm(all, version);
}

TEST_CASE("real processes, two datacenters: the one that brings the version across is killed") {
  world all{true};
  const auto digests = all.publish(1);
  all.begin(1);
  const auto same_shard = [](const party& a, const party& b) { return a.who.shard == b.who.shard; };
  const auto same_replica = [](const party& a, const party& b) { return a.who.replica() == b.who.replica(); };
  // Whoever stands in the middle of its way across, once a neighbour follows it.
  party* victim = nullptr;
  const double until = bench::now_seconds() + patience_ms * 1e-3;
  while (victim == nullptr && bench::now_seconds() < until) {
    for (const auto& one : all.rollouts) one->look(2);
    for (const auto& seed : all.rollouts)
      for (const auto& other : all.rollouts)
        if (seed->held && other->follows && same_shard(*seed, *other)) victim = seed.get();
  }
  REQUIRE(victim != nullptr);
  REQUIRE(!victim->ended);
  victim->kill();
  // Its replica has lost a shard: the other one ends, too, by name. It stays held until then, so that what it
  // has brought, if it is that shard's seed, has a bound.
  party* sister = nullptr;
  for (const auto& one : all.rollouts) {
    if (one.get() == victim) continue;
    if (same_replica(*one, *victim)) {
      sister = one.get();
    } else if (one->who.held) {
      one->process.line().say("open");
    }
  }
  REQUIRE(sister != nullptr);
  all.wait_for_all();
  CHECK(sister->failed);  // no shard has ended before all of its replica have
  CHECK_MESSAGE(sister->code == "torn", sister->sentence);
  CHECK_MESSAGE(contains(sister->sentence, victim->who.replica()), sister->sentence);
  for (const auto& one : all.rollouts) {
    if (one->killed || one.get() == sister) continue;
    CHECK_MESSAGE(!one->failed, one->who.replica() << ": " << one->sentence);
    CHECK(one->digest == digests[one->who.shard]);
  }
  // What the neighbours had got from it is not brought again.
  for (std::uint32_t shard = 0; shard < shards; ++shard) CHECK(all.crossed(shard) <= all.shard_bytes);
  CHECK(all.crossed(victim->who.shard) > 0);
  const std::uint64_t lost_bytes = 2 * held_after_bytes;  // the victim's and its sister's
  CHECK(all.into_there->carried_bytes() <= shards * (all.shard_bytes + control_bytes) + lost_bytes);

  // Who comes in its place, and its sister, find all of it in their own datacenter.
  const std::uint64_t carried = all.into_there->carried_bytes();
  sister->process.line().say("open");
  for (party* one : {&all.replace(*victim), sister}) one->begin(1);
  for (const auto& one : all.rollouts) {
    if (one->killed || !same_replica(*one, *victim)) continue;
    one->wait_for_end();
    CHECK_MESSAGE(!one->failed, one->sentence);
    CHECK(one->digest == digests[one->who.shard]);
    CHECK(one->bytes.far == 0);
  }
  CHECK(all.into_there->carried_bytes() == carried);
  check_calm(all, 2);
}

TEST_CASE("far_window_chunks: a lane has so many reads on their way across, and no more") {
  constexpr std::size_t window = 3;
  two_datacenters::reference_server server;
  const person here{server.address(), "here", "trainer", 0, nullptr};
  const person there{server.address(), "there", "rollout", 0, new_path()};
  auto source_options = here.options(), reader_options = there.options();
  source_options.shard = reader_options.shard = {};
  reader_options.far_window_chunks = window;
  struct interval {
    std::int64_t posted = 0, arrived = 0;
  };
  std::mutex mutex;
  std::map<std::size_t, std::vector<interval>> lanes;
  reader_options.trace = [&](const tensorhub::chunk_event& seen) {
    const std::lock_guard lock{mutex};
    lanes[seen.lane].push_back({seen.posted.nanoseconds, seen.arrived.nanoseconds});
  };
  member<two_datacenters::publisher> source{source_options, 100'000, here.path()};
  member<two_datacenters::subscriber> reader{reader_options, 100'000, there.path()};
  source.publish(1);
  CHECK(reader.worker.update(exactly(1), 60s).version == 1);
  CHECK(reader.memory.holds(1));
  std::size_t most = 0;
  for (const auto& [lane, reads] : lanes) {
    for (const interval& one : reads) {
      std::size_t together = 0;
      for (const interval& other : reads)
        together += other.posted <= one.posted && one.posted < other.arrived ? 1 : 0;
      most = std::max(most, together);
    }
  }
  CHECK(most == window);
}
