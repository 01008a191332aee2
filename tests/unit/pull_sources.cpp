/// \file pull_sources.cpp
/// Sources that receive themselves, and several at once: who is followed, who is asked for what, who is given
/// up.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "pull_scene.hpp"

using namespace pull_test;
using namespace std::chrono_literals;

namespace {

// ---- a source that receives

TEST_CASE("pull: with integrity on, a source without a root digest is not read") {
  for (const bool needs_root : {true, false}) {
    CAPTURE(needs_root);
    driver d{pull_options{.needs_root = needs_root}};
    holder s{d.shape, 1};
    s.facts.root = {};
    const channel_id channel = d.core.open_channel(d.core.add_source(s.facts), 0);
    d.take(channel, kind::block);
    CHECK(d.core.block_arrived(channel, completion_status::ok, s.block(), {}, d.now) != needs_root);
    CHECK(d.core.take_failure().has_value() == needs_root);
  }
}

TEST_CASE("pull: a receiving source is waited for until its header is that of the lease") {
  driver d{{.poll_shortest = 10us}};
  holder source{d.shape, 1};
  source.will_receive();
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  for (int i = 0; i < 3; ++i) {
    d.confirm(channel, source);
    CHECK(d.nothing(channel));
    REQUIRE(d.core.due(channel) > d.now);
    d.now = d.core.due(channel);
  }
  CHECK_FALSE(d.core.is_lost(0));
  source.raise(5);  // the epoch of the lease, and nothing is shown yet: early too
  d.confirm(channel, source);
  CHECK_FALSE(d.core.is_lost(0));
  CHECK(d.nothing(channel));
  d.now = d.core.due(channel);
  source.begin();
  d.confirm(channel, source);
  REQUIRE(d.believe(channel, source));  // the block is read only after that
  CHECK(d.core.segments(0).size() == 2);
  CHECK(d.core.intact());
}

TEST_CASE("pull: what a receiving source's first header says else is a breach") {
  const auto changes = {0, 1, 2, 3, 4};
  for (const int change : changes) {
    CAPTURE(change);
    driver d;
    holder source{d.shape, 1};
    source.begin();
    const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
    d.take(channel, kind::header);
    holder now{d.shape, change == 0 ? 9u : 1u, change == 1 ? 6u : 5u, change == 2 ? 4u : 3u};
    if (change == 1) now.raise(6);  // it has let go already
    std::vector<std::byte> bytes{now.header().begin(), now.header().end()};
    if (change == 3) bytes[0] = std::byte{0};
    d.core.header_arrived(channel, change == 4 ? completion_status::peer_lost : completion_status::ok, bytes,
                          d.now);
    CHECK(d.core.is_lost(0));
    const errc expected = change == 1   ? errc::unavailable  // its own update may have failed
                          : change == 4 ? errc::source_lost
                                        : errc::contract_broken;
    CHECK(d.failure().reason == expected);
  }
}

TEST_CASE("pull: an early source whose lease does not say that it receives is a breach") {
  driver d;
  holder source{d.shape, 1};
  source.will_receive();
  source.facts.receiving = false;
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  CHECK_FALSE(d.believe(channel, source));
  CHECK(d.failure().reason == errc::contract_broken);
}

TEST_CASE("pull: bits count only when they are read after the header was that of the lease") {
  // The map of the version before is full. Whoever believed it would read bytes of anything.
  driver d{{.poll_shortest = 10us}};
  holder source{d.shape, 1};
  source.will_receive();
  source.receive_all();
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  d.confirm(channel, source);
  d.now = d.core.due(channel);
  source.raise(5);
  source.receive_all();
  source.begin();  // clears the map before it shows
  d.confirm(channel, source);
  // The block is read now. What its map says is not looked at: parts of the block may be older than its
  // header.
  d.take(channel, kind::block);
  source.receive({1});
  REQUIRE(d.core.block_arrived(channel, completion_status::ok, source.block(), published_root, d.now));
  d.look(channel, source);
  CHECK(d.take(channel, kind::chunk) == 1);
  CHECK(d.nothing(channel));
}

TEST_CASE("pull: a reader follows its source's map, and a look confirms what had arrived before it") {
  driver d;
  holder source{d.shape, 1};
  source.begin();
  const channel_id channel = d.open(source);
  d.look(channel, source);
  CHECK(d.nothing(channel));
  CHECK(d.core.intact());
  source.receive({4, 7});
  d.now = d.core.due(channel);
  d.look(channel, source);
  CHECK(d.take(channel, kind::chunk) == 4);
  CHECK(d.take(channel, kind::chunk) == 7);
  d.arrive(channel, 4);
  source.receive({2});
  d.take(channel, kind::map);
  d.arrive(channel, 7);  // after the look was posted
  d.core.map_arrived(channel, completion_status::ok, source.map(), d.now);
  CHECK(d.core.is_confirmed(4));
  CHECK_FALSE(d.core.is_confirmed(7));
  CHECK(d.core.confirmed_chunks() == 1);
  source.complete();
  auto read = d.drain(channel, source);
  std::ranges::sort(read);
  CHECK(read == std::vector<chunk_index>{0, 1, 2, 3, 5, 6, 8});
  CHECK(d.core.done());
}

TEST_CASE("pull: a look says whether it brings more than the lane has room for") {
  driver d{{.window_chunks = 2}};
  holder source{d.shape, 1};
  source.begin();
  const channel_id channel = d.open(source);
  const auto look = [&] {
    d.now = std::max(d.now, d.core.due(channel));
    d.take(channel, kind::map);
    return d.core.map_arrived(channel, completion_status::ok, source.map(), d.now);
  };
  CHECK_FALSE(look());
  source.receive({4, 7});
  CHECK_FALSE(look());
  for (int i = 0; i < 2; ++i) d.take(channel, kind::chunk);
  d.arrive(channel, 4);
  d.arrive(channel, 7);
  source.receive({1, 2, 3});
  CHECK(look());
  d.arrive(channel, d.take(channel, kind::chunk));
  d.take(channel, kind::chunk);
  d.take(channel, kind::chunk);
  d.pass(std::chrono::milliseconds{1});
  CHECK_FALSE(look());  // no room is left, and none of it is new
  SUBCASE("one more") {
    source.receive({5});
    d.arrive(channel, 2);
    d.pass(std::chrono::milliseconds{1});
    CHECK_FALSE(look());
  }
  SUBCASE("all") {
    source.complete();
    d.arrive(channel, 2);
    d.pass(std::chrono::milliseconds{1});
    CHECK(look());
    CHECK(d.take(channel, kind::chunk) != 2);
  }
}

TEST_CASE("pull: a source that has finished is complete: no map is read any more") {
  driver d;
  holder source{d.shape, 1};
  source.begin();
  const channel_id channel = d.open(source);
  source.complete();
  d.look(channel, source);
  CHECK(d.core.due(channel) == time_point::never());
  d.arrive(channel, d.take(channel, kind::chunk));
  d.take(channel, kind::header);
  CHECK(d.core.take_failure().has_value() == false);
}

TEST_CASE("pull: a source may finish between two looks of different lanes, which arrive in another order") {
  driver d;
  holder source{d.shape, 1};
  source.begin();
  source.receive({0, 1});
  const channel_id one = d.open(source);
  const channel_id two = d.core.open_channel(0, 1);
  d.look(one, source);
  const chunk_index first = d.take(one, kind::chunk);
  const chunk_index second = d.take(two, kind::chunk);
  d.arrive(one, first);
  d.arrive(two, second);
  d.take(one, kind::map);
  const std::vector<std::byte> older{source.map().begin(), source.map().end()};
  source.complete();
  d.take(two, kind::header);
  d.core.header_arrived(two, completion_status::ok, source.header(), d.now);
  d.core.map_arrived(one, completion_status::ok, older, d.now);
  CHECK_FALSE(d.core.is_lost(0));
  CHECK(d.core.is_confirmed(first));
  CHECK(d.core.is_confirmed(second));
}

TEST_CASE("pull: a source that lets go while it receives takes what is unconfirmed with it") {
  driver d;
  holder source{d.shape, 1};
  holder other{d.shape, 2};
  source.begin();
  source.receive({0, 1, 2});
  const channel_id channel = d.open(source);
  d.look(channel, source);
  d.arrive(channel, d.take(channel, kind::chunk));
  d.look(channel, source);
  CHECK(d.core.confirmed_chunks() == 1);
  d.arrive(channel, d.take(channel, kind::chunk));
  source.raise(6);
  d.pass(1ms);
  d.look(channel, source);
  CHECK(d.core.is_lost(0));
  const source_failure failed = d.failure();
  CHECK(failed.reason == errc::unavailable);
  CHECK(failed.detail.find("epoch 5 -> 6") != std::string::npos);
  CHECK(d.core.confirmed_chunks() == 1);
  CHECK(d.drain(d.open(other), other).size() == 8);
  CHECK(d.core.done());
}

TEST_CASE("pull: a chunk is confirmed soon after its arrival, and several together if they come fast") {
  driver d{{.window_chunks = 3, .confirm_every = 8, .confirm_after = 300us}};
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  d.arrive(channel, d.take(channel, kind::chunk));
  d.confirm(channel, source);  // the first one at once
  const chunk_index second = d.take(channel, kind::chunk);
  const chunk_index third = d.take(channel, kind::chunk);
  d.arrive(channel, second);
  CHECK(d.core.due(channel) == d.now + 300us);
  d.pass(299us);
  d.arrive(channel, third);
  d.take(channel, kind::chunk);  // no header yet
  d.pass(1us);
  CHECK(d.core.due(channel) == d.now);
  d.confirm(channel, source);
  CHECK(d.core.is_confirmed(second));
  CHECK(d.core.is_confirmed(third));
  CHECK(d.core.due(channel) == time_point::never());
}

TEST_CASE("pull: the interval between two looks doubles without news, and falls with news") {
  driver d{{.poll_shortest = 10us, .poll_longest = 1ms}};
  holder source{d.shape, 1};
  source.begin();
  const channel_id channel = d.open(source);
  const auto interval = [&] {
    d.look(channel, source);
    const duration wait = d.core.due(channel) - d.now;
    CHECK(d.nothing(channel));
    d.now = d.core.due(channel);
    return wait;
  };
  std::vector<duration> waits;
  for (int i = 0; i < 12; ++i) waits.push_back(interval());
  CHECK(waits.front() == 10us);
  for (std::size_t i = 1; i < waits.size(); ++i)
    CHECK(waits[i] == std::min<duration>(2 * waits[i - 1] < 20us ? 20us : 2 * waits[i - 1], 1ms));
  CHECK(waits.back() == 1ms);
  source.receive({3});
  d.look(channel, source);
  CHECK(d.take(channel, kind::chunk) == 3);
  CHECK(d.nothing(channel));
  CHECK(d.core.due(channel) - d.now == 10us);
  d.now = d.core.due(channel);
  d.look(channel, source);
  CHECK(d.core.due(channel) - d.now == 10us);  // and doubling from there
  d.now = d.core.due(channel);
  d.look(channel, source);
  CHECK(d.core.due(channel) - d.now == 20us);
}

TEST_CASE("pull: looks are not much more frequent than the source's chunks can be") {
  driver d{{.poll_shortest = 10us, .poll_longest = 1ms, .looks_per_read = 16}};
  holder source{d.shape, 1};
  source.begin();
  source.receive({3});
  const channel_id channel = d.open(source);
  d.look(channel, source);
  const chunk_index chunk = d.take(channel, kind::chunk);
  d.pass(1600us);
  d.arrive(channel, chunk);
  source.receive({4});
  d.look(channel, source);
  const chunk_index slow = d.take(channel, kind::chunk);
  CHECK(d.nothing(channel));
  CHECK(d.core.due(channel) - d.now == 100us);
  d.pass(10s);
  d.arrive(channel, slow);
  source.receive({5});
  d.look(channel, source);
  CHECK(d.take(channel, kind::chunk) == 5);
  CHECK(d.nothing(channel));
  CHECK(d.core.due(channel) - d.now == 1ms);
}

TEST_CASE("pull: news that this reader has already are no news") {
  driver d{{.poll_shortest = 10us, .poll_longest = 1ms}};
  holder whole{d.shape, 1};
  holder behind{d.shape, 2};
  behind.begin();
  const channel_id one = d.open(whole);
  const chunk_index chunk = d.take(one, kind::chunk);
  const channel_id two = d.open(behind);
  d.look(two, behind);
  const duration before = d.core.due(two) - d.now;
  d.now = d.core.due(two);
  behind.receive({chunk});
  d.look(two, behind);
  CHECK(d.core.due(two) - d.now == 2 * before);
}

// ---- who is asked for what

TEST_CASE("pull: a chunk that only one source has is taken from it first") {
  driver d{{.window_chunks = 8}};
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  first.begin();
  second.begin();
  first.receive({0, 1, 6});
  second.receive({0, 1, 7});
  const channel_id one = d.open(first);
  const channel_id two = d.open(second);
  d.look(one, first);
  d.look(two, second);
  CHECK(d.take(one, kind::chunk) == 6);
  CHECK(d.take(two, kind::chunk) == 7);
  CHECK(d.take(one, kind::chunk) == 0);
  CHECK(d.take(two, kind::chunk) == 1);
}

TEST_CASE(
    "pull: a complete source is asked for what the others lack, and else only if nothing is to be done") {
  driver d{{.window_chunks = 32, .confirm_every = 8}};
  holder trainer{d.shape, 1};
  holder other{d.shape, 2};
  other.begin();
  other.receive({0, 1, 2, 3, 4, 5});
  const channel_id one = d.open(trainer);
  const channel_id two = d.open(other, 1);
  d.look(two, other);
  std::vector<chunk_index> rare{d.take(one, kind::chunk)};
  d.arrive(one, rare.front());
  d.confirm(one, trainer);
  rare.push_back(d.take(one, kind::chunk));
  d.arrive(one, rare.back());
  // Somebody has everything, so nothing is rare for the other one: it is asked in order.
  CHECK(d.take(two, kind::chunk) == 0);
  rare.push_back(d.take(one, kind::chunk));
  d.arrive(one, rare.back());
  std::ranges::sort(rare);
  CHECK(rare == std::vector<chunk_index>{6, 7, 8});
  const chunk_index common = d.take(one, kind::chunk);  // better than to wait
  CHECK((common >= 1 && common <= 5));
  CHECK(d.nothing(one));
}

TEST_CASE("pull: a reader that is not alone begins with one chunk of a complete source") {
  struct scene {
    driver d{{.window_chunks = 4}};
    holder trainer{d.shape, 1};
    holder other{d.shape, 2};
    channel_id one = 0, two = 0;
    explicit scene(bool is_alone) {
      if (!is_alone) {
        other.will_receive();
        d.core.add_source(other.facts);
      }
      one = d.open(trainer);
      two = d.core.open_channel(is_alone ? 0 : 1, 1);
    }
  };
  scene alone{true};
  CHECK(alone.d.take(alone.one, kind::chunk) == 0);
  CHECK(alone.d.take(alone.two, kind::chunk) == 1);
  CHECK_FALSE(alone.d.core.chunk_arrived(alone.one, 0, completion_status::ok, digest_of(0), alone.d.now));

  scene among{false};
  CHECK(among.d.take(among.one, kind::chunk) == 0);
  CHECK(among.d.nothing(among.one));
  CHECK(among.d.nothing(among.two));
  SUBCASE("until it has arrived") {
    CHECK(among.d.core.chunk_arrived(among.one, 0, completion_status::ok, digest_of(0), among.d.now));
    CHECK(among.d.take(among.two, kind::chunk) == 1);
    CHECK(among.d.take(among.two, kind::chunk) == 2);
    CHECK_FALSE(among.d.core.chunk_arrived(among.two, 1, completion_status::ok, digest_of(1), among.d.now));
  }
  SUBCASE("until that one has taken too long") {
    const time_point until = among.d.now + 2 * pull_options{}.slow_shortest;
    CHECK(among.d.core.due(among.two) == until);
    among.d.pass(until - among.d.now);
    for (const chunk_index chunk : {1u, 2u, 3u, 4u}) CHECK(among.d.take(among.two, kind::chunk) == chunk);
    CHECK(among.d.nothing(among.two));
    CHECK(among.d.core.due(among.two) == time_point::never());
  }
  SUBCASE("until it is alone") {
    among.d.core.retire_source(0);
    CHECK(among.d.take(among.two, kind::chunk) == 1);
  }
  SUBCASE("until the other one has everything") {
    among.other.begin();
    among.other.complete();
    const channel_id three = among.d.core.open_channel(0, 1);
    among.d.take(three, kind::header);
    among.d.core.header_arrived(three, completion_status::ok, among.other.header(), among.d.now);
    REQUIRE(among.d.believe(three, among.other));
    CHECK(among.d.take(among.two, kind::chunk) == 1);
  }
  SUBCASE("until the other one is lost") {
    among.d.core.lose_source(0, errc::source_lost, "gone");
    CHECK(among.d.take(among.two, kind::chunk) == 1);
  }
}

TEST_CASE("pull: the last chunks that nobody has are left to those that may be reading them") {
  driver d{{.window_chunks = 4, .slow_shortest = std::chrono::milliseconds{50}}};
  holder trainer{d.shape, 1};
  holder other{d.shape, 2};
  other.begin();
  other.receive({0, 1, 2, 4, 5, 7, 8});
  const channel_id one = d.open(trainer);
  const channel_id two = d.open(other);
  d.look(two, other);
  const chunk_index rare = d.take(one, kind::chunk);  // of two, one may be the other's
  CHECK((rare == 3 || rare == 6));
  CHECK(d.take(two, kind::chunk) == 0);
  d.pass(std::chrono::milliseconds{1});
  d.arrive(one, rare);
  d.confirm(one, trainer);
  CHECK(d.nothing(one));
  CHECK(d.core.due(one) == d.now + std::chrono::milliseconds{49});
  SUBCASE("they have it") {
    other.receive_all();
    d.arrive(two, 0);
    CHECK(std::ranges::count(d.drain(two, other), rare == 3 ? 6u : 3u) == 1);
    CHECK(d.core.done());
  }
  SUBCASE("they do not come forward") {
    d.pass(std::chrono::milliseconds{49});
    d.take(one, kind::chunk);
  }
}

TEST_CASE("pull: two complete sources are read from at once, each from its own place on") {
  driver d{{.window_chunks = 8, .confirm_every = 8}};
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  first.facts.first = 2;
  second.facts.first = 6;
  const channel_id one = d.open(first);
  const channel_id two = d.open(second);
  for (const chunk_index chunk : {2u, 3u, 4u, 5u}) CHECK(d.take(one, kind::chunk) == chunk);
  for (const chunk_index chunk : {6u, 7u, 8u, 0u}) CHECK(d.take(two, kind::chunk) == chunk);
}

TEST_CASE("pull: any number of readers is spread evenly over the chunks") {
  CHECK(first_chunk_of(0, 64) == 0);
  CHECK(first_chunk_of(1, 64) == 32);
  CHECK(first_chunk_of(2, 64) == 16);
  CHECK(first_chunk_of(3, 64) == 48);
  CHECK(first_chunk_of(5, 0) == 0);
  CHECK(first_chunk_of(5, 1) == 0);
  for (const std::uint64_t chunks : {2u, 3u, 9u, 1000u, 12'345u}) {
    for (std::uint64_t reader = 0; reader < 3000; ++reader) REQUIRE(first_chunk_of(reader, chunks) < chunks);
  }
  std::set<chunk_index> places;
  for (std::uint64_t reader = 0; reader < 1024; ++reader) places.insert(first_chunk_of(reader, 1024));
  CHECK(places.size() == 1024);
}

TEST_CASE("pull: what a source lost or retired has does not count as being elsewhere") {
  const auto ends = {0, 1};
  for (const int end : ends) {
    CAPTURE(end);
    driver d{{.window_chunks = 32}};
    holder trainer{d.shape, 1};
    holder other{d.shape, 2};
    other.begin();
    other.receive({0, 1, 2});
    const channel_id one = d.open(trainer);
    const channel_id two = d.open(other);
    d.look(two, other);
    if (end == 0)
      d.core.retire_source(1);
    else
      d.core.lose_source(1, errc::source_lost, "gone");
    CHECK(d.take(one, kind::chunk) == 0);
  }
}

TEST_CASE("pull: readers start at different places, in maps as in whole sources") {
  const layout shape = many_chunks(200);
  for (const chunk_index start : {0u, 63u, 64u, 130u, 199u, 200u + 5u}) {
    CAPTURE(start);
    driver whole{shape, {.window_chunks = 256}};
    holder trainer{whole.shape, 1};
    trainer.facts.first = start;
    std::vector<chunk_index> expected;
    for (chunk_index i = 0; i < 200; ++i) expected.push_back((start + i) % 200);
    CHECK(whole.drain(whole.open(trainer), trainer) == expected);
    driver part{shape, {.window_chunks = 256}, start};
    holder other{part.shape, 2};
    other.begin();
    other.receive({2, 66, 150});
    const channel_id channel = part.open(other);
    part.look(channel, other);
    std::vector<chunk_index> present{2, 66, 150};
    const auto next = std::ranges::find_if(present, [&](chunk_index c) { return c >= start % 200; });
    std::rotate(present.begin(), next, present.end());
    for (const chunk_index chunk : present) CHECK(part.take(channel, kind::chunk) == chunk);
  }
}

TEST_CASE("pull: readers that lack the same few chunks take different ones of them") {
  constexpr chunk_index first = 60, count = 10;  // over the end of a word
  const layout shape = many_chunks(200);
  std::vector<int> times(200);
  for (std::uint64_t reader = 0; reader < 1000; ++reader) {
    driver d{shape, {.window_chunks = 256}, first_chunk_of(reader, 200)};
    holder trainer{d.shape, 1}, other{d.shape, 2};
    other.begin();
    for (chunk_index i = 0; i < 200; ++i)
      if (i < first || i >= first + count) other.receive({i});
    const channel_id one = d.open(trainer), two = d.open(other);
    d.look(two, other);
    ++times[d.take(one, kind::chunk)];
  }
  for (chunk_index i = 0; i < 200; ++i) {
    CAPTURE(i);
    const bool is_lacking = i >= first && i < first + count;
    CHECK(times[i] >= (is_lacking ? 30 : 0));
    CHECK(times[i] <= (is_lacking ? 200 : 0));
  }
}

TEST_CASE("pull: what was confirmed is handed out once, in batches") {
  driver d{{.window_chunks = 3, .confirm_every = 2}};
  holder source{d.shape, 1};
  const channel_id channel = d.open(source);
  CHECK(d.core.take_confirmed().empty());
  std::vector<chunk_index> told;
  for (int guard = 0; guard < 1000 && !d.core.done(); ++guard) {
    const auto task = d.core.next(channel, d.now);
    REQUIRE(task.has_value());
    d.perform(channel, source, *task);
    for (const chunk_index chunk : d.core.take_confirmed()) {
      CHECK(d.core.is_confirmed(chunk));
      told.push_back(chunk);
    }
  }
  REQUIRE(d.core.done());
  std::ranges::sort(told);
  CHECK(told == std::vector<chunk_index>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(d.core.chunks_from(0) == 9);
  CHECK(d.core.bytes_from(0) == d.shape.bytes());
}

TEST_CASE("pull: chunks and bytes are counted for the source from which they came, when they count") {
  driver d;
  holder first{d.shape, 1};
  holder second{d.shape, 2};
  const channel_id one = d.open(first);
  d.arrive(one, d.take(one, kind::chunk));
  CHECK(d.core.chunks_from(0) == 0);
  d.confirm(one, first);
  CHECK(d.core.chunks_from(0) == 1);
  d.arrive(one, d.take(one, kind::chunk));
  d.core.lose_source(0, errc::source_lost, "gone");
  d.drain(d.open(second), second);
  CHECK(d.core.chunks_from(0) == 1);
  CHECK(d.core.chunks_from(1) == 8);
  CHECK(d.core.bytes_from(0) + d.core.bytes_from(1) == d.shape.bytes());
}

// ---- letting go

TEST_CASE("pull: a retired receiving source is not looked at any more, and is idle when its last look was") {
  driver d;
  holder source{d.shape, 1};
  source.begin();
  source.receive({0});
  const channel_id channel = d.open(source);
  d.look(channel, source);
  d.arrive(channel, d.take(channel, kind::chunk));
  d.core.retire_source(0);
  CHECK_FALSE(d.core.is_idle(0));
  CHECK(d.core.due(channel) == time_point::never());
  d.confirm(channel, source);  // a header: its map does not matter any more
  CHECK(d.core.is_idle(0));
  CHECK(d.core.is_confirmed(0));
  d.pass(1s);
  CHECK(d.nothing(channel));
}

TEST_CASE("pull: a retired source that had not begun is idle at once, one that is being asked is not") {
  driver d;
  holder source{d.shape, 1};
  source.will_receive();
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  d.confirm(channel, source);
  d.core.retire_source(0);
  CHECK(d.core.is_idle(0));
  d.pass(1s);
  CHECK(d.nothing(channel));
  holder second{d.shape, 2};
  second.will_receive();
  const channel_id asked = d.core.open_channel(d.core.add_source(second.facts));
  d.take(asked, kind::header);
  d.core.retire_source(1);
  CHECK_FALSE(d.core.is_idle(1));
  d.core.header_arrived(asked, completion_status::ok, second.header(), d.now);
  CHECK(d.core.is_idle(1));
}

TEST_CASE("pull: a look that could not be posted is asked for again, and confirms nothing") {
  driver d;
  holder source{d.shape, 1};
  source.will_receive();
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  d.take(channel, kind::header);
  d.core.not_posted(channel, {kind::header, 0});
  source.begin();
  source.receive({0});
  d.confirm(channel, source);
  REQUIRE(d.believe(channel, source));
  d.take(channel, kind::map);
  d.core.not_posted(channel, {kind::map, 0});
  d.look(channel, source);
  d.arrive(channel, d.take(channel, kind::chunk));
  d.take(channel, kind::map);
  d.core.not_posted(channel, {kind::map, 0});
  CHECK(d.core.confirmed_chunks() == 0);
  d.look(channel, source);
  CHECK(d.core.confirmed_chunks() == 1);
}

// ---- slow ones and stalls

TEST_CASE("pull: a source has a large window only once its reads are quick") {
  for (const duration each : {duration{20us}, duration{20ms}}) {
    CAPTURE(each.count());
    driver d{{.window_chunks = 64, .cautious_window_chunks = 4, .slow_shortest = 50ms}};
    holder source{d.shape, 1};
    const channel_id channel = d.open(source);
    std::vector<chunk_index> first;
    for (int i = 0; i < 4; ++i) first.push_back(d.take(channel, kind::chunk));
    CHECK(d.nothing(channel));
    d.pass(each);
    d.arrive(channel, first.front());
    std::size_t more = 0;
    while (const auto task = d.core.next(channel, d.now)) more += task->kind == kind::chunk ? 1 : 0;
    CHECK(more == (each < 1ms ? 5 : 1));
  }
}

/// Two whole sources; the first one's last chunk does not come, everything else has.
struct slow_scene {
  driver d{{.window_chunks = 2, .slow_factor = 8, .slow_shortest = 10ms}};
  holder slow{d.shape, 1};
  holder fast{d.shape, 2};
  channel_id one = d.open(slow);
  channel_id two = d.open(fast, 1);
  chunk_index late = d.take(one, kind::chunk);
  std::size_t by_fast = 0;
  /// `each`: what a read of the fast one takes.
  explicit slow_scene(duration each) {
    for (int guard = 0; guard < 100; ++guard) {
      const auto task = d.core.next(two, d.now);
      if (!task) break;
      d.pass(each);
      d.perform(two, fast, *task);
      by_fast += task->kind == kind::chunk ? 1 : 0;
    }
    REQUIRE(by_fast == 8);
    REQUIRE(d.core.confirmed_chunks() == 8);
  }
};

TEST_CASE("pull: a source that is much slower at the end is given up, once its reads are late enough") {
  slow_scene s{2ms};  // the last read was posted 16 ms ago and more; eight times the usual is 16 ms
  CHECK(s.d.core.is_lost(0));
  const source_failure failed = s.d.failure();
  CHECK(failed.slot == 0);
  CHECK(failed.reason == errc::timed_out);
  CHECK(failed.chunk == s.late);
  // Its read is still outstanding: nobody else may write there.
  CHECK(s.d.nothing(s.two));
  CHECK_FALSE(s.d.core.is_idle(0));
  s.d.core.chunk_arrived(s.one, s.late, completion_status::cancelled, {}, s.d.now);
  CHECK(s.d.core.is_idle(0));
  CHECK(s.d.drain(s.two, s.fast) == std::vector<chunk_index>{s.late});
  CHECK(s.d.core.done());
  CHECK_FALSE(s.d.core.take_failure().has_value());
}

TEST_CASE("pull: a source that is only a little slower is left alone") {
  slow_scene s{100us};
  CHECK(s.d.nothing(s.two));
  CHECK_FALSE(s.d.core.is_lost(0));
  CHECK(s.d.core.due(s.one) == time_point::never());
  CHECK(s.d.core.due(s.two) > s.d.now + 8ms);  // when it is to be looked at again, though nobody reports
  CHECK(s.d.core.due(s.two) < s.d.now + 10ms);
  s.d.pass(8ms);  // more than eight reads of the other, less than `slow_shortest`
  CHECK(s.d.nothing(s.two));
  CHECK_FALSE(s.d.core.is_lost(0));
  s.d.arrive(s.one, s.late);
  s.d.confirm(s.one, s.slow);
  CHECK(s.d.core.done());
}

TEST_CASE("pull: a slow source is not given up while others have something else to read") {
  driver d{{.window_chunks = 1, .slow_shortest = 1ms}};
  holder slow{d.shape, 1};
  holder fast{d.shape, 2};
  const channel_id one = d.open(slow);
  const channel_id two = d.open(fast, 1);
  d.take(one, kind::chunk);
  d.arrive(two, d.take(two, kind::chunk));
  d.pass(10s);
  d.confirm(two, fast);
  d.take(two, kind::chunk);
  CHECK(d.nothing(two));
  CHECK_FALSE(d.core.is_lost(0));
}

TEST_CASE("pull: a slow source is not given up for one that lacks its chunk") {
  driver d{{.window_chunks = 16, .slow_shortest = 1ms}};
  holder slow{d.shape, 1};
  holder other{d.shape, 2};
  other.begin();
  other.receive({1, 2, 3, 4, 5, 6, 7, 8});
  bool is_complete = true;
  SUBCASE("the slow one has everything") {}
  SUBCASE("the slow one receives itself") {
    is_complete = false;
    slow.begin();
    slow.receive({0});
  }
  const channel_id one = d.open(slow);
  if (!is_complete) d.look(one, slow);
  const channel_id two = d.open(other, 1);
  d.look(two, other);
  REQUIRE(d.take(one, kind::chunk) == 0);
  d.drain(two, other);
  REQUIRE(d.core.confirmed_chunks() == 8);
  CHECK(d.nothing(two));
  const time_point late = d.core.due(two);
  REQUIRE(late <= d.now + 1ms);
  d.pass(late - d.now);
  d.look(two, other);  // it may have that chunk by now
  CHECK(d.nothing(two));
  CHECK_FALSE(d.core.is_lost(0));
  const time_point again = d.core.due(two);
  CHECK(again > d.now);
  CHECK(again < d.now + 10ms);
  d.pass(10s);
  other.receive({0});
  d.look(two, other);
  CHECK(d.nothing(two));
  CHECK(d.core.is_lost(0));
  d.core.chunk_arrived(one, 0, completion_status::cancelled, {}, d.now);
  CHECK(d.take(two, kind::chunk) == 0);
}

TEST_CASE("pull: nothing is due while the source that is to be asked for a late chunk has to answer first") {
  driver d{{.window_chunks = 16, .confirm_every = 99, .slow_shortest = 1ms}};
  holder slow{d.shape, 1};
  holder other{d.shape, 2};
  other.begin();
  other.receive({1, 2, 3, 4, 5, 6, 7, 8});
  const channel_id one = d.open(slow);
  const channel_id two = d.open(other, 1);
  d.look(two, other);
  REQUIRE(d.take(one, kind::chunk) == 0);
  std::vector<chunk_index> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(d.take(two, kind::chunk));
  d.pass(10us);
  for (const chunk_index each : taken) d.arrive(two, each);
  const auto look = d.core.next(two, d.now);  // confirms them
  REQUIRE(look.has_value());
  d.pass(1s);
  CHECK(d.core.due(two) == time_point::never());
  d.perform(two, other, *look);
  CHECK(d.core.due(two) < d.now + 10ms);
  d.pass(10ms);
  d.look(two, other);
}

TEST_CASE("pull: a slow source is not given up for one that lacks some of its chunks") {
  driver d{{.window_chunks = 16, .slow_shortest = 1ms}};
  holder slow{d.shape, 1};
  holder other{d.shape, 2};
  other.begin();
  other.receive({0, 3, 4, 5, 6, 7, 8});
  const channel_id one = d.open(slow);
  const channel_id two = d.open(other, 1);
  const chunk_index first = d.take(one, kind::chunk);
  d.arrive(one, first);
  d.confirm(one, slow);
  d.look(two, other);
  const std::array<chunk_index, 2> rare{d.take(one, kind::chunk), d.take(one, kind::chunk)};
  d.drain(two, other);
  REQUIRE(d.core.confirmed_chunks() == 7);
  for (const chunk_index each : rare) {
    CHECK_FALSE(d.core.is_lost(0));
    d.pass(10s);
    other.receive({each});
    d.look(two, other);
    CHECK(d.nothing(two));
  }
  CHECK(d.core.is_lost(0));
}

TEST_CASE("pull: a source is given up that does not confirm its last chunks, if another one has them") {
  driver d{{.window_chunks = 16, .confirm_every = 99, .slow_shortest = 1ms}};
  holder silent{d.shape, 1};
  holder other{d.shape, 2};
  const channel_id one = d.open(silent);
  const channel_id two = d.open(other, 1);
  const chunk_index late = d.take(one, kind::chunk);
  d.arrive(one, late);
  d.take(one, kind::header);  // which does not come
  d.drain(two, other);
  REQUIRE(d.core.confirmed_chunks() == 8);
  CHECK_FALSE(d.core.is_lost(0));
  const time_point due = d.core.due(two);
  REQUIRE(due <= d.now + 1ms);
  d.pass(due - d.now);
  CHECK(d.nothing(two));
  CHECK(d.core.is_lost(0));
  CHECK(d.take(two, kind::chunk) == late);
}

TEST_CASE("pull: a stall is told once, when no source has had anything new for a while") {
  driver d{{.poll_longest = 1ms, .stall_timeout = 100ms}};
  holder source{d.shape, 1};
  source.begin();
  const channel_id channel = d.open(source);
  d.look(channel, source);
  d.pass(99ms);
  CHECK_FALSE(d.core.take_stall(d.now));
  d.pass(1ms);
  CHECK(d.core.take_stall(d.now));
  d.pass(1s);
  CHECK_FALSE(d.core.take_stall(d.now));
  d.core.forgive_stall(d.now);
  d.pass(99ms);
  CHECK_FALSE(d.core.take_stall(d.now));
  d.pass(1ms);
  CHECK(d.core.take_stall(d.now));

  source.receive({0});
  d.look(channel, source);
  const chunk_index chunk = d.take(channel, kind::chunk);
  d.core.forgive_stall(d.now);
  d.pass(10s);
  CHECK_FALSE(d.core.take_stall(d.now));  // something is on its way: the transport's deadline decides
  d.arrive(channel, chunk);
  d.pass(99ms);
  CHECK_FALSE(d.core.take_stall(d.now));
  d.pass(1ms);
  CHECK(d.core.take_stall(d.now));
}

TEST_CASE("pull: with only receiving sources left of those that had everything, a stall comes sooner") {
  driver d{{.poll_longest = 1ms, .stall_timeout = 500ms, .orphan_timeout = 50ms}};
  holder whole{d.shape, 1};
  holder second{d.shape, 2};
  holder peer{d.shape, 3};
  peer.begin();
  const channel_id one = d.open(whole);
  const channel_id two = d.open(second);
  const channel_id three = d.open(peer);
  d.look(three, peer);
  d.arrive(one, d.take(one, kind::chunk));
  d.pass(50ms);
  CHECK_FALSE(d.core.take_stall(d.now));  // nobody is lost
  d.core.lose_source(0, errc::source_lost, "gone");
  d.pass(50ms);
  CHECK_FALSE(d.core.take_stall(d.now));  // one of those who have everything is left
  d.core.lose_source(1, errc::source_lost, "gone too");
  CHECK(d.core.take_stall(d.now));
  CHECK_FALSE(d.core.take_stall(d.now));
  // The server knows of somebody upstream: it is asked some times, and then as seldom as usual.
  for (int i = 0; i < 5; ++i) {
    d.core.forgive_stall(d.now);
    d.pass(49ms);
    CHECK_FALSE(d.core.take_stall(d.now));
    d.pass(1ms);
    CHECK(d.core.take_stall(d.now));
  }
  d.core.forgive_stall(d.now);
  d.pass(499ms);
  CHECK_FALSE(d.core.take_stall(d.now));
  d.pass(1ms);
  CHECK(d.core.take_stall(d.now));
  CHECK(d.core.in_flight(two) == 0);
}

TEST_CASE("pull: whose only source is taken away asks soon, when no other one comes") {
  driver d{{.stall_timeout = 500ms, .orphan_timeout = 50ms}};
  holder whole{d.shape, 1};
  const channel_id one = d.open(whole);
  d.arrive(one, d.take(one, kind::chunk));
  d.confirm(one, whole);
  d.core.retire_source(0);
  d.pass(49ms);
  CHECK_FALSE(d.core.take_stall(d.now));
  d.pass(1ms);
  CHECK(d.core.take_stall(d.now));
}

TEST_CASE("pull: the time before the first question is no stall") {
  driver d{{.stall_timeout = 100ms}};
  holder source{d.shape, 1};
  source.will_receive();
  d.now = time_point{3'600'000'000'000};  // a clock that has run for an hour
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  CHECK_FALSE(d.core.take_stall(d.now));
  d.confirm(channel, source);
  d.pass(99ms);
  CHECK_FALSE(d.core.take_stall(d.now));
  d.pass(1ms);
  CHECK(d.core.take_stall(d.now));  // it should have begun by now
}

TEST_CASE("pull: a shortage is told when nothing could be taken for some reads' time, each time later") {
  driver d{{.shortage_factor = 4, .shortage_shortest = 10ms}};
  holder source{d.shape, 1};
  source.begin();
  source.receive({0, 1});
  const channel_id channel = d.open(source);
  d.look(channel, source);
  d.pass(1s);
  CHECK_FALSE(d.core.take_shortage(d.now));  // how long a read takes is not known yet
  const chunk_index first = d.take(channel, kind::chunk);
  duration patience = 10ms;
  SUBCASE("of quick reads") {
    d.pass(1ms);
  }
  SUBCASE("of slow ones") {
    d.pass(50ms);
    patience = 200ms;
  }
  d.arrive(channel, first);
  d.look(channel, source);
  const chunk_index second = d.take(channel, kind::chunk);  // it is on its way: no more could be taken
  for (int i = 0; i < 3; ++i, patience *= 2) {
    d.pass(patience - 1ms);
    CHECK_FALSE(d.core.take_shortage(d.now));
    d.pass(1ms);
    CHECK(d.core.take_shortage(d.now));
    CHECK_FALSE(d.core.take_shortage(d.now));
  }
  d.arrive(channel, second);
  source.receive_all();
  d.drain(channel, source);
  d.pass(1h);
  CHECK_FALSE(d.core.take_shortage(d.now));
}

TEST_CASE("pull: a reader with a complete source, an open version or a full window has no shortage") {
  SUBCASE("a full window") {
    driver d{{.window_chunks = 1}};
    holder source{d.shape, 1};
    source.begin();
    source.receive({0, 1});
    const channel_id channel = d.open(source);
    d.look(channel, source);
    d.arrive(channel, d.take(channel, kind::chunk));
    d.look(channel, source);
    const chunk_index second = d.take(channel, kind::chunk);
    d.pass(1h);
    CHECK_FALSE(d.core.take_shortage(d.now));
    d.arrive(channel, second);
    CHECK(d.core.take_shortage(d.now));
  }
  SUBCASE("a complete source") {
    driver d;
    holder trainer{d.shape, 1}, other{d.shape, 2};
    other.begin();
    const channel_id one = d.open(trainer), two = d.open(other);
    d.look(two, other);
    d.arrive(one, d.take(one, kind::chunk));
    d.pass(1h);
    CHECK_FALSE(d.core.take_shortage(d.now));
    d.core.retire_source(0);
    CHECK(d.core.take_shortage(d.now));
  }
  SUBCASE("an open version") {
    driver d{{.needs_root = true, .open = true}};
    holder trainer{d.shape, 1};
    trainer.open();
    trainer.fill({0});
    const channel_id one = d.open(trainer);
    d.arrive(one, d.take(one, kind::chunk));
    d.pass(1h);
    CHECK_FALSE(d.core.take_shortage(d.now));
  }
}

TEST_CASE("pull: who has everything stalls no more") {
  driver d;
  holder source{d.shape, 1};
  d.drain(d.open(source), source);
  REQUIRE(d.core.done());
  d.pass(1h);
  CHECK_FALSE(d.core.take_stall(d.now));
}

}  // namespace
