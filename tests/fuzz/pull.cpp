/// \file pull.cpp
/// A pull whose sources lie: their control blocks, headers and chunk maps are any bytes, reads fail, chunks
/// come with wrong digests. The pull ends with chunks that have the published digests, or with its sources
/// given up; it never takes a chunk twice at a time, nor counts one that was not confirmed.
///
/// Some versions are open: of those only the first digest that was shown for a chunk is believed, so that an
/// honest source at the end may be of no use any more.
///
/// Input: a row of steps: sources come, tasks are asked for, answers arrive in any order.

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "input.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace {

using namespace tensorhub;

constexpr digest128 published_root{77, 78};

const layout& shape() {
  static const layout made{{{"norm", dtype::u8, {100}}, {"wq", dtype::u8, {70 * 64 + 5}}}, 64};
  return made;
}
digest128 digest_of(chunk_index chunk) {
  return {chunk + 1000, chunk + 1};
}

/// What an honest holder shows.
std::vector<std::byte> honest_block(const pull_source& facts) {
  control_block block{facts.holder, shape()};
  std::vector<digest128> table;
  for (chunk_index i = 0; i < shape().chunk_count(); ++i) table.push_back(digest_of(i));
  block.set_digests(table);
  for (std::size_t i = 0; i < shape().segments().size(); ++i)
    block.set_segment(i, {4096 * i, shape().segments()[i].bytes, {}});
  block.raise_epoch(facts.epoch);
  if (facts.receiving)
    block.show_receiving(facts.version, facts.epoch);
  else
    block.show(facts.version, facts.epoch);
  const auto memory = block.memory();
  return {memory.begin(), memory.end()};
}

struct posted {
  channel_id channel = 0;
  source_slot slot = 0;
  pull_task task{};
};

class scene {
 public:
  explicit scene(fuzz::input& in)
      : is_open_{in.once_in(4)},
        core_{shape(),
              {.needs_root = is_open_, .open = is_open_, .far_window_chunks = in.once_in(2) ? 128u : 32u},
              in.number()} {}

