/// \file control_block.cpp
/// What a source shows of itself: where its parts lie, what a reader makes of them, and of any other bytes.

#include "tensorhub/transfer/control_block.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensorhub/transfer/pull.hpp"

using namespace tensorhub;

namespace {

/// `chunks` chunks: one large tensor of 16 bytes each, and a small one if asked for.
[[nodiscard]] layout shape_of(std::uint64_t chunks, bool packed = false) {
  std::vector<tensor_spec> tensors{{"wq", dtype::u8, {chunks * 16}}};
  if (packed) tensors.push_back({"norm", dtype::u8, {3}});
  return layout{std::move(tensors), 16};
}

[[nodiscard]] std::uint64_t word_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  std::uint64_t word = 0;
  REQUIRE(offset + sizeof word <= bytes.size());
  std::memcpy(&word, bytes.data() + offset, sizeof word);
  return word;
}

[[nodiscard]] control_header header_of(control_block& block) {
  const auto header = read_control_header(block.memory());
  REQUIRE(header.has_value());
  return header.value_or(control_header{});
}

[[nodiscard]] remote_region region_of(std::uint64_t base, std::uint64_t bytes, std::uint8_t key_bytes) {
  remote_region region{base, bytes, {}};
  region.key.used_bytes = key_bytes;
  for (std::size_t i = 0; i < key_bytes; ++i) region.key.bytes[i] = static_cast<std::byte>(base + i + 1);
  return region;
}

// ---- where things lie

TEST_CASE("control block: its parts follow each other, each aligned to a word") {
  for (const std::uint64_t chunks : {1u, 63u, 64u, 65u, 128u, 1000u}) {
    CAPTURE(chunks);
    const layout shape = shape_of(chunks);
    REQUIRE(shape.chunk_count() == chunks);
    const control_offsets at = control_offsets::of(shape);
    CHECK(at.bitmap == 128);
    CHECK(at.digests == 128 + (chunks + 63) / 64 * 8);
    CHECK(at.segments == at.digests + chunks * 16);
    CHECK(at.total_bytes == at.segments + sizeof(control_segment));
    CHECK(control_block{{1}, shape}.memory().size() == at.total_bytes);
  }
  const layout nothing{{{"none", dtype::u8, {0}}}, 16};
  CHECK(control_offsets::of(nothing).total_bytes == sizeof(control_header));
}

