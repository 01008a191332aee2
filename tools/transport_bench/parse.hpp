#pragma once
/// \file parse.hpp
/// Numbers, sizes and lists as people write them on a command line.
///
/// Sizes are bytes with a binary unit: `4096`, `4K`, `4KiB`, `64M`, `1G`. Lists are separated by commas; an
/// element `a..b` is a range that doubles from a to b, `a..b*f` one that grows by the factor f. Everything is
/// bounded; what does not parse throws `usage_error` with a sentence that names the word.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace transport_bench {

/// The command line is wrong: exit status 2.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t max_list_length = 256;

[[nodiscard]] inline std::uint64_t parse_number(std::string_view text, std::uint64_t least,
                                                std::uint64_t most, std::string_view what) {
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    throw usage_error(std::string{what} + ": '" + std::string{text} + "' is no whole number from " +
                      std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

/// The shortest exact form: 65536 is "64K", 1000 is "1000".
[[nodiscard]] inline std::string size_text(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (unit < 4 && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  std::string text = std::to_string(bytes);
  if (unit > 0) text += "KMGT"[unit - 1];
  return text;
}

/// "4K" and the like. `most` is inclusive.
[[nodiscard]] inline std::uint64_t parse_size(std::string_view text, std::uint64_t least, std::uint64_t most,
                                              std::string_view what) {
  std::uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, failure] = std::from_chars(text.data(), last, value);
  const std::string_view unit{end, static_cast<std::size_t>(last - end)};
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  for (int i = 0; i < 4; ++i) {
    const char letter = "KMGT"[i];
    if (!unit.empty() && (unit[0] == letter || unit[0] == letter + ('a' - 'A')) &&
        (unit.size() == 1 || unit.substr(1) == "iB"))
      shift = 10 * (i + 1);
  }
  if (failure != std::errc{} || shift < 0)
    throw usage_error(std::string{what} + ": '" + std::string{text} +
                      "' is no number or size; K, M, G and T are powers of 1024, as in 64K");
  if (value > UINT64_MAX >> shift || value << shift < least || value << shift > most)
    throw usage_error(std::string{what} + ": " + std::string{text} + " is not between " + size_text(least) +
                      " and " + size_text(most));
  return value << shift;
}

/// Seconds, with a fraction, or with the unit s or ms: "0.5", "2s", "200ms".
[[nodiscard]] inline double parse_seconds(std::string_view text, double least, double most,
                                          std::string_view what) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, failure] = std::from_chars(text.data(), last, value);
  const std::string_view unit{end, static_cast<std::size_t>(last - end)};
  if (unit == "ms") value *= 1e-3;
  if (failure != std::errc{} || !(unit.empty() || unit == "s" || unit == "ms") ||
      !(value >= least && value <= most)) {
    std::string sentence{what};
    sentence += ": '" + std::string{text} + "' is no time from " + std::to_string(least) + " to " +
                std::to_string(most) + " seconds (write 2, 0.5s or 200ms)";
    throw usage_error(sentence);
  }
  return value;
}

[[nodiscard]] inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (;;) {
    const auto at = text.find(separator);
    out.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

/// A list of sizes or, without units, of numbers. Sorted, each value once.
[[nodiscard]] inline std::vector<std::uint64_t> parse_list(std::string_view text, std::uint64_t least,
                                                           std::uint64_t most, std::string_view what) {
  std::vector<std::uint64_t> out;
  for (const std::string& word : split(text, ',')) {
    const std::string_view element = word;
    const auto dots = element.find("..");
    if (dots == std::string_view::npos) {
      out.push_back(parse_size(element, least, most, what));
      continue;
    }
    std::string_view upper = element.substr(dots + 2);
    std::uint64_t factor = 2;
    if (const auto star = upper.find('*'); star != std::string_view::npos) {
      factor = parse_number(upper.substr(star + 1), 2, 1024, what);
      upper = upper.substr(0, star);
    }
    const std::uint64_t first =
        parse_size(element.substr(0, dots), std::max<std::uint64_t>(least, 1), most, what);
    const std::uint64_t last = parse_size(upper, least, most, what);
    if (first > last)
      throw usage_error(std::string{what} + ": the range " + word +
                        " goes down; write the smaller end first");
    for (std::uint64_t value = first; value <= last; value *= factor) {
      out.push_back(value);
      if (value > last / factor) break;
    }
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (out.size() > max_list_length)
    throw usage_error(std::string{what} + ": " + std::to_string(out.size()) + " values are more than " +
                      std::to_string(max_list_length));
  return out;
}

/// Where a side listens or connects: "host:port", "[v6]:port", ":port", "port" or "".
struct host_and_port {
  std::string host{};
  std::uint16_t port = 0;
};
[[nodiscard]] inline host_and_port parse_host_and_port(std::string_view text, std::uint16_t default_port) {
  host_and_port out{"", default_port};
  std::string_view host;
  std::string_view port;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos || (close + 1 < text.size() && text[close + 1] != ':'))
      throw usage_error("'" + std::string{text} + "' is no address; write [::1]:5580");
    host = text.substr(1, close - 1);
    port = close + 2 <= text.size() ? text.substr(close + 2) : std::string_view{};
    if (close + 2 == text.size()) throw usage_error("'" + std::string{text} + "' lacks the port");
  } else {
    const auto colon = text.rfind(':');
    host = text.substr(0, colon);
    if (colon != std::string_view::npos) {
      port = text.substr(colon + 1);
      if (port.empty()) throw usage_error("'" + std::string{text} + "' lacks the port");
    }
    if (host.find(':') != std::string_view::npos)
      throw usage_error("'" + std::string{text} + "': write IPv6 addresses in brackets, as in [::1]:5580");
    const bool digits_only =
        !host.empty() && std::ranges::all_of(host, [](char c) { return c >= '0' && c <= '9'; });
    if (colon == std::string_view::npos && digits_only) {  // a port alone
      port = host;
      host = {};
    }
  }
  if (host.size() > 255) throw usage_error("the host name of an address has more than 255 letters");
  out.host = host;
  if (!port.empty()) out.port = static_cast<std::uint16_t>(parse_number(port, 0, 65535, "port"));
  return out;
}

}  // namespace transport_bench