  void step(fuzz::input& in) {
    now_ = now_ + duration{in.once_in(8) ? 100'000'000 : 1'000};
    switch (in.below(8)) {
      case 0:
        return add_source(in);
      case 1:
      case 2:
      case 3:
        return ask(in);
      case 4:
        if (in.once_in(8)) return end_source(in);
        [[fallthrough]];
      default:
        return arrive(in);
    }
  }

  /// Everything that is outstanding ends, all sources go; an honest one finishes the work.
  void finish() {
    core_.commit(published_root);
    for (const posted& each : outstanding_) report(each, failure, nullptr);
    outstanding_.clear();
    for (source_slot slot = 0; slot < blocks_.size(); ++slot) core_.lose_source(slot, errc::source_lost, "x");
    pull_source honest{{999}, {999}, {3}, 5, published_root, false, 0, false};
    blocks_.push_back(honest_block(honest));
    const channel_id channel = core_.open_channel(core_.add_source(honest), 0);
    channels_.push_back(channel);
    for (int rounds = 0; rounds < 10'000 && !core_.done(); ++rounds) {
      now_ = now_ + duration{1'000'000};
      if (const auto task = core_.next(channel, now_)) {
        note(channel, static_cast<source_slot>(blocks_.size() - 1), *task);
        const posted each = outstanding_.back();
        outstanding_.pop_back();
        report(each, completion_status::ok, nullptr);
      }
      take_all();
      if (core_.unsettled()) core_.settle();
    }
    take_all();
    if (is_open_) return;
    fuzz::require(core_.done(), "one honest source is enough");
    fuzz::require(confirmed_.size() == shape().chunk_count() && core_.confirmed_bytes() == shape().bytes(),
                  "every chunk is confirmed once");
  }

 private:
  void add_source(fuzz::input& in) {
    if (blocks_.size() >= 6) return;
    pull_source facts{{in.number() + 1}, {blocks_.size() + 1}, {3},         5,
                      published_root,    in.once_in(2),        in.number(), in.once_in(4)};
    if (is_open_ || in.once_in(16)) facts.root = {};
    blocks_.push_back(honest_block(facts));
    if (facts.lease.value % 3 == 0) facts.segments = *read_control_segments(blocks_.back(), shape());
    if (in.once_in(16) && !facts.segments.empty()) facts.segments.back().bytes = in.number();
    const source_slot slot = core_.add_source(facts);
    for (std::size_t lanes = 1 + in.below(2); lanes > 0; --lanes)
      channels_.push_back(core_.open_channel(slot, static_cast<lane_id>(lanes - 1),
                                             facts.lease.value % 2 == 0 ? UINT64_MAX : 0));
    slots_of_.resize(channels_.size(), slot);
  }
  void end_source(fuzz::input& in) {
    if (blocks_.empty()) return;
    const auto slot = static_cast<source_slot>(in.below(blocks_.size()));
    if (in.once_in(2))
      core_.retire_source(slot);
    else
      core_.lose_source(slot, errc::source_lost, "x");
  }

  void ask(fuzz::input& in) {
    if (channels_.empty()) return;
    const std::size_t index = in.below(channels_.size());
    const auto task = core_.next(channels_[index], now_);
    if (!task) return static_cast<void>(core_.due(channels_[index]));
    note(channels_[index], slots_of_[index], *task);
    if (!in.once_in(16)) return;
    const posted refused = outstanding_.back();
    outstanding_.pop_back();
    reading_.erase(refused.task.chunk);
    core_.not_posted(refused.channel, refused.task);
  }
  void note(channel_id channel, source_slot slot, const pull_task& task) {
    outstanding_.push_back({channel, slot, task});
    if (task.kind != pull_task::kind_type::chunk) return;
    fuzz::require(task.chunk < shape().chunk_count(), "a chunk that is read exists");
    fuzz::require(!confirmed_.contains(task.chunk), "what is confirmed is not read again");
    fuzz::require(reading_.insert(task.chunk).second, "no chunk is read twice at a time");
  }

  void arrive(fuzz::input& in) {
    if (outstanding_.empty()) return;
    const std::size_t index = in.below(outstanding_.size());
    const posted each = outstanding_[index];
    outstanding_.erase(outstanding_.begin() + static_cast<std::ptrdiff_t>(index));
    report(each, in.once_in(32) ? failure : completion_status::ok, &in);
    take_all();
  }

  /// `in`: what the source lies; null: nothing.
  void report(const posted& each, completion_status status, fuzz::input* in) {
    std::vector<std::byte> block = blocks_[each.slot];
    if (in != nullptr) lie(*in, each.slot, block);
    static const std::vector<std::byte> honest = honest_block({});
    const std::uint64_t table = control_offsets::of(shape()).digests;
    const bool is_published = std::memcmp(block.data() + table, honest.data() + table,
                                          shape().chunk_count() * sizeof(digest128)) == 0;
    const digest128 root = is_published ? published_root : digest128{1, 2};
    switch (each.task.kind) {
      case pull_task::kind_type::block:
        static_cast<void>(core_.block_arrived(each.channel, status, cut(in, block), root, now_));
        return;
      case pull_task::kind_type::header:
        core_.header_arrived(each.channel, status, cut(in, std::span{block}.first(sizeof(control_header))),
                             now_);
        return;
      case pull_task::kind_type::map:
        core_.map_arrived(each.channel, status, cut(in, std::span{block}.first(core_.map_bytes())), now_);
        return;
      case pull_task::kind_type::chunk: {
        reading_.erase(each.task.chunk);
        // Without digests nobody would see it.
        const bool is_wrong = in != nullptr && in->once_in(16) && (is_open_ || core_.facts(each.slot).root);
        if ((is_open_ || !is_wrong) && status == completion_status::ok) arrived_.insert(each.task.chunk);
        core_.chunk_arrived(each.channel, each.task.chunk, status,
                            is_wrong ? digest128{5, 5} : digest_of(each.task.chunk), now_);
        return;
      }
    }
  }
  /// Some words of the block are others from now on, or in this read alone.
  void lie(fuzz::input& in, source_slot slot, std::vector<std::byte>& block) {
    const std::uint8_t how = in.byte();
    if (how < 128) return;
    if (how < 176) {  // an honest change: more chunks in the map
      std::uint64_t word = in.take<std::uint64_t>();
      const std::size_t at = control_offsets::of(shape()).bitmap + 8 * in.below(2);
      std::uint64_t old = 0;
      std::memcpy(&old, blocks_[slot].data() + at, sizeof old);
      word |= old;
      std::memcpy(blocks_[slot].data() + at, &word, sizeof word);
      block = blocks_[slot];
      return;
    }
    for (std::size_t words = 1 + how % 4; words > 0; --words) {
      const std::size_t at =
          8 * (in.once_in(2) ? in.below(16) : in.take<std::uint16_t>() % (block.size() / 8));
      const std::uint64_t word = in.number();
      std::memcpy(block.data() + at, &word, sizeof word);
    }
    if (how >= 240) blocks_[slot] = block;
  }
  [[nodiscard]] static std::span<const std::byte> cut(fuzz::input* in, std::span<const std::byte> bytes) {
    return in != nullptr && in->once_in(32) ? bytes.first(std::min<std::size_t>(bytes.size(), in->byte()))
                                            : bytes;
  }

  void take_all() {
    for (const chunk_index chunk : core_.take_confirmed()) {
      fuzz::require(arrived_.contains(chunk), "what is confirmed has arrived");
      fuzz::require(confirmed_.insert(chunk).second, "a chunk is confirmed once");
    }
    fuzz::require(core_.confirmed_chunks() == confirmed_.size(), "what is confirmed is told");
    while (core_.take_failure()) {
    }
    static_cast<void>(core_.take_stall(now_));
    static_cast<void>(core_.take_shortage(now_));
  }

  static constexpr completion_status failure = completion_status::peer_lost;

  bool is_open_;
  pull core_;
  time_point now_{1'000'000'000};
  std::vector<std::vector<std::byte>> blocks_;  ///< by source
  std::vector<channel_id> channels_;
  std::vector<source_slot> slots_of_;  ///< by channel
  std::deque<posted> outstanding_;
  std::set<chunk_index> reading_;
  std::set<chunk_index> arrived_;
  std::set<chunk_index> confirmed_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  scene made{in};
  for (int steps = 0; steps < 512 && !in.empty(); ++steps) made.step(in);
  made.finish();
  return 0;
}
