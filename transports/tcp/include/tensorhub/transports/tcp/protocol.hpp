#pragma once
/// \file protocol.hpp
/// The messages on a data connection: little-endian structs of fixed size. A source answers requests in their
/// order.
///
///     reader                                               source
///       hello {own incarnation, wanted one, distance,
///              capability}                            ->
///                                                     <-     welcome {own incarnation, status}
///       read_request (any number)                     ->
///                                                     <-     read_answer, then `bytes` bytes if it is ok
///
/// A source copies the bytes of an answer into the connection when their turn comes, so that it looks at its
/// memory in the order of the requests. Only over a short path, and only of at least
/// `smallest_reference_bytes`, an answer may be sent by reference: its bytes are then those of a later
/// moment.
///
/// A source that must not continue an answer (its memory was revoked, or the reader was cut off) closes the
/// connection: an answer ends only with its last byte.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/capability.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

static_assert(std::endian::native == std::endian::little, "the data protocol needs a little-endian machine");

inline constexpr std::uint64_t hello_magic = 0x3144425548544854;    // "THTHUBD1"
inline constexpr std::uint64_t welcome_magic = 0x3157425548544854;  // "THTHUBW1"
inline constexpr std::uint32_t data_protocol = 4;

inline constexpr std::uint64_t smallest_reference_bytes = 256 * 1024;

/// How both ends treat a connection; the reader decides.
enum class path_kind : std::uint32_t {
  same_datacenter = 0,
  wide_area = 1,
  /// In the same datacenter, as any other value is. Everything is copied: a check by another stream of an
  /// endpoint does not see that this one was closed, because what it had carried by reference was revoked.
  one_of_several = 2,
};

struct hello {
  std::uint64_t magic = hello_magic;
  std::uint32_t protocol = data_protocol;
  path_kind path = path_kind::same_datacenter;
  std::uint64_t reader = 0;  ///< incarnation
  std::uint64_t source = 0;  ///< incarnation that the reader wants
  /// `shown_over` the connection; zeros: none (types/capability.hpp).
  std::array<std::byte, capability_bytes> capability{};
};

enum class welcome_status : std::uint32_t {
  accepted = 0,
  other_protocol = 1,
  other_process = 2,
  refused = 3,        ///< this reader was cut off
  no_capability = 4,  ///< the source requires one, and the hello's is not valid for this reader and source
  needs_tls = 5,      ///< the hello was not encrypted, and this port uses TLS (transport `tls`)
  crowded = 6,        ///< this reader has as many connections as it may have here
};

struct welcome {
  std::uint64_t magic = welcome_magic;
  std::uint32_t protocol = data_protocol;
  welcome_status status = welcome_status::accepted;
  std::uint64_t source = 0;
  source_proof proof{};  ///< to an accepted reader with a capability: that this is the source it is for
};

/// The content of a `remote_key`, opaque outside this transport. The secret is random; each registration and
/// each revocation makes a new one.
struct region_key {
  std::uint64_t region = 0;
  std::uint64_t secret[2] = {0, 0};
};

struct read_request {
  region_key key{};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct read_answer {
  std::uint64_t status = 0;  ///< completion_status
  std::uint64_t bytes = 0;   ///< how many follow: as many as requested, or none
};

static_assert(sizeof(hello) == 56 && sizeof(welcome) == 40 && sizeof(region_key) == 24 &&
              sizeof(read_request) == 40 && sizeof(read_answer) == 16);
static_assert(std::is_trivially_copyable_v<hello> && std::is_trivially_copyable_v<welcome> &&
              std::is_trivially_copyable_v<read_request> && std::is_trivially_copyable_v<read_answer>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
