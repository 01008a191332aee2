// Half of the rollouts are spot instances that come and go; every newcomer needs the weights.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "../harness.hpp"
#include "report.hpp"
#include "workload.hpp"

namespace replication_bench {

namespace elastic_detail {

struct plan {
  std::uint32_t shards = 2;
  std::size_t reliable = 32;
  std::size_t spot = 32;  ///< places; one lives or is missing in each
  std::uint64_t shard_bytes = 10'000'000'000;
  std::uint64_t chunks = 512;
  double training_seconds = 60;
  double generation_seconds = 15;
  double sigma = 0.25;
  double life_seconds = 120;
  double gap_seconds = 15;
  double length_seconds = 900;
};

plan plan_of(const report& out) {
  plan made;
  if (!out.smoke()) return made;
  made.reliable = made.spot = 4;
  made.chunks = 64;
  made.length_seconds = 200;
  return made;
}

template <typename Scheduler>
class changing {
 public:
  changing(const plan& made, report& out)
      : made_{made}, run_{options_of(made), Scheduler{typename Scheduler::options{}}} {
    trainer_ = run_.add("trainer");
    run_.publish_now(trainer_, 1);
    train(2);
    for (std::size_t i = 0; i < made.reliable; ++i) {
      rollouts_.push_back(std::make_unique<rollout>(
          rollout{run_.add("reliable-" + std::to_string(i)), draws{7'000'003 * (i + 1)}, true}));
      update(*rollouts_.back(), nullptr);
    }
    for (std::size_t i = 0; i < made.spot; ++i) {
      places_.push_back(std::make_unique<place>(place{i, draws{9'000'011 * (i + 1)}, 0}));
      arrive(*places_.back(), places_.back()->random.uniform() * made.gap_seconds);
    }
    run_.network().run([] { return false; }, seconds_of(made.length_seconds));
    measuring_ = false;
    run_.network().run([&] { return run_.rules().unended() == 0; }, seconds_of(3600));
    out.rule("elastic, " + std::string{Scheduler::name}, run_.rules().violations());
    out.progress("elastic, " + std::string{Scheduler::name});
  }

  std::vector<double> newcomers{};
  std::vector<double> others{};
  std::uint64_t gone = 0;  ///< killed before they had anything
  std::uint64_t kills = 0;
  std::uint64_t failed = 0;
  double trainer_stall = 0;  ///< GPU-seconds

 private:
  struct rollout {
    field::replica members;
    draws random;
    bool alive;
  };
  struct place {
    std::size_t number;
    draws random;
    std::size_t lives;
  };

  static fleet_options options_of(const plan& made) {
    fleet_options out;
    out.chunks = made.chunks;
    out.shard_bytes = made.shard_bytes;
    out.shards = made.shards;
    return out;
  }

  void train(std::uint64_t version) {
    run_.network().after(seconds_of(made_.training_seconds), [this, version] {
      if (!measuring_) return;
      const double began = run_.now();
      run_.unpublish(trainer_, [this, version, began] {
        trainer_stall += made_.shards * (run_.now() - began);
        run_.publish(trainer_, version);
        train(version + 1);
      });
    });
  }

  void arrive(place& where, double wait) {
    run_.network().after(seconds_of(wait), [this, &where] {
      if (!measuring_) return;
      const std::string name = "spot-" + std::to_string(where.number) + "-" + std::to_string(where.lives++);
      const double life = where.random.exponential(made_.life_seconds);
      const double gap = where.random.exponential(made_.gap_seconds);
      const std::uint64_t seed = 11'000'027 * (where.number + 1) + where.lives;
      rollouts_.push_back(std::make_unique<rollout>(rollout{run_.add(name, {}, true), draws{seed}, true}));
      rollout& who = *rollouts_.back();
      const auto served = std::make_shared<bool>(false);
      update(who, served);
      run_.network().after(seconds_of(life), [this, &who, &where, served, gap] {
        if (!measuring_) return;
        ++kills;
        if (!*served) ++gone;
        who.alive = false;
        run_.kill(who.members);
        arrive(where, gap);
      });
    });
  }

