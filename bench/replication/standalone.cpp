// The paper's standalone workload in our own figures: a trainer that publishes version after version, rollout
// replicas that generate in batches of very different length, and the time that GPUs stand still because of
// weights.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "report.hpp"
#include "workload.hpp"

namespace replication_bench {

namespace standalone_detail {

/// Two decimals.
std::string sigma_text(double sigma) {
  return std::to_string(sigma).substr(0, 4);
}

struct plan {
  std::uint32_t shards = 16;
  std::size_t replicas = 63;  ///< of rollouts; with the trainer group 64 * 16 = 1,024 GPUs
  std::uint64_t shard_bytes = 50'000'000'000;
  std::uint64_t chunks = 512;
  std::size_t versions = 4;
  double training_seconds = 180;
  double generation_seconds = 60;  ///< median
  double sigma = 0.25;
  [[nodiscard]] double gpus() const { return static_cast<double>((replicas + 1) * shards); }
  [[nodiscard]] double at_full_rate_seconds() const {
    return static_cast<double>(shard_bytes) / static_cast<double>(link_bytes_per_second);
  }
};

plan plan_of(const report& out) {
  plan made;
  if (!out.smoke()) return made;
  made.shards = 2;
  made.replicas = 4;
  made.chunks = 64;
  made.versions = 2;
  return made;
}

/// How long each rollout's batches take, the same for all contenders. The first one is under way when the
/// trainer begins.
class batches {
 public:
  batches(const plan& made, std::size_t replica)
      : made_{made}, draws_{1'000'003 * (replica + 1)}, first_{draws_.uniform()} {}
  double next() {
    const double length = draws_.lognormal(made_.generation_seconds, made_.sigma);
    return std::exchange(first_, 1.0) * length;
  }

 private:
  plan made_;
  draws draws_;
  double first_;
};

/// GPU-seconds.
struct stalls {
  double rollouts = 0;
  double trainer = 0;
  double gpu_updates = 0;  ///< GPUs times versions that they took
  [[nodiscard]] double total() const { return rollouts + trainer; }
};

/// Everybody stops: who has ended its batch waits for the slowest, then the weights go to all at the full
/// rate of every link at once (a perfect ring or tree without start-up time).
stalls global_stage(const plan& made) {
  stalls out;
  std::vector<batches> lengths;
  std::vector<double> ends;
  for (std::size_t i = 0; i < made.replicas; ++i) {
    lengths.emplace_back(made, i);
    ends.push_back(lengths.back().next());
  }
  double trained = 0;
  for (std::size_t version = 0; version < made.versions; ++version) {
    trained += made.training_seconds;
    double slowest = trained;
    for (std::size_t i = 0; i < made.replicas; ++i) {
      while (ends[i] < trained) ends[i] += lengths[i].next();
      slowest = std::max(slowest, ends[i]);
    }
    const double end = slowest + made.at_full_rate_seconds();
    for (std::size_t i = 0; i < made.replicas; ++i) {
      out.rollouts += made.shards * (end - ends[i]);
      ends[i] = end + lengths[i].next();
    }
    out.trainer += made.shards * (end - trained);
    out.gpu_updates += static_cast<double>(made.replicas) * made.shards;
    trained = end;
  }
  return out;
}

/// Each rollout updates between two batches; nobody waits for another one.
template <typename Scheduler>
class live {
 public:
  live(const plan& made, report& out)
      : made_{made}, run_{options_of(made), Scheduler{typename Scheduler::options{}}} {
    trainer_ = run_.add("trainer");
    for (std::size_t i = 0; i < made.replicas; ++i)
      rollouts_.push_back({run_.add("rollout-" + std::to_string(i)), batches{made, i}, 0});
    run_.publish_now(trainer_, 1);
    std::size_t left = made.replicas;
    for (auto& each : rollouts_) run_.update(each.members, latest, [&](const fleet_update&) { --left; });
    run_.network().run([&] { return left == 0; });
    measuring_ = true;
    for (auto& each : rollouts_) generate(each);
    train(2);
    run_.network().run([&] { return done(); });
    measuring_ = false;
    run_.network().run([&] { return run_.rules().unended() == 0; });
    out.rule("standalone, " + std::string{Scheduler::name} + ", sigma " + sigma_text(made.sigma),
             run_.rules().violations());
    out.progress("standalone, " + std::string{Scheduler::name});
  }

  [[nodiscard]] const stalls& seen() const { return seen_; }
  [[nodiscard]] double trainer_models() { return run_.sent_models(trainer_); }

 private:
  struct rollout {
    field::replica members;
    batches lengths;
    std::uint64_t held;
  };

  static fleet_options options_of(const plan& made) {
    fleet_options out;
    out.chunks = made.chunks;
    out.shard_bytes = made.shard_bytes;
    out.shards = made.shards;
    return out;
  }

