/// A shard whose memory the server has named is read ahead of its source's control block.

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "pull_scene.hpp"

using namespace pull_test;

namespace {

/// A far source of nine chunks, whose segments the lease names.
struct ahead {
  driver d;
  holder source{d.shape, 1};
  channel_id channel = 0;

  explicit ahead(std::uint64_t ordered_read_bytes = 1u << 20) : d{{.needs_root = true}} {
    source.facts.far = true;
    source.name_segments(d.shape);
    channel = d.core.open_channel(d.core.add_source(source.facts), 0, ordered_read_bytes);
  }
  void take_chunks() {
    for (int i = 0; i < 9; ++i) d.take(channel, kind::chunk);
  }
  /// Everything that is read ahead has arrived, but the block behind it.
  void read_all() {
    take_chunks();
    d.take(channel, kind::block);
    arrive(0, 9);
  }
  [[nodiscard]] bool block(digest128 root = published_root) {
    return d.core.block_arrived(channel, completion_status::ok, source.block(), root, d.now);
  }
  void arrive(chunk_index first, chunk_index end) {
    for (chunk_index i = first; i < end; ++i) d.arrive(channel, i);
  }
  /// Another source, which says nothing of its memory, is enough.
  void check_another_source() {
    holder other{d.shape, 2};
    CHECK(d.drain(d.core.open_channel(d.core.add_source(other.facts)), other).size() == 9);
    CHECK(d.core.done());
  }
};

/// What a pull asks of this source first.
[[nodiscard]] std::optional<kind> begins_with(const holder& source, driver& d) {
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1u << 20);
  const auto task = d.core.next(channel, d.now);
  return task ? std::optional{task->kind} : std::nullopt;
}

}  // namespace

TEST_CASE(
    "pull: chunks whose memory the server has named are read before the block, which is read behind them") {
  ahead a;
  a.take_chunks();
  CHECK(a.d.core.segments(0).size() == 2);
  a.d.take(a.channel, kind::block);
  CHECK(a.d.nothing(a.channel));
  CHECK(a.d.core.due(a.channel) == time_point::never());
  a.arrive(0, 9);
  CHECK(a.d.core.confirmed_chunks() == 0);
  CHECK(a.block());
  CHECK(a.d.core.done());
  CHECK(a.d.core.take_confirmed().size() == 9);
  CHECK(a.d.core.table().size() == 9);
}

TEST_CASE("pull: a block that overtakes the chunks that it was read behind confirms them when they arrive") {
  ahead a;
  a.take_chunks();
  a.d.take(a.channel, kind::block);
  a.arrive(0, 2);
  CHECK(a.block());
  CHECK(a.d.core.confirmed_chunks() == 2);
  a.d.core.chunk_arrived(a.channel, 2, completion_status::ok, {1, 2}, a.d.now);
  CHECK(a.d.core.is_lost(0));
  CHECK(a.d.failure().reason == errc::corrupt);
}

TEST_CASE("pull: without order, the block is read when the chunks are here") {
  for (const std::uint64_t ordered : {std::uint64_t{0}, std::uint64_t{512}}) {
    ahead a{ordered};
    a.take_chunks();
    CHECK(a.d.nothing(a.channel));
    a.arrive(0, 8);
    CHECK(a.d.nothing(a.channel));
    CHECK(a.d.core.due(a.channel) == time_point::never());
    a.arrive(8, 9);
    a.d.take(a.channel, kind::block);
    CHECK(a.block());
    CHECK(a.d.core.done());
  }
  // The reads of the chunks are in order, but not the longer one of the block.
  driver d{layout{{{"wq", dtype::u8, {64}}}, 64}, {}};
  holder source{d.shape, 1};
  source.name_segments(d.shape);
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 64);
  d.take(channel, kind::chunk);
  CHECK(d.nothing(channel));
}

