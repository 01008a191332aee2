#pragma once
/// \file decode_fault.ipp
/// Definitions of service/decode_fault.hpp.

#include "tensorhub/service/decode_fault.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::string_view to_string(decode_fault fault) noexcept {
  switch (fault) {
    case decode_fault::none:
      return "none";
    case decode_fault::frame_too_short:
      return "the frame is shorter than its header";
    case decode_fault::frame_too_long:
      return "the frame is longer than the limit for control messages";
    case decode_fault::wrong_magic:
      return "the frame is not a TensorHub control message";
    case decode_fault::other_protocol:
      return "the frame has another control protocol number";
    case decode_fault::unknown_type:
      return "the message type is unknown";
    case decode_fault::reserved_bits:
      return "reserved bits of the header are set";
    case decode_fault::length_mismatch:
      return "the frame's length is not what its header says";
    case decode_fault::byte_order:
      return "the message is not in little-endian byte order";
    case decode_fault::truncated:
      return "the message ends inside a field";
    case decode_fault::trailing_bytes:
      return "bytes follow the end of the message";
    case decode_fault::bad_flag:
      return "a flag is neither 0 nor 1";
    case decode_fault::bad_enumerator:
      return "an enumeration has an unknown value";
    case decode_fault::text_too_long:
      return "a name, sentence or address is longer than its limit";
    case decode_fault::list_too_long:
      return "a list is longer than its limit";
    case decode_fault::unordered:
      return "the numbers of open requests do not ascend";
    case decode_fault::key_too_long:
      return "a remote key is longer than its limit";
    case decode_fault::out_of_memory:
      return "there was no memory for the message";
  }
  return "unknown";
}

}  // namespace tensorhub::inline TENSORHUB_MODE
