/// \file layout.cpp
/// Tensors to segments to chunks: where every byte of a shard lies, and what a layout refuses.

#include "tensorhub/types/layout.hpp"

#include <doctest/doctest.h>
#include "tensorhub/error.hpp"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace tensorhub;

namespace {

constexpr std::uint64_t chunk = 1024;

[[nodiscard]] tensor_spec bytes_tensor(std::string name, std::uint64_t bytes) {
  return {std::move(name), dtype::u8, {bytes}};
}

/// The code of the error that a layout of these ends with; its sentence must name `part`.
[[nodiscard]] errc refused(std::vector<tensor_spec> tensors, std::uint64_t chunk_bytes,
                           const std::string& part) {
  try {
    const layout made{std::move(tensors), chunk_bytes};
  } catch (const error& e) {
    CHECK_MESSAGE(e.sentence().find(part) != std::string::npos, e.sentence());
    return e.code();
  }
  return errc::ok;
}

/// The chunks of a tensor are those that its first and its last byte lie in, and all between.
void require_chunks(const layout& shape, std::size_t tensor) {
  const chunk_run run = shape.chunks_of(tensor);
  const std::uint64_t bytes = *shape.tensors()[tensor].bytes();
  if (bytes == 0) {
    REQUIRE(run.count == 0);
    return;
  }
  const std::uint64_t begin = shape.packed_offset(tensor).value_or(0);
  const chunk_slice first = shape.slice(run.first);
  const chunk_slice last = shape.slice(run.first + run.count - 1);
  REQUIRE(first.segment == last.segment);
  const auto& owner = shape.segments()[first.segment].tensor;
  REQUIRE((owner ? *owner == tensor : shape.packed_offset(tensor).has_value()));
  REQUIRE(first.offset <= begin);
  REQUIRE(begin < first.offset + first.bytes);
  REQUIRE(last.offset < begin + bytes);
  REQUIRE(begin + bytes <= last.offset + last.bytes);
}

/// Every byte of every segment lies in exactly one chunk, chunks are numbered through, and none is too long.
void require_partition(const layout& shape) {
  std::vector<std::uint64_t> reached(shape.segments().size(), 0);
  std::uint64_t total = 0;
  std::uint32_t last_segment = 0;
  for (chunk_index i = 0; i < shape.chunk_count(); ++i) {
    const chunk_slice slice = shape.slice(i);
    REQUIRE(slice.segment < shape.segments().size());
    REQUIRE(slice.segment >= last_segment);
    REQUIRE(slice.bytes > 0);
    REQUIRE(slice.bytes <= shape.chunk_bytes());
    REQUIRE(slice.offset == reached[slice.segment]);  // in order, no gap, no overlap
    REQUIRE(slice.offset % shape.chunk_bytes() == 0);
    reached[slice.segment] += slice.bytes;
    total += slice.bytes;
    last_segment = slice.segment;
  }
  for (std::size_t i = 0; i < reached.size(); ++i) REQUIRE(reached[i] == shape.segments()[i].bytes);
  REQUIRE(total == shape.bytes());
  for (std::size_t i = 0; i < shape.tensors().size(); ++i) require_chunks(shape, i);
}

// ---- one tensor

TEST_CASE("tensor: element sizes are those of the names, and an unknown type has none") {
  const std::vector<std::pair<dtype, std::size_t>> sizes{
      {dtype::u8, 1},          {dtype::i8, 1},          {dtype::i16, 2},        {dtype::u16, 2},
      {dtype::f16, 2},         {dtype::bf16, 2},        {dtype::i32, 4},        {dtype::u32, 4},
      {dtype::f32, 4},         {dtype::i64, 8},         {dtype::u64, 8},        {dtype::f64, 8},
      {dtype::boolean, 1},     {dtype::f8_e4m3, 1},     {dtype::f8_e5m2, 1},    {dtype::f8_e8m0, 1},
      {dtype::f8_e4m3fnuz, 1}, {dtype::f8_e5m2fnuz, 1}, {dtype::f4_e2m1_x2, 1}, {dtype::c64, 8},
      {dtype::c128, 16}};
  for (const auto& entry : sizes) {
    const dtype type = entry.first;
    const std::size_t bytes = entry.second;
    CAPTURE(to_string(type));
    CHECK(size_bytes(type) == bytes);
    CHECK(tensor_spec{"t", type, {3, 5}}.bytes() == 15 * bytes);
    CHECK(tensor_spec{"t", type, {}}.bytes() == bytes);  // a scalar
  }
  const auto unknown = static_cast<dtype>(200);
  CHECK(size_bytes(unknown) == 0);
  CHECK(to_string(unknown) == "unknown");
  CHECK_FALSE(tensor_spec{"t", unknown, {1}}.bytes().has_value());
}

TEST_CASE("tensor: a product over 64 bits is no size") {
  const std::uint64_t half = 1ull << 32;
  CHECK(tensor_spec{"t", dtype::u8, {half, half - 1}}.bytes() == half * (half - 1));
  CHECK_FALSE(tensor_spec{"t", dtype::u8, {half, half}}.bytes().has_value());
  CHECK_FALSE(tensor_spec{"t", dtype::f64, {1ull << 61}}.bytes().has_value());
  CHECK(tensor_spec{"t", dtype::f32, {1ull << 61}}.bytes() == 1ull << 63);
  CHECK(tensor_spec{"t", dtype::f32, {7, 0, 9}}.bytes() == 0);
}

TEST_CASE("tensor: described as type and shape") {
  CHECK(describe({"t", dtype::f32, {4096, 17}}) == "f32 [4096, 17]");
  CHECK(describe({"t", dtype::bf16, {}}) == "bf16 []");
}

// ---- segments

TEST_CASE("layout: tensors below chunk_bytes are packed, at and above are segments of their own") {
  const layout shape{{bytes_tensor("below", chunk - 1), bytes_tensor("at", chunk),
                      bytes_tensor("above", chunk + 1), bytes_tensor("one", 1)},
                     chunk};
  REQUIRE(shape.segments().size() == 3);
  CHECK_FALSE(shape.segments()[0].tensor.has_value());
  CHECK(shape.segments()[1].tensor == 1u);
  CHECK(shape.segments()[2].tensor == 2u);
  CHECK(shape.segments()[0].bytes == chunk + 64);
  CHECK(shape.packed_bytes() == chunk + 64);
  CHECK(shape.segments()[1].bytes == chunk);
  CHECK(shape.segments()[2].bytes == chunk + 1);
  CHECK(shape.packed_offset(0) == 0u);
  CHECK_FALSE(shape.packed_offset(1).has_value());
  CHECK_FALSE(shape.packed_offset(2).has_value());
  CHECK(shape.packed_offset(3) == chunk);
  CHECK(shape.bytes() == chunk + 64 + chunk + chunk + 1);

  CHECK(shape.segments()[0].chunk_count == 2);
  CHECK(shape.segments()[1].chunk_count == 1);
  CHECK(shape.segments()[2].chunk_count == 2);
  CHECK(shape.segments()[0].first_chunk == 0);
  CHECK(shape.segments()[1].first_chunk == 2);
  CHECK(shape.segments()[2].first_chunk == 3);
  CHECK(shape.chunk_count() == 5);
  require_partition(shape);

  const chunk_slice last = shape.slice(4);
  CHECK(last.segment == 2);
  CHECK(last.offset == chunk);
  CHECK(last.bytes == 1);
}

TEST_CASE("layout: of many tensors below chunk_bytes only those below a quarter of it are packed") {
  const auto of_experts = [](std::size_t count) {
    std::vector<tensor_spec> tensors{bytes_tensor("norm", chunk / 4 - 1), bytes_tensor("scale", 1)};
    for (std::size_t i = 0; i < count; ++i)
      tensors.push_back(bytes_tensor("expert." + std::to_string(i), chunk / 4));
    tensors.push_back(bytes_tensor("large", 2 * chunk));
    return layout{tensors, chunk};
  };
  const layout few = of_experts(4 * layout::most_packed_chunks - 1);  // 32 chunks with the other two
  CHECK(few.packed_below_bytes() == chunk);
  REQUIRE(few.segments().size() == 2);
  CHECK(few.chunk_count() == layout::most_packed_chunks + 1 + 2);  // a scale takes 64 bytes
  require_partition(few);

  const layout many = of_experts(4 * layout::most_packed_chunks);
  CHECK(many.packed_below_bytes() == chunk / 4);
  CHECK(many.packed_bytes() == chunk / 4 + 64);
  REQUIRE(many.segments().size() == 1 + 4 * layout::most_packed_chunks + 1);
  CHECK(many.segments()[1].tensor == 2u);
  CHECK(many.segments()[1].bytes == chunk / 4);
  CHECK(many.segments()[1].chunk_count == 1);
  CHECK(many.chunk_count() == 1 + 4 * layout::most_packed_chunks + 2);
  require_partition(many);
  for (std::size_t i = 0; i < many.tensors().size(); ++i) require_chunks(many, i);
  CHECK(few.digest() != many.digest());
}

TEST_CASE("layout: packed tensors lie at multiples of 64, in the order of adding, beside each other") {
  const layout shape{{bytes_tensor("a", 1), bytes_tensor("b", 64), bytes_tensor("big", 5000),
                      bytes_tensor("c", 65), bytes_tensor("d", 128), bytes_tensor("e", 3)},
                     chunk};
  CHECK(shape.packed_offset(0) == 0u);
  CHECK(shape.packed_offset(1) == 64u);
  CHECK(shape.packed_offset(3) == 128u);
  CHECK(shape.packed_offset(4) == 256u);
  CHECK(shape.packed_offset(5) == 384u);
  CHECK(shape.packed_bytes() == 448);
  CHECK(shape.segments()[0].chunk_count == 1);
  require_partition(shape);
}

TEST_CASE("layout: no packed segment without small tensors, nothing else without large ones") {
  const layout large{{bytes_tensor("a", 2 * chunk), bytes_tensor("b", chunk)}, chunk};
  REQUIRE(large.segments().size() == 2);
  CHECK(large.segments()[0].tensor == 0u);
  CHECK(large.packed_bytes() == 0);
  CHECK(large.chunk_count() == 3);
  require_partition(large);

  const layout small{{bytes_tensor("a", 2), bytes_tensor("b", 3)}, chunk};
  REQUIRE(small.segments().size() == 1);
  CHECK_FALSE(small.segments()[0].tensor.has_value());
  CHECK(small.bytes() == 128);
  CHECK(small.chunk_count() == 1);
  require_partition(small);
}

TEST_CASE("layout: tensors without bytes take no room and make no segment") {
  const layout shape{
      {bytes_tensor("none", 0), bytes_tensor("a", 7), {"none too", dtype::f32, {4, 0}}, bytes_tensor("b", 9)},
      chunk};
  REQUIRE(shape.segments().size() == 1);
  CHECK(shape.packed_bytes() == 128);
  CHECK(shape.packed_offset(0) == 0u);
  CHECK(shape.packed_offset(1) == 0u);
  CHECK(shape.packed_offset(2) == 64u);
  CHECK(shape.packed_offset(3) == 64u);

  const layout nothing{{bytes_tensor("none", 0)}, chunk};
  CHECK(nothing.segments().empty());
  CHECK(nothing.chunk_count() == 0);
  CHECK(nothing.bytes() == 0);
  CHECK(nothing.packed_bytes() == 0);
  CHECK(nothing.digest());
  CHECK(layout{}.chunk_count() == 0);
}

TEST_CASE("layout: chunks cover every byte of every segment exactly once, whatever the sizes") {
  std::mt19937_64 random{20260101};
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const std::uint64_t chunk_bytes = random() % 300 + 1;
    std::vector<tensor_spec> tensors(random() % (round % 2 == 0 ? 20 : 400));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = {
          "t" + std::to_string(i), static_cast<dtype>(random() % 15), {random() % 40, random() % 9}};
    }
    const layout shape{tensors, chunk_bytes};
    require_partition(shape);
    std::uint64_t large = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::uint64_t bytes = *tensors[i].bytes();
      REQUIRE(shape.packed_offset(i).has_value() == (bytes < shape.packed_below_bytes()));
      if (shape.packed_offset(i)) {
        REQUIRE(*shape.packed_offset(i) % layout::packed_alignment_bytes == 0);
        REQUIRE(*shape.packed_offset(i) + bytes <= shape.packed_bytes());
      } else {
        large += bytes;
      }
    }
    REQUIRE(shape.bytes() == shape.packed_bytes() + large);
  }
}