TEST_CASE("pull: what was read ahead of a wrong block does not count") {
  SUBCASE("the source has let go of the version") {
    ahead a;
    a.read_all();
    a.source.raise(6);
    CHECK_FALSE(a.block());
    CHECK(a.d.failure().reason == errc::contract_broken);
    CHECK_FALSE(a.d.core.intact());
    a.check_another_source();
  }
  SUBCASE("its memory is elsewhere") {
    ahead a;
    a.read_all();
    a.source.set_segment(1, {4096, 1u << 20, {}});
    CHECK_FALSE(a.block());
    const source_failure failed = a.d.failure();
    CHECK(failed.reason == errc::contract_broken);
    CHECK(failed.detail == "its regions are not those that the server was told");
    a.check_another_source();
  }
  SUBCASE("its table is not the published one") {
    ahead a;
    a.read_all();
    CHECK_FALSE(a.block({1, 2}));
    CHECK(a.d.failure().reason == errc::corrupt);
    a.check_another_source();
  }
  SUBCASE("a chunk has another digest") {
    ahead a;
    a.take_chunks();
    a.d.take(a.channel, kind::block);
    a.arrive(0, 4);
    a.d.core.chunk_arrived(a.channel, 4, completion_status::ok, {1, 2}, a.d.now);
    a.arrive(5, 9);
    CHECK_FALSE(a.block());
    CHECK(a.d.core.confirmed_chunks() == 0);
    const source_failure failed = a.d.failure();
    CHECK(failed.reason == errc::corrupt);
    CHECK(failed.chunk == chunk_index{4});
    a.check_another_source();
  }
}

TEST_CASE("pull: without digests, the block behind the chunks is all that they need") {
  driver d;
  holder source{d.shape, 1};
  source.facts.far = true;
  source.facts.root = {};
  source.name_segments(d.shape);
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1u << 20);
  for (int i = 0; i < 9; ++i) d.take(channel, kind::chunk);
  d.take(channel, kind::block);
  for (chunk_index i = 0; i < 9; ++i) d.core.chunk_arrived(channel, i, completion_status::ok, {}, d.now);
  CHECK(d.core.block_arrived(channel, completion_status::ok, source.block(), {}, d.now));
  CHECK(d.core.done());
}

TEST_CASE("pull: only a shard that is read at once is read ahead") {
  SUBCASE("more chunks than the window of a wide-area path") {
    driver d{{.far_window_chunks = 8}};
    holder source{d.shape, 1};
    source.facts.far = true;
    source.name_segments(d.shape);
    CHECK(begins_with(source, d) == kind::block);
  }
  SUBCASE("several chunks of a near source: lanes share them") {
    driver d;
    holder source{d.shape, 1};
    source.name_segments(d.shape);
    CHECK(begins_with(source, d) == kind::block);
  }
  SUBCASE("one chunk of a near source") {
    driver d{many_chunks(1), {}};
    holder source{d.shape, 1};
    CHECK(begins_with(source, d) == kind::block);
    driver other{many_chunks(1), {}};
    source.name_segments(other.shape);
    CHECK(begins_with(source, other) == kind::chunk);
  }
}

TEST_CASE("pull: a shard is read ahead of one source that has it, and whose regions fit") {
  SUBCASE("a source that receives") {
    driver d{many_chunks(1), {}};
    holder source{d.shape, 1};
    source.begin();
    source.name_segments(d.shape);
    CHECK(begins_with(source, d) == kind::header);
  }
  SUBCASE("regions that are too few or too short") {
    ahead a;
    a.source.facts.segments.back().bytes -= 1;
    driver d{nine_chunks(), {.needs_root = true}};
    CHECK(begins_with(a.source, d) == kind::block);
    a.source.facts.segments.pop_back();
    driver other{nine_chunks(), {.needs_root = true}};
    CHECK(begins_with(a.source, other) == kind::block);
  }
  SUBCASE("a version that is open, and one without the digests that are needed") {
    driver open{many_chunks(1), {.open = true}};
    holder source{open.shape, 1};
    source.name_segments(open.shape);
    CHECK(begins_with(source, open) == kind::block);
    driver checks{many_chunks(1), {.needs_root = true}};
    source.facts.root = {};
    CHECK(begins_with(source, checks) == kind::block);
  }
  SUBCASE("of which nothing was read yet, by one source and one channel") {
    ahead a;
    a.d.take(a.channel, kind::chunk);
    CHECK(a.d.nothing(a.d.core.open_channel(0, 1, 1u << 20)));
    holder second{a.d.shape, 2};
    second.facts.far = true;
    second.name_segments(a.d.shape);
    CHECK(begins_with(second, a.d) == kind::block);
  }
}

