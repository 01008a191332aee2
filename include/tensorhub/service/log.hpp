#pragma once
/// \file log.hpp
/// Log lines as values: cores collect them, shells print them.
///
/// A line has a sentence for people, and fields for programs. `to_text` gives
///
///     worker policy/rollout-1/0/1 (0f..) was silent for too long model=policy replica=rollout-1 shard=0 ...
///
/// and `to_json` gives one JSON object without a line break. Both escape control characters, whatever bytes a
/// worker's names and reasons contain: nobody can forge a line, or speak to the terminal that shows it. Both
/// omit empty fields.

#include <chrono>
#include <cstdint>
#include <functional>
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

/// The fields of a line. Empty or zero: unknown, or not applicable.
struct log_fields {
  std::string model{};
  std::string replica{};
  std::optional<std::uint32_t> shard{};
  incarnation worker{};  ///< the worker of this replica and shard
  incarnation peer{};    ///< the other side: a source, a reader
  version_number version{};
  operation_counter operation{};
  lease_id lease{};
  std::optional<std::uint64_t> chunk{};
  errc code = errc::ok;  ///< the reason, if an operation failed
};

struct log_line {
  log_level level = log_level::info;
  std::string text{};
  log_fields about{};
  std::chrono::system_clock::time_point time{};  ///< when it was said; zero: unknown
};

/// An error as a line: its sentence, and the fields of its context.
[[nodiscard]] log_line line_of(log_level level, const error& what, incarnation worker = {});

/// The sentence, followed by the fields as `key=value`: one line of plain text (types/plain_text.hpp).
[[nodiscard]] std::string to_text(const log_line& line);

/// One JSON object: `time`, `level`, `text`, and the fields.
[[nodiscard]] std::string to_json(const log_line& line);

/// The line's time in UTC, as in RFC 3339: "2026-01-02T03:04:05.678Z".
[[nodiscard]] std::string time_text(const log_line& line);

/// Calls `log` with lines that have their time, and swallows what it throws: nothing that a log does ends a
/// thread or fails an operation.
[[nodiscard]] std::function<void(const log_line&)> never_throwing(std::function<void(const log_line&)> log);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/log.ipp"
#endif
