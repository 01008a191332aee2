/// \file kernels.cpp
/// The kernels' source on the CPU: the same digests as the library's, bit by bit; copies of any alignment.

#include <doctest/doctest.h>
#include <xxhash.h>

#include <algorithm>
#include <blake3.cuh>
#include <copy.cuh>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <tensorhub/memory/cuda/context.hpp>
#include <tensorhub/memory/cuda/jobs.hpp>
#include <tensorhub/types/blake3.hpp>
#include <vector>
#include <xxh3.cuh>

namespace kernels = tensorhub::cuda_kernels;
namespace jobs = tensorhub::cuda_jobs;

namespace {

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937_64 words{count};
  std::vector<std::byte> out(count);
  for (std::byte& each : out) each = static_cast<std::byte>(words());
  return out;
}

/// The bytes end where their allocation ends, so that the address sanitizer sees every byte too many.
bool same_digest(std::size_t bytes, std::size_t offset, std::uint64_t seed) {
  const std::vector<std::byte> data = random_bytes(offset + bytes);
  static kernels::digest_shared shared;
  std::memset(&shared, 0xee, sizeof shared);
  const jobs::digest_job job{tensorhub::detail::cuda_address(data.data() + offset), bytes, seed};
  jobs::digest_result made{};
  kernels::digest_block(kernels::cpu_team{jobs::threads_per_job}, job, &made, shared);
  const XXH128_hash_t expected = XXH3_128bits_withSeed(data.data() + offset, bytes, seed);
  return made.low == expected.low64 && made.high == expected.high64;
}

bool same_keyed_digest(std::size_t bytes, std::size_t offset) {
  const std::vector<std::byte> data = random_bytes(offset + bytes);
  static kernels::blake3::shared_memory shared;
  std::memset(&shared, 0xee, sizeof shared);
  jobs::keyed_digest_job job{tensorhub::detail::cuda_address(data.data() + offset), bytes, {}};
  tensorhub::detail::blake3_value key{};
  for (std::uint32_t i = 0; i < 8; ++i) job.key[i] = key.words[i] = (i + 1) * 0x9e3779b9u;
  jobs::digest_result made{};
  kernels::blake3::digest_block(kernels::cpu_team{jobs::threads_per_job}, job, &made, shared);
  const auto bytes_of_it = std::span{data}.subspan(offset);
  const auto expected = tensorhub::detail::blake3_keyed_hash(key, bytes_of_it).first_half();
  return made.low == expected.low && made.high == expected.high;
}

}  // namespace

TEST_CASE("cuda kernels: a keyed digest is BLAKE3's for every length and place") {
  std::size_t wrong = 0;
  for (std::size_t bytes = 0; bytes <= 2600; ++bytes) wrong += same_keyed_digest(bytes, bytes % 17) ? 0 : 1;
  for (std::size_t leaves = 1; leaves <= 70; ++leaves)
    wrong += same_keyed_digest(leaves * 1024 - leaves % 3, leaves % 5) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("cuda kernels: a keyed digest of many leaves, around those that are made at once") {
  constexpr std::size_t step = kernels::blake3::leaves_per_step * kernels::blake3::leaf_bytes;
  for (const std::size_t bytes :
       {step - 1, step, step + 1, step + 1024, 2 * step, 2 * step + 1, 3 * step - 7, 3 * step + 7,
        std::size_t{1} << 20, (std::size_t{1} << 20) + 13, 7 * step + 1}) {
    CAPTURE(bytes);
    CHECK(same_keyed_digest(bytes, 0));
    CHECK(same_keyed_digest(bytes, 8));
    CHECK(same_keyed_digest(bytes, 5));
  }
}

TEST_CASE("cuda kernels: a digest is XXH3's for every length") {
  std::size_t wrong = 0;
  for (std::size_t bytes = 0; bytes <= 2600; ++bytes) {
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, 0x9e3779b97f4a7c15u, UINT64_MAX})
      wrong += same_digest(bytes, 0, seed) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda kernels: a digest does not depend on where the bytes lie") {
  std::size_t wrong = 0;
  for (std::size_t offset = 0; offset < 16; ++offset) {
    for (const std::size_t bytes :
         std::initializer_list<std::size_t>{1,   3,   4,   8,   9,    16,   17,   100,  128,  129,  160,
                                            161, 239, 240, 241, 1023, 1024, 1025, 1088, 2048, 2049, 4099})
      wrong += same_digest(bytes, offset, offset * 0x9e3779b97f4a7c15u) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda kernels: a digest of whole chunks, around the sums that are made at once") {
  constexpr std::size_t step = kernels::blocks_per_step * kernels::block_bytes;
  for (std::size_t bytes :
       {step - 1, step, step + 1, step + 64, step + 65, step + 1024, step + 1025, 2 * step, 2 * step + 1,
        3 * step + 7, std::size_t{1} << 20, (std::size_t{1} << 20) + 13}) {
    CAPTURE(bytes);
    CHECK(same_digest(bytes, 0, 42));
    CHECK(same_digest(bytes, 8, 42));
    CHECK(same_digest(bytes, 5, 42));
  }
}

TEST_CASE("cuda kernels: a copy moves its bytes and no others") {
  for (std::size_t to = 0; to < 17; ++to) {
    for (std::size_t from = 0; from < 17; ++from) {
      for (const std::size_t bytes :
           std::initializer_list<std::size_t>{0, 1, 2, 15, 16, 17, 31, 33, 255, 4096, 4097, 17000}) {
        const std::vector<std::byte> source = random_bytes(from + bytes);
        std::vector<std::byte> target(to + bytes + 16, std::byte{0x5a});
        const jobs::copy_job job{tensorhub::detail::cuda_address(target.data() + to),
                                 tensorhub::detail::cuda_address(source.data() + from), bytes};
        kernels::copy_block(kernels::cpu_team{jobs::threads_per_job}, job);
        std::vector<std::byte> expected(to + bytes + 16, std::byte{0x5a});
        std::copy(source.begin() + static_cast<std::ptrdiff_t>(from), source.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(to));
        REQUIRE(target == expected);
      }
    }
  }
}