TEST_CASE("control block: in the caller's memory it uses that, and no more of it than it needs") {
  const layout shape = shape_of(70, true);
  const std::size_t needed = control_block::words_for(shape);
  std::vector<std::uint64_t> words(needed + 8, 0xeeee'eeee'eeee'eeee);
  control_block block{{42}, shape, std::span{words}};
  CHECK(block.memory().data() == reinterpret_cast<std::byte*>(words.data()));
  CHECK(block.memory().size() == control_offsets::of(shape).total_bytes);
  // As in memory of its own, whatever was there before.
  const auto same_as = [&](control_block& other) {
    return std::ranges::equal(block.memory(), other.memory());
  };
  control_block own{{42}, shape};
  CHECK(same_as(own));
  for (control_block* each : {&block, &own}) {
    each->set_digests(std::vector<digest128>(shape.chunk_count(), digest128{3, 4}));
    each->set_segment(1, {.base = 5, .bytes = 6});
    each->show_receiving(version_number{7}, 8);
    each->add_chunk(69);
  }
  CHECK(same_as(own));
  for (std::size_t i = needed; i < words.size(); ++i) CHECK(words[i] == 0xeeee'eeee'eeee'eeee);

  const std::byte* const at = own.memory().data();
  control_block moved{std::move(own)};
  CHECK(moved.memory().data() == at);
  moved.raise_epoch(9);
  CHECK(header_of(moved).epoch == 9);

  bool refused = false;
  try {
    control_block small{{42}, shape, std::span{words}.first(needed - 1)};
  } catch (const error& e) {
    refused = e.code() == errc::invalid_argument;
  }
  CHECK(refused);
}

TEST_CASE("control block: of the chunks of the version before none is shown as received") {
  const layout shape = shape_of(70, true);
  control_block block{{42}, shape};
  block.show(version_number{7}, 8);
  std::vector<std::uint64_t> map((shape.chunk_count() + 63) / 64);
  read_control_map(block.memory(), map);
  REQUIRE(map.front() == ~0ull);
  block.raise_epoch(9);
  block.show_receiving(version_number{8}, 9);
  read_control_map(block.memory(), map);
  for (const std::uint64_t word : map) CHECK(word == 0);
}

TEST_CASE("control block: a fresh one says who it is and shows nothing") {
  const layout shape = shape_of(70, true);
  control_block block{{42}, shape};
  const control_header header = header_of(block);
  CHECK(header.holder == 42);
  CHECK(header.state == static_cast<std::uint64_t>(control_state::empty));
  CHECK(header.version == 0);
  CHECK(header.layout_low == shape.digest().low);
  CHECK(header.layout_high == shape.digest().high);
  CHECK(header.chunk_count == 70 + 4);  // the packed segment has 64 bytes
  CHECK(header.segment_count == 2);
  CHECK(std::memcmp(block.memory().data(), "UTHBUCB3", 8) == 0);
  for (const std::uint64_t word : header.reserved) CHECK(word == 0);
}

TEST_CASE("control block: showing sets version, epoch, state and one bit per chunk, and nothing beyond") {
  for (const std::uint64_t chunks : {1u, 63u, 64u, 65u, 130u}) {
    CAPTURE(chunks);
    const layout shape = shape_of(chunks);
    control_block block{{42}, shape};
    block.raise_epoch(8);
    block.show(7, 9);
    const control_header header = header_of(block);
    CHECK(header.version == 7);
    CHECK(header.epoch == 9);
    CHECK(header.state == static_cast<std::uint64_t>(control_state::shown));
    CHECK(header.holder == 42);
    for (std::uint64_t i = 0; i < (chunks + 63) / 64; ++i) {
      const std::uint64_t left = chunks - 64 * i;
      const std::uint64_t bits = left >= 64 ? UINT64_MAX : (1ull << left) - 1;
      CHECK(word_at(block.memory(), control_offsets::of(shape).bitmap + 8 * i) == bits);
    }
    for (const digest128 digest : read_control_digests(block.memory(), shape)) CHECK_FALSE(digest);
  }
}

TEST_CASE("control block: raising the epoch hides the version at once") {
  const layout shape = shape_of(3);
  control_block block{{42}, shape};
  block.show(7, 9);
  block.raise_epoch(10);
  const control_header header = header_of(block);
  CHECK(header.epoch == 10);
  CHECK(header.state == static_cast<std::uint64_t>(control_state::empty));
  block.show(8, 11);
  CHECK(header_of(block).version == 8);
  CHECK(header_of(block).epoch == 11);
  CHECK(header_of(block).state == static_cast<std::uint64_t>(control_state::shown));
}

TEST_CASE("control block: the memory stays where it is") {
  const layout shape = shape_of(100, true);
  control_block block{{42}, shape};
  const std::byte* const before = block.memory().data();
  block.show(1, 1);
  block.set_digests(std::vector<digest128>(104, digest128{1, 2}));
  block.set_segment(1, region_of(1, 2000, 8));
  block.raise_epoch(2);
  CHECK(block.memory().data() == before);
  CHECK(reinterpret_cast<std::uintptr_t>(before) % 8 == 0);
}

// ---- tables

TEST_CASE("control block: digests arrive as they were set, and touch nothing else") {
  const layout shape = shape_of(65);
  control_block block{{42}, shape};
  block.set_segment(0, region_of(4096, 65 * 16, 64));
  block.show(3, 4);
  const std::vector<std::byte> before{block.memory().begin(), block.memory().end()};
  std::vector<digest128> table;
  for (std::uint64_t i = 0; i < 65; ++i) table.push_back({i + 1, ~i});
  block.set_digests(table);
  CHECK(read_control_digests(block.memory(), shape) == table);
  const control_offsets at = control_offsets::of(shape);
  CHECK(std::memcmp(before.data(), block.memory().data(), at.digests) == 0);
  CHECK(std::memcmp(before.data() + at.segments, block.memory().data() + at.segments,
                    at.total_bytes - at.segments) == 0);

  block.set_digests({});  // integrity off: nothing old is left
  CHECK(read_control_digests(block.memory(), shape) == std::vector<digest128>(65));
  table.resize(70, {5, 5});  // longer than the shard: the rest is not written
  block.set_digests(table);
  CHECK(std::memcmp(before.data() + at.segments, block.memory().data() + at.segments,
                    at.total_bytes - at.segments) == 0);
}

TEST_CASE("control block: segments arrive as they were set, keys of every length") {
  const layout shape = shape_of(5, true);
  for (const std::size_t key_bytes : {std::size_t{0}, std::size_t{1}, limits::remote_key_bytes}) {
    CAPTURE(key_bytes);
    control_block block{{42}, shape};
    const remote_region packed = region_of(1000, 64, static_cast<std::uint8_t>(key_bytes));
    const remote_region large = region_of(UINT64_MAX, 5 * 16 + 7, static_cast<std::uint8_t>(key_bytes));
    block.set_segment(0, packed);
    block.set_segment(1, large);
    const auto regions = read_control_segments(block.memory(), shape);
    REQUIRE(regions.has_value());
    REQUIRE(regions->size() == 2);
    CHECK((*regions)[0] == packed);
    CHECK((*regions)[1] == large);
  }
}

TEST_CASE("control block: a region shorter than its segment, or an endless key, is refused") {
  const layout shape = shape_of(5, true);
  control_block block{{42}, shape};
  block.set_segment(0, region_of(1000, 64, 8));
  CHECK_FALSE(read_control_segments(block.memory(), shape).has_value());  // segment 1 was never set
  block.set_segment(1, region_of(2000, 5 * 16, 8));
  CHECK(read_control_segments(block.memory(), shape).has_value());
  block.set_segment(1, region_of(2000, 5 * 16 - 1, 8));
  CHECK_FALSE(read_control_segments(block.memory(), shape).has_value());

  block.set_segment(1, region_of(2000, 5 * 16, 8));
  std::vector<std::byte> bytes{block.memory().begin(), block.memory().end()};
  const std::uint64_t key_bytes_at =
      control_offsets::of(shape).segments + offsetof(control_segment, key_bytes);
  for (const std::uint64_t key_bytes :
       {std::uint64_t{limits::remote_key_bytes + 1}, std::uint64_t{256}, UINT64_MAX}) {
    std::memcpy(bytes.data() + key_bytes_at, &key_bytes, sizeof key_bytes);
    CHECK_FALSE(read_control_segments(bytes, shape).has_value());
  }
}

// ---- other bytes

TEST_CASE("control block: short or foreign bytes are no header") {
  control_block block{{42}, shape_of(3)};
  const auto bytes = block.memory();
  CHECK_FALSE(read_control_header({}).has_value());
  CHECK_FALSE(read_control_header(bytes.first(sizeof(control_header) - 1)).has_value());
  CHECK(read_control_header(bytes.first(sizeof(control_header))).has_value());
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] ^= std::byte{0x10};
    CHECK_FALSE(read_control_header(bytes).has_value());
    bytes[i] ^= std::byte{0x10};
  }
}

