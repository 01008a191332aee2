#pragma once
/// \file pull_scene.hpp
/// A pull, the sources that it may see, and what a shell does with them, one task at a time.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/transfer/pull.hpp"

namespace pull_test {

using namespace tensorhub;

inline constexpr digest128 published_root{77, 78};

[[nodiscard]] inline digest128 digest_of(chunk_index chunk) {
  return {chunk + 1000, chunk + 1};
}

/// Eight chunks of 1024 bytes (the last one short) and a small tensor: nine chunks in two segments.
[[nodiscard]] inline layout nine_chunks() {
  return layout{{{"norm", dtype::u8, {100}}, {"wq", dtype::u8, {7 * 1024 + 5}}}, 1024};
}
/// One segment of as many chunks.
[[nodiscard]] inline layout many_chunks(std::uint64_t count) {
  return layout{{{"wq", dtype::u8, {count * 1024}}}, 1024};
}

/// A source's memory as far as a pull can see it.
class holder {
 public:
  holder(const layout& shape, std::uint64_t who, std::uint64_t epoch = 5, version_number version = 3)
      : facts{{who * 10}, {who}, version, epoch, published_root, false},
        block_{{who}, shape},
        chunks_{shape.chunk_count()},
        segments_{shape.segments().size()},
        map_end_{control_offsets::of(shape).map_end()},
        digests_end_{control_offsets::of(shape).segments} {
    std::vector<digest128> table;
    for (chunk_index i = 0; i < shape.chunk_count(); ++i) table.push_back(digest_of(i));
    block_.set_digests(table);
    for (std::size_t i = 0; i < segments_; ++i)
      set_segment(i, {who * 4096 + i, shape.segments()[i].bytes, {}});
    block_.show(version, epoch);
  }
  void set_segment(std::size_t segment, const remote_region& region) { block_.set_segment(segment, region); }
  /// Its lease says where its segments lie.
  void name_segments(const layout& shape) { facts.segments = read_control_segments(block(), shape).value(); }
  void raise(std::uint64_t epoch) { block_.raise_epoch(epoch); }
  void show(version_number version, std::uint64_t epoch) { block_.show(version, epoch); }

  /// Its lease says that it receives; it has not begun.
  void will_receive() {
    facts.receiving = true;
    block_.raise_epoch(facts.epoch - 1);
  }
  /// It receives, and has nothing yet.
  void begin() {
    facts.receiving = true;
    block_.raise_epoch(facts.epoch);
    block_.show_receiving(facts.version, facts.epoch);
  }
  /// Its version is open: no lease has a root, and of the digests none is shown yet.
  void open() {
    facts.root = {};
    begin();
    block_.set_digests({});
  }
  void fill(std::initializer_list<chunk_index> chunks) {
    for (const chunk_index chunk : chunks) fill(chunk, digest_of(chunk));
  }
  void fill(chunk_index chunk, digest128 digest) {
    block_.set_digest(chunk, digest);
    block_.add_chunk(chunk);
  }
  void receive(std::initializer_list<chunk_index> chunks) {
    for (const chunk_index chunk : chunks) block_.add_chunk(chunk);
  }
  void receive_all() {
    for (chunk_index chunk = 0; chunk < chunks_; ++chunk) block_.add_chunk(chunk);
  }
  void complete() { block_.show(facts.version, facts.epoch); }

  [[nodiscard]] std::span<const std::byte> block() { return block_.memory(); }
  [[nodiscard]] std::span<const std::byte> header() { return block().first(sizeof(control_header)); }
  [[nodiscard]] std::span<const std::byte> map() {
    return block().first(facts.root ? map_end_ : digests_end_);
  }

  pull_source facts;

 private:
  control_block block_;
  std::uint64_t chunks_;
  std::size_t segments_;
  std::uint64_t map_end_;
  std::uint64_t digests_end_;
};

using kind = pull_task::kind_type;

/// A pull and what a shell does with it.
struct driver {
  explicit driver(pull_options options = {}, chunk_index first = 0) : driver{nine_chunks(), options, first} {}
  driver(layout of, pull_options options, chunk_index first = 0)
      : shape{std::move(of)}, core{shape, options, first} {}

  layout shape;
  pull core;
  time_point now{1'000'000'000};

  void pass(duration time) { now = now + time; }

  /// The next task, which must be of this kind.
  chunk_index take(channel_id channel, kind which) {
    const auto task = core.next(channel, now);
    REQUIRE(task.has_value());
    REQUIRE(task->kind == which);
    return task->chunk;
  }
  [[nodiscard]] bool nothing(channel_id channel) { return !core.next(channel, now).has_value(); }

  bool believe(channel_id channel, holder& source, digest128 root = published_root) {
    take(channel, kind::block);
    return core.block_arrived(channel, completion_status::ok, source.block(), root, now);
  }
  /// A source that is believed, and a channel to it.
  channel_id open(holder& source, lane_id lane = 0) {
    const channel_id channel = core.open_channel(core.add_source(source.facts), lane);
    if (source.facts.receiving) confirm(channel, source);
    REQUIRE(believe(channel, source));
    return channel;
  }
  void arrive(channel_id channel, chunk_index chunk) {
    core.chunk_arrived(channel, chunk, completion_status::ok, digest_of(chunk), now);
  }
  void confirm(channel_id channel, holder& source) {
    take(channel, kind::header);
    core.header_arrived(channel, completion_status::ok, source.header(), now);
  }
  /// The channel looks at a receiving source's map.
  void look(channel_id channel, holder& source) {
    take(channel, kind::map);
    core.map_arrived(channel, completion_status::ok, source.map(), now);
  }
  /// Does what a task asks for, at once.
  void perform(channel_id channel, holder& source, const pull_task& task) {
    switch (task.kind) {
      case kind::block:
        core.block_arrived(channel, completion_status::ok, source.block(), published_root, now);
        return;
      case kind::header:
        core.header_arrived(channel, completion_status::ok, source.header(), now);
        return;
      case kind::map:
        core.map_arrived(channel, completion_status::ok, source.map(), now);
        return;
      case kind::chunk:
        return arrive(channel, task.chunk);
    }
  }
  /// Does everything that this channel may do; the chunks that it read, in order.
  std::vector<chunk_index> drain(channel_id channel, holder& source) {
    std::vector<chunk_index> read;
    std::deque<pull_task> posted;
    for (int guard = 0; guard < 10'000; ++guard) {
      while (const auto task = core.next(channel, now)) posted.push_back(*task);
      if (posted.empty()) return read;
      const pull_task task = posted.front();
      posted.pop_front();
      if (task.kind == kind::chunk) read.push_back(task.chunk);
      perform(channel, source, task);
    }
    FAIL("the pull asks for ever");
    return read;
  }
  source_failure failure() {
    const auto failed = core.take_failure();
    REQUIRE(failed.has_value());
    return failed.value_or(source_failure{});
  }
};

}  // namespace pull_test