// ---- agreement

TEST_CASE("layout: the chunks of several tensors come in their order, each once") {
  const layout shape{{bytes_tensor("large", 2 * chunk + 1), bytes_tensor("a", 1000), bytes_tensor("b", 10),
                      bytes_tensor("nothing", 0), bytes_tensor("c", 1000), bytes_tensor("other", chunk)},
                     chunk};
  using positions = std::vector<std::size_t>;
  using chunks = std::vector<chunk_index>;
  // The small ones lie at 0, 1024 and 1088, in three chunks; "large" follows in three, "other" in one.
  CHECK(chunks_of(shape, positions{}) == chunks{});
  CHECK(chunks_of(shape, positions{3}) == chunks{});
  CHECK(chunks_of(shape, positions{2, 1, 2}) == chunks{0, 1});
  CHECK(chunks_of(shape, positions{4, 2}) == chunks{1, 2});
  CHECK(chunks_of(shape, positions{5, 0, 1}) == chunks{0, 3, 4, 5, 6});
}

TEST_CASE("layout: the digest covers names, types, shapes, order and chunk size, and nothing else") {
  const std::vector<tensor_spec> tensors{{"wq", dtype::f32, {8, 4}}, {"wk", dtype::f32, {8, 4}}};
  const auto digest = [](std::vector<tensor_spec> list, std::uint64_t chunk_bytes = chunk) {
    return layout{std::move(list), chunk_bytes}.digest();
  };
  const digest128 same = digest(tensors);
  CHECK(same);
  CHECK(digest(tensors) == same);
  CHECK(digest(tensors, chunk + 1) != same);
  CHECK(digest({tensors[1], tensors[0]}) != same);
  CHECK(digest({tensors[0]}) != same);
  CHECK(digest({{"wQ", dtype::f32, {8, 4}}, tensors[1]}) != same);
  CHECK(digest({{"wq", dtype::i32, {8, 4}}, tensors[1]}) != same);
  CHECK(digest({{"wq", dtype::f32, {4, 8}}, tensors[1]}) != same);
  CHECK(digest({{"wq", dtype::f32, {32}}, tensors[1]}) != same);
  CHECK(digest({{"wq", dtype::f32, {8, 4, 1}}, tensors[1]}) != same);
  CHECK(digest({tensors[0], tensors[1], bytes_tensor("none", 0)}) != same);
}

