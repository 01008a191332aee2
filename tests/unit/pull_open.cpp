/// \file pull_open.cpp
/// A version that is read while its publisher still fills it: digests come with the map, and the root last.

#include <optional>
#include <vector>

#include "pull_scene.hpp"

using namespace pull_test;

namespace {

constexpr pull_options of_open_version{.needs_root = true, .open = true};
const digest128 other_digest{5, 6};

/// A pull of an open version, and a source that its pull believes.
struct open_scene : driver {
  explicit open_scene(pull_options options = of_open_version) : driver{options} {
    source.open();
    channel = driver::open(source);
  }
  /// The next look at the map is due.
  void look_again() {
    pass(std::chrono::milliseconds{20});
    look(channel, source);
  }

  holder source{shape, 1};
  channel_id channel = 0;
};

}  // namespace

TEST_CASE("open pull: chunks are read as they are shown, and it ends when it knows the root") {
  open_scene s;
  s.look_again();
  CHECK(s.nothing(s.channel));
  s.source.fill({2, 5});
  s.look_again();
  CHECK(s.drain(s.channel, s.source) == std::vector<chunk_index>{2, 5});
  CHECK(s.core.confirmed_chunks() == 2);
  CHECK(s.core.table()[2] == digest_of(2));
  CHECK(s.core.table()[3] == digest128{});
  s.source.fill({0, 1, 3, 4, 6, 7, 8});
  s.look_again();
  CHECK(s.drain(s.channel, s.source).size() == 7);
  CHECK(s.core.confirmed_chunks() == 9);
  CHECK_FALSE(s.core.done());
  CHECK_FALSE(s.core.unsettled().has_value());
  s.core.commit(published_root);
  CHECK_FALSE(s.core.done());
  CHECK(s.core.unsettled() == published_root);
  s.core.settle();
  CHECK(s.core.done());
  CHECK_FALSE(s.core.unsettled().has_value());
}

TEST_CASE("open pull: the root may come before the last chunks") {
  open_scene s;
  s.source.fill({0, 1, 2, 3});
  s.look_again();
  s.drain(s.channel, s.source);
  s.core.commit(published_root);
  CHECK_FALSE(s.core.unsettled().has_value());
  s.source.fill({4, 5, 6, 7, 8});
  s.source.complete();
  s.look_again();
  CHECK(s.core.unsettled() == published_root);
  s.core.settle();
  CHECK_FALSE(s.core.done());
  CHECK(s.drain(s.channel, s.source).size() == 5);
  CHECK(s.core.done());
}

TEST_CASE("open pull: digests with another root are read again, as far as no chunk has proved them") {
  open_scene s;
  s.source.fill({0, 1, 2, 3, 4, 5, 6, 7});
  s.source.fill(8, other_digest);  // half of it was not written yet
  s.look_again();
  s.core.commit(published_root);
  const chunk_index begun = s.take(s.channel, kind::chunk);
  REQUIRE(begun < 8);
  REQUIRE(s.core.unsettled().has_value());
  CHECK(s.core.doubt_digests());
  CHECK_FALSE(s.core.unsettled().has_value());
  CHECK(s.core.table()[8] == digest128{});
  CHECK(s.core.table()[begun] == digest_of(begun));
  SUBCASE("it was written since") {
    s.source.fill({8});
    s.source.complete();
    s.core.chunk_arrived(s.channel, begun, completion_status::ok, digest_of(begun), s.now);
    s.look_again();
    CHECK(s.core.unsettled() == published_root);
    s.core.settle();
    CHECK(s.drain(s.channel, s.source).size() == 8);
    CHECK(s.core.done());
  }
  SUBCASE("the source shows it again and again") {
    for (int i = 0; i < 3; ++i) {
      CAPTURE(i);
      s.look_again();
      REQUIRE(s.core.unsettled().has_value());
      CHECK(s.core.doubt_digests() == (i < 2));
    }
  }
}

TEST_CASE("open pull: chunks that did not have their digests leave as many doubts as there were") {
  open_scene s;
  s.source.fill(4, other_digest);
  for (int i = 0; i < 3; ++i) {
    s.look_again();
    s.core.chunk_arrived(s.channel, s.take(s.channel, kind::chunk), completion_status::ok, digest_of(4),
                         s.now);
  }
  s.source.fill({0, 1, 2, 3, 4, 5, 6, 7});
  s.source.fill(8, other_digest);
  s.look_again();
  s.core.commit(published_root);
  REQUIRE(s.core.unsettled().has_value());
  CHECK(s.core.doubt_digests());
}

TEST_CASE("open pull: chunks that have proved their digests, and have another root, are not used") {
  open_scene s;
  s.source.fill({0, 1, 2, 3, 4, 5, 6, 7, 8});
  s.look_again();
  while (s.core.confirmed_chunks() < 8) {
    const auto chunk = s.take(s.channel, kind::chunk);
    s.core.chunk_arrived(s.channel, chunk, completion_status::ok, digest_of(chunk), s.now);
    s.look_again();
  }
  const chunk_index last = s.take(s.channel, kind::chunk);
  s.core.commit(other_digest);
  REQUIRE(s.core.unsettled() == other_digest);
  for (int i = 0; i < 9; ++i) CHECK(s.core.doubt_digests());  // the last one has to prove its digest
  s.core.chunk_arrived(s.channel, last, completion_status::ok, digest_of(last), s.now);
  CHECK_FALSE(s.core.doubt_digests());
}