/// What the reader of a lease does with bytes that claim to be the source's control block.
[[nodiscard]] bool believed(const layout& shape, const pull_source& facts, std::span<const std::byte> bytes) {
  pull core{shape, {}, 0};
  const channel_id channel = core.open_channel(core.add_source(facts));
  REQUIRE(core.next(channel).has_value());
  const bool answer = core.block_arrived(channel, completion_status::ok, bytes, facts.root);
  REQUIRE(answer == !core.is_lost(0));
  REQUIRE(answer == (core.segments(0).size() == shape.segments().size()));
  return answer;
}

TEST_CASE("control block: a header torn between two versions is of neither lease") {
  const layout shape = shape_of(3);
  control_block block{{42}, shape};
  block.set_segment(0, region_of(4096, 3 * 16, 8));
  block.show(1, 1);
  const std::vector<std::byte> old{block.memory().begin(), block.memory().end()};
  block.raise_epoch(2);
  block.show(2, 3);
  const std::vector<std::byte> now{block.memory().begin(), block.memory().end()};
  const pull_source old_lease{{1}, {42}, 1, 1, {}};
  const pull_source new_lease{{2}, {42}, 2, 3, {}};
  REQUIRE(believed(shape, old_lease, old));
  REQUIRE(believed(shape, new_lease, now));
  CHECK_FALSE(believed(shape, old_lease, now));
  CHECK_FALSE(believed(shape, new_lease, old));
  // Any set of header words may come from before, the others from after: {epoch, version} are both needed.
  const std::size_t epoch_at = offsetof(control_header, epoch);
  const std::size_t version_at = offsetof(control_header, version);
  for (const std::size_t at : {epoch_at, version_at}) {
    auto torn = old;
    std::memcpy(torn.data() + at, now.data() + at, 8);
    CHECK_FALSE(believed(shape, old_lease, torn));
    CHECK_FALSE(believed(shape, new_lease, torn));
  }
}