TEST_CASE("layout: the digest knows where a name ends and how many dimensions there are") {
  const auto digest = [](std::vector<tensor_spec> list) { return layout{std::move(list), chunk}.digest(); };
  CHECK(digest({bytes_tensor("ab", 1), bytes_tensor("c", 1)}) !=
        digest({bytes_tensor("a", 1), bytes_tensor("bc", 1)}));
  CHECK(digest({{"a", dtype::u8, {8, 1}}, {"b", dtype::u8, {5}}}) !=
        digest({{"a", dtype::u8, {8}}, {"b", dtype::u8, {1, 5}}}));
}

TEST_CASE("layout: the first difference is a sentence that names it") {
  const auto from_the_models = [](const layout& workers, const layout& models) {
    return first_difference(workers, models, "the model");
  };
  const layout both{{{"wq", dtype::f32, {8, 8}}, {"norm", dtype::f32, {8}}}, chunk};
  const layout one{{{"wq", dtype::f32, {8, 8}}}, chunk};
  CHECK(from_the_models(both, both).empty());
  CHECK(
      from_the_models(both, layout{{{"wq", dtype::f32, {8, 8}}, {"norm", dtype::f32, {8}}}, chunk}).empty());
  CHECK(from_the_models(both, layout{{{"wq", dtype::f32, {8, 8}}, {"norm", dtype::f32, {8}}}, 2048}) ==
        "chunk_bytes: 1024 in this worker, 2048 in the model");
  CHECK(from_the_models(both, layout{{{"wq", dtype::f32, {8, 8}}, {"bias", dtype::bf16, {9}}}, chunk}) ==
        "tensor 1: 'norm' f32 [8] in this worker, 'bias' bf16 [9] in the model");
  CHECK(from_the_models(both, one) == "tensor 1: 'norm' f32 [8] in this worker, nothing in the model");
  const layout compiled{{{"_orig_mod.wq", dtype::f32, {8, 8}}}, chunk};
  CHECK(from_the_models(compiled, one) ==
        "tensor 0: '_orig_mod.wq' f32 [8, 8] in this worker, 'wq' f32 [8, 8] in the model; one of the two "
        "modules is wrapped (torch.compile, DDP, FSDP): add the module inside, or names of your own");
  CHECK(from_the_models(one, both) == "tensor 1: nothing in this worker, 'norm' f32 [8] in the model");
  CHECK(
      from_the_models(both, layout{{{"norm", dtype::f32, {8}}, {"wq", dtype::f32, {8, 8}}}, chunk}) ==
      "tensor 0: 'wq' f32 [8, 8] in this worker, 'norm' f32 [8] in the model; both have the same tensors in "
      "another order: add them in one order, for example sorted by name");
}

