// One source, many readers, a quarter of which have a slow link that no label tells: what the others wait.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "report.hpp"
#include "workload.hpp"

namespace replication_bench {

namespace unequal_links_detail {

constexpr double slow_share = 0.125;  ///< rate of a slow link, of the others' rate

/// How the slow readers differ from the others, and when they ask.
struct mixture {
  std::string name{};
  std::size_t fast = 0;
  std::size_t slow = 0;
  double sending = 1;    ///< of a slow reader, of the others' rate
  double receiving = 1;  ///< likewise
  bool ask_first = false;
};

struct course {
  double others_seconds = 0;  ///< until the last reader with fast links has the version
  double trainer_models = 0;  ///< sent until then
};

/// What the others would take, in times of a single reader, if every link that sends were busy until then,
/// and each reader got its share of that: all the same, or what a slow receiving link carries meanwhile.
/// (The others could be sooner only at the cost of readers that receive as fast as they do.)
double fair_time(const mixture& of) {
  const auto fast = static_cast<double>(of.fast), few = static_cast<double>(of.slow);
  if (of.receiving == 1) return std::max(1.0, (fast + few) / (1 + fast + few * of.sending));
  return std::max(1.0, fast / (1 + fast + few * (of.sending - of.receiving)));
}

/// True for those that are slow, in the order in which they ask.
std::vector<bool> order_of(const mixture& of) {
  std::vector<bool> order(of.fast + of.slow);
  std::fill_n(order.begin(), of.slow, true);
  draws random{7};
  for (std::size_t i = order.size(); !of.ask_first && i > 1; --i) {
    const auto other = static_cast<std::size_t>(random.uniform() * static_cast<double>(i));
    const bool is_slow = order[i - 1];
    order[i - 1] = order[other];
    order[other] = is_slow;
  }
  return order;
}

course replicate(report& out, const mixture& of, std::uint64_t chunks) {
  fleet_options options;
  options.chunks = chunks;
  field run{options};
  const auto trainer = run.add("trainer");
  const auto share = [](double of_rate) {
    return static_cast<std::uint64_t>(of_rate * static_cast<double>(link_bytes_per_second));
  };
  const std::vector<bool> is_slow = order_of(of);
  std::vector<field::replica> rollouts;
  for (std::size_t i = 0; i < is_slow.size(); ++i) {
    fleet_member_options like{.replica = "rollout-" + std::to_string(i)};
    if (is_slow[i]) like.sending_bytes_per_second = share(of.sending);
    if (is_slow[i]) like.receiving_bytes_per_second = share(of.receiving);
    rollouts.push_back(run.add(like));
  }
  run.network().run([&] { return run.network().server().worker_count() == run.network().size(); });
  run.publish_now(trainer, 1);
  course seen;
  std::size_t left = is_slow.size(), others_left = of.fast;
  for (std::size_t i = 0; i < is_slow.size(); ++i) {
    run.update(rollouts[i], exactly(1), [&, i](const fleet_update& done) {
      --left;
      if (is_slow[i] || --others_left > 0) return;
      seen.others_seconds = done.seconds();
      seen.trainer_models = run.sent_models(trainer);
    });
  }
  run.network().run([&] { return left == 0; });
  auto broken = run.rules().violations();
  if (run.rules().succeeded() != is_slow.size())
    broken.push_back(std::to_string(run.rules().succeeded()) + " updates succeeded");
  out.rule("unequal links: " + of.name, broken);
  out.progress("unequal links: " + of.name);
  return seen;
}

std::vector<mixture> mixtures(const report& out) {
  const std::size_t many = out.smoke() ? 6 : 48, few = out.smoke() ? 2 : 16;
  return {{"all alike", many + few, 0},
          {"a quarter sends slowly", many, few, slow_share},
          {"a quarter sends slowly, and asks first", many, few, slow_share, 1, true},
          {"a quarter sends and receives slowly", many, few, slow_share, slow_share},
          {"a quarter sends and receives slowly, and asks first", many, few, slow_share, slow_share, true}};
}

std::uint64_t chunks_of(const report& out) {
  return out.smoke() ? 128 : 1024;
}

void describe(report& out) {
  out.parameters("unequal links",
                 {"as one source, with " + std::string{out.smoke() ? "8" : "64"} + " readers and " +
                      std::to_string(chunks_of(out)) + " chunks; slow links have an eighth of the rate",
                  "all readers ask at the same moment, the slow ones among the others or before them",
                  "figures: the last reader with fast links, over a single reader's time"});
}

void simulate(report& out) {
  const double one = replicate(out, {"one reader", 1, 0}, chunks_of(out)).others_seconds;
  report::table table{"completion of the last reader with fast links over that of one reader",
                      {"nearest_source", "fair and all busy", "models from trainer"},
                      {},
                      {}};
  for (const mixture& each : mixtures(out)) {
    const course seen = replicate(out, each, chunks_of(out));
    const double ratio = seen.others_seconds / one;
    table.rows.push_back({each.name, {ratio, fair_time(each), seen.trainer_models}});
    out.goal_at_most("unequal links, " + each.name + ": over the fair time", ratio / fair_time(each), 1.1);
  }
  out.add(table);
}

}  // namespace unequal_links_detail

const scenario unequal_links{unequal_links_detail::describe, unequal_links_detail::simulate};

}  // namespace replication_bench
