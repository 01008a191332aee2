#pragma once
/// \file protocol.hpp
/// What the two sides tell each other before the first read, and what a region's key says. Little-endian
/// structs of fixed size.
///
/// Connected endpoints carry `hello` in the data of the connection request, and `welcome` in the data of the
/// acceptance or refusal. Addressed endpoints have no connection requests, so messages are exchanged:
///
///     reader (an endpoint of its own)        source
///       letter {hello, my address}    ->     its door: an endpoint in a domain without any registered memory
///                                     <-     letter {welcome, address of a room}
///       knock                         ->     the room: an endpoint for this reader alone
///       reads                         ->     the room
///       goodbye                       ->     the room, which is closed
///
/// A reader is cut off by closing its room: the door serves no memory, so there is nothing left for it to
/// read.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

static_assert(std::endian::native == std::endian::little,
              "the data protocol is that of little-endian machines");

inline constexpr std::uint64_t hello_magic = 0x3148424146544854;    // "THTFABH1"
inline constexpr std::uint64_t welcome_magic = 0x3157424146544854;  // "THTFABW1"
inline constexpr std::uint64_t knock_magic = 0x314b424146544854;    // "THTFABK1"
inline constexpr std::uint64_t goodbye_magic = 0x3147424146544854;  // "THTFABG1"
inline constexpr std::uint32_t data_protocol = 3;

struct hello {
  std::uint64_t magic = hello_magic;
  std::uint64_t reader = 0;                              ///< incarnation
  std::uint64_t source = 0;                              ///< incarnation that the reader wants
  std::array<std::byte, capability_bytes> capability{};  ///< zero: none (types/capability.hpp)
  std::uint32_t protocol = data_protocol;
  std::uint32_t reserved = 0;  ///< not sent in a connection request
};

/// What a connection request carries of it: RDMA devices leave libfabric 55 bytes there.
inline constexpr std::size_t hello_bytes = offsetof(hello, reserved);

enum class welcome_status : std::uint32_t {
  accepted = 0,
  other_protocol = 1,
  other_process = 2,
  refused = 3,        ///< this reader was cut off
  full = 4,           ///< max_connections
  no_capability = 5,  ///< the source asks for one, and this is none for it from this reader
};

struct welcome {
  std::uint64_t magic = welcome_magic;
  std::uint32_t protocol = data_protocol;
  welcome_status status = welcome_status::accepted;
  std::uint64_t source = 0;  ///< incarnation
  std::uint64_t nonce = 0;   ///< of the source object: its keys carry it
};

inline constexpr std::size_t longest_address_bytes = 256;

/// Hello or welcome between addressed endpoints; also knock and goodbye, which are their magic alone.
struct letter {
  union {
    hello from_reader;
    welcome from_source;
    std::uint64_t magic;
  };
  std::uint64_t ticket = 0;  ///< chosen by the reader, repeated by the source
  std::uint32_t address_bytes = 0;
  std::uint32_t reserved = 0;
  std::array<std::byte, longest_address_bytes> address{};
  letter() noexcept : from_reader{} {}
};
static_assert(std::is_trivially_copyable_v<letter> && sizeof(hello) == 56 && hello_bytes <= 55 &&
              sizeof(welcome) == 32 && sizeof(letter) == 56 + 16 + longest_address_bytes);

/// A region's key. A region is registered in parts of `part_bytes` (the last may be shorter), each with a key
/// of the provider's; keys that we choose are consecutive, so that the first names them all.
struct region_key {
  static constexpr std::size_t most_keys = (limits::remote_key_bytes - 6 * sizeof(std::uint64_t)) / 8;

  std::uint64_t seal = 0;   ///< of the words after it
  std::uint64_t nonce = 0;  ///< of the source object
  std::uint64_t start = 0;  ///< the provider's name for the first byte: an address, or 0
  std::uint64_t bytes = 0;
  std::uint64_t part_bytes = 0;
  std::uint64_t key_count =
      0;  ///< 0: consecutive from keys[0]; addresses start anew in each part if start is 0
  std::array<std::uint64_t, most_keys> keys{};

  [[nodiscard]] std::size_t used_bytes() const noexcept {
    return (6 + std::max<std::size_t>(1, key_count)) * sizeof(std::uint64_t);
  }

  /// Every bit of the words matters. This finds damage; what keeps strangers out is checked by the source's
  /// provider: its own key (64 random bits where we choose it) and the bounds of the part.
  [[nodiscard]] std::uint64_t compute_seal() const noexcept;

  [[nodiscard]] remote_key packed() const noexcept;

  /// Nothing: this is no key of this transport, or a damaged one.
  [[nodiscard]] static std::optional<region_key> unpacked(const remote_key& from) noexcept;

  [[nodiscard]] std::uint64_t key_of(std::uint64_t part) const noexcept {
    return key_count == 0 ? keys[0] + part : keys[part];
  }
};
static_assert(sizeof(region_key) <= limits::remote_key_bytes && std::is_trivially_copyable_v<region_key>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/protocol.ipp"
#endif