// ---- limits

TEST_CASE("layout: what is wrong is refused by name") {
  CHECK(refused({bytes_tensor("a", 1)}, 0, "chunk_bytes") == errc::invalid_argument);
  CHECK(refused({bytes_tensor("", 1)}, chunk, "no name") == errc::invalid_argument);
  CHECK(refused({bytes_tensor("a", 1), bytes_tensor("b", 1), bytes_tensor("a", 2)}, chunk, "'a'") ==
        errc::invalid_argument);
  CHECK(refused({{"odd", static_cast<dtype>(99), {1}}}, chunk, "'odd' has element type 99") ==
        errc::invalid_argument);
  for (const char* name : {"two\nlines", "\x1b[31m", "no UTF-8 \xff"})
    CHECK(refused({bytes_tensor(name, 1)}, chunk, "has control characters in its name, or bytes that") ==
          errc::invalid_argument);
  CHECK(refused({bytes_tensor("\x1b", 1)}, chunk, R"('\x1b')") == errc::invalid_argument);
}

TEST_CASE("layout: names, dimensions, counts and sizes are bounded, and may reach their bounds") {
  const std::string longest(limits::name_bytes, 'n');
  CHECK(refused({bytes_tensor(longest, 1)}, chunk, "") == errc::ok);
  CHECK(refused({bytes_tensor(longest + "n", 1)}, chunk, "' has a name of 513 bytes: take at most 512") ==
        errc::limit_exceeded);

  const std::vector<std::uint64_t> dimensions(limits::tensor_dimensions, 1);
  auto more = dimensions;
  more.push_back(1);
  CHECK(refused({{"deep", dtype::u8, dimensions}}, chunk, "") == errc::ok);
  CHECK(refused({{"deep", dtype::u8, more}}, chunk, "'deep'") == errc::limit_exceeded);

  CHECK(refused(std::vector<tensor_spec>(limits::tensors + 1), chunk, "too many") == errc::limit_exceeded);

  CHECK(refused({bytes_tensor("huge", limits::shard_bytes)}, 1ull << 30, "") == errc::ok);
  CHECK(refused({bytes_tensor("huge", limits::shard_bytes + 1)}, 1ull << 30, "'huge'") ==
        errc::limit_exceeded);
  CHECK(refused({{"wraps", dtype::u8, {1ull << 32, 1ull << 32}}}, chunk, "'wraps'") == errc::limit_exceeded);
  CHECK(refused({bytes_tensor("a", limits::shard_bytes), bytes_tensor("b", 1ull << 30)}, 1ull << 30,
                "too large") == errc::limit_exceeded);

  CHECK(refused({bytes_tensor("many", limits::chunks)}, 1, "") == errc::ok);
  CHECK(refused({bytes_tensor("many", limits::chunks + 1)}, 1, "raise chunk_bytes") == errc::limit_exceeded);
}

TEST_CASE("layout: an endless chunk size is one chunk, not none") {
  const layout shape{{bytes_tensor("a", 7), bytes_tensor("b", 5000)},
                     std::numeric_limits<std::uint64_t>::max()};
  REQUIRE(shape.segments().size() == 1);
  REQUIRE(shape.chunk_count() == 1);
  CHECK(shape.slice(0).bytes == shape.bytes());
  require_partition(shape);
}

TEST_CASE("layout: packed tensors are bounded together, also where their sum wraps") {
  const std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();
  std::vector<tensor_spec> tensors;
  for (std::size_t i = 0; i < (1u << 18); ++i)
    tensors.push_back(bytes_tensor(std::to_string(i), limits::shard_bytes));  // 2^64 bytes in all
  CHECK(refused(tensors, endless, "too large") == errc::limit_exceeded);
  CHECK(refused({bytes_tensor("a", limits::shard_bytes), bytes_tensor("b", 1)}, endless, "too large") ==
        errc::limit_exceeded);
}

}  // namespace
