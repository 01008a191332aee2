#pragma once
/// \file fingerprint.hpp
/// The example's own check that two processes hold the same bytes, apart from the library's digests.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace rl_loop {

/// FNV-1a over 64-bit words in four interleaved lanes. Any change of a single word changes the result.
[[nodiscard]] inline std::uint64_t fingerprint(std::span<const std::byte> bytes) {
  constexpr std::uint64_t prime = 0x100000001b3ull;
  std::array<std::uint64_t, 4> lanes{0xcbf29ce484222325ull, 1, 2, 3};
  std::size_t lane = 0;
  while (bytes.size() >= 32) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), bytes.data(), 32);
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ words[i]) * prime;
    bytes = bytes.subspan(32);
  }
  for (const std::byte left : bytes) {
    lanes[lane] = (lanes[lane] ^ std::to_integer<std::uint64_t>(left)) * prime;
    lane = (lane + 1) % 4;
  }
  std::uint64_t all = 0xcbf29ce484222325ull;
  for (std::uint64_t value : lanes) all = (all ^ value ^ (value >> 32)) * prime;
  return all;
}

}  // namespace rl_loop
