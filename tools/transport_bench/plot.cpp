// Bandwidth against size as one SVG: logarithmic x, one line per transport and combination, no script, no
// font that has to be there.

#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "../svg.hpp"
#include "results.hpp"

namespace transport_bench {

namespace {

constexpr double width = 960;
constexpr double top = 64;
constexpr double left = 76;
constexpr double right = 600 + left;  // of the plane; the legend is beside it
constexpr double bottom = 420;

using namespace bench::svg;

struct curve {
  std::string name;
  std::size_t colour = 0;
  std::size_t dash = 0;
  std::map<std::uint64_t, double> gigabytes_per_second;  // by size
};

/// Only what differs between the curves is in their names. Several transports have a colour each and their
/// combinations a dash each; the combinations of a single transport have colours.
std::vector<curve> curves_of(const results& found) {
  std::set<std::string> labels;
  std::set<std::uint64_t> streams, threads, depths;
  for (const auto& row : found.rows) {
    labels.insert(row.label);
    streams.insert(row.streams);
    threads.insert(row.threads);
    depths.insert(row.depth);
  }
  std::vector<curve> out;
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t>, std::size_t> index;
  std::map<std::string, std::size_t> label_index;
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>, std::size_t> combination_index;
  for (const auto& row : found.rows) {
    const auto [at, is_new] = index.try_emplace({row.label, row.streams, row.threads, row.depth}, out.size());
    if (is_new) {
      std::string name = row.label;
      const auto add = [&](const char* word, std::uint64_t value, std::size_t values) {
        if (values > 1) name += std::string{", "} + word + " " + std::to_string(value);
      };
      add("streams", row.streams, streams.size());
      add("threads", row.threads, threads.size());
      add("depth", row.depth, depths.size());
      const auto [label_at, new_label] = label_index.try_emplace(row.label, label_index.size());
      const auto [combination_at, new_combination] =
          combination_index.try_emplace({row.streams, row.threads, row.depth}, combination_index.size());
      const std::size_t several = labels.size() > 1 ? label_at->second : combination_at->second;
      out.push_back({name,
                     several % colours.size(),
                     labels.size() > 1 ? combination_at->second : combination_at->second / colours.size(),
                     {}});
    }
    out[at->second].gigabytes_per_second[row.size] = median(row.bytes_per_second) * 1e-9;
  }
  return out;
}

}  // namespace

std::string plot_svg(const results& found) {
  const std::vector<curve> curves = curves_of(found);
  std::set<std::uint64_t> sizes;
  double most = 0;
  for (const auto& each : curves) {
    for (const auto& [size, rate] : each.gigabytes_per_second) {
      sizes.insert(size);
      most = std::max(most, rate);
    }
  }
  if (sizes.empty()) sizes.insert(1);
  const double step = tick_step(most > 0 ? most * 1.05 : 1);
  const double y_most = step * std::ceil((most > 0 ? most * 1.05 : 1) / step);
  const double x_first = std::log2(static_cast<double>(*sizes.begin()));
  const double x_last = std::log2(static_cast<double>(*sizes.rbegin()));
  const auto x_of = [&](std::uint64_t size) {
    if (x_last - x_first < 1e-9) return (left + right) / 2;
    return left + 14 +
           (std::log2(static_cast<double>(size)) - x_first) / (x_last - x_first) * (right - left - 28);
  };
  const auto y_of = [&](double rate) { return bottom - rate / y_most * (bottom - top); };

  const double height = std::max(bottom + 84, top + 22 * static_cast<double>(curves.size()) + 60);
  std::string out = begin(width, height, "transport_bench: bandwidth against size");
  out += label_at(left, 30, "start", "One-sided reads: bandwidth against size",
                  "font-size=\"17\" font-weight=\"bold\"");
  std::string below;
  for (const auto& [name, value] : found.reader)
    if (name == "cpu" || name == "cores" || name == "kernel" || name == "network")
      below += (below.empty() ? "" : " | ") + (name == "cores" ? value + " cores" : value);
  out += label_at(left, 49, "start", below, "font-size=\"11\" fill=\"#666666\"");

  for (double rate = 0; rate <= y_most * 1.0001; rate += step) {
    out += line(left, y_of(rate), right, y_of(rate), rate == 0 ? "stroke=\"#222222\"" : "stroke=\"#e2e2e2\"");
    out += label_at(left - 9, y_of(rate) + 4, "end", decimal(rate));
  }
  double free_from = 0;  // labels that would overlap the one before are left out; their ticks are not
  for (const std::uint64_t size : sizes) {
    const double x = x_of(size);
    out += line(x, top, x, bottom, "stroke=\"#f0f0f0\"");
    out += line(x, bottom, x, bottom + 5, "stroke=\"#222222\"");
    if (x < free_from) continue;
    const std::string text = size_text(size);
    out += label_at(x, bottom + 20, "middle", text);
    free_from = x + 7.5 * static_cast<double>(text.size()) + 8;
  }
  out += line(left, top, left, bottom, "stroke=\"#222222\"");
  out += label_at((left + right) / 2, bottom + 44, "middle", "bytes per read (logarithmic)");
  out += "<text transform=\"translate(22 " + decimal((top + bottom) / 2) +
         ") rotate(-90)\" text-anchor=\"middle\">GB/s (median of the rounds)</text>\n";
  std::string stamp = "transport_bench";
  for (const auto& [name, value] : found.program)
    if (name == "version" || name == "git") stamp += " " + value;
  out += label_at(left, bottom + 70, "start", stamp + ", " + found.date, "font-size=\"10\" fill=\"#888888\"");

  for (std::size_t i = 0; i < curves.size(); ++i) {
    const std::string colour = colours[curves[i].colour];
    const std::string dash = dashes[curves[i].dash % dashes.size()];
    const std::string stroke = "stroke=\"" + colour + "\" stroke-width=\"2\"" +
                               (dash.empty() ? "" : " stroke-dasharray=\"" + dash + "\"");
    std::string points;
    std::string marks;
    for (const auto& [size, rate] : curves[i].gigabytes_per_second) {
      points += (points.empty() ? "" : " ") + decimal(x_of(size)) + "," + decimal(y_of(rate));
      marks += "<circle cx=\"" + decimal(x_of(size)) + "\" cy=\"" + decimal(y_of(rate)) +
               "\" r=\"3.4\" fill=\"" + colour + "\"><title>" + escaped(curves[i].name) + ", " +
               size_text(size) + ": " + decimal(rate, " GB/s") + "</title></circle>\n";
    }
    out += "<polyline fill=\"none\" stroke-linejoin=\"round\" " + stroke + " points=\"" + points + "\"/>\n" +
           marks;
    const double y = top + 10 + 22 * static_cast<double>(i);
    out += line(right + 22, y, right + 50, y, stroke.c_str());
    out += "<circle cx=\"" + decimal(right + 36) + "\" cy=\"" + decimal(y) + "\" r=\"3.4\" fill=\"" + colour +
           "\"/>\n";
    out += label_at(right + 58, y + 4, "start", curves[i].name);
  }
  return out + "</svg>\n";
}

}  // namespace transport_bench
