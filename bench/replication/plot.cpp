// Two planes in one SVG: completion against n, both logarithmic, and bars of the three workloads' stall.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "../svg.hpp"
#include "report.hpp"

namespace replication_bench {

namespace {

using namespace bench::svg;

constexpr double width = 1180;
constexpr double height = 500;
constexpr double top = 70;
constexpr double bottom = 420;

std::string title_at(double x, const std::string& text) {
  return label_at(x, 36, "start", text, "font-size=\"15\" font-weight=\"bold\"");
}

std::string completion(const report::table& table) {
  constexpr double left = 70;
  constexpr double right = 500;
  constexpr std::size_t contenders = 3;
  double most = 10;
  for (const auto& [name, values] : table.rows)
    for (std::size_t i = 0; i < contenders; ++i) most = std::max(most, values[i]);
  const double decades = std::ceil(std::log10(most));
  const auto count_of = [](const std::string& name) { return std::stod(name.substr(name.rfind(' ') + 1)); };
  const double x_most = std::max(1.0, std::log2(count_of(table.rows.back().first)));
  const auto x_of = [&](double n) { return left + 12 + std::log2(n) / x_most * (right - left - 24); };
  const auto y_of = [&](double ratio) { return bottom - std::log10(ratio) / decades * (bottom - top); };

  std::string out = title_at(left, "Last of n readers over one reader (50 GB, one source)");
  for (double exponent = 0; exponent <= decades; ++exponent) {
    const double value = std::pow(10, exponent);
    out += line(left, y_of(value), right, y_of(value),
                exponent == 0 ? "stroke=\"#222222\"" : "stroke=\"#e2e2e2\"");
    out += label_at(left - 8, y_of(value) + 4, "end", decimal(value));
  }
  for (std::size_t i = 0; i < contenders; ++i) {
    const std::string colour = colours[i];
    std::string points, marks;
    for (const auto& [name, values] : table.rows) {
      const double x = x_of(count_of(name));
      const double y = y_of(std::max(1.0, values[i]));
      points += decimal(x) + "," + decimal(y) + " ";
      marks += "<circle cx=\"" + decimal(x) + "\" cy=\"" + decimal(y) + "\" r=\"3.4\" fill=\"" + colour +
               "\"><title>" + escaped(table.columns[i] + ", " + name + ": " + decimal(values[i])) +
               "</title></circle>\n";
    }
    out += "<polyline fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"2\" points=\"" + points +
           "\"/>\n" + marks;
    const double y = top + 8 + 20 * static_cast<double>(i);
    out += line(left + 16, y, left + 40, y, ("stroke=\"" + colour + "\" stroke-width=\"2\"").c_str());
    out += label_at(left + 48, y + 4, "start", table.columns[i]);
  }
  for (const auto& [name, values] : table.rows)
    out += label_at(x_of(count_of(name)), bottom + 20, "middle", decimal(count_of(name)));
  out += label_at((left + right) / 2, bottom + 44, "middle", "readers n (both axes logarithmic)");
  return out;
}

struct bar {
  std::string name;
  double value;
};

/// One workload: bars from `left`, scaled to its own largest.
std::string bars(double left, double span, const std::string& title, const std::vector<bar>& all) {
  double most = 0;
  for (const auto& each : all) most = std::max(most, each.value);
  std::string out = label_at(left, top - 8, "start", title, "font-weight=\"bold\"");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double y = top + 6 + 24 * static_cast<double>(i);
    const double length = most > 0 ? all[i].value / most * span : 0;
    const char* colour = colours[i + 1 == all.size() ? 0 : 8];
    out += "<rect x=\"" + decimal(left) + "\" y=\"" + decimal(y) + "\" width=\"" +
           decimal(std::max(1.0, length)) + "\" height=\"9\" fill=\"" + colour + "\"/>\n";
    out += label_at(left, y + 20, "start", all[i].name + ": " + decimal(all[i].value), "font-size=\"10\"");
  }
  return out;
}

}  // namespace

std::string plot_svg(const report& found) {
  std::string out = begin(width, height, "replication, simulated");
  if (const auto* ratios = found.find("completion of the last of n readers over that of one reader"))
    out += completion(*ratios);
  constexpr double left = 570;
  constexpr double span = 560;
  out += title_at(left, "Stall of the three workloads, and time to weights");
  double shift = 0;
  const auto add = [&](const std::string& table_title, const std::string& title, std::size_t column) {
    const auto* table = found.find(table_title);
    if (table == nullptr) return;
    std::vector<bar> all;
    for (const auto& [name, values] : table->rows) all.push_back({name, values[column]});
    out +=
        "<g transform=\"translate(0 " + decimal(shift) + ")\">\n" + bars(left, span, title, all) + "</g>\n";
    shift += 34 + 24 * static_cast<double>(all.size());
  };
  add("standalone: stall in GPU-seconds, sigma 0.25", "standalone, 1,024 GPUs: stall, GPU-seconds", 0);
  add("elastic: time to weights in seconds", "elastic, half spot: newcomers' mean time to weights, s", 1);
  add("two datacenters: stall of the remote GPUs", "two datacenters: stall of the remote GPUs, GPU-seconds",
      0);
  return out + "</svg>\n";
}

}  // namespace replication_bench
