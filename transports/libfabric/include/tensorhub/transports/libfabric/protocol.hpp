#pragma once
/// \file protocol.hpp
/// The messages that both sides exchange before the first read, and the content of a region's key:
/// little-endian structs of fixed size.
///
/// Connected endpoints carry `hello` in the data of the connection request, and `welcome` in the data of the
/// acceptance or refusal. Addressed endpoints have no connection requests; their sides exchange datagrams:
///
///     reader (an endpoint of its own)        source
///       hello, own address            ->     the greeting endpoint, in a domain without registered memory
///                                     <-     welcome, address of a serving endpoint
///       ready                         ->     the serving endpoint, which is for this reader alone
///       reads                         ->     the serving endpoint
///       goodbye                       ->     the serving endpoint, which the source then closes
///
/// A source cuts a reader off by closing the reader's serving endpoint. The greeting endpoint serves no
/// memory, so that the reader has nothing left to read.

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

static_assert(std::endian::native == std::endian::little, "the data protocol needs a little-endian machine");

inline constexpr std::uint64_t hello_magic = 0x3148424146544854;    // "THTFABH1"
inline constexpr std::uint64_t welcome_magic = 0x3157424146544854;  // "THTFABW1"
inline constexpr std::uint64_t ready_magic = 0x314b424146544854;    // "THTFABK1"
inline constexpr std::uint64_t goodbye_magic = 0x3147424146544854;  // "THTFABG1"
inline constexpr std::uint32_t data_protocol = 3;

struct hello {
  std::uint64_t magic = hello_magic;
  std::uint64_t reader = 0;                              ///< incarnation
  std::uint64_t source = 0;                              ///< incarnation that the reader wants
  std::array<std::byte, capability_bytes> capability{};  ///< zeros: none (types/capability.hpp)
  std::uint32_t protocol = data_protocol;
  std::uint32_t reserved = 0;  ///< not sent in a connection request
};

/// The bytes of a hello in a connection request, where RDMA devices leave 55 bytes to libfabric.
inline constexpr std::size_t hello_bytes = offsetof(hello, reserved);

enum class welcome_status : std::uint32_t {
  accepted = 0,
  other_protocol = 1,
  other_process = 2,
  refused = 3,        ///< this reader was cut off
  full = 4,           ///< max_connections
  no_capability = 5,  ///< the source requires one, and the hello's is not valid for this reader and source
};

struct welcome {
  std::uint64_t magic = welcome_magic;
  std::uint32_t protocol = data_protocol;
  welcome_status status = welcome_status::accepted;
  std::uint64_t source = 0;  ///< incarnation
  std::uint64_t nonce = 0;   ///< of the source object; its keys contain the nonce
};

inline constexpr std::size_t longest_address_bytes = 256;

/// A message between addressed endpoints: hello, welcome, or ready and goodbye, which consist of their magic
/// alone.
struct datagram {
  union {
    hello from_reader;
    welcome from_source;
    std::uint64_t magic;
  };
  std::uint64_t ticket = 0;  ///< chosen by the reader, repeated by the source
  std::uint32_t address_bytes = 0;
  std::uint32_t reserved = 0;
  std::array<std::byte, longest_address_bytes> address{};
  datagram() noexcept : from_reader{} {}
};
static_assert(std::is_trivially_copyable_v<datagram> && sizeof(hello) == 56 && hello_bytes <= 55 &&
              sizeof(welcome) == 32 && sizeof(datagram) == 56 + 16 + longest_address_bytes);

/// A region's key. A region is registered in parts of `part_bytes` (the last may be shorter), each with a key
/// of the provider. Keys that the transport chooses are consecutive, so that the first one determines all.
struct region_key {
  static constexpr std::size_t most_keys = (limits::remote_key_bytes - 6 * sizeof(std::uint64_t)) / 8;

  std::uint64_t seal = 0;   ///< checksum of the words after it
  std::uint64_t nonce = 0;  ///< of the source object
  std::uint64_t start = 0;  ///< the provider's name for the first byte: an address, or 0
  std::uint64_t bytes = 0;
  std::uint64_t part_bytes = 0;
  std::uint64_t key_count =
      0;  ///< 0: consecutive from keys[0]; if start is 0, addresses restart at 0 in each part
  std::array<std::uint64_t, most_keys> keys{};

  [[nodiscard]] std::size_t used_bytes() const noexcept {
    return (6 + std::max<std::size_t>(1, key_count)) * sizeof(std::uint64_t);
  }

  /// Depends on every bit of the words. The seal detects damage; it does not protect against unauthorised
  /// readers. The source's provider does: it checks its own key (64 random bits if the transport chooses it)
  /// and the bounds of the part.
  [[nodiscard]] std::uint64_t compute_seal() const noexcept;

  [[nodiscard]] remote_key packed() const noexcept;

  /// Empty: the bytes are not a key of this transport, or are damaged.
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
