#pragma once
/// \file plain_text.hpp
/// Text that others have chosen, before it is stored or shown: names, reasons and details of peers may have
/// any bytes, and a terminal obeys some of them.
///
/// Control characters are those below 0x20, 0x7f, and U+0080 to U+009F (C1), which terminals take for
/// escape sequences too.
///
/// Thread safety: free functions without state.

#include <cstddef>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Length of the UTF-8 character at the front of `text`; zero: there is none.
[[nodiscard]] std::size_t character_bytes(std::string_view text) noexcept;

/// `character`: one character, as `character_bytes` measures it.
[[nodiscard]] bool is_control_character(std::string_view character) noexcept;

/// UTF-8 without control characters.
[[nodiscard]] bool is_plain_text(std::string_view text) noexcept;

/// The text with each byte of a control character, and each that is not UTF-8, as `\x1b`. Plain text stays as
/// it is, so the result can be shown, and cannot always be read back.
[[nodiscard]] std::string escaped_text(std::string_view text);

/// What an error says of a name that has more bytes than `limits::name_bytes`, with its begin.
[[nodiscard]] std::string why_too_long(std::string_view name);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/plain_text.ipp"
#endif
