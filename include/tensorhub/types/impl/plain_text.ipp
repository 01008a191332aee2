#pragma once
/// \file plain_text.ipp
/// Definitions of types/plain_text.hpp.

#include "tensorhub/types/plain_text.hpp"

#include <cstddef>
#include <string>
#include <string_view>

#include "tensorhub/config.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::size_t character_bytes(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(0);
  const std::size_t bytes = first < 0x80   ? 1
                            : first < 0xc2 ? 0
                            : first < 0xe0 ? 2
                            : first < 0xf0 ? 3
                            : first < 0xf5 ? 4
                                           : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return 0;
  }
  if (bytes < 3) return bytes;
  const unsigned second = byte(1);  // neither too long for its value, nor a surrogate, nor beyond the end
  const bool bad = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                   (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return bad ? 0 : bytes;
}

TENSORHUB_DECL bool is_control_character(std::string_view character) noexcept {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(character[at]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  return character.size() == 2 && byte(0) == 0xc2 && byte(1) < 0xa0;
}

TENSORHUB_DECL bool is_plain_text(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0 || is_control_character(text.substr(0, bytes))) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

TENSORHUB_DECL std::string escaped_text(std::string_view text) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string_view taken = text.substr(0, bytes == 0 ? 1 : bytes);
    text.remove_prefix(taken.size());
    if (bytes != 0 && !is_control_character(taken)) {
      out += taken;
      continue;
    }
    for (const char each : taken) {
      out += "\\x";
      out += digits[static_cast<unsigned char>(each) >> 4];
      out += digits[static_cast<unsigned char>(each) & 15u];
    }
  }
  return out;
}

TENSORHUB_DECL std::string why_too_long(std::string_view name) {
  return "a name has more than " + std::to_string(limits::name_bytes) +
         " bytes: " + escaped_text(name.substr(0, 64));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
