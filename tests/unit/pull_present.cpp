/// Chunks that lie in the target memory already: they are checked, and read only if they are not there.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pull_scene.hpp"

using namespace pull_test;

namespace {

[[nodiscard]] std::vector<digest128> table_of(std::initializer_list<chunk_index> known) {
  std::vector<digest128> out(9);
  for (const chunk_index chunk : known) out[chunk] = digest_of(chunk);
  return out;
}

[[nodiscard]] std::vector<chunk_index> checks(pull& core) {
  std::vector<chunk_index> out;
  while (const auto chunk = core.next_check()) out.push_back(*chunk);
  return out;
}

[[nodiscard]] std::vector<chunk_index> sorted(std::vector<chunk_index> chunks) {
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

using chunks = std::vector<chunk_index>;

}  // namespace

TEST_CASE("pull: chunks with the version's digest are checked, and the others are read") {
  driver d;
  holder source{d.shape, 1};
  std::vector<digest128> before = table_of({0, 1, 2, 3, 8});
  before[5] = {1, 1};
  d.core.assume(before);
  CHECK(checks(d.core).empty());  // the new table is not known yet
  const channel_id channel = d.open(source);
  CHECK(checks(d.core) == chunks{0, 1, 2, 3, 8});
  CHECK(sorted(d.drain(channel, source)) == chunks{4, 5, 6, 7});
  CHECK(!d.core.done());
  for (const chunk_index i : chunks{0, 1, 2, 3, 8}) CHECK(!d.core.checked(i, digest_of(i), d.now));
  CHECK(d.core.done());
  CHECK(d.core.take_confirmed().size() == 9);
  CHECK(d.core.unchanged_bytes() == 128 + 3 * 1024 + 5);
  CHECK(d.core.confirmed_bytes() == d.shape.bytes());
  CHECK(d.core.bytes_from(0) == 4 * 1024);
  CHECK(!d.core.intact());
  CHECK(std::ranges::equal(d.core.present(), d.core.table()));
}

TEST_CASE("pull: a version all of which is here is read from nobody, and nothing is overwritten") {
  driver d;
  holder source{d.shape, 1};
  d.core.assume(table_of({0, 1, 2, 3, 4, 5, 6, 7, 8}));
  const channel_id channel = d.open(source);
  CHECK(d.nothing(channel));
  for (const chunk_index i : checks(d.core)) d.core.checked(i, digest_of(i), d.now);
  CHECK(d.core.done());
  CHECK(d.core.intact());
}

TEST_CASE("pull: a chunk whose bytes were changed behind the library's back is read") {
  driver d;
  holder source{d.shape, 1};
  d.core.assume(table_of({0, 1, 2, 3, 4, 5, 6, 7, 8}));
  const channel_id channel = d.open(source);
  for (const chunk_index i : checks(d.core))
    CHECK(d.core.checked(i, i == 6 ? digest128{6, 6} : digest_of(i), d.now) == (i == 6));
  CHECK(!d.core.present()[6]);
  CHECK(!d.core.intact());  // an update that ends here leaves no version behind
  CHECK(d.drain(channel, source) == chunks{6});
  CHECK(d.core.done());
  CHECK(d.core.unchanged_bytes() == d.shape.bytes() - 1024);
}

TEST_CASE("pull: what is waited for is checked first") {
  driver d;
  holder source{d.shape, 1};
  d.core.assume(table_of({0, 1, 2, 3, 4, 5}));
  d.open(source);
  d.core.prefer(chunks{8, 4, 3});
  CHECK(checks(d.core) == chunks{4, 3, 0, 1, 2, 5});
}

TEST_CASE("pull: memory that was given to something else is read at once, after sixteen checks") {
  constexpr std::uint64_t count = 100;
  struct of_checks {
    chunk_index right_every;  ///< that chunk of so many is right
    std::uint64_t checked;
  };
  for (const of_checks& each :
       {of_checks{count + 1, 16}, of_checks{10, 17}, of_checks{5, 19}, of_checks{4, count}}) {
    CAPTURE(each.right_every);
    driver d{many_chunks(count), {}};
    holder source{d.shape, 1};
    std::vector<digest128> before;
    for (chunk_index i = 0; i < count; ++i) before.push_back(digest_of(i));
    d.core.assume(before);
    const channel_id channel = d.open(source);
    std::uint64_t checked = 0, right = 0;
    for (auto chunk = d.core.next_check(); chunk; chunk = d.core.next_check(), ++checked) {
      const bool is_right = *chunk % each.right_every == each.right_every - 1;
      right += is_right ? 1 : 0;
      CHECK(d.core.checked(*chunk, is_right ? digest_of(*chunk) : digest128{}, d.now) == !is_right);
    }
    CHECK(checked == each.checked);
    CHECK(d.drain(channel, source).size() == count - right);
    CHECK(d.core.done());
  }
}

TEST_CASE("pull: nothing is checked without a table, with a table of another size, or without digests") {
  for (const std::size_t size : {0u, 8u, 10u}) {
    driver d;
    holder source{d.shape, 1};
    std::vector<digest128> before = table_of({0, 1, 2, 3, 4, 5, 6, 7});
    before.resize(size);
    d.core.assume(before);
    const channel_id channel = d.open(source);
    CHECK(checks(d.core).empty());
    CHECK(d.drain(channel, source).size() == 9);
  }
  driver d;
  holder source{d.shape, 1};
  source.facts.root = {};
  d.core.assume(table_of({0, 1, 2}));
  const channel_id channel = d.open(source);
  CHECK(checks(d.core).empty());
  CHECK(d.drain(channel, source).size() == 9);
}

TEST_CASE("pull: what a transfer that was broken off has read is not read again") {
  driver first;
  holder source{first.shape, 1};
  first.core.assume(table_of({7}));
  const channel_id channel = first.open(source);
  for (int i = 0; i < 3; ++i) first.take(channel, kind::chunk);
  first.arrive(channel, 0);
  first.confirm(channel, source);
  first.arrive(channel, 1);  // is not confirmed any more
  source.raise(6);
  first.pass(std::chrono::milliseconds{1});
  first.confirm(channel, source);
  CHECK(first.failure().reason == errc::contract_broken);
  std::vector<digest128> left(first.core.present().begin(), first.core.present().end());
  CHECK(left == table_of({0, 7}));

  driver second;
  holder other{second.shape, 2};
  second.core.assume(left);
  const channel_id through = second.open(other);
  CHECK(checks(second.core) == chunks{0, 7});
  CHECK(sorted(second.drain(through, other)) == chunks{1, 2, 3, 4, 5, 6, 8});
}

TEST_CASE("pull: a table that comes behind the chunks that were read ahead asks for no check of those") {
  driver d{{.needs_root = true}};
  holder source{d.shape, 1};
  source.facts.far = true;
  source.name_segments(d.shape);
  d.core.assume(table_of({0, 1, 2, 3, 4, 5, 6, 7, 8}));
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, 1u << 20);
  CHECK(d.drain(channel, source).size() == 9);
  CHECK(checks(d.core).empty());
  CHECK(d.core.done());
}

TEST_CASE("pull: while chunks are checked no stall is reported, and none is left out") {
  driver d{{.stall_timeout = std::chrono::milliseconds{10}}};
  holder source{d.shape, 1};
  d.core.assume(table_of({0, 1, 2, 3, 4, 5, 6, 7, 8}));
  const channel_id channel = d.open(source);
  for (const chunk_index i : checks(d.core)) {
    d.pass(std::chrono::milliseconds{9});
    CHECK(!d.core.take_stall(d.now));
    d.core.checked(i, {}, d.now);
  }
  CHECK(d.drain(channel, source).size() == 9);
  CHECK(d.core.done());
}
