// Tables and JSON.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>
#include <tuple>

#include "messages.hpp"
#include "results.hpp"

namespace transport_bench {

namespace {

constexpr double giga = 1e-9;  // of bytes per second
constexpr double micro = 1e6;  // of seconds
constexpr double milli = 1e3;

std::string plural(std::uint64_t count, const std::string& word) {
  return std::to_string(count) + " " + word + (count == 1 ? "" : "s");
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", seconds);
  return std::string{text.data()} + " s";
}

/// Columns of text, the first `left` aligned to the left, each as wide as it must be.
class text_table {
 public:
  text_table(std::vector<std::string> head, std::size_t left) : left_{left} {
    rows_.push_back(std::move(head));
  }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const {
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_)
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string space(widths[i] - row[i].size(), ' ');
        line += (i == 0 ? "" : "  ") + (i < left_ ? row[i] + space : space + row[i]);
      }
      std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::size_t left_;
};

std::string number(double value, const char* pattern) {
  if (!std::isfinite(value)) return "-";
  std::array<char, 64> text{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(text.data(), text.size(), pattern, value);
#pragma GCC diagnostic pop
  return text.data();
}

void print_facts(const char* title, const facts& values) {
  std::string line;
  for (const auto& [name, value] : values) line += (line.empty() ? "" : "; ") + name + " " + value;
  std::printf("%s: %s\n", title, line.c_str());
}

void section(const char* title) {
  std::printf("\n== %s\n", title);
}

/// What tells rows apart besides transport and size.
std::string combination(std::uint64_t streams, std::uint64_t threads, std::uint64_t depth) {
  return plural(streams, "stream") + ", " + plural(threads, "thread") + ", depth " + std::to_string(depth);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out{path, std::ios::binary};
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

void print_bandwidth(const results& found) {
  section("bandwidth (GB = 1e9 bytes; cpu: seconds per GB of each process)");
  text_table table{{"transport", "streams", "threads", "depth", "size", "reads", "GB/s avg", "median", "peak",
                    "reads/s", "reader cpu", "source cpu"},
                   1};
  for (const auto& row : found.rows) {
    table.add({row.label, std::to_string(row.streams), std::to_string(row.threads), std::to_string(row.depth),
               size_text(row.size), std::to_string(row.reads), number(row.average() * giga, "%.3f"),
               number(median(row.bytes_per_second) * giga, "%.3f"), number(row.peak() * giga, "%.3f"),
               number(row.reads_per_second(), "%.0f"), number(row.reader_cpu_per_gigabyte(), "%.3f"),
               number(row.source_cpu_per_gigabyte(), "%.3f")});
  }
  table.print();
}

void print_latency(const results& found) {
  if (std::ranges::none_of(found.rows, [](const auto& row) { return row.depth == 1; })) return;
  section("latency of one read at a time, post to completion (microseconds)");
  text_table table{{"transport", "streams", "threads", "size", "reads", "min", "typical", "average", "stdev",
                    "p50", "p99", "p99.9", "max"},
                   1};
  for (const auto& row : found.rows) {
    if (row.depth != 1) continue;
    const auto& l = row.latency;
    std::vector<std::string> cells{row.label, std::to_string(row.streams), std::to_string(row.threads),
                                   size_text(row.size), std::to_string(l.count)};
    for (const double value : {l.least, l.p50, l.average, l.deviation, l.p50, l.p99, l.p999, l.most})
      cells.push_back(number(value * micro, "%.2f"));
    table.add(cells);
  }
  table.print();
}

void print_setup(const settings& how, const results& found) {
  section("before the first byte");
  text_table table{{"what", "", "first", "later (median)"}, 2};
  const double gigabytes = static_cast<double>(how.regions) * static_cast<double>(how.region_bytes) * giga;
  const auto touch = [&](const char* who, const touch_cost& cost) {
    table.add({std::string{"touch, "} + who, "ms per GB",
               number(cost.first_seconds * milli / gigabytes, "%.1f"),
               number(cost.second_seconds * milli / gigabytes, "%.1f")});
  };
  touch("source", found.source_touch);
  touch("reader", found.reader_touch);
  for (const auto& row : found.setup) {
    const std::string who = row.label + ", " + plural(row.streams, "stream");
    table.add(
        {who + ": transport object, source", "ms", number(row.source_create_seconds * milli, "%.3f"), "-"});
    table.add({who + ": registration, source", "ms per GB",
               number(row.source_register_seconds * milli / gigabytes, "%.3f"), "-"});
    table.add({who + ": registration, reader", "ms per GB",
               number(row.reader_register_seconds * milli / gigabytes, "%.3f"), "-"});
    table.add({who + ": connection", "ms", number(row.first_connect_seconds * milli, "%.3f"),
               row.later_connects.empty() ? "-" : number(median(row.later_connects) * milli, "%.3f")});
    table.add({who + ": first read of " + size_text(how.sizes.front()), "us",
               number(row.first_read_seconds * micro, "%.1f"), "-"});
  }
  table.print();
}

void print_fits(const results& found) {
  if (found.fits.empty()) return;
  section("cost model t = a*n + bytes/B, least squares over the sizes (n1/2: the size that gets half of B)");
  text_table table{
      {"transport", "streams", "threads", "depth", "sizes", "a us", "B GB/s", "n1/2", "residual"}, 1};
  for (const auto& row : found.fits) {
    const double half = row.fit.half_bandwidth_bytes() / 1024;
    table.add({row.label, std::to_string(row.streams), std::to_string(row.threads), std::to_string(row.depth),
               std::to_string(row.sizes), number(row.fit.seconds_per_read * micro, "%.2f"),
               number(row.fit.bytes_per_second * giga, "%.3f"),
               number(half, "%.1f") + (std::isfinite(half) ? " KiB" : ""),
               number(row.fit.relative_residual * 100, "%.1f") + " %"});
  }
  table.print();
}

/// Rows of the same combination and size, in the order of the transports.
std::vector<std::vector<const result_row*>> matched(const results& found) {
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>,
           std::vector<const result_row*>>
      groups;
  for (const auto& row : found.rows) groups[{row.streams, row.threads, row.depth, row.size}].push_back(&row);
  std::vector<std::vector<const result_row*>> out;
  for (auto& [key, rows] : groups) out.push_back(std::move(rows));
  return out;
}

void print_comparison(const results& found) {
  if (found.labels.size() < 2) return;
  section(
      "comparison: median GB/s, and in parentheses the median of the rounds' ratios to the first transport");
  std::vector<std::string> head{"streams, threads, depth", "size"};
  head.insert(head.end(), found.labels.begin(), found.labels.end());
  text_table table{head, 1};
  for (const auto& group : matched(found)) {
    const result_row& first = *group.front();
    std::vector<std::string> cells{combination(first.streams, first.threads, first.depth),
                                   size_text(first.size)};
    for (const auto& label : found.labels) {
      const auto at = std::ranges::find_if(group, [&](const auto* row) { return row->label == label; });
      if (at == group.end()) {
        cells.push_back("-");
        continue;
      }
      cells.push_back(number(median((*at)->bytes_per_second) * giga, "%.3f") + " (" +
                      number(ratio(**at, first), "%.2f") + ")");
    }
    table.add(cells);
  }
  table.print();
}

void print_validation(const settings& how, const validation_result& seen) {
  if (!how.validate) return;
  section("validation");
  std::printf("%s in %s checked, seed %llu\n", plural(seen.places, "read").c_str(),
              plural(seen.rounds, "round").c_str(), static_cast<unsigned long long>(how.seed));
  if (seen.wrong) {
    std::printf(
        "WRONG BYTES: %s: %s; the first in region %llu at offset %llu: expected 0x%02x, found 0x%02x\n",
        seen.wrong_where.c_str(), plural(seen.wrong->count, "byte").c_str(),
        static_cast<unsigned long long>(seen.wrong->region),
        static_cast<unsigned long long>(seen.wrong->offset), std::to_integer<unsigned>(seen.wrong->expected),
        std::to_integer<unsigned>(seen.wrong->found));
  }
  if (how.corrupt != corruption::none)
    std::printf("negative control (--corrupt): %s\n", seen.wrong ? "CAUGHT" : "NOT NOTICED");
  else
    std::printf("result: %s\n", seen.wrong ? "FAILED" : "every byte as it must be");
}

json latency_json(const latency_summary& l) {
  return {{"count", l.count},     {"min", l.least},       {"typical", l.p50},
          {"average", l.average}, {"stdev", l.deviation}, {"p50", l.p50},
          {"p99", l.p99},         {"p99_9", l.p999},      {"max", l.most}};
}

json fit_json(const fit_row& row) {
  return {{"transport", row.label},
          {"streams", row.streams},
          {"threads", row.threads},
          {"depth", row.depth},
          {"sizes", row.sizes},
          {"a_seconds_per_read", row.fit.seconds_per_read},
          {"B_bytes_per_second", row.fit.bytes_per_second},
          {"half_bandwidth_bytes", row.fit.half_bandwidth_bytes()},
          {"relative_residual", row.fit.relative_residual}};
}

json row_json(const result_row& row) {
  return {{"transport", row.label},
          {"streams", row.streams},
          {"threads", row.threads},
          {"depth", row.depth},
          {"size_bytes", row.size},
          {"reads", row.reads},
          {"seconds", row.seconds},
          {"average_bytes_per_second", row.average()},
          {"median_bytes_per_second", median(row.bytes_per_second)},
          {"peak_bytes_per_second", row.peak()},
          {"round_bytes_per_second", row.bytes_per_second},
          {"reads_per_second", row.reads_per_second()},
          {"reader_cpu_seconds_per_gigabyte", row.reader_cpu_per_gigabyte()},
          {"source_cpu_seconds_per_gigabyte", row.source_cpu_per_gigabyte()},
          {"latency_seconds", latency_json(row.latency)}};
}

json settings_json(const settings& how) {
  json transports = json::array();
  for (const auto& each : how.contenders)
    transports.push_back({{"label", each.label}, {"transport", each.kind->name}, {"options", each.options}});
  return {{"both_sides_here", how.part == role::both},
          {"transports", transports},
          {"sizes_bytes", how.sizes},
          {"depths", how.depths},
          {"streams", how.streams},
          {"threads", how.threads},
          {"warm_up_seconds", how.warm_up_seconds},
          {"duration_seconds", how.iterations > 0 ? 0 : how.duration_seconds},
          {"iterations", how.iterations},
          {"rounds", how.rounds},
          {"region_bytes", how.region_bytes},
          {"regions", how.regions},
          {"memory", how.memory == memory_choice::plain ? "plain" : "file"},
          {"busy_poll", how.busy_poll},
          {"validate", how.validate},
          {"seed", how.seed},
          {"timeout_seconds", how.timeout_seconds}};
}

}  // namespace

std::vector<fit_row> fit_all(const std::vector<result_row>& rows) {
  std::vector<fit_row> out;
  std::vector<std::vector<cost_point>> points;
  for (const auto& row : rows) {
    const auto same = [&](const fit_row& each) {
      return each.label == row.label && each.streams == row.streams && each.threads == row.threads &&
             each.depth == row.depth;
    };
    auto at = std::ranges::find_if(out, same);
    if (at == out.end()) {
      out.push_back({row.label, row.streams, row.threads, row.depth, 0, {}});
      points.emplace_back();
      at = out.end() - 1;
    }
    ++at->sizes;
    points[static_cast<std::size_t>(at - out.begin())].push_back(
        {static_cast<double>(row.reads), row.bytes(), row.seconds});
  }
  std::vector<fit_row> fitted;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto fit = fit_cost(points[i]);
    if (!fit) continue;
    fitted.push_back(out[i]);
    fitted.back().fit = *fit;
  }
  return fitted;
}

double ratio(const result_row& row, const result_row& base) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(row.bytes_per_second.size(), base.bytes_per_second.size()); ++i)
    ratios.push_back(row.bytes_per_second[i] / base.bytes_per_second[i]);
  return median(ratios);
}

