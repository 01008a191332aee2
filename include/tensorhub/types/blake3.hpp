#pragma once
/// \file blake3.hpp
/// BLAKE3 over memory, with results of 256 bits: hash, keyed hash and key derivation.
///
/// Written from the specification: J. O'Connor, J.-P. Aumasson, S. Neves, Z. Wilcox-O'Hearn, "BLAKE3: one
/// function, fast everywhere", https://github.com/BLAKE3-team/BLAKE3-specs. Chunks of 1 KiB, and their
/// parents, are hashed 4, 8 or 16 at once, whatever this processor has instructions for (chosen at run time
/// on x86-64; 4 elsewhere). The results are the same.
///
/// Thread safety: pure functions. No errors, no allocation; about 12 KiB of stack.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// A result or a key, as eight little-endian words.
struct blake3_value {
  std::uint32_t words[8];
  bool operator==(const blake3_value&) const = default;

  /// The first 128 bits, as BLAKE3's shorter results are.
  [[nodiscard]] constexpr digest128 first_half() const noexcept {
    return {words[0] | std::uint64_t{words[1]} << 32, words[2] | std::uint64_t{words[3]} << 32};
  }
};

/// How many chunks are hashed at once. `one` needs no vectors; it is what tests compare the others with.
enum class blake3_lanes : unsigned { one = 1, four = 4, eight = 8, sixteen = 16 };

/// The most that this processor has instructions for. A function must not be asked for more.
[[nodiscard]] blake3_lanes blake3_most_lanes() noexcept;

[[nodiscard]] blake3_value blake3_hash(std::span<const std::byte> bytes,
                                       blake3_lanes lanes = blake3_most_lanes()) noexcept;
[[nodiscard]] blake3_value blake3_keyed_hash(const blake3_value& key, std::span<const std::byte> bytes,
                                             blake3_lanes lanes = blake3_most_lanes()) noexcept;
/// A key for the purpose that `context` names: a constant of the program, of no other program or purpose.
[[nodiscard]] blake3_value blake3_derive_key(std::string_view context, std::span<const std::byte> material,
                                             blake3_lanes lanes = blake3_most_lanes()) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/blake3.ipp"
#endif
