#pragma once
/// \file codec.hpp
/// Control messages as bytes: one frame per message.
///
///     offset  bytes  field                (numbers are little-endian)
///          0      4  magic                "THUB"
///          4      2  control protocol     version.hpp; frames of another number are told apart, not guessed
///          6      2  message type         index in messages::message
///          8      4  payload bytes        exactly what follows the header
///         12      4  reserved             zero
///         16      8  sender               incarnation, or server epoch
///         24      8  sequence
///         32      8  acknowledged
///         40         payload              the message in cereal's portable-binary format
///
/// The first 16 bytes keep their meaning in every future protocol: whoever reads a frame of another one can
/// say which. A server answers such a worker with a `goodbye_push`, whose type number never changes either.
///
/// Thread safety: encoder and decoder are for one thread at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>
#include <variant>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/codec_archive.hpp"
#include "tensorhub/service/codec_fields.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/version.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A message, or why there is none.
struct decode_result {
  decode_fault fault = decode_fault::none;
  std::uint16_t protocol = 0;  ///< of the frame; zero if the header could not be read
  messages::envelope message{};
  [[nodiscard]] bool ok() const noexcept { return fault == decode_fault::none; }
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
};
inline constexpr std::size_t header_bytes = 40;
inline constexpr std::size_t stable_header_bytes = 16;  ///< mean the same in every protocol
static_assert(sizeof(frame_header) == header_bytes && std::is_trivially_copyable_v<frame_header>);

/// First byte of a payload: cereal's mark for little-endian.
inline constexpr std::uint8_t little_endian_mark = 1;

inline constexpr std::size_t message_types = std::variant_size_v<messages::message>;
inline constexpr std::uint16_t goodbye_type = 25;
static_assert(
    std::is_same_v<std::variant_alternative_t<goodbye_type, messages::message>, messages::goodbye_push>,
    "goodbye_push must keep its number in every protocol");

}  // namespace codec_detail

class encoder {
 public:
  /// The frame; valid until the next call. Throws `error(limit_exceeded)` if a name, a list or the whole
  /// frame is over its limit; sentences are cut short instead.
  [[nodiscard]] std::span<const std::byte> encode(const messages::envelope& envelope) {
    archive_.begin(codec_detail::header_bytes);
    archive_(codec_detail::little_endian_mark);
    std::visit([this](const auto& body) { archive_(body); }, envelope.body);
    const std::span<std::byte> frame = archive_.frame();
    codec_detail::frame_header header;
    header.type = static_cast<std::uint16_t>(envelope.body.index());
    header.payload_bytes = static_cast<std::uint32_t>(frame.size() - codec_detail::header_bytes);
    header.sender = envelope.sender;
    header.sequence = envelope.sequence.value;
    header.acknowledged = envelope.acknowledged.value;
    std::memcpy(frame.data(), &header, sizeof header);
    return frame;
  }

 private:
  codec_detail::output_archive archive_;
};

class decoder {
 public:
  /// Any bytes; never throws.
  [[nodiscard]] decode_result decode(std::span<const std::byte> frame) noexcept {
    decode_result result;
    try {
      result.fault = read(frame, result);
    } catch (const std::bad_alloc&) {
      result.fault = decode_fault::out_of_memory;
    } catch (...) {  // nothing else is thrown by reading; the promise holds all the same
      result.fault = decode_fault::truncated;
    }
    return result;
  }

 private:
  [[nodiscard]] decode_fault read(std::span<const std::byte> frame, decode_result& result) {
    codec_detail::frame_header header;
    if (frame.size() < codec_detail::stable_header_bytes) return decode_fault::frame_too_short;
    if (frame.size() > limits::frame_bytes) return decode_fault::frame_too_long;
    std::memcpy(&header, frame.data(), std::min(frame.size(), sizeof header));
    if (header.magic != codec_detail::magic) return decode_fault::wrong_magic;
    result.protocol = header.protocol;
    if (header.protocol != control_protocol) return decode_fault::other_protocol;
    if (frame.size() < sizeof header) return decode_fault::frame_too_short;
    if (header.type >= codec_detail::message_types) return decode_fault::unknown_type;
    if (header.reserved != 0) return decode_fault::reserved_bits;
    const std::span payload = frame.subspan(sizeof header);
    if (header.payload_bytes != payload.size()) return decode_fault::length_mismatch;
    result.message.sender = header.sender;
    result.message.sequence.value = header.sequence;
    result.message.acknowledged.value = header.acknowledged;
    archive_.begin(payload);
    std::uint8_t mark = 0;
    archive_(mark);
    if (archive_.fault() == decode_fault::none && mark != codec_detail::little_endian_mark)
      return decode_fault::byte_order;
    read_body(header.type, result.message.body, std::make_index_sequence<codec_detail::message_types>{});
    if (archive_.fault() != decode_fault::none) return archive_.fault();
    return archive_.left_bytes() == 0 ? decode_fault::none : decode_fault::trailing_bytes;
  }

  template <std::size_t... Index>
  void read_body(std::size_t type, messages::message& body, std::index_sequence<Index...>) {
    using reader = void (*)(codec_detail::input_archive&, messages::message&);
    static constexpr reader readers[] = {+[](codec_detail::input_archive& archive, messages::message& into) {
      archive(into.template emplace<Index>());
    }...};
    readers[type](archive_, body);
  }

  codec_detail::input_archive archive_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
