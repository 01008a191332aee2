#pragma once
/// \file digest.ipp
/// The text form of a digest: definitions of types/digest.hpp.

#include "tensorhub/types/digest.hpp"

#include <string>

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::string to_hex(digest128 digest) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (unsigned i = 0; i < 16; ++i) {
    text[15 - i] = digits[(digest.high >> (4 * i)) & 15u];
    text[31 - i] = digits[(digest.low >> (4 * i)) & 15u];
  }
  return text;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
