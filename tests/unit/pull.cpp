/// \file pull.cpp
/// The state machine of one shard's transfer, driven by hand: what is asked for, and what is
/// believed. Sources that receive, and several of them: pull_sources.cpp.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "pull_scene.hpp"
#include "tensorhub/transfer/tensor_arrivals.hpp"

using namespace pull_test;

namespace {

// ---- the whole way

TEST_CASE("pull: block, every chunk once, header, done") {
  driver d;
  holder source{d.shape, 1};
  REQUIRE(d.shape.chunk_count() == 9);
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  CHECK_FALSE(d.core.done());
  CHECK(d.core.intact());
  d.take(channel, kind::block);
  CHECK(d.nothing(channel));  // while nothing is known of the source, nothing else is asked
  CHECK(d.core.intact());
  REQUIRE(d.core.block_arrived(channel, completion_status::ok, source.block(), published_root));
  REQUIRE(d.core.segments(0).size() == 2);
  CHECK(d.core.segments(0)[1].base == 4097);
  REQUIRE(d.core.table().size() == 9);
  CHECK(d.core.table()[8] == digest_of(8));

  auto read = d.drain(channel, source);
  std::ranges::sort(read);
  CHECK(read == std::vector<chunk_index>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(d.core.done());
  CHECK(d.core.confirmed_chunks() == 9);
  CHECK(d.core.confirmed_bytes() == d.shape.bytes());
  CHECK_FALSE(d.core.intact());
  CHECK_FALSE(d.core.take_failure().has_value());
}

TEST_CASE("pull: without a root no digest is looked at, and no table is kept") {
  driver d;
  holder source{d.shape, 1};
  source.facts.root = {};
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  REQUIRE(d.believe(channel, source, {}));
  CHECK(d.core.table().empty());
  std::vector<chunk_index> chunks;
  for (int i = 0; i < 4; ++i) chunks.push_back(d.take(channel, kind::chunk));
  for (const chunk_index chunk : chunks)
    d.core.chunk_arrived(channel, chunk, completion_status::ok, {123, 456});
  d.drain(channel, source);
  CHECK(d.core.done());
}

TEST_CASE("pull: a reader starts where it is told and comes round") {
  driver d;
  holder source{d.shape, 1};
  source.facts.first = 9 + 7;
  const auto read = d.drain(d.core.open_channel(d.core.add_source(source.facts)), source);
  CHECK(read == std::vector<chunk_index>{7, 8, 0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("pull: preferred chunks come first, in their order, and the rest as ever") {
  driver d{{.window_chunks = 1}};
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  d.core.prefer(std::vector<chunk_index>{7, 2, 5});
  auto read = d.drain(channel, source);
  CHECK(d.core.done());
  REQUIRE(read.size() == 9);
  read.resize(3);
  CHECK(read == std::vector<chunk_index>{7, 2, 5});
}

TEST_CASE(
    "pull: a preferred chunk is read from a source that has it, and again if it was not what it should be") {
  driver d{{.window_chunks = 1}};
  holder receiving{d.shape, 1};
  receiving.begin();
  receiving.receive({0, 3});
  const channel_id channel = d.open(receiving);
  d.look(channel, receiving);
  d.core.prefer(std::vector<chunk_index>{8, 3});
  CHECK(d.take(channel, kind::chunk) == 3);  // chunk 8 is not there
  holder other{d.shape, 2};
  const channel_id second = d.open(other, 1);
  d.core.chunk_arrived(channel, 3, completion_status::ok, digest_of(4), d.now);
  CHECK(d.failure().reason == errc::corrupt);
  CHECK(d.take(second, kind::chunk) == 8);
  d.arrive(second, 8);
  d.confirm(second, other);
  CHECK(d.take(second, kind::chunk) == 3);
}

TEST_CASE("arrivals: a tensor is here with its last chunk; missing ones in the order asked for") {
  const layout shape = nine_chunks();  // "norm" in chunk 0, "wq" in 1 to 8
  tensor_arrivals arrivals{shape};
  const std::vector<std::size_t> order{1, 0};
  CHECK_FALSE(arrivals.has(0));
  CHECK(arrivals.missing(order, 3) == std::vector<chunk_index>{1, 2, 3});
  arrivals.add(std::vector<chunk_index>{0, 2, 8});
  CHECK(arrivals.has(0));
  CHECK(arrivals.has_chunk(2));
  CHECK_FALSE(arrivals.has(1));
  CHECK(arrivals.missing(order, 100) == std::vector<chunk_index>{1, 3, 4, 5, 6, 7});
  arrivals.add(std::vector<chunk_index>{1, 3, 4, 5, 6});
  CHECK_FALSE(arrivals.has(1));
  arrivals.add(std::vector<chunk_index>{7});
  CHECK(arrivals.has(1));
  CHECK(arrivals.missing(order, 100).empty());
}

TEST_CASE("arrivals: small tensors in one chunk lack it once") {
  const layout shape{{{"a", dtype::u8, {10}}, {"none", dtype::u8, {0}}, {"b", dtype::u8, {20}}}, 1024};
  const tensor_arrivals arrivals{shape};
  CHECK(arrivals.missing(std::vector<std::size_t>{0, 1, 2}, 100) == std::vector<chunk_index>{0});
  CHECK(arrivals.has(1));
  CHECK_FALSE(arrivals.has(2));
}

TEST_CASE("pull: a shard without chunks is done at once") {
  const layout nothing{{{"none", dtype::u8, {0}}}, 1024};
  const pull core{nothing, {}, 5};
  CHECK(core.done());
  CHECK(core.intact());
}

TEST_CASE("pull: no more than a window of chunks is outstanding per lane") {
  driver d{{.window_chunks = 3}};
  holder source{d.shape, 1};
  const channel_id one = d.open(source);
  const channel_id two = d.core.open_channel(0, 1);
  const chunk_index first = d.take(one, kind::chunk);
  d.take(one, kind::chunk);
  d.take(one, kind::chunk);
  CHECK(d.nothing(one));
  CHECK(d.core.in_flight(one) == 3);
  for (int i = 0; i < 3; ++i) d.take(two, kind::chunk);
  CHECK(d.nothing(two));
  d.arrive(one, first);
  CHECK(d.core.in_flight(one) == 2);
  d.confirm(one, source);
  d.take(one, kind::chunk);
  CHECK(d.nothing(one));
}

TEST_CASE("pull: a source in another datacenter has a window of its own, per lane") {
  driver d{{.window_chunks = 2, .far_window_chunks = 3}};
  holder near{d.shape, 1};
  holder far{d.shape, 2};
  far.facts.far = true;
  const channel_id across = d.open(far);
  const channel_id other_lane = d.core.open_channel(0, 1);
  for (int i = 0; i < 3; ++i) d.take(across, kind::chunk);
  CHECK(d.nothing(across));
  d.take(other_lane, kind::chunk);
  // What is on its way from afar takes no place from a neighbour.
  const channel_id within = d.open(near);
  d.take(within, kind::chunk);
  d.take(within, kind::chunk);
  CHECK(d.nothing(within));
  CHECK(d.nothing(across));
}

TEST_CASE("pull: the window of a source in another datacenter is as many bytes of tensors below a chunk") {
  constexpr std::uint64_t chunk_bytes = 4096;
  std::vector<tensor_spec> tensors;
  for (std::size_t i = 0; i <= 2 * layout::most_packed_chunks; ++i)
    tensors.push_back({"expert." + std::to_string(i), dtype::u8, {chunk_bytes / 2}});
  const layout shape{tensors, chunk_bytes};
  REQUIRE(shape.packed_bytes() == 0);
  driver d{shape, {.far_window_chunks = 3}};
  holder far{d.shape, 1};
  far.facts.far = true;
  const channel_id across = d.open(far);
  std::vector<chunk_index> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(d.take(across, kind::chunk));
  CHECK(d.nothing(across));
  d.arrive(across, taken.front());
  d.confirm(across, far);
  d.take(across, kind::chunk);
  CHECK(d.nothing(across));
  const std::size_t beside_the_window = 8;  // of slow sources
  CHECK(d.core.most_reads() == pull_options{}.window_chunks + beside_the_window + 4 * 3);
}

TEST_CASE("pull: several sources share a lane's window, so that a slow one does not fill it") {
  driver d{{.window_chunks = 4}};
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  const channel_id one = d.open(first);
  const channel_id two = d.open(second);
  d.take(one, kind::chunk);
  d.take(one, kind::chunk);
  CHECK(d.nothing(one));
  d.take(two, kind::chunk);
  d.take(two, kind::chunk);
  CHECK(d.nothing(two));
  d.core.retire_source(1);  // its two reads still count, its share does not
  CHECK(d.nothing(one));
  driver alone{{.window_chunks = 4}};
  const channel_id kept = alone.open(first);
  alone.open(second);
  alone.core.lose_source(1, errc::source_lost, "gone");
  for (int i = 0; i < 4; ++i) alone.take(kept, kind::chunk);
  CHECK(alone.nothing(kept));
}

TEST_CASE("pull: a source that had the window for itself, and falls silent, does not keep another one out") {
  driver d{{.window_chunks = 4}};
  holder silent{d.shape, 1}, other{d.shape, 2};
  const channel_id one = d.open(silent);
  for (int i = 0; i < 4; ++i) d.take(one, kind::chunk);
  CHECK(d.nothing(one));
  const channel_id two = d.open(other);
  d.take(two, kind::chunk);
  d.take(two, kind::chunk);
  CHECK(d.nothing(two));
}

TEST_CASE("pull: the sources that share a window use all of it") {
  driver d{{.window_chunks = 4}};
  holder first{d.shape, 1}, second{d.shape, 2}, third{d.shape, 3};
  const std::vector<channel_id> channels{d.open(first), d.open(second), d.open(third)};
  d.take(channels[0], kind::chunk);
  d.take(channels[0], kind::chunk);
  CHECK(d.nothing(channels[0]));
  d.take(channels[1], kind::chunk);
  SUBCASE("and no more") {
    d.take(channels[2], kind::chunk);
    CHECK(d.nothing(channels[1]));
    CHECK(d.nothing(channels[2]));
  }
  SUBCASE("and each has its share of it, whatever the others hold") {
    d.take(channels[1], kind::chunk);
    d.take(channels[2], kind::chunk);
    CHECK(d.nothing(channels[2]));
  }
}

TEST_CASE("pull: a source that is slow beside another one has one read outstanding, beside the window") {
  driver d{{.window_chunks = 4, .confirm_every = 8, .confirm_after = std::chrono::seconds{9}}};
  holder quick{d.shape, 1};
  holder slow{d.shape, 2};
  const channel_id one = d.open(quick);
  const channel_id two = d.open(slow);
  const chunk_index first = d.take(one, kind::chunk), second = d.take(two, kind::chunk);
  const auto usual = std::chrono::milliseconds{1};
  d.pass(usual);
  d.arrive(one, first);
  d.confirm(one, quick);
  std::size_t slow_reads = 0, quick_reads = 0;
  SUBCASE("five times as slow") {
    d.pass(4 * usual);
    slow_reads = 1, quick_reads = 4;
  }
  SUBCASE("four times as slow: they share the window") {
    d.pass(3 * usual);
    slow_reads = 2, quick_reads = 2;
  }
  d.arrive(two, second);
  for (std::size_t i = 0; i < slow_reads; ++i) d.take(two, kind::chunk);
  CHECK(d.nothing(two));
  for (std::size_t i = 0; i < quick_reads; ++i) d.take(one, kind::chunk);
  CHECK(d.nothing(one));
}

TEST_CASE("pull: the first chunk of all is confirmed at once, for others wait for it") {
  driver d{{.confirm_every = 8}};
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  const chunk_index chunk = d.take(channel, kind::chunk);
  d.take(channel, kind::chunk);
  d.arrive(channel, chunk);
  d.confirm(channel, source);
  REQUIRE(d.core.take_confirmed().size() == 1);
  CHECK(d.core.take_confirmed().empty());
  d.arrive(channel, d.take(channel, kind::chunk));
  d.take(channel, kind::chunk);  // later ones are confirmed together
}

TEST_CASE("pull: only what had arrived before the header was asked for is confirmed by it") {
  driver d{{.window_chunks = 4, .confirm_every = 2}};
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  d.arrive(channel, d.take(channel, kind::chunk));
  d.confirm(channel, source);
  std::vector<chunk_index> chunks;
  for (int i = 0; i < 4; ++i) chunks.push_back(d.take(channel, kind::chunk));
  d.arrive(channel, chunks[0]);
  d.take(channel, kind::chunk);  // one arrived chunk is not worth a header yet
  d.arrive(channel, chunks[1]);
  d.take(channel, kind::header);
  d.arrive(channel, chunks[2]);
  d.arrive(channel, chunks[3]);
  // One header at a time.
  while (const auto task = d.core.next(channel)) REQUIRE(task->kind == kind::chunk);
  CHECK(d.core.confirmed_chunks() == 1);
  d.core.header_arrived(channel, completion_status::ok, source.header());
  CHECK(d.core.confirmed_chunks() == 3);
  CHECK(d.core.is_confirmed(chunks[0]));
  CHECK(d.core.is_confirmed(chunks[1]));
  CHECK_FALSE(d.core.is_confirmed(chunks[2]));
  d.confirm(channel, source);
  CHECK(d.core.is_confirmed(chunks[2]));
  CHECK(d.core.is_confirmed(chunks[3]));
}

TEST_CASE("pull: the bytes that count are the confirmed ones, short chunks as they are") {
  driver d{{.window_chunks = 1, .confirm_every = 1}};
  holder source{d.shape, 1};
  source.facts.first = 8;
  const channel_id channel = d.open(source);
  d.arrive(channel, d.take(channel, kind::chunk));
  CHECK(d.core.confirmed_bytes() == 0);
  d.confirm(channel, source);
  CHECK(d.core.confirmed_bytes() == 5);  // chunk 8, the last of "wq"
  d.arrive(channel, d.take(channel, kind::chunk));
  d.confirm(channel, source);
  CHECK(d.core.confirmed_bytes() == 5 + 128);  // chunk 0, the packed segment
}

// ---- what is not believed

/// How a source fails whose block was read as `block`; its lease is the one of `facts`.
[[nodiscard]] source_failure refused_block(pull_source facts, std::span<const std::byte> block,
                                           digest128 root = published_root,
                                           completion_status status = completion_status::ok) {
  driver d;
  const channel_id channel = d.core.open_channel(d.core.add_source(facts));
  d.take(channel, kind::block);
  REQUIRE_FALSE(d.core.block_arrived(channel, status, block, root));
  CHECK(d.core.is_lost(0));
  CHECK(d.core.intact());
  CHECK(d.nothing(channel));
  const source_failure failed = d.failure();
  CHECK(failed.lease == facts.lease);
  CHECK_FALSE(d.core.take_failure().has_value());
  return failed;
}

TEST_CASE("pull: a control block of another process, epoch or version is refused") {
  const layout shape = nine_chunks();
  holder source{shape, 1};
  pull_source facts = source.facts;
  facts.holder = {2};
  CHECK(refused_block(facts, source.block()).reason == errc::contract_broken);
  CHECK(refused_block(facts, source.block()).detail.find("another process") != std::string::npos);
  facts = source.facts;
  facts.epoch = 4;
  CHECK(refused_block(facts, source.block()).reason == errc::contract_broken);
  CHECK(refused_block(facts, source.block()).detail.find("epoch 4 -> 5") != std::string::npos);
  facts = source.facts;
  facts.version = 2;
  CHECK(refused_block(facts, source.block()).reason == errc::contract_broken);
  source.raise(5);  // nothing is shown
  CHECK(refused_block(source.facts, source.block()).reason == errc::contract_broken);
}

TEST_CASE("pull: a digest table whose root is not the published one is refused") {
  const layout shape = nine_chunks();
  holder source{shape, 1};
  CHECK(refused_block(source.facts, source.block(), {77, 79}).reason == errc::corrupt);
  CHECK(refused_block(source.facts, source.block(), {}).reason == errc::corrupt);
}

TEST_CASE("pull: what is no control block of this layout is refused") {
  const layout shape = nine_chunks();
  holder source{shape, 1};
  std::vector<std::byte> block{source.block().begin(), source.block().end()};
  const auto refused = [&](std::span<const std::byte> bytes) {
    return refused_block(source.facts, bytes).reason == errc::protocol_mismatch;
  };
  CHECK(refused(std::span{block}.first(block.size() - 1)));
  CHECK(refused({}));
  for (const std::size_t offset : {0u, 40u, 48u, 56u, 64u}) {  // magic, layout, chunk and segment counts
    CAPTURE(offset);
    auto changed = block;
    changed[offset] ^= std::byte{1};
    CHECK(refused(changed));
  }
  source.set_segment(1, {0, shape.segments()[1].bytes - 1, {}});
  CHECK(refused(source.block()));
}

TEST_CASE("pull: a control block that cannot be read loses the source") {
  const layout shape = nine_chunks();
  holder source{shape, 1};
  const auto reason = [&](completion_status status) {
    return refused_block(source.facts, source.block(), published_root, status).reason;
  };
  CHECK(reason(completion_status::peer_lost) == errc::source_lost);
  CHECK(reason(completion_status::access_denied) == errc::source_lost);
  CHECK(reason(completion_status::local_error) == errc::transport_failed);
}

TEST_CASE(
    "pull: a header that changed after the bytes arrived breaks the contract; the chunk is read again") {
  const auto changes = {0, 1, 2, 3, 4};
  for (const int change : changes) {
    CAPTURE(change);
    driver d{{.window_chunks = 1, .confirm_every = 1}};
    holder source{d.shape, 1};
    holder other{d.shape, 2};
    const channel_id channel = d.open(source);
    const chunk_index chunk = d.take(channel, kind::chunk);
    d.arrive(channel, chunk);
    d.take(channel, kind::header);
    holder now{d.shape, change == 0 ? 9u : 1u, change == 1 ? 6u : 5u, change == 2 ? 4u : 3u};
    if (change == 3) now.raise(5);
    std::vector<std::byte> bytes{now.header().begin(), now.header().end()};
    if (change == 4) bytes[0] = std::byte{0};  // no control block any more
    d.core.header_arrived(channel, completion_status::ok, bytes);
    CHECK(d.core.confirmed_chunks() == 0);
    CHECK(d.core.is_lost(0));
    CHECK(d.failure().reason == errc::contract_broken);
    CHECK(d.nothing(channel));

    const auto read = d.drain(d.core.open_channel(d.core.add_source(other.facts)), other);
    CHECK(std::ranges::count(read, chunk) == 1);
    CHECK(read.size() == 9);
    CHECK(d.core.done());
  }
}

TEST_CASE("pull: a header that cannot be read confirms nothing") {
  driver d{{.window_chunks = 1, .confirm_every = 1}};
  holder source{d.shape, 1};
  const channel_id again = d.open(source);
  d.arrive(again, d.take(again, kind::chunk));
  d.take(again, kind::header);
  d.core.header_arrived(again, completion_status::cut_off, source.header());  // bytes of an error are none
  CHECK(d.core.confirmed_chunks() == 0);
  const source_failure failed = d.failure();
  CHECK(failed.reason == errc::source_lost);
  CHECK(failed.detail.find("cut off") != std::string::npos);
}

TEST_CASE("pull: a chunk without its digest is corrupt, and named") {
  driver d;
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  const chunk_index chunk = d.take(channel, kind::chunk);
  digest128 wrong = digest_of(chunk);
  ++wrong.high;
  d.core.chunk_arrived(channel, chunk, completion_status::ok, wrong);
  const source_failure failed = d.failure();
  CHECK(failed.reason == errc::corrupt);
  CHECK(failed.chunk == chunk);
  CHECK(failed.slot == 0);
  CHECK(failed.lease == source.facts.lease);
  holder other{d.shape, 2};
  const auto read = d.drain(d.core.open_channel(d.core.add_source(other.facts)), other);
  CHECK(read.size() == 9);
  CHECK(d.core.done());
}

TEST_CASE("pull: a failed read loses the source; its other reads end by themselves and are given back") {
  driver d;
  holder source{d.shape, 1};
  holder other{d.shape, 2};
  const channel_id channel = d.open(source);
  std::vector<chunk_index> chunks;
  while (const auto task = d.core.next(channel)) chunks.push_back(task->chunk);
  REQUIRE(chunks.size() == 4);
  d.core.chunk_arrived(channel, chunks[0], completion_status::peer_lost, {});
  const source_failure failed = d.failure();
  CHECK(failed.reason == errc::source_lost);
  CHECK(failed.chunk == chunks[0]);

  const channel_id second = d.open(other);
  const auto before = d.drain(second, other);
  CHECK(before.size() == 6);  // three are still written to by the lost source: nobody else may be
  CHECK_FALSE(d.core.done());
  CHECK_FALSE(d.core.is_idle(0));
  d.arrive(channel, chunks[1]);  // even if its bytes are right: no header will confirm them
  d.core.chunk_arrived(channel, chunks[2], completion_status::peer_lost, {});
  d.core.chunk_arrived(channel, chunks[3], completion_status::cancelled, {});
  CHECK(d.core.is_idle(0));
  CHECK_FALSE(d.core.take_failure().has_value());  // told once
  auto after = d.drain(second, other);
  std::ranges::sort(after);
  CHECK(after == std::vector<chunk_index>{chunks[1], chunks[2], chunks[3]});
  CHECK(d.core.done());
}

TEST_CASE("pull: two sources that fail are two failures") {
  driver d;
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  d.open(first);
  d.open(second);
  d.core.lose_source(0, errc::source_lost, "the first");
  d.core.lose_source(1, errc::timed_out, "the second");
  d.core.lose_source(0, errc::corrupt, "the first again");
  CHECK(d.failure().detail == "the first");
  const source_failure later = d.failure();
  CHECK(later.detail == "the second");
  CHECK(later.reason == errc::timed_out);
  CHECK(later.slot == 1);
  CHECK_FALSE(d.core.take_failure().has_value());
}

// ---- several sources

TEST_CASE("pull: two sources share the chunks, and each is confirmed by its own header") {
  driver d{{.window_chunks = 2, .confirm_every = 8}};
  holder first{d.shape, 1};
  holder second{d.shape, 2, 8};  // another epoch: each has its own
  const channel_id one = d.open(first);
  const channel_id two = d.open(second);
  const chunk_index begun = d.take(one, kind::chunk);
  d.arrive(one, begun);
  d.confirm(one, first);
  std::set<chunk_index> by_one{begun};
  std::set<chunk_index> by_two;
  for (int i = 0; i < 4; ++i) {
    const chunk_index a = d.take(one, kind::chunk);
    const chunk_index b = d.take(two, kind::chunk);
    d.arrive(one, a);
    d.arrive(two, b);
    by_one.insert(a);
    by_two.insert(b);
  }
  CHECK(by_one.size() == 5);
  CHECK(by_two.size() == 4);
  for (const chunk_index chunk : by_one) CHECK_FALSE(by_two.contains(chunk));
  d.confirm(one, first);
  CHECK(d.core.confirmed_chunks() == 5);
  for (const chunk_index chunk : by_two) CHECK_FALSE(d.core.is_confirmed(chunk));
  CHECK_FALSE(d.core.done());
  d.confirm(two, second);
  CHECK(d.core.done());
}

TEST_CASE(
    "pull: a lost source takes its unconfirmed chunks with it, on all its channels, and nobody else's") {
  driver d{{.window_chunks = 2, .confirm_every = 1}};
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  const channel_id one = d.open(first);
  const channel_id two = d.core.open_channel(0);
  const channel_id other = d.open(second);
  const chunk_index confirmed = d.take(one, kind::chunk);
  d.arrive(one, confirmed);
  d.confirm(one, first);
  const chunk_index confirming = d.take(one, kind::chunk);
  d.arrive(one, confirming);
  d.take(one, kind::header);
  const chunk_index unconfirmed = d.take(two, kind::chunk);
  d.arrive(two, unconfirmed);
  const chunk_index theirs = d.take(other, kind::chunk);
  d.arrive(other, theirs);

  d.core.lose_source(0, errc::source_lost, "gone");
  d.core.header_arrived(one, completion_status::ok, first.header());  // too late
  CHECK(d.core.confirmed_chunks() == 1);
  CHECK(d.core.is_confirmed(confirmed));
  CHECK(d.nothing(one));
  CHECK(d.nothing(two));
  const auto read = d.drain(other, second);
  CHECK(std::ranges::count(read, confirmed) == 0);
  CHECK(std::ranges::count(read, theirs) == 0);
  CHECK(std::ranges::count(read, confirming) == 1);
  CHECK(std::ranges::count(read, unconfirmed) == 1);
  CHECK(read.size() == 7);
  CHECK(d.core.done());
}

TEST_CASE("pull: what was confirmed before its source was lost stays confirmed") {
  driver d{{.window_chunks = 1, .confirm_every = 1}};
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  const channel_id one = d.open(first);
  const chunk_index chunk = d.take(one, kind::chunk);
  d.arrive(one, chunk);
  d.confirm(one, first);
  d.core.lose_source(0, errc::source_lost, "gone");
  CHECK(d.core.is_confirmed(chunk));
  const auto read = d.drain(d.core.open_channel(d.core.add_source(second.facts)), second);
  CHECK(read.size() == 8);
  CHECK(std::ranges::count(read, chunk) == 0);
  CHECK(d.core.confirmed_chunks() == 9);
}

TEST_CASE("pull: a switch of source keeps what is confirmed and reads only the rest") {
  driver d{{.window_chunks = 1, .confirm_every = 1}};
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  const channel_id one = d.open(first);
  std::set<chunk_index> kept;
  for (int i = 0; i < 3; ++i) {
    const chunk_index chunk = d.take(one, kind::chunk);
    d.arrive(one, chunk);
    d.confirm(one, first);
    kept.insert(chunk);
  }
  CHECK_FALSE(d.core.is_idle(0));  // it may still be asked
  d.core.retire_source(0);
  CHECK(d.core.is_idle(0));
  CHECK(d.nothing(one));
  const auto read = d.drain(d.core.open_channel(d.core.add_source(second.facts)), second);
  CHECK(read.size() == 6);
  for (const chunk_index chunk : read) CHECK_FALSE(kept.contains(chunk));
  CHECK(d.core.done());
  CHECK(d.core.confirmed_bytes() == d.shape.bytes());
}

TEST_CASE("pull: a retired source ends what it has begun, confirms it, and is idle then") {
  driver d{{.window_chunks = 2}};
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  const chunk_index a = d.take(channel, kind::chunk);
  const chunk_index b = d.take(channel, kind::chunk);
  d.core.retire_source(0);
  CHECK(d.nothing(channel));
  CHECK_FALSE(d.core.is_idle(0));
  d.arrive(channel, a);
  d.take(channel, kind::header);
  d.arrive(channel, b);
  CHECK(d.nothing(channel));
  d.core.header_arrived(channel, completion_status::ok, source.header());
  CHECK(d.core.is_confirmed(a));
  CHECK_FALSE(d.core.is_confirmed(b));
  CHECK_FALSE(d.core.is_idle(0));  // arrived, not confirmed
  d.take(channel, kind::header);
  CHECK_FALSE(d.core.is_idle(0));
  d.core.header_arrived(channel, completion_status::ok, source.header());
  CHECK(d.core.is_idle(0));
  CHECK(d.core.is_confirmed(a));
  CHECK(d.core.is_confirmed(b));
  CHECK(d.nothing(channel));
}

TEST_CASE("pull: what a retired source does wrong is no failure, and not believed either") {
  driver d{{.window_chunks = 2}};
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  const chunk_index a = d.take(channel, kind::chunk);
  d.core.retire_source(0);
  d.core.chunk_arrived(channel, a, completion_status::ok, {1, 1});
  CHECK(d.core.is_lost(0));
  CHECK(d.core.is_idle(0));
  CHECK_FALSE(d.core.take_failure().has_value());
  CHECK(d.core.confirmed_chunks() == 0);
}

TEST_CASE("pull: a retired source is not idle while its control block is being read") {
  driver d;
  holder source{d.shape, 1};
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  d.take(channel, kind::block);
  d.core.retire_source(0);
  CHECK_FALSE(d.core.is_idle(0));
  CHECK(d.core.block_arrived(channel, completion_status::ok, source.block(), published_root));
  CHECK(d.core.is_idle(0));
  CHECK(d.nothing(channel));
  CHECK(d.core.intact());

  holder second{d.shape, 2};
  const channel_id later = d.core.open_channel(d.core.add_source(second.facts));
  d.core.retire_source(1);
  CHECK(d.core.is_idle(1));
  CHECK(d.nothing(later));  // nothing of it is of any use
}

// ---- what could not be posted

TEST_CASE("pull: a task that could not be posted is due with the next completion, not at once") {
  driver d;
  holder source{d.shape, 1};
  holder second{d.shape, 2};
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  const channel_id other = d.core.open_channel(d.core.add_source(second.facts));
  d.take(channel, kind::block);
  CHECK(d.core.due(other) <= d.now);
  d.take(other, kind::block);
  d.core.not_posted(other, {kind::block, 0});  // the lane has room for one
  CHECK(d.core.due(other) == time_point::never());
  REQUIRE(d.core.block_arrived(channel, completion_status::ok, source.block(), published_root));
  CHECK(d.believe(other, second));
}

TEST_CASE("pull: tasks that could not be posted are handed out again") {
  driver d{{.window_chunks = 2, .confirm_every = 2}};
  holder source{d.shape, 1};
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  d.take(channel, kind::block);
  d.core.not_posted(channel, {kind::block, 0});
  REQUIRE(d.believe(channel, source));

  const chunk_index chunk = d.take(channel, kind::chunk);
  d.core.not_posted(channel, {kind::chunk, chunk});
  const chunk_index first = d.take(channel, kind::chunk);
  const chunk_index second = d.take(channel, kind::chunk);
  CHECK(d.nothing(channel));  // the window is as wide as before
  d.arrive(channel, first);
  d.arrive(channel, second);

  d.take(channel, kind::header);
  d.core.not_posted(channel, {kind::header, 0});
  CHECK(d.core.confirmed_chunks() == 0);
  d.confirm(channel, source);
  CHECK(d.core.confirmed_chunks() == 2);
  CHECK(d.drain(channel, source).size() == 7);
  CHECK(d.core.done());
  CHECK(d.core.is_confirmed(chunk));
}

TEST_CASE("pull: a task that could not be posted to a source that is lost meanwhile goes to another") {
  driver d{{.window_chunks = 2, .confirm_every = 1}};
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  const channel_id one = d.open(first);
  const chunk_index arrived = d.take(one, kind::chunk);
  d.arrive(one, arrived);
  d.take(one, kind::header);
  const chunk_index chunk = d.take(one, kind::chunk);
  d.core.lose_source(0, errc::source_lost, "gone");
  d.core.not_posted(one, {kind::chunk, chunk});
  d.core.not_posted(one, {kind::header, 0});
  CHECK(d.core.is_idle(0));
  const auto read = d.drain(d.core.open_channel(d.core.add_source(second.facts)), second);
  CHECK(read.size() == 9);
  CHECK(std::set<chunk_index>(read.begin(), read.end()).size() == 9);
  CHECK(d.core.done());
}

TEST_CASE("pull: a block that was not asked for changes nothing") {
  driver d;
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  const chunk_index chunk = d.take(channel, kind::chunk);
  CHECK_FALSE(d.core.block_arrived(channel, completion_status::peer_lost, {}, {}));
  CHECK_FALSE(d.core.is_lost(0));
  d.arrive(channel, chunk);
  d.drain(channel, source);
  CHECK(d.core.done());
}

}  // namespace
