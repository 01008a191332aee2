#pragma once
/// \file codec.ipp
/// Definitions of service/codec.hpp.

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <type_traits>
#include <utility>
#include <variant>

#include "tensorhub/config.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/impl/codec_archive.ipp"
#include "tensorhub/service/impl/codec_fields.ipp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace codec_detail {

/// First byte of a payload: cereal's mark for little-endian.
inline constexpr std::uint8_t little_endian_mark = 1;

inline constexpr std::size_t message_types = messages::message::size;
inline constexpr std::uint16_t goodbye_type = 25;
static_assert(std::is_same_v<messages::message::alternative<goodbye_type>, messages::goodbye_push>,
              "goodbye_push must keep its number in every protocol");

/// Moves the fields of the message with the number `Type`; a reader first creates an empty message.
template <std::size_t Type>
void move_message(field_archive& archive, messages::message& body) {
  using type = messages::message::alternative<Type>;
  if (archive.reads()) body.emplace<type>();
  move_field(archive, *get_if<type>(&body));
}
template <std::size_t... Type>
void move_body(field_archive& archive, messages::message& body, std::size_t type,
               std::index_sequence<Type...>) {
  static constexpr void (*by_type[])(field_archive&, messages::message&) = {move_message<Type>...};
  by_type[type](archive, body);
}
/// What follows the message: `envelope::open`.
[[nodiscard]] inline decode_fault read_open(frame_reader& reader, std::vector<request_sequence>& open) {
  if (reader.left_bytes() % 8 != 0) return decode_fault::trailing_bytes;
  if (reader.left_bytes() / 8 > limits::worker_requests_in_flight) return decode_fault::list_too_long;
  open.resize(reader.left_bytes() / 8);
  for (request_sequence& each : open) reader(each.value);
  const bool ascends = std::adjacent_find(open.begin(), open.end(), std::greater_equal{}) == open.end();
  return ascends ? decode_fault::none : decode_fault::unordered;
}
/// The payload of a message whose number is `type`, less than `message_types`.
inline void move_payload(field_archive& archive, messages::message& body, std::size_t type) {
  move_body(archive, body, type, std::make_index_sequence<message_types>{});
}

}  // namespace codec_detail

TENSORHUB_DECL std::span<const std::byte> encoder::encode(const messages::envelope& envelope) {
  using namespace codec_detail;
  frame_writer writer{buffer_, header_bytes};
  std::uint8_t mark = little_endian_mark;
  writer(mark);
  // A writer changes no field; the cast is needed because the field lists take mutable references for the
  // reader.
  move_payload(writer, const_cast<messages::message&>(envelope.body), envelope.body.index());
  for (request_sequence each : envelope.open) writer(each.value);
  const std::span<std::byte> frame = writer.frame();
  frame_header header;
  header.type = static_cast<std::uint16_t>(envelope.body.index());
  header.payload_bytes = static_cast<std::uint32_t>(frame.size() - header_bytes);
  header.sender = envelope.sender;
  header.sequence = envelope.sequence.value;
  header.acknowledged = envelope.acknowledged.value;
  header.recipient = envelope.recipient;
  std::memcpy(frame.data(), &header, sizeof header);
  return frame;
}

TENSORHUB_DECL decode_result decoder::decode(std::span<const std::byte> frame) noexcept {
  decode_result result;
  try {
    result.fault = read(frame, result);
  } catch (const std::bad_alloc&) {
    result.fault = decode_fault::out_of_memory;
  } catch (...) {  // reading throws nothing else; this keeps the promise in any case
    result.fault = decode_fault::truncated;
  }
  return result;
}

TENSORHUB_DECL decode_fault decoder::read(std::span<const std::byte> frame, decode_result& result) {
  using namespace codec_detail;
  frame_header header;
  if (frame.size() < stable_header_bytes) return decode_fault::frame_too_short;
  if (frame.size() > limits::frame_bytes) return decode_fault::frame_too_long;
  std::memcpy(&header, frame.data(), frame.size() < sizeof header ? frame.size() : sizeof header);
  if (header.magic != magic) return decode_fault::wrong_magic;
  result.protocol = header.protocol;
  if (header.protocol != control_protocol) return decode_fault::other_protocol;
  if (frame.size() < sizeof header) return decode_fault::frame_too_short;
  if (header.type >= message_types) return decode_fault::unknown_type;
  if (header.reserved != 0) return decode_fault::reserved_bits;
  const std::span payload = frame.subspan(sizeof header);
  if (header.payload_bytes != payload.size()) return decode_fault::length_mismatch;
  result.message.sender = header.sender;
  result.message.sequence.value = header.sequence;
  result.message.acknowledged.value = header.acknowledged;
  result.message.recipient = header.recipient;
  frame_reader reader{payload};
  std::uint8_t mark = 0;
  reader(mark);
  if (reader.good() && mark != little_endian_mark) return decode_fault::byte_order;
  move_payload(reader, result.message.body, header.type);
  if (!reader.good()) return reader.fault();
  return read_open(reader, result.message.open);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
