#include "report.hpp"
#include <algorithm>

#include <cstdio>

#include "../harness.hpp"

namespace replication_bench {

void report::parameters(const std::string& scenario, const std::vector<std::string>& lines) {
  std::printf("\n-- %s\n", scenario.c_str());
  for (const auto& line : lines) std::printf("   %s\n", line.c_str());
  std::fflush(stdout);
  parameters_.emplace_back(scenario, lines);
}

void report::add(const table& finished) {
  std::printf("\n== %s\n%-38s", finished.title.c_str(), "");
  for (const auto& column : finished.columns)
    std::printf(" %*s", std::max(12, static_cast<int>(column.size())), column.c_str());
  std::printf("\n");
  for (const auto& [name, values] : finished.rows) {
    std::printf("%-38s", name.c_str());
    for (std::size_t i = 0; i < values.size(); ++i)
      std::printf(" %*.6g", std::max(12, static_cast<int>(finished.columns[i].size())), values[i]);
    std::printf("\n");
  }
  for (const auto& note : finished.notes) std::printf("  %s\n", note.c_str());
  std::fflush(stdout);
  tables_.push_back(finished);
}

void report::rule(const std::string& what, const std::vector<std::string>& violations) {
  for (const auto& sentence : violations)
    std::printf("BROKEN RULE: %s: %s\n", what.c_str(), sentence.c_str());
  rules_.emplace_back(what, violations);
}

void report::exact(const std::string& what, std::uint64_t seen, std::uint64_t expected) {
  std::vector<std::string> broken;
  if (seen != expected)
    broken.push_back(std::to_string(seen) + " instead of exactly " + std::to_string(expected));
  rule(what + " = " + std::to_string(expected), broken);
}

void report::progress(const std::string& what) const {
  static double last = bench::now_seconds();
  const double now = bench::now_seconds();
  std::fprintf(stderr, "[%.1f s] %s\n", now - last, what.c_str());
  last = now;
}

bool report::finish() const {
  std::printf("\n== rules\n");
  bool kept = true;
  for (const auto& [what, violations] : rules_) {
    std::printf("%-6s %s\n", violations.empty() ? "kept" : "BROKEN", what.c_str());
    for (const auto& sentence : violations) std::printf("         %s\n", sentence.c_str());
    kept = kept && violations.empty();
  }
  if (!smoke_ && !goals_.empty()) std::printf("\n== goals\n");
  for (const auto& each : goals_) {
    if (smoke_) break;
    std::printf("goal: %-74s %.3f (%s %.2f) %s\n", each.what.c_str(), each.value,
                each.at_most ? "at most" : "at least", each.limit, each.reached() ? "reached" : "MISSED");
  }
  std::fflush(stdout);
  return kept;
}

nlohmann::json report::json() const {
  nlohmann::json out;
  out["title"] = "replication, simulated";
  for (const auto& [scenario, lines] : parameters_) out["parameters"][scenario] = lines;
  out["tables"] = nlohmann::json::array();
  for (const auto& each : tables_) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& [name, values] : each.rows) rows.push_back({{"name", name}, {"values", values}});
    out["tables"].push_back(
        {{"title", each.title}, {"columns", each.columns}, {"rows", rows}, {"notes", each.notes}});
  }
  out["goals"] = nlohmann::json::array();
  for (const auto& each : goals_) {
    if (smoke_) break;
    out["goals"].push_back({{"what", each.what},
                            {"value", each.value},
                            {each.at_most ? "at_most" : "at_least", each.limit},
                            {"reached", each.reached()}});
  }
  out["rules"] = nlohmann::json::array();
  for (const auto& [what, violations] : rules_)
    out["rules"].push_back({{"what", what}, {"violations", violations}});
  return out;
}

}  // namespace replication_bench