TEST_CASE("open pull: what the source's block shows at first is known without another look") {
  driver d{of_open_version};
  holder source{d.shape, 1};
  source.open();
  source.fill({4});
  const channel_id channel = d.open(source);
  CHECK(d.take(channel, kind::chunk) == 4);
}

TEST_CASE("open pull: a chunk without a digest, or with another one than was shown first, is not read") {
  open_scene s;
  s.source.receive({3});
  s.look_again();
  CHECK(s.nothing(s.channel));
  s.source.fill({4});
  s.look_again();
  holder liar{s.shape, 2};
  liar.open();
  liar.fill(4, other_digest);
  const channel_id second = s.driver::open(liar, 1);
  CHECK(s.nothing(second));
  CHECK(s.take(s.channel, kind::chunk) == 4);
}

TEST_CASE(
    "open pull: a chunk that does not have its digest is read again with it, and then the source is lost") {
  open_scene s;
  s.source.fill(4, other_digest);  // half of it was not written yet
  s.look_again();
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    s.core.chunk_arrived(s.channel, s.take(s.channel, kind::chunk), completion_status::ok, digest_of(4),
                         s.now);
    CHECK_FALSE(s.core.has_failure());
    CHECK(s.core.table()[4] == digest128{});
    s.look_again();
  }
  s.core.chunk_arrived(s.channel, s.take(s.channel, kind::chunk), completion_status::ok, digest_of(4), s.now);
  CHECK(s.failure().reason == errc::corrupt);
}

TEST_CASE("open pull: a digest that was written meanwhile makes the chunk good") {
  open_scene s;
  s.source.fill(4, other_digest);
  s.look_again();
  s.core.chunk_arrived(s.channel, s.take(s.channel, kind::chunk), completion_status::ok, digest_of(4), s.now);
  s.source.fill({4});
  s.look_again();
  s.arrive(s.channel, s.take(s.channel, kind::chunk));
  s.look(s.channel, s.source);
  CHECK(s.core.is_confirmed(4));
}

TEST_CASE(
    "open pull: digests of a source that has changed are forgotten, those of chunks that are here are not") {
  open_scene s;
  s.source.fill({2});
  s.look_again();
  CHECK(s.drain(s.channel, s.source) == std::vector<chunk_index>{2});
  s.source.fill(4, other_digest);  // of its next version: the header of the same look was older
  s.source.fill(5, other_digest);
  s.look_again();
  REQUIRE(s.take(s.channel, kind::chunk) == 4);
  s.core.lose_source(0, errc::contract_broken, "another epoch");
  CHECK(s.core.table()[5] == digest128{});
  s.core.chunk_arrived(s.channel, 4, completion_status::ok, digest_of(4), s.now);
  CHECK(s.core.table()[4] == digest128{});
  CHECK(s.core.table()[2] == digest_of(2));
  holder other{s.shape, 2};
  other.open();
  other.fill({4});
  const channel_id second = s.driver::open(other, 1);
  CHECK(s.take(second, kind::chunk) == 4);
}

TEST_CASE("open pull: with integrity off the root is no digest") {
  driver d{{.open = true}};
  holder source{d.shape, 1};
  source.open();
  const channel_id channel = d.open(source);
  source.receive_all();
  d.pass(std::chrono::milliseconds{20});
  d.look(channel, source);
  CHECK(d.drain(channel, source).size() == 9);
  CHECK_FALSE(d.core.done());
  d.core.commit({});
  CHECK(d.core.done());
}

TEST_CASE("pull: a source that began while the version was open is read when it knows all digests") {
  driver d{{.needs_root = true}};
  holder source{d.shape, 1};
  source.begin();
  const digest128 root = source.facts.root;
  source.open();  // its own table lacks some
  source.facts.root = root;
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  d.confirm(channel, source);
  d.take(channel, kind::block);
  CHECK_FALSE(d.core.block_arrived(channel, completion_status::ok, source.block(), other_digest, d.now));
  CHECK_FALSE(d.core.has_failure());
  CHECK(d.nothing(channel));
  source.fill({0, 1, 2, 3, 4, 5, 6, 7, 8});
  d.pass(std::chrono::milliseconds{20});
  CHECK(d.believe(channel, source));
}

TEST_CASE("pull: a source with all digests and another root is corrupt, also while it receives") {
  driver d{{.needs_root = true}};
  holder source{d.shape, 1};
  source.begin();
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts));
  d.confirm(channel, source);
  CHECK_FALSE(d.believe(channel, source, other_digest));
  CHECK(d.failure().reason == errc::corrupt);
}
