#pragma once
/// \file protocol.hpp
/// The messages between two processes of one machine: packets of fixed size over a UNIX socket
/// (SOCK_SEQPACKET), and one shared page of grants.
///
///     reader                                   source
///       hello {own incarnation, wanted
///              one, capability}         ->
///                                       <-     welcome {own incarnation, status} + the grant page's file
///       region_request (up to 32)       ->
///                                       <-     region_answer {location, grant} [+ the region's file, once]
///       region_request for a piece      ->
///        staged (up to 16)              <-     region_answer [+ the staging file, once]
///
/// The socket does not carry the regions' bytes. The reader copies them itself: from the region's file, or
/// from the source's memory by process_vm_readv. A permission is a word of the grant page, which only the
/// source can write: a region's word holds the number of its current grant, a connection's word that of the
/// connection. Numbers are never used twice. A reader checks both words after each piece that it has copied,
/// and accepts the piece only if they still hold the numbers that the source had answered: a seqlock whose
/// odd state means "not permitted". A source therefore ends a permission by one store, without waiting for
/// any reader.
///
/// The reader's device maps device memory (device_export in the answer), and the same rule applies: the
/// reader checks the words when the device's copy is done. Memory that readers cannot or may not reach is
/// *staged*: the source or its device copies a piece into a slot of a file that both processes have mapped,
/// and the reader copies it from there. Here the source enforces what it has ended: `revoke`, deregistration
/// and `cut_off` wait for pieces that are being copied, and no later one is copied.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint64_t hello_magic = 0x3148'5355'4248'5455ull;    // "UTHBUSH1"
inline constexpr std::uint64_t welcome_magic = 0x3157'5355'4248'5455ull;  // "UTHBUSW1"
inline constexpr std::uint32_t protocol_number = 4;

/// The number of requests that a reader may have outstanding: their answers, and the files in them, fit any
/// socket buffer.
inline constexpr std::size_t requests_in_flight = 32;

/// The slots of a connection's staging file, and their size. Each slot holds one piece at a time.
inline constexpr std::uint32_t stage_slots = 16;
inline constexpr std::uint64_t stage_piece_bytes = 1u << 20;
/// Smaller pieces are no reason to pin the file.
inline constexpr std::uint64_t worth_pinning_bytes = 256u << 10;

struct hello {
  std::uint64_t magic = hello_magic;
  std::uint32_t protocol = protocol_number;
  std::uint32_t reserved = 0;
  std::uint64_t reader = 0;                              ///< incarnation
  std::uint64_t source = 0;                              ///< incarnation that the reader wants
  std::array<std::byte, capability_bytes> capability{};  ///< zeros: none (types/capability.hpp)
};

enum class welcome_status : std::uint32_t {
  accepted = 0,
  other_protocol = 1,
  other_process = 2,
  refused = 3,        ///< this reader was cut off
  other_user = 4,     ///< the reader's user may not connect
  full = 5,           ///< no connection is left
  no_capability = 6,  ///< the source requires one, and the hello's is not valid for this reader and source
  crowded = 7,        ///< the reader has as many connections as one reader may have
};

struct welcome {
  std::uint64_t magic = welcome_magic;
  std::uint32_t protocol = protocol_number;
  welcome_status status = welcome_status::accepted;
  std::uint64_t source = 0;
  std::uint32_t grant_slot = 0;  ///< this connection's word
  std::uint32_t reserved = 0;
  std::uint64_t grant = 0;          ///< the word's value while the connection is valid
  std::uint64_t probe_address = 0;  ///< 0: nobody may attach to the source
  std::uint64_t probe_value = 0;    ///< random; a reader that reads the right process finds it there
};

/// The content of a `remote_key`, opaque outside this transport. The secret is random; each registration and
/// each revocation makes a new one.
struct region_key {
  std::uint64_t region = 0;
  std::uint64_t secret[2] = {0, 0};
  bool operator==(const region_key&) const = default;
};

enum class request_kind : std::uint32_t {
  region = 0,           ///< asks for the region's location
  region_and_file = 1,  ///< the same, and for its file again, which the reader has released
  staged_piece = 2,     ///< asks to copy [offset, offset + bytes) into this slot
};

struct region_request {
  std::uint64_t number = 0;  ///< repeated in the answer
  request_kind wants = request_kind::region;
  std::uint32_t slot = 0;    ///< of a staged piece, as the next two
  std::uint64_t offset = 0;  ///< in the region
  std::uint64_t bytes = 0;
  region_key key{};
};

enum class answer_status : std::uint64_t {
  denied = 0,  ///< no other field is set
  granted = 1,
  failed = 2,  ///< of a staged piece: the source could not copy it
};

/// What a region's memory is.
enum class region_memory : std::uint32_t {
  host = 0,
  mappable_device = 1,  ///< `exported` says how
  staged = 2,           ///< only the source can reach it; `why` says why
};

struct region_answer {
  std::uint64_t number = 0;
  answer_status status = answer_status::denied;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  ///< in the source's memory
  std::uint64_t grant = 0;    ///< the word's value while the key is valid
  std::uint32_t grant_slot = 0;
  std::uint32_t brings_file = 0;  ///< 1: this packet carries the file's descriptor (of a staged piece: the
                                  ///< staging file's)
  std::uint64_t file = 0;         ///< number of the file on this connection; 0: memory without one
  std::uint64_t file_offset = 0;
  region_memory memory = region_memory::host;
  std::uint32_t reserved = 0;
  std::uint64_t export_number = 0;  ///< of the allocation: never used twice by one source
  device_export exported{};
  std::array<char, 112> why{};  ///< text, padded with zeros
};

static_assert(sizeof(hello) == 56 && sizeof(welcome) == 56 && sizeof(region_key) == 24 &&
              sizeof(region_request) == 56 && sizeof(device_export) == 96 && sizeof(region_answer) == 288);
static_assert(std::is_trivially_copyable_v<hello> && std::is_trivially_copyable_v<welcome> &&
              std::is_trivially_copyable_v<region_request> && std::is_trivially_copyable_v<region_answer>);

struct region_key_hash {
  [[nodiscard]] std::size_t operator()(const region_key& key) const noexcept {
    return std::hash<std::uint64_t>{}(key.region ^ key.secret[0] ^ key.secret[1]);
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