  void train(std::uint64_t version) {
    if (version > made_.versions + 1) return;
    run_.network().after(seconds_of(made_.training_seconds), [this, version] {
      const double began = run_.now();
      run_.unpublish(trainer_, [this, version, began] {
        seen_.trainer += made_.shards * (run_.now() - began);
        run_.publish(trainer_, version);
        train(version + 1);
      });
    });
  }
  void generate(rollout& who) {
    run_.network().after(seconds_of(who.lengths.next()), [this, &who] {
      if (!measuring_) return;
      run_.update(who.members, latest, [this, &who](const fleet_update& end) {
        seen_.rollouts += made_.shards * end.seconds();
        if (!end.kept) seen_.gpu_updates += made_.shards;
        who.held = end.version.value;
        generate(who);
      });
    });
  }
  [[nodiscard]] bool done() const {
    return std::ranges::all_of(rollouts_, [this](const rollout& r) { return r.held == made_.versions + 1; });
  }

  plan made_;
  field run_;
  field::replica trainer_{};
  std::vector<rollout> rollouts_{};
  stalls seen_{};
  bool measuring_ = false;
};

void describe(report& out) {
  const plan made = plan_of(out);
  out.parameters(
      "standalone rollouts (the shape of arXiv 2604.09107; all figures are ours)",
      {std::to_string(static_cast<int>(made.gpus())) + " GPUs: one trainer group and " +
           std::to_string(made.replicas) + " rollout replicas of " + std::to_string(made.shards) +
           " shards, one GPU with its own 25 GB/s full-duplex link per shard; shard 50 GB in " +
           std::to_string(made.chunks) + " chunks",
       std::to_string(made.versions) +
           " versions; the trainer needs 180 s per step, then unpublish (its drain "
           "is stall), publish, next step",
       "rollouts generate batch after batch; a batch takes 60 s times e^(sigma z), z standard normal, "
       "seeded; "
       "sigma 0, 0.25, 0.5; the first one is under way for a random part",
       "stall: GPU-seconds in which a GPU neither generates nor trains because of weights, until every "
       "rollout "
       "has the last version",
       "global stage: when a version is ready everybody stops after its batch, waits for the slowest, and a "
       "perfect broadcast (2 s, no start-up) follows; trainer and rollouts go on together",
       "interrupting stage: the same, but generations are cut off at once and nothing of them is lost: 2 s "
       "for "
       "every GPU and version, the least that a collective can cost",
       "one_to_many and ours: each rollout takes the newest version between two batches, waiting for nobody",
       "removed stage = global stage over 2 s for each update that our rollouts made; transfer = one_to_many "
       "over ours"});
}

void simulate(report& out) {
  const plan base = plan_of(out);
  for (const double sigma : {0.0, 0.25, 0.5}) {
    plan made = base;
    made.sigma = sigma;
    const stalls stage = global_stage(made);
    stalls cut;
    cut.trainer = static_cast<double>(made.versions) * made.shards * made.at_full_rate_seconds();
    cut.rollouts = cut.trainer * static_cast<double>(made.replicas);
    cut.gpu_updates = stage.gpu_updates;
    live<one_to_many> funnel{made, out};
    live<nearest_source> ours{made, out};
    const auto row = [](const stalls& seen, double models) {
      return std::vector<double>{
          seen.total(), seen.rollouts, seen.trainer, seen.gpu_updates, seen.rollouts / seen.gpu_updates,
          models};
    };
    const std::string text = sigma_text(sigma);
    report::table table{"standalone: stall in GPU-seconds, sigma " + text,
                        {"total", "rollouts", "trainer", "updates x GPUs", "s per update", "trainer sent"},
                        {},
                        {"trainer sent: models, the first version for everybody included"}};
    table.rows.push_back({"global stage", row(stage, 0)});
    table.rows.push_back({"interrupting stage", row(cut, 0)});
    table.rows.push_back({"one_to_many", row(funnel.seen(), funnel.trainer_models())});
    table.rows.push_back({"ours", row(ours.seen(), ours.trainer_models())});
    out.add(table);
    const double at_full_rate = ours.seen().gpu_updates * made.at_full_rate_seconds();
    report::table factors{
        "standalone: factors, sigma " + text,
        {"factor"},
        {{"global stage over ours", {stage.total() / ours.seen().total()}},
         {"  removed stage", {stage.total() / at_full_rate}},
         {"  updates at full rate over ours", {at_full_rate / ours.seen().total()}},
         {"interrupting stage over ours", {cut.total() / ours.seen().total()}},
         {"transfer: one_to_many over ours", {funnel.seen().total() / ours.seen().total()}}},
        {"the first is the product of the next two; the paper has 6.7 (its workload is another one)"}};
    out.add(factors);
    if (sigma == 0.25)
      out.goal_at_least("standalone, global stage over ours (sigma 0.25) (our parameters, not the paper's)",
                        stage.total() / ours.seen().total(), 6.7);
  }
}

}  // namespace standalone_detail

const scenario standalone{standalone_detail::describe, standalone_detail::simulate};

}  // namespace replication_bench
