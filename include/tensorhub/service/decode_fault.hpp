#pragma once
/// \file decode_fault.hpp
/// The possible faults in the bytes of a control message (codec.hpp).
///
/// Thread safety: values, no shared state.

#include <cstdint>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The reason why a frame was not accepted.
enum class decode_fault : std::uint8_t {
  none,
  frame_too_short,
  frame_too_long,
  wrong_magic,     ///< not TensorHub at all
  other_protocol,  ///< TensorHub, but another control protocol number
  unknown_type,
  reserved_bits,
  length_mismatch,  ///< the header states a length other than the actual one
  byte_order,
  truncated,  ///< the message ends inside a field
  trailing_bytes,
  bad_flag,
  bad_enumerator,
  text_too_long,
  list_too_long,
  unordered,  ///< a list that must ascend does not
  key_too_long,
  out_of_memory,
};

[[nodiscard]] std::string_view to_string(decode_fault fault) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/decode_fault.ipp"
#endif