  /// `first`: this is a newcomer; told when it has its weights.
  void update(rollout& who, const std::shared_ptr<bool>& first) {
    run_.update(who.members, latest, [this, &who, first](const fleet_update& end) {
      if (!end.outcome.ok()) ++failed;
      const bool took = end.outcome.ok() && !end.kept;
      if (measuring_ && took) (first ? newcomers : others).push_back(end.seconds());
      if (first && end.outcome.ok()) *first = true;
      if (!measuring_) return;
      if (!end.outcome.ok()) {
        run_.network().after(std::chrono::seconds{1}, [this, &who, first] {
          if (who.alive) update(who, first);
        });
        return;
      }
      run_.network().after(seconds_of(who.random.lognormal(made_.generation_seconds, made_.sigma)),
                           [this, &who] {
                             if (who.alive && measuring_) update(who, nullptr);
                           });
    });
  }

  plan made_;
  field run_;
  field::replica trainer_{};
  std::vector<std::unique_ptr<rollout>> rollouts_{};
  std::vector<std::unique_ptr<place>> places_{};
  bool measuring_ = true;
};

void describe(report& out) {
  const plan made = plan_of(out);
  out.parameters(
      "elastic: half of the rollouts are spot (all figures are ours)",
      {std::to_string(made.reliable) + " reliable replicas and " + std::to_string(made.spot) +
           " places for spot replicas, of 2 shards, a GPU with a 25 GB/s link each; shard 10 GB in " +
           std::to_string(made.chunks) + " chunks (0.4 s at the link's rate)",
       "a version every 60 s, batches of 15 s times e^(0.25 z); everybody takes the newest version between "
       "two",
       "spot replicas live 120 s and are missing for 15 s on average (exponential, seeded), are killed "
       "without "
       "warning and come back under a new name; dead sources are found out after 50 ms",
       std::to_string(static_cast<int>(made.length_seconds)) +
           " s; time to weights: from joining to the last shard's end"});
}

void simulate(report& out) {
  const plan made = plan_of(out);
  report::table table{"elastic: time to weights in seconds",
                      {"newcomers", "mean", "p50", "p99", "others", "mean", "p99", "killed", "in vain",
                       "failed", "trainer stall"},
                      {},
                      {"others: updates of replicas that had a version already; in vain: killed before their "
                       "weights were there; trainer stall: GPU-seconds of drains"}};
  const auto mean = [](const std::vector<double>& all) {
    double sum = 0;
    for (const double one : all) sum += one;
    return all.empty() ? 0 : sum / static_cast<double>(all.size());
  };
  const auto row = [&](const auto& run) {
    return std::vector<double>{static_cast<double>(run.newcomers.size()),
                               mean(run.newcomers),
                               bench::median(run.newcomers),
                               bench::percentile(run.newcomers, 0.99),
                               static_cast<double>(run.others.size()),
                               mean(run.others),
                               bench::percentile(run.others, 0.99),
                               static_cast<double>(run.kills),
                               static_cast<double>(run.gone),
                               static_cast<double>(run.failed),
                               run.trainer_stall};
  };
  const changing<one_to_many> funnel{made, out};
  const changing<nearest_source> ours{made, out};
  table.rows.push_back({"one_to_many", row(funnel)});
  table.rows.push_back({"ours", row(ours)});
  out.add(table);
  const double newcomers = mean(funnel.newcomers) / mean(ours.newcomers);
  report::table factors{
      "elastic: one_to_many over ours",
      {"factor"},
      {{"newcomers, mean", {newcomers}},
       {"newcomers, p99",
        {bench::percentile(funnel.newcomers, 0.99) / bench::percentile(ours.newcomers, 0.99)}},
       {"all updates, mean",
        {(mean(funnel.newcomers) * static_cast<double>(funnel.newcomers.size()) +
          mean(funnel.others) * static_cast<double>(funnel.others.size())) /
         static_cast<double>(funnel.newcomers.size() + funnel.others.size()) /
         ((mean(ours.newcomers) * static_cast<double>(ours.newcomers.size()) +
           mean(ours.others) * static_cast<double>(ours.others.size())) /
          static_cast<double>(ours.newcomers.size() + ours.others.size()))}}},
      {"the paper has 4.8 against point-to-point UCX (its workload is another one)"}};
  out.add(factors);
  out.goal_at_least(
      "elastic, newcomers' mean time to weights, one_to_many over ours (our parameters, not the paper's)",
      newcomers, 4.8);
}

}  // namespace elastic_detail

const scenario elastic{elastic_detail::describe, elastic_detail::simulate};

}  // namespace replication_bench
