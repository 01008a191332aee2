/// \file pull_random.cpp
/// Pulls with several sources that receive, lie, die and let go at random: no byte is ever written by two,
/// and what is confirmed at the end is what was published.

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "pull_scene.hpp"

using namespace pull_test;
using namespace std::chrono_literals;

namespace {

/// Many sources, of which some receive, some lie, some die; reads take their time and end in any order. What
/// must hold at every step: no chunk is being read twice at once, nothing that is confirmed is read again,
/// only chunks that a source has are read from it, and the window holds per lane.
class random_run {
 public:
  explicit random_run(std::uint64_t seed)
      : random_{seed}, d_{many_chunks(1 + below(150)), options(), below(1000)} {
    for (std::uint64_t i = 0; i < 1 + below(3); ++i) lanes_.push_back(static_cast<lane_id>(i));
    add();
  }

  void run() {
    for (std::uint64_t step = 0; step < 200'000 && !d_.core.done(); ++step) {
      d_.pass(duration{1 + static_cast<std::int64_t>(below(30'000))});
      // At last there is somebody good who stays.
      if (step > 20'000 && !saved_) add(true);
      switch (below(12)) {
        case 0:
          if (below(40) == 0) add();
          break;
        case 1:
          if (below(40) == 0) trouble();
          break;
        case 2:
        case 3:
          grow();
          break;
        case 4:
        case 5:
        case 6:
          post();
          break;
        default:
          complete_one();
      }
      static_cast<void>(d_.core.take_stall(d_.now));
      while (d_.core.take_failure()) ++failures;
      for (const chunk_index chunk : d_.core.take_confirmed()) REQUIRE(confirmed_.insert(chunk).second);
    }
    REQUIRE(d_.core.done());
    CHECK(confirmed_.size() == d_.shape.chunk_count());
    CHECK(d_.core.confirmed_bytes() == d_.shape.bytes());
    std::uint64_t counted = 0;
    for (source_slot slot = 0; slot < d_.core.source_count(); ++slot) counted += d_.core.chunks_from(slot);
    CHECK(counted == d_.shape.chunk_count());
    REQUIRE(d_.core.table().size() == d_.shape.chunk_count());
    for (chunk_index chunk = 0; chunk < d_.shape.chunk_count(); ++chunk) {
      CHECK(d_.core.table()[chunk] == digest_of(chunk));
      CHECK(wrote_[chunk] == true);  // the last that was written there were the right bytes
    }
    CHECK(writing_.empty());  // even reads of lost sources have ended, or never began
  }

  std::uint64_t failures = 0;
  std::uint64_t receivers = 0;

 private:
  struct source {
    std::unique_ptr<holder> memory;
    std::vector<channel_id> channels{};
    std::set<chunk_index> has{};
    bool is_whole = true;
    bool lies = false;
    bool dead = false;
    bool let_go = false;
    bool begun = true;
  };
  struct read {
    std::size_t from = 0;
    channel_id channel = 0;
    pull_task task{};
    std::vector<std::byte> bytes{};  ///< as they were when the read was served
    bool served = false;
    bool right = false;
  };

  static pull_options options() {
    return {.window_chunks = 4,
            .confirm_every = 3,
            .poll_shortest = 5us,
            .poll_longest = 100us,
            .stall_timeout = 1ms,
            .slow_factor = 8,
            .slow_shortest = 500us};
  }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  void add(bool good = false) {
    if (sources_.size() >= 60 && !good) return;
    saved_ = saved_ || good;
    source& made = sources_.emplace_back();
    made.memory = std::make_unique<holder>(d_.shape, sources_.size(), 5 + below(3));
    if (!good && below(3) != 0) {
      ++receivers;
      made.is_whole = false;
      made.begun = below(2) == 0;
      if (made.begun)
        made.memory->begin();
      else
        made.memory->will_receive();
    }
    made.lies = !good && below(6) == 0;
    const source_slot slot = d_.core.add_source(made.memory->facts);
    for (const lane_id lane : lanes_) made.channels.push_back(d_.core.open_channel(slot, lane));
  }

  /// Something happens to a source.
  void trouble() {
    const std::size_t which = below(sources_.size());
    source& victim = sources_[which];
    if (saved_ && which + 1 == sources_.size()) return;
    switch (below(4)) {
      case 0:
        victim.dead = true;
        return;
      case 1:
        victim.let_go = true;
        return victim.memory->raise(99);
      case 2:
        return d_.core.retire_source(static_cast<source_slot>(which));
      default:
        return d_.core.lose_source(static_cast<source_slot>(which), errc::timed_out, "connecting");
    }
  }

  /// Receivers receive.
  void grow() {
    source& lucky = sources_[below(sources_.size())];
    if (lucky.is_whole || lucky.let_go) return;
    if (!lucky.begun) {
      lucky.begun = true;
      return lucky.memory->begin();
    }
    for (std::uint64_t i = 0; i < 1 + below(8); ++i) {
      const chunk_index chunk = below(d_.shape.chunk_count());
      lucky.has.insert(chunk);
      lucky.memory->receive({chunk});
    }
    if (below(60) != 0) return;
    lucky.is_whole = true;
    lucky.memory->complete();
  }

  void post() {
    const std::size_t which = below(sources_.size());
    for (const channel_id channel : sources_[which].channels) {
      while (const auto task = d_.core.next(channel, d_.now)) {
        if (below(20) == 0) {
          d_.core.not_posted(channel, *task);
          break;
        }
        if (task->kind == kind::chunk) {
          REQUIRE_FALSE(confirmed_.contains(task->chunk));
          REQUIRE(writing_.insert(task->chunk).second);
          const source& from = sources_[which];
          REQUIRE((from.is_whole || from.has.contains(task->chunk)));
          REQUIRE(d_.core.in_flight(channel) <= 4);
        }
        reads_.push_back({which, channel, *task, {}, false, false});
      }
    }
  }

  /// A read is served first, and its completion is seen later.
  void complete_one() {
    if (reads_.empty()) return;
    const std::size_t which = below(reads_.size());
    read& done = reads_[which];
    source& from = sources_[done.from];
    if (!done.served) {
      done.served = true;
      const auto memory = done.task.kind == kind::block ? from.memory->block()
                          : done.task.kind == kind::map ? from.memory->map()
                                                        : from.memory->header();
      if (done.task.kind != kind::chunk) done.bytes.assign(memory.begin(), memory.end());
      done.right = !from.let_go && !(from.lies && below(4) == 0);
      return;
    }
    const read ended = done;
    reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(which));
    const auto status = from.dead ? completion_status::peer_lost : completion_status::ok;
    switch (ended.task.kind) {
      case kind::block:
        d_.core.block_arrived(ended.channel, status, ended.bytes, published_root, d_.now);
        return;
      case kind::header:
        return d_.core.header_arrived(ended.channel, status, ended.bytes, d_.now);
      case kind::map:
        return d_.core.map_arrived(ended.channel, status, ended.bytes, d_.now);
      case kind::chunk:
        break;
    }
    writing_.erase(ended.task.chunk);
    wrote_[ended.task.chunk] = ended.right;
    // A source that has let go may well have other bytes whose digest is right for all that is known here:
    // only the header can tell.
    const digest128 digest = ended.right || from.let_go ? digest_of(ended.task.chunk) : digest128{6, 6};
    d_.core.chunk_arrived(ended.channel, ended.task.chunk, status, digest, d_.now);
  }

  std::mt19937_64 random_;
  driver d_;
  std::vector<lane_id> lanes_;
  std::deque<source> sources_;
  std::vector<read> reads_;
  std::set<chunk_index> writing_;
  std::set<chunk_index> confirmed_;
  std::map<chunk_index, bool> wrote_;
  bool saved_ = false;
};

TEST_CASE("pull: whatever the sources do, each chunk is read by one at a time, and confirmed once") {
  std::uint64_t failures = 0;
  std::uint64_t receivers = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    random_run run{seed};
    run.run();
    failures += run.failures;
    receivers += run.receivers;
  }
  CHECK(failures > 300);  // the runs were not idle
  CHECK(receivers > 300);
}

}  // namespace
