// How versions spread, simulated: the real catalog, scheduler, session and pull in virtual time over a
// network of links (tests/support/simulation/fleet.hpp). Exact and repeatable: the same output at every
// run.
//
//   bench_replication [--smoke] [--json FILE] [SCENARIO...]

#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "../harness.hpp"
#include "report.hpp"

int main(int argc, char** argv) {
  using namespace replication_bench;
  const std::pair<const char*, const scenario*> scenarios[] = {
      {"one_source", &one_source},      {"large_fleet", &large_fleet},
      {"standalone", &standalone},      {"elastic", &elastic},
      {"wide_area", &wide_area},        {"lost_source", &lost_source},
      {"unequal_links", &unequal_links}};
  const bench::arguments given = bench::parse(argc, argv);
  std::set<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json")
      ++i;
    else if (word != "--smoke")
      wanted.insert(word);
  }
  for (const auto& word : wanted) {
    bool known = false;
    for (const auto& [name, each] : scenarios) known = known || word == name;
    if (known) continue;
    std::fprintf(stderr, "no scenario '%s'; there are:", word.c_str());
    for (const auto& [name, each] : scenarios) std::fprintf(stderr, " %s", name);
    std::fprintf(stderr, "\n");
    return 2;
  }

  std::printf(
      "== replication, simulated\n"
      "method: the library's catalog, scheduler, session and pull run unchanged in virtual time, without "
      "bytes; "
      "chunks are\nflows that share full-duplex links fairly, control messages and chunk maps take their "
      "delay. "
      "Digests and memory\ncopies are free. Fixed seeds: the same figures at every run. Rules looked at "
      "every 10 "
      "virtual ms: no source above its\ncredits, one seed per datacenter, version and shard, no cycle of "
      "upstreams; at the end: no chunk read that its source\ndid not have, every update ended.\n");
  report out{given.smoke};
  for (const auto& [name, each] : scenarios)
    if (wanted.empty() || wanted.contains(name)) each->describe(out);
  for (const auto& [name, each] : scenarios)
    if (wanted.empty() || wanted.contains(name)) each->run(out);
  const bool kept = out.finish();
  if (!given.json_path.empty()) std::ofstream{given.json_path} << out.json().dump(1) << "\n";
  return kept ? 0 : 1;
}
