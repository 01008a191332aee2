#pragma once
/// \file version.hpp
/// The version of the library and of the two protocols it speaks.
///
/// `control_protocol` changes when the bytes of a control message change, or what they mean. Server and
/// workers must have the same number; a mismatch is refused with an explanation. Each transport has a data
/// protocol number of its own.

#include <cstdint>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

#define TENSORHUB_VERSION_MAJOR 0
#define TENSORHUB_VERSION_MINOR 1
#define TENSORHUB_VERSION_PATCH 0

namespace tensorhub::inline TENSORHUB_MODE {

inline constexpr std::string_view version_string = "0.1.0";

/// The number in the frame header of every control message (service/codec.hpp).
inline constexpr std::uint16_t control_protocol = 10;

}  // namespace tensorhub::inline TENSORHUB_MODE
