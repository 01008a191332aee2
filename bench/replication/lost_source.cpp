// A source is killed when its readers have half of the version.

#include <algorithm>
#include <string>
#include <vector>

#include "report.hpp"
#include "workload.hpp"

namespace replication_bench {

namespace lost_source_detail {

fleet_options options_of(const report& out) {
  fleet_options options;
  options.chunks = out.smoke() ? 256 : 8192;
  return options;
}

struct course {
  double last_seconds = 0;
  std::uint64_t succeeded = 0;
  std::uint64_t failed = 0;
  std::string sentence{};
};

/// `complete` workers hold the version; `readers` ask for it; the first holder is killed `kill_after` later.
course replicate(report& out, const std::string& name, std::size_t complete, std::size_t readers,
                 double kill_after) {
  field run{options_of(out)};
  std::vector<field::replica> holders;
  for (std::size_t i = 0; i < complete; ++i) holders.push_back(run.add("holder-" + std::to_string(i)));
  for (const auto& each : holders) run.publish_now(each, 1);
  std::vector<field::replica> rollouts;
  for (std::size_t i = 0; i < readers; ++i) rollouts.push_back(run.add("rollout-" + std::to_string(i)));
  run.network().run([] { return false; }, std::chrono::milliseconds{100});  // all have joined
  course seen;
  std::size_t left = readers;
  for (const auto& each : rollouts) {
    run.update(each, exactly(1), [&](const fleet_update& done) {
      --left;
      seen.last_seconds = std::max(seen.last_seconds, done.seconds());
      if (!done.outcome.ok()) seen.sentence = done.outcome.sentence;
    });
  }
  if (kill_after > 0) run.network().after(seconds_of(kill_after), [&] { run.kill(holders.front()); });
  run.network().run([&] { return left == 0; });
  seen.succeeded = run.rules().succeeded();
  seen.failed = run.rules().failed();
  out.rule("lost source: " + name + (kill_after > 0 ? "" : ", undisturbed"), run.rules().violations());
  return seen;
}

void describe(report& out) {
  const fleet_options options = options_of(out);
  out.parameters(
      "lost source",
      {"shard 50 GB in " + std::to_string(options.chunks) +
           " chunks, links 25 GB/s; a dead source's reads are "
           "lost after 50 ms (detection)",
       "killed when half of the undisturbed time has passed; the extra time is that of the last reader",
       "allowed: detection + the window of 8 chunks at the link's rate"});
}

void simulate(report& out) {
  struct kind {
    std::string name;
    std::size_t complete;
    std::size_t readers;
  };
  const std::vector<kind> kinds{
      {"one of 4 complete sources, 1 reader", 4, 1}, {"one of 4 complete sources, 16 readers", 4, 16},
      {"one of 2 complete sources, 1 reader", 2, 1}, {"one of 2 complete sources, 16 readers", 2, 16},
      {"the only complete source, 1 reader", 1, 1},  {"the only complete source, 16 readers", 1, 16}};
  const fleet_options options = options_of(out);
  const double allowed = to_seconds(options.lost_after) + static_cast<double>(options.rules.window_chunks) *
                                                              static_cast<double>(options.shard_bytes) /
                                                              static_cast<double>(options.chunks) /
                                                              static_cast<double>(link_bytes_per_second);
  report::table table{"a source killed at 50 %",
                      {"undisturbed s", "killed s", "extra ms", "allowed ms", "succeeded", "failed"},
                      {},
                      {}};
  for (const auto& each : kinds) {
    const course calm = replicate(out, each.name, each.complete, each.readers, 0);
    const course hurt = replicate(out, each.name, each.complete, each.readers, calm.last_seconds / 2);
    const double extra = hurt.last_seconds - calm.last_seconds;
    table.rows.push_back({each.name,
                          {calm.last_seconds, hurt.last_seconds, extra * 1e3, allowed * 1e3,
                           static_cast<double>(hurt.succeeded), static_cast<double>(hurt.failed)}});
    if (each.complete > 1) {
      out.goal_at_most("lost source, " + each.name + ": extra over allowed", extra / allowed, 1.0);
      out.exact("lost source, " + each.name + ": readers that got the version", hurt.succeeded, each.readers);
    } else {
      table.notes.push_back(each.name + ": " + (hurt.sentence.empty() ? "all got it" : hurt.sentence));
    }
  }
  table.notes.push_back(
      "nobody else has what the only complete source takes with it: a named error is right");
  out.add(table);
  out.progress("lost source");
}

}  // namespace lost_source_detail

const scenario lost_source{lost_source_detail::describe, lost_source_detail::simulate};

}  // namespace replication_bench
