#pragma once
/// \file report.hpp
/// Rounds as lines, and as tables: faults x outcomes, and how long things took.

#include <cstdio>
#include <string>
#include <vector>

#include "round.hpp"

namespace chaos {

inline void print_round(const round_result& one, bool all_events) {
  std::printf("seed %llu: %s: %s; %s\n", static_cast<unsigned long long>(one.seed), one.what.name().c_str(),
              one.victim.c_str(), one.moment.c_str());
  std::printf("  noticed:");
  for (const auto& [who, seconds] : one.noticed) std::printf(" %s %.0f ms;", who.c_str(), seconds * 1e3);
  std::printf("\n  resumed after detection (ms):");
  for (const resumption& each : one.resumed) std::printf(" %.1f", each.seconds * 1e3);
  std::printf(
      "; next update of others %.0f ms; back %.0f ms, all well %.0f ms later; longest unpublish %.0f ms\n",
      one.next_s.value_or(0) * 1e3, one.what.absent_s * 1e3, one.healed_s * 1e3, one.stall_s * 1e3);
  std::printf("  outcomes:");
  for (const auto& [name, count] : one.outcomes) std::printf(" %s %zu", name.c_str(), count);
  std::printf("\n");
  for (const auto& problem : one.problems) std::printf("  PROBLEM: %s\n", problem.c_str());
  const bool odd = one.outcomes.contains("unavailable") && one.what.kind != victim_kind::trainer &&
                   one.what.kind != victim_kind::source;  // why, if the trainer was never gone
  if (all_events || odd || !one.problems.empty()) {
    for (const auto& event : one.events) std::printf("    %s\n", event.c_str());
  }
  std::fflush(stdout);
}

inline void print_distribution(const std::string& name, const std::vector<double>& seconds) {
  if (seconds.empty()) return;
  std::printf("  %-58s %5zu  %8.1f %8.1f %8.1f\n", name.c_str(), seconds.size(),
              bench::percentile(seconds, 0.5) * 1e3, bench::percentile(seconds, 0.9) * 1e3,
              *std::ranges::max_element(seconds) * 1e3);
}

/// How long a reader that has lost its source waited for its next chunk, and in the slowest cases why.
inline void print_resumptions(std::vector<resumption> resumed) {
  using whose = resumption::whose;
  std::ranges::sort(resumed, std::greater{}, &resumption::seconds);
  for (const auto& [kind, name] :
       {std::pair{whose::holder_there, "reader: lost source to next chunk, somebody has all"},
        std::pair{whose::holder_back, "reader: somebody has all again to next chunk"},
        std::pair{whose::peers_only, "reader: lost source to next chunk, nobody has all"}}) {
    std::vector<double> all;
    for (const resumption& each : resumed)
      if (each.kind == kind) all.push_back(each.seconds);
    print_distribution(name, all);
    std::size_t shown = 0;
    for (const resumption& each : resumed) {
      if (each.kind != kind || each.seconds < 0.02 || ++shown > 8) continue;
      std::printf("    %.1f ms: asked for after %.1f; one of its threads waited for a processor for %.1f\n",
                  each.seconds * 1e3, each.until_posted_s * 1e3, each.cpu_wait_s * 1e3);
    }
  }
}

/// True: no round had a problem.
inline bool print_tables(const std::vector<round_result>& rounds) {
  std::map<std::string, std::map<std::string, std::size_t>> table;
  std::map<std::string, std::size_t> counts;
  std::set<std::string> outcomes;
  std::map<std::string, std::vector<double>> first, next, healed;
  std::vector<resumption> resumed;
  std::vector<double> stalls;
  std::size_t problems = 0;
  for (const auto& one : rounds) {
    const std::string row = one.what.name();
    ++counts[row];
    for (const auto& [name, count] : one.outcomes) {
      table[row][name] += count;
      outcomes.insert(name);
    }
    problems += one.problems.size();
    table[row]["problems"] += one.problems.size();
    if (!one.noticed.empty()) {
      double least = one.noticed.front().second;
      for (const auto& [who, seconds] : one.noticed) least = std::min(least, seconds);
      first[row].push_back(least);
    }
    if (one.next_s) next[row].push_back(*one.next_s);
    healed[row].push_back(one.healed_s);
    resumed.insert(resumed.end(), one.resumed.begin(), one.resumed.end());
    stalls.push_back(one.stall_s);
  }
  outcomes.insert("problems");
  std::printf("\nfaults x outcomes of the calls from the signal until all is well\n  %-44s rounds", "");
  for (const auto& name : outcomes) std::printf(" %12s", name.c_str());
  std::printf("\n");
  for (const auto& [row, count] : counts) {
    std::printf("  %-44s %6zu", row.c_str(), count);
    for (const auto& name : outcomes) std::printf(" %12zu", table[row][name]);
    std::printf("\n");
  }
  std::printf("\n  %-58s %5s  %8s %8s %8s\n", "milliseconds", "n", "p50", "p90", "max");
  for (const auto& [row, values] : first) print_distribution("first notice: " + row, values);
  for (const auto& [row, values] : next) print_distribution("next update of others: " + row, values);
  for (const auto& [row, values] : healed) print_distribution("victim back to all well: " + row, values);
  print_resumptions(resumed);
  print_distribution("longest unpublish of a round", stalls);
  std::printf("\n%zu rounds, %zu problems\n", rounds.size(), problems);
  return problems == 0;
}

}  // namespace chaos
