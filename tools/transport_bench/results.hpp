#pragma once
/// \file results.hpp
/// What a run has found. Seconds and bytes throughout; the reports choose the units people read.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "environment.hpp"
#include "memory.hpp"
#include "settings.hpp"
#include "statistics.hpp"

namespace transport_bench {

/// One combination of transport, streams, threads, depth and size.
struct result_row {
  std::string label{};
  std::uint64_t streams = 1;
  std::uint64_t threads = 1;
  std::uint64_t depth = 1;
  std::uint64_t size = 0;
  std::uint64_t reads = 0;
  double seconds = 0;                      ///< all rounds
  std::vector<double> bytes_per_second{};  ///< of each round, in their order
  double reader_cpu_seconds = 0;
  double source_cpu_seconds = 0;
  latency_summary latency{};

  [[nodiscard]] double bytes() const { return static_cast<double>(reads) * static_cast<double>(size); }
  [[nodiscard]] double average() const { return seconds > 0 ? bytes() / seconds : 0; }
  [[nodiscard]] double peak() const {
    return bytes_per_second.empty() ? 0 : *std::ranges::max_element(bytes_per_second);
  }
  [[nodiscard]] double reads_per_second() const {
    return seconds > 0 ? static_cast<double>(reads) / seconds : 0;
  }
  /// Per 1e9 bytes.
  [[nodiscard]] double reader_cpu_per_gigabyte() const { return reader_cpu_seconds / (bytes() * 1e-9); }
  [[nodiscard]] double source_cpu_per_gigabyte() const { return source_cpu_seconds / (bytes() * 1e-9); }
};

/// What it costs before the first byte arrives.
struct setup_row {
  std::string label{};
  std::uint64_t streams = 1;
  double source_create_seconds = 0;
  double source_register_seconds = 0;
  double reader_register_seconds = 0;
  double first_connect_seconds = 0;
  std::vector<double> later_connects{};
  double first_read_seconds = 0;  ///< of the smallest size, over the first connection
};

/// t = a*n + bytes/B over the sizes of one combination.
struct fit_row {
  std::string label{};
  std::uint64_t streams = 1;
  std::uint64_t threads = 1;
  std::uint64_t depth = 1;
  std::size_t sizes = 0;
  cost_fit fit{};
};

/// First touch of fresh memory and, for comparison, the second. All regions together.
struct touch_cost {
  double first_seconds = 0;
  double second_seconds = 0;
};

struct validation_result {
  std::uint64_t rounds = 0;
  std::uint64_t places = 0;  ///< reads whose bytes were looked at
  std::optional<wrong_bytes> wrong{};
  std::string wrong_where{};  ///< transport, size and depth of the row that failed
};

struct results {
  std::string date{};
  facts program{};
  facts reader{};
  facts source{};
  touch_cost reader_touch{};
  touch_cost source_touch{};
  std::vector<std::string> labels{};
  std::vector<std::pair<std::string, std::string>> left_out{};  ///< with --all: transport and reason
  std::vector<setup_row> setup{};
  std::vector<result_row> rows{};
  std::vector<fit_row> fits{};
  validation_result validation{};
};

/// One fit for each combination that has at least two sizes.
[[nodiscard]] std::vector<fit_row> fit_all(const std::vector<result_row>& rows);

/// Median over the rounds of (row's rate / base's rate): they took turns.
[[nodiscard]] double ratio(const result_row& row, const result_row& base);

/// How the figures were made, in two or three lines.
[[nodiscard]] std::string method_text(const settings& how);

void print_head(const settings& how, const results& found);
void print_tables(const settings& how, const results& found);
void write_json(const settings& how, const results& found);

}  // namespace transport_bench
