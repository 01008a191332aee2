#pragma once
/// \file protocol.hpp
/// What travels on a data connection. Little-endian structs of fixed size; requests are answered in their
/// order.
///
///     reader                                               source
///       hello {who I am, whom I want, how far it is,
///              my capability}                         ->
///                                                     <-     welcome {who I am, yes or why not}
///       read_request (any number)                     ->
///                                                     <-     read_answer, then `bytes` bytes if it is ok
///
/// A source that must not go on with an answer (its memory was revoked, the reader was cut off) closes the
/// connection: an answer has no other end than its last byte.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/capability.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

static_assert(std::endian::native == std::endian::little,
              "the data protocol is that of little-endian machines");

inline constexpr std::uint64_t hello_magic = 0x3144425548544854;    // "THTHUBD1"
inline constexpr std::uint64_t welcome_magic = 0x3157425548544854;  // "THTHUBW1"
inline constexpr std::uint32_t data_protocol = 2;

/// Which of the socket settings both ends use for a connection; decided by the reader.
enum class path_kind : std::uint32_t {
  same_datacenter = 0,
  wide_area = 1,  ///< anything else than these two is taken for `same_datacenter`
};

struct hello {
  std::uint64_t magic = hello_magic;
  std::uint32_t protocol = data_protocol;
  path_kind path = path_kind::same_datacenter;
  std::uint64_t reader = 0;                              ///< incarnation
  std::uint64_t source = 0;                              ///< incarnation that the reader wants
  std::array<std::byte, capability_bytes> capability{};  ///< zero: none (types/capability.hpp)
};

enum class welcome_status : std::uint32_t {
  accepted = 0,
  other_protocol = 1,
  other_process = 2,
  refused = 3,        ///< this reader was cut off
  no_capability = 4,  ///< the source asks for one, and this is none for it from this reader
  needs_tls = 5,      ///< the hello came in the clear, and this port talks under TLS (transport `tls`)
};

struct welcome {
  std::uint64_t magic = welcome_magic;
  std::uint32_t protocol = data_protocol;
  welcome_status status = welcome_status::accepted;
  std::uint64_t source = 0;
};

/// Opaque to everybody else: `remote_key` holds these bytes. The secret is random and new with each
/// registration and revocation.
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
  std::uint64_t bytes = 0;   ///< that follow; as asked for, or zero
};

static_assert(sizeof(hello) == 56 && sizeof(welcome) == 24 && sizeof(region_key) == 24 &&
              sizeof(read_request) == 40 && sizeof(read_answer) == 16);
static_assert(std::is_trivially_copyable_v<hello> && std::is_trivially_copyable_v<welcome> &&
              std::is_trivially_copyable_v<read_request> && std::is_trivially_copyable_v<read_answer>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
