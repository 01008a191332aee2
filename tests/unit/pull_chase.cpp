/// Channels whose reads look at the source in the order of their posting: the last header read does not wait
/// for the chunks.

#include <doctest/doctest.h>

#include <cstdint>

#include "pull_scene.hpp"

using namespace pull_test;

namespace {

/// All nine chunks are in flight, and the header read behind them is posted.
struct chase {
  driver d{{.window_chunks = 16}};
  holder source{d.shape, 1};
  channel_id channel = 0;

  chase() {
    channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1024);
    REQUIRE(d.believe(channel, source));
    for (int i = 0; i < 9; ++i) d.take(channel, kind::chunk);
    d.take(channel, kind::header);
    CHECK(d.nothing(channel));
  }
  void header() { d.core.header_arrived(channel, completion_status::ok, source.header(), d.now); }
  void arrive(chunk_index first, chunk_index end) {
    for (chunk_index i = first; i < end; ++i) d.arrive(channel, i);
  }
};

}  // namespace

TEST_CASE("pull: a header that was read behind the chunks confirms those that have arrived") {
  chase c;
  c.arrive(0, 9);
  CHECK(c.d.core.confirmed_chunks() == 0);
  CHECK(c.d.nothing(c.channel));
  c.header();
  CHECK(c.d.core.done());
  CHECK(c.d.core.take_confirmed().size() == 9);
}

TEST_CASE(
    "pull: a header that arrives before the chunks that it was read behind confirms them when they arrive") {
  chase c;
  c.arrive(0, 2);
  c.header();
  CHECK(c.d.core.confirmed_chunks() == 2);
  c.arrive(2, 9);
  CHECK(c.d.core.done());
  CHECK(c.d.core.take_confirmed().size() == 9);
}

TEST_CASE("pull: a header that shows another epoch takes back the chunks that it was read behind") {
  chase c;
  c.arrive(0, 2);
  c.source.raise(6);
  c.header();
  c.arrive(2, 9);
  CHECK(c.d.core.confirmed_chunks() == 0);
  const auto failure = c.d.core.take_failure();
  REQUIRE(failure.has_value());
  CHECK(failure->reason == errc::contract_broken);
  holder other{c.d.shape, 2};
  CHECK(c.d.drain(c.d.core.open_channel(c.d.core.add_source(other.facts)), other).size() == 9);
  CHECK(c.d.core.done());
}

TEST_CASE("pull: a chunk of a right header and a wrong digest is not confirmed") {
  chase c;
  c.header();
  c.d.core.chunk_arrived(c.channel, 0, completion_status::ok, {1, 2}, c.d.now);
  CHECK(c.d.core.confirmed_chunks() == 0);
  CHECK(c.d.core.is_lost(0));
  c.arrive(1, 9);
  CHECK(c.d.core.confirmed_chunks() == 0);
}

TEST_CASE("pull: a chunk that is asked for again was not proven by the header that was read behind it") {
  chase c;
  c.header();
  c.d.core.not_posted(c.channel, {kind::chunk, 4});  // its connection was stale
  REQUIRE(c.d.take(c.channel, kind::chunk) == 4);
  c.d.arrive(c.channel, 4);
  CHECK(c.d.core.confirmed_chunks() == 0);
  c.arrive(0, 4);
  c.arrive(5, 9);
  CHECK(c.d.core.confirmed_chunks() == 8);
  c.d.confirm(c.channel, c.source);
  CHECK(c.d.core.done());
}

TEST_CASE("pull: a header read that was not posted is posted after the chunks") {
  chase c;
  c.d.core.not_posted(c.channel, {kind::header, 0});
  c.arrive(0, 9);
  CHECK(c.d.core.confirmed_chunks() == 0);
  c.d.confirm(c.channel, c.source);
  CHECK(c.d.core.done());
}

TEST_CASE("pull: a chunk that is read again was not looked at before the header") {
  driver d{{.needs_root = true, .open = true, .window_chunks = 16}};
  holder source{d.shape, 1};
  source.open();
  source.fill({0, 1, 2, 3, 4, 5, 6, 7, 8});
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1024);
  d.confirm(channel, source);
  REQUIRE(d.believe(channel, source, {}));
  d.now = d.now + duration{1'000'000'000};
  for (int i = 0; i < 9; ++i) d.take(channel, kind::chunk);
  d.take(channel, kind::header);
  d.core.chunk_arrived(channel, 4, completion_status::ok, {1, 2}, d.now);  // half of the digest was read
  d.core.header_arrived(channel, completion_status::ok, source.header(), d.now);
  d.now = d.now + duration{1'000'000'000};
  d.look(channel, source);
  CHECK(d.take(channel, kind::chunk) == 4);
  const std::uint64_t before = d.core.confirmed_chunks();
  d.arrive(channel, 4);
  CHECK(d.core.confirmed_chunks() == before);
}

TEST_CASE("pull: a chunk of more bytes than are read in order is waited for") {
  driver d{{.window_chunks = 16}};
  holder source{d.shape, 1};
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1023);
  REQUIRE(d.believe(channel, source));
  for (int i = 0; i < 9; ++i) d.take(channel, kind::chunk);
  CHECK(d.nothing(channel));
}

TEST_CASE("pull: a channel that was connected again promises what its new connection does") {
  driver d{{.window_chunks = 16}};
  holder source{d.shape, 1};
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1024);
  REQUIRE(d.believe(channel, source));
  d.core.reconnected(channel, 0);
  for (int i = 0; i < 9; ++i) d.take(channel, kind::chunk);
  CHECK(d.nothing(channel));
}

TEST_CASE("pull: over a wide-area path there is always a header behind some chunks on their way") {
  driver d;
  holder source{d.shape, 1};
  source.facts.far = true;
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1024);
  REQUIRE(d.believe(channel, source));
  d.take(channel, kind::chunk);
  d.take(channel, kind::header);
  d.take(channel, kind::chunk);
  d.take(channel, kind::chunk);
  d.arrive(channel, 0);
  CHECK(d.core.confirmed_chunks() == 0);
  d.core.header_arrived(channel, completion_status::ok, source.header(), d.now);
  CHECK(d.core.is_confirmed(0));
  d.take(channel, kind::header);
  d.arrive(channel, 1);
  d.take(channel, kind::chunk);  // behind the header
  d.arrive(channel, 2);
  d.arrive(channel, 3);
  d.core.header_arrived(channel, completion_status::ok, source.header(), d.now);
  CHECK(d.core.is_confirmed(1));
  CHECK(d.core.is_confirmed(2));
  CHECK_FALSE(d.core.is_confirmed(3));
  CHECK(d.drain(channel, source).size() == 5);
  CHECK(d.core.done());
}

TEST_CASE("pull: over a wide-area path without order, headers are read behind chunks that have arrived") {
  driver d;
  holder source{d.shape, 1};
  source.facts.far = true;
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 0);
  REQUIRE(d.believe(channel, source));
  for (int i = 0; i < 8; ++i) d.take(channel, kind::chunk);
  d.arrive(channel, 0);
  d.take(channel, kind::header);
}
