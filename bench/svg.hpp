#pragma once
/// \file svg.hpp
/// Pieces of the plots: SVG text without scripts, and without a font that has to be there.

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

namespace bench::svg {

/// Told apart also by people who do not see all colours.
inline constexpr std::array<const char*, 9> colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                                    "#56b4e9", "#7a5195", "#8c564b", "#444444"};
inline constexpr std::array<const char*, 4> dashes{"", "7 4", "2 3", "9 3 2 3"};

[[nodiscard]] inline std::string decimal(double value, const char* unit = "") {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string out = text.data();
  while (out.back() == '0') out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out + unit;
}

[[nodiscard]] inline std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

[[nodiscard]] inline std::string label_at(double x, double y, const char* anchor, const std::string& text,
                                          const char* more = "") {
  return "<text x=\"" + decimal(x) + "\" y=\"" + decimal(y) + "\" text-anchor=\"" + anchor + "\" " + more +
         ">" + escaped(text) + "</text>\n";
}

[[nodiscard]] inline std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return "<line x1=\"" + decimal(x1) + "\" y1=\"" + decimal(y1) + "\" x2=\"" + decimal(x2) + "\" y2=\"" +
         decimal(y2) + "\" " + style + "/>\n";
}

/// The opening, with a white ground.
[[nodiscard]] inline std::string begin(double width, double height, const std::string& title) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + decimal(width) + "\" height=\"" +
         decimal(height) + "\" viewBox=\"0 0 " + decimal(width) + " " + decimal(height) +
         "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222222\">\n<title>" +
         escaped(title) + "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
}

/// 1, 2 or 5 times a power of ten, so that about five of them make `range`.
[[nodiscard]] inline double tick_step(double range) {
  const double raw = range / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

}  // namespace bench::svg
