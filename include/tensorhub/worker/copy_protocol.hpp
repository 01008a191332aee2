#pragma once
/// \file copy_protocol.hpp
/// The messages between the owner of a shared copy and a process that has attached to it: packets of one
/// fixed size over a UNIX socket (SOCK_SEQPACKET) with an abstract name.
///
///     attached process                         owner
///                                       <-     shape {bytes} + the table's file
///                                       <-     memory {side, bytes} + the side's file      (twice)
///                                       <-     live {side, version}       now, and after each of its updates
///       hold {side, version}            ->
///                                       <-     held {side, version}, or gone: that is not live any more
///       let_go {side}                   ->
///
/// The table is an encoded `describe_reply` with the tensors' names, types and shapes (service/codec.hpp),
/// and after it an offset into either memory for each of them, 8 bytes each. A connection that ends, ends
/// what it holds.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint64_t copy_magic = 0x3143'5355'4248'5455ull;  // "UTHBUSC1"
inline constexpr std::uint32_t copy_protocol = 1;

enum class copy_message : std::uint32_t {
  shape = 1,
  memory = 2,
  live = 3,
  held = 4,
  gone = 5,
  hold = 6,
  let_go = 7,
  full = 8,  ///< instead of `shape`: no connection is left
};

struct copy_packet {
  std::uint64_t magic = copy_magic;
  std::uint32_t protocol = copy_protocol;
  copy_message kind = copy_message::live;
  std::uint64_t side = 0;  ///< 0 or 1
  version_number version{};
  std::uint64_t bytes = 0;  ///< of the file that comes along; of the table: of its encoded part

  [[nodiscard]] bool is_sound() const noexcept {
    return magic == copy_magic && protocol == copy_protocol && side < 2;
  }
};

inline constexpr std::uint64_t most_table_bytes = limits::frame_bytes + 8 * limits::tensors;
inline constexpr std::size_t copy_name_bytes = 64;
[[nodiscard]] inline bool is_copy_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= copy_name_bytes;
}
[[nodiscard]] inline std::string why_no_copy_name() {
  return "a name of a shared copy has 1 to " + std::to_string(copy_name_bytes) + " bytes";
}

/// Of the socket. Names are equal only if both processes mean the same: there is no random part.
[[nodiscard]] inline std::string copy_socket_name(std::string_view name) {
  return "tensorhub-copy/" + std::string{name};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail
