#pragma once
/// \file harness.hpp
/// How the comparisons are made: contenders take turns within one run, round after round, each doing the same
/// work. A figure is the median over the rounds; a ratio is that of the rounds' own ratios, with quartiles.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

struct arguments {
  bool smoke = false;       ///< tiny work: shows that everything runs, measures nothing
  std::string json_path{};  ///< empty: none
};
[[nodiscard]] inline arguments parse(int argc, char** argv) {
  arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--smoke") out.smoke = true;
    if (word == "--json" && i + 1 < argc) out.json_path = argv[++i];
  }
  return out;
}

[[nodiscard]] inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
/// Of this process, all threads, user and system.
[[nodiscard]] inline double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}
/// Gives each page, and so each chunk, other bytes: readers do not read what they have already.
inline void change_pages(std::span<std::byte> memory, std::uint64_t version) {
  for (std::size_t at = 0; at + sizeof version <= memory.size(); at += 4096)
    std::memcpy(memory.data() + at, &version, sizeof version);
}

[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}
[[nodiscard]] inline double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(fraction * static_cast<double>(values.size())))];
}

/// Of the ratios of all rounds. Where one number is asked for, it is the median.
struct ratio_of_rounds {
  double middle = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;

  ratio_of_rounds() = default;
  explicit ratio_of_rounds(const std::vector<double>& ratios)
      : middle{median(ratios)},
        lower_quartile{percentile(ratios, 0.25)},
        upper_quartile{percentile(ratios, 0.75)} {}
  operator double() const noexcept { return middle; }
};

/// One turn of one contender: named figures, at least "seconds" or "rate".
using figures = std::map<std::string, double>;

struct contender {
  std::string name{};
  std::function<figures()> run{};
};

class comparison {
 public:
  comparison(const arguments& given, std::string title, std::string method)
      : smoke_{given.smoke}, title_{std::move(title)}, method_{std::move(method)} {
    std::printf("\n== %s\nmethod: %s\n", title_.c_str(), method_.c_str());
    std::fflush(stdout);
  }

  void add(std::string name, std::function<figures()> run) {
    contenders_.push_back({std::move(name), std::move(run)});
  }

  /// Runs before each round, outside of every measurement.
  void before_round(std::function<void()> work) { prepare_ = std::move(work); }

  /// One warming round, then `rounds` that count; each round starts with another contender.
  void run(std::size_t rounds) {
    for (std::size_t round = 0; round <= rounds; ++round) {
      if (prepare_) prepare_();
      for (std::size_t i = 0; i < contenders_.size(); ++i) {
        const contender& turn = contenders_[(i + round) % contenders_.size()];
        figures seen = turn.run();
        if (round == 0) continue;
        for (const auto& [name, value] : seen) taken_[turn.name][name].push_back(value);
      }
    }
  }

  [[nodiscard]] double figure(const std::string& name, const std::string& which) const {
    const auto row = taken_.find(name);
    if (row == taken_.end() || !row->second.contains(which)) return 0;
    return median(row->second.at(which));
  }

  /// Of the rounds, to the rival that is best by its median.
  [[nodiscard]] ratio_of_rounds ratio(const std::string& name, const std::vector<std::string>& rivals,
                                      const std::string& which, bool larger_is_better) const {
    std::string best;
    for (const auto& rival : rivals) {
      const double theirs = figure(rival, which);
      if (best.empty() || (larger_is_better ? theirs > figure(best, which) : theirs < figure(best, which)))
        best = rival;
    }
    const auto& ours = taken_.at(name).at(which);
    const auto& theirs = taken_.at(best).at(which);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i)
      ratios.push_back(larger_is_better ? ours[i] / theirs[i] : theirs[i] / ours[i]);
    return ratio_of_rounds{ratios};
  }

  void print(const std::vector<std::string>& columns) const {
    std::printf("%-46s", "");
    for (const auto& column : columns) std::printf(" %16s", column.c_str());
    std::printf("\n");
    for (const auto& row : contenders_) {
      std::printf("%-46s", row.name.c_str());
      for (const auto& column : columns) {
        const bool known = taken_.contains(row.name) && taken_.at(row.name).contains(column);
        known ? std::printf(" %16.4g", figure(row.name, column)) : std::printf(" %16s", "-");
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }

  /// A promise of the library about speed, and whether this run keeps it. Ratios above one: we are faster.
  void goal(const std::string& what, double ratio, double at_least) {
    ratio_of_rounds one;
    one.middle = one.lower_quartile = one.upper_quartile = ratio;
    note(what, one, at_least, "");
  }
  /// The same with the spread of the rounds, and a word where they do not agree whether it is kept.
  void goal(const std::string& what, const ratio_of_rounds& ratio, double at_least) {
    char spread[96];
    const bool is_close = ratio.lower_quartile < at_least && at_least <= ratio.upper_quartile;
    std::snprintf(spread, sizeof spread, "quartiles %.3f to %.3f%s; ", ratio.lower_quartile,
                  ratio.upper_quartile, is_close ? ", too close to say" : "");
    note(what, ratio, at_least, spread);
  }

  void write_json(const std::string& path) const {
    if (path.empty()) return;
    std::ofstream out{path};
    write_json(out);
    out << "\n";
  }
  void write_json(std::ostream& out) const {
    out << "{\"title\": \"" << title_ << "\", \"method\": \"" << method_ << "\", \"medians\": {";
    std::string_view comma;
    for (const auto& [name, columns] : taken_) {
      out << comma << "\"" << name << "\": {";
      std::string_view inner;
      for (const auto& [column, values] : columns) {
        out << inner << "\"" << column << "\": " << median(values);
        inner = ", ";
      }
      out << "}";
      comma = ", ";
    }
    out << "}, \"goals\": [";
    comma = "";
    for (const auto& each : goals_) {
      out << comma << "{\"what\": \"" << each.what << "\", \"ratio\": " << each.ratio.middle
          << ", \"quartiles\": [" << each.ratio.lower_quartile << ", " << each.ratio.upper_quartile
          << "], \"at_least\": " << each.at_least << "}";
      comma = ", ";
    }
    out << "]}";
  }

 private:
  struct promise {
    std::string what;
    ratio_of_rounds ratio;
    double at_least;
  };
  void note(const std::string& what, const ratio_of_rounds& ratio, double at_least, const char* spread) {
    if (smoke_) return;
    std::printf("goal: %-62s %.3f (%sat least %.2f) %s\n", what.c_str(), ratio.middle, spread, at_least,
                ratio.middle >= at_least ? "reached" : "MISSED");
    std::fflush(stdout);
    goals_.push_back({what, ratio, at_least});
  }

  bool smoke_;
  std::string title_;
  std::string method_;
  std::vector<contender> contenders_;
  std::function<void()> prepare_;
  std::map<std::string, std::map<std::string, std::vector<double>>> taken_;
  std::vector<promise> goals_;
};

/// Several comparisons of one program: an array.
inline void write_json(const std::string& path, const std::vector<const comparison*>& all) {
  if (path.empty()) return;
  std::ofstream out{path};
  std::string_view separator = "[";
  for (const comparison* one : all) {
    out << separator;
    one->write_json(out);
    separator = ",\n ";
  }
  out << "]\n";
}

/// CPU seconds of another process of the benchmark (support/child_process.hpp), which answers "cpu" with
/// them.
template <typename Process>
[[nodiscard]] double cpu_of(const Process& other) {
  return std::strtod(other.ask("cpu").c_str(), nullptr);
}

}  // namespace bench