std::string method_text(const settings& how) {
  const bool counted = how.iterations > 0;
  const std::string work =
      counted ? plural(how.iterations, "read") + " per thread" : seconds_text(how.duration_seconds);
  std::string out = "one-sided reads of another process's touched memory (" +
                    std::string{how.memory == memory_choice::file ? "memfd" : "anonymous"} + ", " +
                    plural(how.regions, "region") + " of " + size_text(how.region_bytes) +
                    ", walked in order) into the same place of registered, touched memory; " +
                    (how.part == role::both ? "both sides on this machine; " : "") +
                    "each row: " + seconds_text(how.warm_up_seconds) + " of warm-up, then " + work + " in " +
                    plural(how.rounds, "round");
  if (how.contenders.size() > 1) out += "; transports take turns in every round over the same buffers";
  out += how.busy_poll ? "; completions by busy polling" : "; completions by waiting";
  if (how.validate) out += "; every round is checked, so caches are cold";
  return out;
}

void print_head(const settings& how, const results& found) {
  std::string program = "transport_bench";
  for (const auto& [name, value] : found.program) program += " " + value + (name == "git" ? "," : "");
  std::printf("%s, %s\nmethod: %s\n", program.c_str(), found.date.c_str(), method_text(how).c_str());
  print_facts("reader", found.reader);
  print_facts("source", found.source);
  for (const auto& each : how.contenders) {
    std::string line;
    for (const auto& [name, value] : each.options) line += " " + name + "=" + value;
    std::printf("transport: %s%s\n", each.label.c_str(),
                line.empty() ? " (options as by default)" : line.c_str());
  }
  std::fflush(stdout);
}

