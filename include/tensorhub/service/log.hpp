#pragma once
/// \file log.hpp
/// Log lines as values: cores collect them, shells print them.
///
/// A line has a sentence for people and, besides, what it is about for programs. `to_text` gives
///
///     worker policy/rollout-1/0/1 (0f..) was silent for too long model=policy replica=rollout-1 shard=0 ...
///
/// and `to_json` one JSON object without a line break, its texts escaped, whatever bytes a worker has put
/// into its names. Both leave out what a line does not say.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

enum class log_level : std::uint8_t { error = 0, warning = 1, info = 2, debug = 3 };

[[nodiscard]] std::string_view to_string(log_level level) noexcept;

/// What a line is about. Empty and zero: it does not say, or it does not apply.
struct log_fields {
  std::string model{};
  std::string replica{};
  std::optional<std::uint32_t> shard{};
  incarnation worker{};  ///< whose replica and shard these are
  incarnation peer{};    ///< the other side: a source, a reader
  version_number version{};
  operation_counter operation{};
  lease_id lease{};
  std::optional<std::uint64_t> chunk{};
  errc code = errc::ok;  ///< why, if something went wrong
};

struct log_line {
  log_level level = log_level::info;
  std::string text{};
  log_fields about{};
};

/// An error as a line: its sentence, and what its context says.
[[nodiscard]] log_line line_of(log_level level, const error& what, incarnation worker = {});

/// The sentence, then `key=value` for what it is about. One line, if the sentence is one.
[[nodiscard]] std::string to_text(const log_line& line);

/// One JSON object: `level`, `text`, and the fields. `time`: put first, if it is not empty.
[[nodiscard]] std::string to_json(const log_line& line, std::string_view time = {});

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/log.ipp"
#endif
