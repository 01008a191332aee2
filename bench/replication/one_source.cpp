// One source, n readers, equal full-duplex links: what the last reader waits, over what a single one does.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "report.hpp"
#include "workload.hpp"

namespace replication_bench {

namespace one_source_detail {

constexpr std::uint64_t shard_bytes = 50'000'000'000;
constexpr double at_full_rate_seconds =
    static_cast<double>(shard_bytes) / static_cast<double>(link_bytes_per_second);

struct course {
  double last_seconds = 0;
  double late_last_seconds = 0;  ///< from the late ones' joining
  double trainer_models = 0;
};

/// `readers` at once and `late` more, which join `late_after` later.
template <typename Scheduler>
course replicate(report& out, std::size_t readers, std::uint64_t chunks, std::size_t late = 0,
                 double late_after = 0) {
  fleet_options options;
  options.chunks = chunks;
  options.shard_bytes = shard_bytes;
  field run{options, Scheduler{typename Scheduler::options{}}};
  const auto trainer = run.add("trainer");
  std::vector<field::replica> rollouts;
  for (std::size_t i = 0; i < readers; ++i) rollouts.push_back(run.add("rollout-" + std::to_string(i)));
  run.network().run([&] { return run.network().server().worker_count() == run.network().size(); });
  run.publish_now(trainer, 1);
  course seen;
  std::size_t left = readers + late;
  for (const auto& rollout : rollouts) {
    run.update(rollout, exactly(1), [&](const fleet_update& done) {
      --left;
      seen.last_seconds = std::max(seen.last_seconds, done.seconds());
    });
  }
  run.network().after(seconds_of(late_after), [&] {
    for (std::size_t i = 0; i < late; ++i) {
      run.update(run.add("late-" + std::to_string(i)), exactly(1), [&](const fleet_update& done) {
        --left;
        seen.late_last_seconds = std::max(seen.late_last_seconds, done.seconds());
      });
    }
  });
  run.network().run([&] { return left == 0; });
  seen.trainer_models = run.sent_models(trainer);
  const std::string name = std::string{Scheduler::name} + ", " + std::to_string(readers) + " readers" +
                           (late == 0 ? "" : " and " + std::to_string(late) + " late ones");
  auto broken = run.rules().violations();
  if (run.rules().succeeded() != readers + late)
    broken.push_back(std::to_string(run.rules().succeeded()) + " updates succeeded");
  out.rule(name, broken);
  out.progress(name);
  return seen;
}

/// With fewer chunks where the simulation would take minutes.
std::uint64_t chunks_for(const report& out, std::size_t readers) {
  if (out.smoke()) return 256;
  return readers > 256 ? 4096 : 8192;
}

void describe(report& out) {
  out.parameters(
      "one source",
      {"shard 50 GB, host links 25 GB/s each way (full duplex), one-way delay 5 us; control 25 us each way, "
       "server 20 us per message, connecting 200 us",
       std::string{"chunks: "} +
           (out.smoke() ? "256" : "8192 (6.1 MB), at n = 1024 4096 (12.2 MB; one_to_many: 64)") +
           "; 8 chunk reads outstanding per reader; scheduler defaults (8 sources, 8 credits)",
       "all n readers, which have joined, ask at the same moment; figure: the last one's time over that of a "
       "single reader",
       "late joiners: 64 readers, then 8 more that join when half of a single reader's time has passed"});
}

void simulate(report& out) {
  const std::vector<std::size_t> counts =
      out.smoke() ? std::vector<std::size_t>{1, 4, 16} : std::vector<std::size_t>{1, 2, 4, 16, 64, 256, 1024};
  report::table ratios{
      "completion of the last of n readers over that of one reader",
      {"nearest_source", "chain", "one_to_many", "chunks", "models from trainer", "over S/B"},
      {},
      {"models from trainer: read from its memory, nearest_source (chain: 1, one_to_many: n)",
       "over S/B: nearest_source, over shard bytes at the full rate of a link (2 s)"}};
  std::map<std::uint64_t, double> single;
  for (const std::size_t n : counts) {
    const std::uint64_t chunks = chunks_for(out, n);
    if (!single.contains(chunks)) single[chunks] = replicate<nearest_source>(out, 1, chunks).last_seconds;
    const double one = single[chunks];
    const course ours = replicate<nearest_source>(out, n, chunks);
    const course in_line = replicate<chain>(out, n, chunks);
    const std::uint64_t few = n > 256 ? 64 : std::min<std::uint64_t>(chunks, 256);
    const double one_of_few = replicate<nearest_source>(out, 1, few).last_seconds;
    const course funnel = replicate<one_to_many>(out, n, few);
    const double ratio = ours.last_seconds / one;
    ratios.rows.push_back(
        {"n = " + std::to_string(n),
         {ratio, in_line.last_seconds / one, funnel.last_seconds / one_of_few, static_cast<double>(chunks),
          ours.trainer_models, ours.last_seconds / at_full_rate_seconds}});
    if (n == 64) out.goal_at_most("one source, last of 64 readers over one reader", ratio, 1.05);
    if (n == 1024) out.goal_at_most("one source, last of 1024 readers over one reader", ratio, 1.10);
  }
  ratios.notes.push_back(
      "one_to_many with 256 chunks (n = 1024: 64); the trainer's link is what takes its time");
  out.add(ratios);

  const std::size_t early = out.smoke() ? 8 : 64;
  const std::uint64_t chunks = chunks_for(out, early);
  const double one = single.at(chunks);
  report::table late{"8 late joiners at half time, over one reader's time",
                     {"late ones", "early ones", "models from trainer"},
                     {},
                     {"late ones: the last one's completion, from its joining"}};
  const course ours = replicate<nearest_source>(out, early, chunks, 8, one / 2);
  late.rows.push_back(
      {"nearest_source", {ours.late_last_seconds / one, ours.last_seconds / one, ours.trainer_models}});
  const course in_line = replicate<chain>(out, early, chunks, 8, one / 2);
  late.rows.push_back(
      {"chain", {in_line.late_last_seconds / one, in_line.last_seconds / one, in_line.trainer_models}});
  out.add(late);
  out.goal_at_most("8 late joiners at half time over one reader", ours.late_last_seconds / one, 1.1);
  out.goal_at_most("64 early readers beside 8 late joiners over one reader", ours.last_seconds / one, 1.1);
}

constexpr std::size_t fleet_readers = 10'240;

void describe_large_fleet(report& out) {
  out.parameters("large fleet", {"as one source, with " + std::to_string(out.smoke() ? 64 : fleet_readers) +
                                 " readers and " + (out.smoke() ? "256" : "1024 (48.8 MB)") + " chunks"});
}

void simulate_large_fleet(report& out) {
  const std::size_t readers = out.smoke() ? 64 : fleet_readers;
  const std::uint64_t chunks = out.smoke() ? 256 : 1024;
  const double one = replicate<nearest_source>(out, 1, chunks).last_seconds;
  const course all = replicate<nearest_source>(out, readers, chunks);
  const double ratio = all.last_seconds / one;
  // All ask at once, so the last one's sources are named when the server has answered all.
  const double answers = static_cast<double>(readers) * to_seconds(fleet_options{}.server_time);
  report::table table{"completion of the last of many readers over that of one reader",
                      {"nearest_source", "models from trainer", "the server's answers to all"},
                      {{"n = " + std::to_string(readers), {ratio, all.trainer_models, answers / one}}},
                      {}};
  out.add(table);
  if (!out.smoke()) out.goal_at_most("last of 10240 readers over one reader", ratio, 1.10);
}

}  // namespace one_source_detail

const scenario one_source{one_source_detail::describe, one_source_detail::simulate};
const scenario large_fleet{one_source_detail::describe_large_fleet, one_source_detail::simulate_large_fleet};

}  // namespace replication_bench