void print_tables(const settings& how, const results& found) {
  print_setup(how, found);
  if (!found.rows.empty()) print_bandwidth(found);
  print_latency(found);
  print_fits(found);
  print_comparison(found);
  for (const auto& [label, reason] : found.left_out)
    std::printf("\nleft out: %s: %s\n", label.c_str(), reason.c_str());
  print_validation(how, found.validation);
  std::fflush(stdout);
}

void write_json(const settings& how, const results& found) {
  json rows = json::array();
  for (const auto& row : found.rows) rows.push_back(row_json(row));
  json fits = json::array();
  for (const auto& row : found.fits) fits.push_back(fit_json(row));
  json setup = json::array();
  for (const auto& row : found.setup) {
    setup.push_back({{"transport", row.label},
                     {"streams", row.streams},
                     {"source_create_seconds", row.source_create_seconds},
                     {"source_register_seconds", row.source_register_seconds},
                     {"reader_register_seconds", row.reader_register_seconds},
                     {"first_connect_seconds", row.first_connect_seconds},
                     {"later_connect_seconds", row.later_connects},
                     {"first_read_seconds", row.first_read_seconds}});
  }
  json left_out = json::array();
  for (const auto& [label, reason] : found.left_out)
    left_out.push_back({{"transport", label}, {"reason", reason}});
  json comparison = json::array();
  for (const auto& group : matched(found)) {
    if (found.labels.size() < 2) break;
    const result_row& first = *group.front();
    json ratios = json::object();
    for (const auto* row : group) ratios[row->label] = ratio(*row, first);
    comparison.push_back({{"streams", first.streams},
                          {"threads", first.threads},
                          {"depth", first.depth},
                          {"size_bytes", first.size},
                          {"base", first.label},
                          {"ratios", ratios}});
  }
  json validation = {{"on", how.validate},
                     {"corrupted_on_purpose", how.corrupt != corruption::none},
                     {"rounds", found.validation.rounds},
                     {"reads", found.validation.places},
                     {"passed", how.validate && !found.validation.wrong}};
  if (found.validation.wrong) {
    validation["wrong"] = {{"where", found.validation.wrong_where},
                           {"bytes", found.validation.wrong->count},
                           {"region", found.validation.wrong->region},
                           {"offset", found.validation.wrong->offset}};
  }
  const auto touch = [](const touch_cost& cost) {
    return json{{"first_seconds", cost.first_seconds}, {"second_seconds", cost.second_seconds}};
  };
  const json all = {{"tool", "transport_bench"},
                    {"format", 1},
                    {"date", found.date},
                    {"program", to_json(found.program)},
                    {"method", method_text(how)},
                    {"settings", settings_json(how)},
                    {"environment", {{"reader", to_json(found.reader)}, {"source", to_json(found.source)}}},
                    {"touch", {{"reader", touch(found.reader_touch)}, {"source", touch(found.source_touch)}}},
                    {"setup", setup},
                    {"rows", rows},
                    {"fits", fits},
                    {"comparison", comparison},
                    {"left_out", left_out},
                    {"validation", validation}};
  write_file(how.json_path, all.dump(1) + "\n");
}

}  // namespace transport_bench