TEST_CASE("pull: what could not be posted of a shard that is read ahead is posted later") {
  ahead a;
  const auto first = a.d.take(a.channel, kind::chunk);
  a.d.core.not_posted(a.channel, {kind::chunk, first});
  a.take_chunks();
  a.d.take(a.channel, kind::block);
  a.arrive(0, 2);
  a.d.core.not_posted(a.channel, {kind::block, 0});
  a.arrive(2, 9);
  CHECK(a.d.core.confirmed_chunks() == 0);
  a.d.take(a.channel, kind::block);
  CHECK(a.block());
  CHECK(a.d.core.confirmed_chunks() == 0);  // this block was not read behind them
  a.d.confirm(a.channel, a.source);
  CHECK(a.d.core.done());
}

TEST_CASE(
    "pull: a chunk that arrived wrong ahead of a block that was not posted is found by the next block") {
  ahead a;
  a.take_chunks();
  a.d.take(a.channel, kind::block);
  a.d.core.not_posted(a.channel, {kind::block, 0});
  a.d.core.chunk_arrived(a.channel, 0, completion_status::ok, {1, 2}, a.d.now);
  a.arrive(1, 9);
  a.d.take(a.channel, kind::block);
  CHECK_FALSE(a.block());
  CHECK(a.d.failure().chunk == chunk_index{0});
}

TEST_CASE("pull: when the source that was read ahead is lost, the next one is read ahead") {
  ahead a;
  a.take_chunks();
  a.d.core.chunk_arrived(a.channel, 0, completion_status::ok, {1, 2}, a.d.now);
  a.arrive(1, 9);
  a.d.core.lose_source(0, errc::source_lost, "its connection has ended");
  holder second{a.d.shape, 2};
  second.facts.far = true;
  second.name_segments(a.d.shape);
  const channel_id channel = a.d.core.open_channel(a.d.core.add_source(second.facts), 0, 1u << 20);
  CHECK(a.d.drain(channel, second).size() == 9);
  CHECK(a.d.core.done());
}

TEST_CASE("pull: a source that is released while it is read ahead is believed to the end of its reads") {
  ahead a;
  for (int i = 0; i < 3; ++i) a.d.take(a.channel, kind::chunk);
  a.d.core.retire_source(0);
  a.d.take(a.channel, kind::block);
  CHECK_FALSE(a.d.core.is_idle(0));
  a.arrive(0, 3);
  CHECK(a.block());
  CHECK(a.d.core.confirmed_chunks() == 3);
  CHECK(a.d.nothing(a.channel));
  CHECK(a.d.core.is_idle(0));
}

TEST_CASE("pull: a source that is released while its block could not be posted is asked for the block") {
  ahead a{0};
  a.take_chunks();
  a.arrive(0, 8);
  SUBCASE("all chunks have arrived") {
    a.arrive(8, 9);
    a.d.take(a.channel, kind::block);
    a.d.core.not_posted(a.channel, {kind::block, 0});
    a.d.core.retire_source(0);
    CHECK(a.d.nothing(a.d.core.open_channel(0, 1)));  // it has read nothing that needs a proof
    a.d.take(a.channel, kind::block);
    CHECK(a.block());
    a.d.confirm(a.channel, a.source);
    CHECK(a.d.core.done());
  }
  SUBCASE("its connection has to be made again, with a chunk missing") {
    a.d.core.not_posted(a.channel, {kind::chunk, 8});
    a.d.core.retire_source(0);
    a.d.take(a.channel, kind::block);
    a.d.core.not_posted(a.channel, {kind::block, 0});
    a.d.take(a.channel, kind::block);
    CHECK(a.block());
    a.d.confirm(a.channel, a.source);
    CHECK(a.d.core.confirmed_chunks() == 8);
  }
  CHECK(a.d.core.is_idle(0));
}

TEST_CASE("pull: a source that is released with nothing of it read is not asked") {
  ahead a;
  const auto first = a.d.take(a.channel, kind::chunk);
  a.d.core.not_posted(a.channel, {kind::chunk, first});
  a.d.core.retire_source(0);
  CHECK(a.d.nothing(a.channel));
  CHECK(a.d.core.is_idle(0));
}
