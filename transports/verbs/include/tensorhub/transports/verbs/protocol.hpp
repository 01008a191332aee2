#pragma once
/// \file protocol.hpp
/// What two processes tell each other when they connect, and what is in a region's key. Little-endian structs
/// of fixed size.
///
///     reader                                          source
///       connect request + hello {who, whom, rail,
///                                capability}      ->
///                                              <-     accept + welcome, or reject + welcome {why not}
///       RDMA READ (any number)                 ->     (answered by the device alone)
///
/// The hello travels in the connection manager's private data, of which a reader has 56 bytes.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

static_assert(std::endian::native == std::endian::little,
              "the data protocol is that of little-endian machines");

inline constexpr std::uint64_t hello_magic = 0x3156425548544854;    // "THTHUBV1"
inline constexpr std::uint64_t welcome_magic = 0x3157565548544854;  // "THTHUVW1"
inline constexpr std::uint32_t data_protocol = 2;
inline constexpr std::size_t most_rails = 8;

struct hello {
  std::uint64_t magic = hello_magic;
  std::uint32_t protocol = data_protocol;
  std::uint16_t rail = 0;                                ///< of the source, that this connection uses
  std::uint16_t lane = 0;                                ///< number of this connection within its endpoint
  std::uint64_t reader = 0;                              ///< incarnation
  std::uint64_t source = 0;                              ///< incarnation that the reader wants
  std::array<std::byte, capability_bytes> capability{};  ///< zero: none (types/capability.hpp)
};

enum class welcome_status : std::uint32_t {
  accepted = 0,
  other_protocol = 1,
  other_process = 2,
  refused = 3,          ///< this reader was cut off
  other_transport = 4,  ///< the hello is no hello
  overloaded = 5,       ///< no more connections, or no more queue pairs
  no_capability = 6,    ///< the source asks for one, and this is none for it from this reader
};

struct welcome {
  std::uint64_t magic = welcome_magic;
  std::uint32_t protocol = data_protocol;
  welcome_status status = welcome_status::accepted;
  std::uint64_t source = 0;
};

static_assert(sizeof(hello) == 56 && sizeof(welcome) == 24);
static_assert(std::is_trivially_copyable_v<hello> && std::is_trivially_copyable_v<welcome>);

/// A region of `bytes` bytes is registered in equal pieces of `piece_bytes_of`, the last one perhaps shorter.
/// The device checks each against its rkey.
[[nodiscard]] constexpr std::uint64_t piece_bytes_of(std::uint64_t bytes, std::uint64_t pieces) noexcept {
  constexpr std::uint64_t grain = 4096;
  if (pieces <= 1) return bytes;
  const std::uint64_t even = bytes / pieces + (bytes % pieces != 0 ? 1 : 0);
  return (even + grain - 1) / grain * grain;
}

/// How many pieces a region needs when one registration takes `largest` bytes.
[[nodiscard]] constexpr std::uint64_t pieces_for(std::uint64_t bytes, std::uint64_t largest) noexcept {
  const std::uint64_t usable = largest < 4096 ? 4096 : largest / 4096 * 4096;
  return bytes <= largest ? 1 : bytes / usable + (bytes % usable != 0 ? 1 : 0);
}

/// Head of a `remote_key`. The rkeys follow: of rail 0 all pieces, of rail 1 all pieces...
struct key_head {
  std::uint16_t format = 0x5631;
  std::uint8_t rails = 0;
  std::uint8_t pieces = 0;
  std::uint32_t checksum = 0;
  std::uint64_t base = 0;   ///< address of the region's first byte
  std::uint64_t bytes = 0;  ///< of the region
};
static_assert(sizeof(key_head) == 24 && std::is_trivially_copyable_v<key_head>);

inline constexpr std::size_t most_rkeys =
    (limits::remote_key_bytes - sizeof(key_head)) / sizeof(std::uint32_t);

/// A key, taken apart.
struct region_key {
  key_head head{};
  std::array<std::uint32_t, most_rkeys> rkeys{};
  [[nodiscard]] std::uint32_t rkey(std::size_t rail, std::size_t piece) const noexcept {
    return rkeys[rail * head.pieces + piece];
  }
};

/// Over the whole key and the incarnation that made it. It tells a damaged key, or one of another process,
/// before the device does, which would break the connection. It is no secret: what forbids is the rkey.
[[nodiscard]] std::uint32_t checksum_of(const region_key& key, incarnation source) noexcept;

/// Pre-condition: rails * pieces <= most_rkeys, and the unused rkeys are zero.
[[nodiscard]] remote_key encode_key(region_key key, incarnation source) noexcept;

/// False: these bytes are no key of that process.
[[nodiscard]] bool decode_key(const remote_key& from, incarnation source, region_key& out) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/protocol.ipp"
#endif
