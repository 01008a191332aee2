#pragma once
/// \file log.ipp
/// Definitions of service/log.hpp.

#include "tensorhub/service/log.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tensorhub/types/plain_text.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::string_view to_string(log_level level) noexcept {
  switch (level) {
    case log_level::error:
      return "error";
    case log_level::warning:
      return "warning";
    case log_level::info:
      return "info";
    case log_level::debug:
      return "debug";
  }
  return "unknown";
}

TENSORHUB_DECL log_line line_of(log_level level, const error& what, incarnation worker) {
  log_line out{level, what.sentence(), {}};
  out.about.model = what.context().model;
  out.about.replica = what.context().replica;
  out.about.shard = what.context().shard;
  out.about.worker = worker;
  out.about.version = version_number{what.context().version.value_or(0)};
  out.about.chunk = what.context().chunk;
  out.about.code = what.code();
  if (!what.context().peer.empty()) out.text += " (peer: " + what.context().peer + ")";
  return out;
}

namespace log_detail {

/// Calls `put(key, text)` or `put(key, number)` for each field that is not empty.
template <typename Put>
void for_each_field(const log_fields& about, Put&& put) {
  if (!about.model.empty()) put("model", std::string_view{about.model});
  if (!about.replica.empty()) put("replica", std::string_view{about.replica});
  if (about.shard) put("shard", std::uint64_t{*about.shard});
  if (about.worker) put("worker", std::string_view{to_hex(about.worker)});
  if (about.peer) put("peer", std::string_view{to_hex(about.peer)});
  if (about.version) put("version", about.version.value);
  if (about.operation) put("operation", about.operation.value);
  if (about.lease) put("lease", about.lease.value);
  if (about.chunk) put("chunk", *about.chunk);
  if (about.code != errc::ok) put("code", to_string(about.code));
}

/// The text in quotation marks, with JSON's escapes; bytes that are not UTF-8 become U+FFFD.
inline void append_quoted(std::string& out, std::string_view text) {
  static constexpr char digits[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const char first = text.front();
    if (bytes == 0) {
      out += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      out += '\\';
      out += first;
    } else if (first == '\n') {
      out += "\\n";
    } else if (first == '\t') {
      out += "\\t";
    } else if (is_control_character(text.substr(0, bytes))) {
      const auto value =
          static_cast<unsigned char>(text[bytes - 1]);  // of C1 too: the last byte is its number
      out += "\\u00";
      out += digits[value >> 4];
      out += digits[value & 15u];
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  out += '"';
}

/// The text, in quotation marks only if it needs them.
inline void append_value(std::string& out, std::string_view text) {
  bool plain = !text.empty();
  for (const char c : text) plain = plain && c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  if (plain)
    out += text;
  else
    append_quoted(out, text);
}

}  // namespace log_detail

TENSORHUB_DECL std::string to_text(const log_line& line) {
  std::string out = escaped_text(line.text);
  log_detail::for_each_field(line.about, [&out](std::string_view key, auto value) {
    out.append(" ").append(key).append("=");
    if constexpr (std::is_same_v<decltype(value), std::uint64_t>)
      out += std::to_string(value);
    else
      log_detail::append_value(out, value);
  });
  return out;
}

TENSORHUB_DECL std::string to_json(const log_line& line) {
  std::string out = "{";
  const auto key = [&out](std::string_view name) {
    if (out.size() > 1) out += ',';
    log_detail::append_quoted(out, name);
    out += ':';
  };
  if (line.time.time_since_epoch().count() != 0) {
    key("time");
    log_detail::append_quoted(out, time_text(line));
  }
  key("level");
  log_detail::append_quoted(out, to_string(line.level));
  key("text");
  log_detail::append_quoted(out, line.text);
  log_detail::for_each_field(line.about, [&](std::string_view name, auto value) {
    key(name);
    if constexpr (std::is_same_v<decltype(value), std::uint64_t>)
      out += std::to_string(value);
    else
      log_detail::append_quoted(out, value);
  });
  return out + "}";
}

TENSORHUB_DECL std::string time_text(const log_line& line) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(line.time);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(line.time - whole).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(whole);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[40];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03dZ", static_cast<int>(ms));
  return text;
}

namespace log_detail {

/// The line with the present time, if it has none.
inline log_line timed(log_line line) {
  if (line.time.time_since_epoch().count() == 0) line.time = std::chrono::system_clock::now();
  return line;
}

}  // namespace log_detail

TENSORHUB_DECL std::function<void(const log_line&)> never_throwing(std::function<void(const log_line&)> log) {
  if (!log) return log;
  return [log = std::move(log)](const log_line& line) {
    try {
      log(log_detail::timed(line));
    } catch (...) {  // there is nowhere to tell of it
    }
  };
}

}  // namespace tensorhub::inline TENSORHUB_MODE
