#pragma once
/// \file codec.hpp
/// Control messages as bytes: one frame per message.
///
///     offset  bytes  field                (numbers are little-endian)
///          0      4  magic                "THUB"
///          4      2  control protocol     version.hpp; frames of another number are refused, not guessed
///          6      2  message type         index in messages::message
///          8      4  payload bytes        exactly what follows the header
///         12      4  reserved             zero
///         16      8  sender               incarnation, or server epoch
///         24      8  sequence
///         32      8  acknowledged
///         40      8  recipient
///         48         payload              the message in cereal's portable-binary format, then the
///                                         numbers of envelope::open, 8 bytes each
///
/// The first 16 bytes keep their meaning in every future protocol, so that the reader of a frame of another
/// protocol can name that protocol. A server answers such a worker with a `goodbye_push`, whose type number
/// never changes either.
///
/// A decoder trusts no byte:
///
///  - It never throws because of its input. The first fault ends the message, and `decode_result::fault`
///  names
///    the fault.
///  - It allocates no more than the input justifies: a count is compared with the number of remaining bytes,
///    and with the limit of its field, before memory is reserved.
///  - Every value has exactly one encoding: a flag is 0 or 1, an enumerator is a known one.
///
/// Thread safety: an encoder and a decoder are each used by one thread at a time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/decode_fault.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/version.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A message, or the fault of the frame.
struct decode_result {
  decode_fault fault = decode_fault::none;
  std::uint16_t protocol = 0;  ///< number in the frame; zero if the header could not be read
  messages::envelope message{};
  [[nodiscard]] bool ok() const noexcept { return fault == decode_fault::none; }
};

class encoder {
 public:
  /// Returns the frame, which is valid until the next call. Throws `error(limit_exceeded)` if a name, a
  /// list or the whole frame exceeds its limit; sentences are truncated instead.
  [[nodiscard]] std::span<const std::byte> encode(const messages::envelope& envelope);

 private:
  std::vector<std::byte> buffer_;  ///< memory of the last frame, reused for the next one
};

class decoder {
 public:
  /// Decodes any bytes; never throws.
  [[nodiscard]] decode_result decode(std::span<const std::byte> frame) noexcept;

 private:
  [[nodiscard]] static decode_fault read(std::span<const std::byte> frame, decode_result& result);
};

namespace codec_detail {

inline constexpr std::uint32_t magic = 0x42554854;  // "THUB"

struct frame_header {
  std::uint32_t magic = codec_detail::magic;
  std::uint16_t protocol = control_protocol;
  std::uint16_t type = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t reserved = 0;
  std::uint64_t sender = 0;
  std::uint64_t sequence = 0;
  std::uint64_t acknowledged = 0;
  std::uint64_t recipient = 0;
};
inline constexpr std::size_t header_bytes = 48;
inline constexpr std::size_t stable_header_bytes = 16;  ///< have the same meaning in every protocol
static_assert(sizeof(frame_header) == header_bytes && std::is_trivially_copyable_v<frame_header>);

}  // namespace codec_detail
}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/codec.ipp"
#endif
