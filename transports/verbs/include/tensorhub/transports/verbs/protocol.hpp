#pragma once
/// \file protocol.hpp
/// The messages of the handshake, and the content of a region's key: little-endian structs of fixed size.
///
///     reader                                          source
///       connect request + hello {incarnations, rail,
///                                capability}      ->
///                                              <-     accept + welcome, or reject + welcome {reason}
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

static_assert(std::endian::native == std::endian::little, "the data protocol needs a little-endian machine");

inline constexpr std::uint64_t hello_magic = 0x3156425548544854;    // "THTHUBV1"
inline constexpr std::uint64_t welcome_magic = 0x3157565548544854;  // "THTHUVW1"
inline constexpr std::uint32_t data_protocol = 3;
inline constexpr std::size_t most_rails = 8;

struct hello {
  std::uint64_t magic = hello_magic;
  std::uint32_t protocol = data_protocol;
  std::uint16_t rail = 0;                                ///< the rail of the source that this connection uses
  std::uint16_t lane = 0;                                ///< number of this connection within its endpoint
  std::uint64_t reader = 0;                              ///< incarnation
  std::uint64_t source = 0;                              ///< incarnation that the reader wants
  std::array<std::byte, capability_bytes> capability{};  ///< zeros: none (types/capability.hpp)
};

enum class welcome_status : std::uint32_t {
  accepted = 0,
  other_protocol = 1,
  other_process = 2,
  refused = 3,          ///< this reader was cut off
  other_transport = 4,  ///< the bytes are not a hello of this transport
  overloaded = 5,       ///< no more connections, or no more queue pairs
  no_capability = 6,    ///< the source requires one, and the hello's is not valid for this reader and source
  crowded = 7,          ///< this reader has as many connections as it may have here
};

struct welcome {
  std::uint64_t magic = welcome_magic;
  std::uint32_t protocol = data_protocol;
  welcome_status status = welcome_status::accepted;
  std::uint64_t source = 0;
  std::uint64_t key_maker = 0;  ///< what the keys of this process's memory are bound to (`encode_key`)
};

static_assert(sizeof(hello) == 56 && sizeof(welcome) == 32);
static_assert(std::is_trivially_copyable_v<hello> && std::is_trivially_copyable_v<welcome>);

/// A region of `bytes` bytes is registered in equal pieces of `piece_bytes_of`; the last one may be shorter.
/// The device checks each access against the piece's rkey.
[[nodiscard]] constexpr std::uint64_t piece_bytes_of(std::uint64_t bytes, std::uint64_t pieces) noexcept {
  constexpr std::uint64_t grain = 4096;
  if (pieces <= 1) return bytes;
  const std::uint64_t even = bytes / pieces + (bytes % pieces != 0 ? 1 : 0);
  return (even + grain - 1) / grain * grain;
}

/// The number of pieces of a region if one registration covers at most `largest` bytes.
[[nodiscard]] constexpr std::uint64_t pieces_for(std::uint64_t bytes, std::uint64_t largest) noexcept {
  const std::uint64_t usable = largest < 4096 ? 4096 : largest / 4096 * 4096;
  return bytes <= largest ? 1 : bytes / usable + (bytes % usable != 0 ? 1 : 0);
}

/// The head of a `remote_key`. The rkeys follow: those of all pieces on rail 0, of all pieces on rail 1, and
/// so on.
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

/// A decoded key.
struct region_key {
  key_head head{};
  std::array<std::uint32_t, most_rkeys> rkeys{};
  [[nodiscard]] std::uint32_t rkey(std::size_t rail, std::size_t piece) const noexcept {
    return rkeys[rail * head.pieces + piece];
  }
};

/// A checksum over the whole key and the process that made it, by its `welcome::key_maker`. It detects a
/// damaged key, or the key of another process, before the device does, which would break the connection. The
/// checksum is not a secret: only the rkey protects the memory.
[[nodiscard]] std::uint32_t checksum_of(const region_key& key, incarnation maker) noexcept;

/// Precondition: rails * pieces <= most_rkeys, and the unused rkeys are zero.
[[nodiscard]] remote_key encode_key(region_key key, incarnation maker) noexcept;

/// False: the bytes are not a key of that process.
[[nodiscard]] bool decode_key(const remote_key& from, incarnation maker, region_key& out) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/protocol.ipp"
#endif
