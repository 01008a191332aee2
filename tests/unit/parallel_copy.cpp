/// \file parallel_copy.cpp
/// Copies by several threads, and library-owned memory for tensors.

#include "tensorhub/transfer/parallel_copy.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tensorhub/memory/host.hpp"
#include "tensorhub/testing/memory_transport.hpp"
#include "tensorhub/transfer/shard_memory.hpp"
#include "tensorhub/transfer/tensor_memory.hpp"

using namespace tensorhub;

namespace {

[[nodiscard]] std::vector<std::byte> numbered(std::size_t bytes, unsigned first = 0) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 7 + i / 251 + first) & 255u);
  return out;
}

}  // namespace

TEST_CASE("parallel copy: every byte of every run, and no other, whatever the lanes and units") {
  const auto source = numbered(10'000);
  for (const std::size_t lanes : {0u, 1u, 2u, 7u, 64u}) {
    for (const std::uint64_t unit : {0u, 1u, 64u, 999u, 20'000u}) {
      std::vector<std::byte> target(10'000, std::byte{0xee});
      const std::vector<copy_run> runs{{target.data() + 10, source.data() + 10, 3'000},
                                       {target.data() + 4'000, source.data() + 4'000, 0},
                                       {target.data() + 4'001, source.data() + 4'001, 1},
                                       {target.data() + 5'000, source.data() + 5'000, 5'000},
                                       {nullptr, nullptr, 0}};
      parallel_copy<host_memory>(runs, lanes, unit);
      for (std::size_t i = 0; i < target.size(); ++i) {
        const bool copied = (i >= 10 && i < 3'010) || i == 4'001 || i >= 5'000;
        REQUIRE(target[i] == (copied ? source[i] : std::byte{0xee}));
      }
    }
  }
  parallel_copy<host_memory>({}, 4);
}

TEST_CASE("tensor memory: one allocation, aligned, nothing overlaps, no memory for no bytes") {
  const std::vector<tensor_spec> tensors{
      {"a", dtype::u8, {3}}, {"none", dtype::f32, {0}}, {"b", dtype::f64, {100}}, {"scalar", dtype::u16, {}}};
  const tensor_memory<host_memory> memory{tensors};
  CHECK(memory.data(1) == nullptr);
  CHECK(memory.bytes() == 256 + 1024 + 256);
  std::byte* const first = memory.data(0);
  CHECK(memory.data(2) == first + 256);
  CHECK(memory.data(3) == first + 256 + 1024);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 256 == 0);
  std::memset(first, 1, memory.bytes());
  const tensor_memory<host_memory> nothing{std::vector<tensor_spec>{{"none", dtype::f32, {0}}}};
  CHECK(nothing.data(0) == nullptr);
  CHECK(nothing.bytes() == 0);
}

TEST_CASE("tensor memory: what is too large is refused before anything is allocated") {
  const auto refused = [](const std::vector<tensor_spec>& tensors) {
    try {
      const tensor_memory<host_memory> memory{tensors};
    } catch (const error& e) {
      return e.code() == errc::limit_exceeded;
    }
    return false;
  };
  CHECK(refused({{"huge", dtype::u8, {limits::shard_bytes + 1}}}));
  CHECK(refused({{"overflow", dtype::f64, {1ull << 40, 1ull << 40}}}));
  CHECK(refused({{"half", dtype::u8, {limits::shard_bytes - 1}}, {"more", dtype::u8, {257}}}));
}

TEST_CASE("shard memory: all segments of another one are copied, packed tensors and large ones") {
  constexpr std::uint64_t chunk = 1024;
  testing::memory_transport through{{}, incarnation{1}};
  using shard = shard_memory<testing::memory_transport, host_memory>;
  auto large = numbered(5 * chunk, 1), small = numbered(40, 2);
  std::vector<std::byte> large_target(large.size()), small_target(small.size());
  shard from{through}, to{through};
  from.add({"large", dtype::u8, {large.size()}}, large.data());
  from.add({"small", dtype::u8, {small.size()}}, small.data());
  to.add({"large", dtype::u8, {large.size()}}, large_target.data());
  to.add({"small", dtype::u8, {small.size()}}, small_target.data());
  const layout shape = from.build_layout(chunk, {});
  from.register_all(shape);
  to.register_all(shape);
  from.pack();
  to.copy_segments(from, 3);
  CHECK(large_target == large);
  CHECK(small_target != small);
  to.unpack();
  CHECK(small_target == small);
  CHECK(to.tensors()[1].name == "small");
  CHECK(to.ranges()[1].data == small_target.data());
}