TEST_CASE("control block: no word of the header may be another one") {
  const layout shape = shape_of(3);
  control_block block{{42}, shape};
  block.set_segment(0, region_of(4096, 3 * 16, 8));
  block.show(1, 1);
  const pull_source lease{{1}, {42}, 1, 1, {}};
  std::vector<std::byte> bytes{block.memory().begin(), block.memory().end()};
  REQUIRE(believed(shape, lease, bytes));
  for (std::size_t bit = 0; bit < offsetof(control_header, reserved) * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    CAPTURE(bit);
    CHECK_FALSE(believed(shape, lease, bytes));
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
  CHECK(believed(shape, lease, bytes));
}

TEST_CASE("control block: garbage of any size never passes and never leads outside") {
  std::mt19937_64 random{20260102};
  const layout shape = shape_of(67, true);
  const std::uint64_t total = control_offsets::of(shape).total_bytes;
  const pull_source lease{{1}, {42}, 1, 1, {}};
  for (int round = 0; round < 3000; ++round) {
    // Exactly as long as it says, so that a sanitizer sees a step beyond.
    std::vector<std::byte> bytes(round % 3 == 0 ? random() % (total + 64) : total);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    REQUIRE_FALSE(read_control_header(bytes).has_value());
    REQUIRE_FALSE(believed(shape, lease, bytes));
    if (bytes.size() >= total) REQUIRE_FALSE(read_control_segments(bytes, shape).has_value());
  }
}

TEST_CASE("control block: behind a right header, garbage gives bounded regions or none") {
  std::mt19937_64 random{20260103};
  const layout shape = shape_of(67, true);
  control_block block{{42}, shape};
  block.set_segment(0, region_of(4096, 64, 8));
  block.set_segment(1, region_of(8192, 67 * 16, 8));
  block.show(1, 1);
  const std::vector<std::byte> good{block.memory().begin(), block.memory().end()};
  const std::uint64_t segments_at = control_offsets::of(shape).segments;
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    auto bytes = good;
    for (std::size_t flips = random() % 8 + 1; flips > 0; --flips) {
      const std::size_t at = segments_at + random() % (bytes.size() - segments_at);
      bytes[at] = static_cast<std::byte>(random());
    }
    const auto regions = read_control_segments(bytes, shape);
    if (!regions) {
      ++refused;
      continue;
    }
    ++accepted;
    REQUIRE(regions->size() == shape.segments().size());
    for (std::size_t i = 0; i < regions->size(); ++i) {
      REQUIRE((*regions)[i].bytes >= shape.segments()[i].bytes);
      REQUIRE((*regions)[i].key.view().size() <= limits::remote_key_bytes);
    }
  }
  CHECK(accepted > 100);  // the round does test both
  CHECK(refused > 100);
}

}  // namespace
