// Two datacenters, and a link between them that is ten times slower than a host's.

#include <algorithm>
#include <string>
#include <vector>

#include "report.hpp"
#include "workload.hpp"

namespace replication_bench {

namespace wide_area_detail {

constexpr std::uint64_t wide_bytes_per_second = link_bytes_per_second / 10;
constexpr auto wide_delay = std::chrono::milliseconds{20};

struct plan {
  std::size_t remote = 16;
  std::uint64_t shard_bytes = 50'000'000'000;
  std::uint64_t chunks = 2048;
  std::size_t versions = 3;
  double generation_seconds = 60;
  double sigma = 0.25;
};

plan plan_of(const report& out) {
  plan made;
  if (!out.smoke()) return made;
  made.remote = 4;
  made.chunks = 512;
  made.versions = 2;
  return made;
}

enum class way { everybody_crosses, one_seed, offload_seeding };

struct course {
  double stall_seconds = 0;  ///< GPU-seconds over all versions
  double longest_seconds = 0;
  double last_seconds = 0;               ///< from publish until everybody has it, mean over the versions
  std::vector<std::uint64_t> crossed{};  ///< bytes per version
};

/// A version at a time: it is published, each remote rollout takes it when its batch ends (batches of seeded
/// length are under way), and the next one follows when all have it.
template <typename Scheduler>
class remote {
 public:
  remote(const plan& made, way how, report& out)
      : made_{made}, how_{how}, run_{options_of(made), Scheduler{typename Scheduler::options{}}} {
    auto& network = run_.network().network();
    location here{.datacenter = "eu"};
    if (how == way::everybody_crosses) {
      // Datacenters of their own, behind one link: the up-link of the trainer's rack.
      here.rack = "r0";
      network.add_rack("eu", "r0", wide_bytes_per_second, link_bytes_per_second);
    }
    trainer_ = run_.add("trainer", here);
    for (std::size_t i = 0; i < made.remote; ++i) {
      location there{.datacenter = "us"};
      if (how == way::everybody_crosses) there.datacenter += "-" + std::to_string(i);
      rollouts_.push_back({run_.add("rollout-" + std::to_string(i), there), draws{13'000'027 * (i + 1)}});
      if (network.carried_bytes("eu", there.datacenter) != 0 ||
          std::ranges::find(joined_, there.datacenter) != joined_.end())
        continue;
      joined_.push_back(there.datacenter);
      network.add_wide_area("eu", there.datacenter, {wide_bytes_per_second, wide_delay});
      network.add_wide_area(there.datacenter, "eu", {wide_bytes_per_second, wide_delay});
    }
    if (how == way::offload_seeding) seeder_ = run_.add("seeder", {.datacenter = "us"});
    run_.publish_now(trainer_, 1);
    everybody_takes();
    std::uint64_t crossed = crossed_bytes();
    seen_ = {};
    seen_.crossed.push_back(crossed);
    for (std::uint64_t version = 2; version <= made.versions + 1; ++version) {
      bool drained = false;
      run_.unpublish(trainer_, [&] { drained = true; });
      run_.network().run([&] { return drained; });
      run_.publish_now(trainer_, version);
      const double published = run_.now();
      everybody_takes();
      seen_.last_seconds += (run_.now() - published) / static_cast<double>(made.versions);
      const std::uint64_t all = crossed_bytes();
      seen_.crossed.push_back(all - crossed);
      crossed = all;
    }
    out.rule("wide area, " + name(), run_.rules().violations());
    out.progress("wide area, " + name());
  }

  [[nodiscard]] const course& seen() const { return seen_; }
  [[nodiscard]] std::uint64_t model_bytes() { return run_.network().shard_layout().bytes(); }
  [[nodiscard]] std::string name() const {
    return how_ == way::everybody_crosses ? "everybody crosses"
           : how_ == way::one_seed        ? "one seed"
                                          : "offload seeding";
  }

 private:
  struct rollout {
    field::replica members;
    draws random;
    bool has = false;
  };

  static fleet_options options_of(const plan& made) {
    fleet_options out;
    out.chunks = made.chunks;
    out.shard_bytes = made.shard_bytes;
    return out;
  }

  [[nodiscard]] std::uint64_t crossed_bytes() {
    std::uint64_t sum = 0;
    for (const auto& there : joined_) sum += run_.network().network().carried_bytes("eu", there);
    return sum;
  }

  void everybody_takes() {
    bool seeded = seeder_.empty();
    if (!seeded) run_.update(seeder_, latest, [&](const fleet_update&) { seeded = true; });
    for (auto& each : rollouts_) {
      each.has = false;
      batch(each, each.random.uniform());
    }
    run_.network().run(
        [&] { return seeded && std::ranges::all_of(rollouts_, [](const rollout& r) { return r.has; }); });
  }

  /// `part`: of a batch that is under way.
  void batch(rollout& who, double part) {
    const double length = part * who.random.lognormal(made_.generation_seconds, made_.sigma);
    run_.network().after(seconds_of(length), [this, &who] {
      run_.update(
          who.members, latest,
          [this, &who](const fleet_update& end) {
            seen_.stall_seconds += end.seconds();
            seen_.longest_seconds = std::max(seen_.longest_seconds, end.seconds());
            if (end.outcome.ok() && !end.kept)
              who.has = true;
            else
              batch(who, 1);
          },
          how_ == way::offload_seeding ? messages::update_reach::prefer_local
                                       : messages::update_reach::anywhere);
    });
  }

  plan made_;
  way how_;
  field run_;
  field::replica trainer_{};
  field::replica seeder_{};
  std::vector<rollout> rollouts_{};
  std::vector<std::string> joined_{};
  course seen_{};
};

void describe(report& out) {
  const plan made = plan_of(out);
  out.parameters(
      "two datacenters (all figures are ours)",
      {"the trainer in one, " + std::to_string(made.remote) +
           " rollout GPUs in the other; wide-area link 2.5 GB/s each way, 20 ms one way; host links 25 GB/s; "
           "shard 50 GB in " +
           std::to_string(made.chunks) + " chunks",
       std::to_string(made.versions) +
           " versions, one after the other (the next one when all have it); each rollout takes it when its "
           "batch ends (60 s times e^(0.25 z), seeded, a random part of it over)",
       "stall: GPU-seconds from asking for the version to having it",
       "everybody crosses: one_to_many; each rollout in a datacenter of its own, all behind one shared 2.5 "
       "GB/s link (one catalog would not let two cross)",
       "one seed: whoever asks first crosses, the others read what it has; both stand still meanwhile",
       "chunk reads outstanding per reader: the defaults, with more for a source in another datacenter",
       "offload seeding: a reader in host memory crosses while the GPUs generate; rollouts ask with "
       "prefer_local, and generate another batch if the version is not there yet"});
}

void simulate(report& out) {
  const plan made = plan_of(out);
  const remote<one_to_many> all{made, way::everybody_crosses, out};
  remote<nearest_source> seed{made, way::one_seed, out};
  const remote<nearest_source> offload{made, way::offload_seeding, out};
  const double model = static_cast<double>(seed.model_bytes());
  const auto row = [&](const course& seen) {
    double crossed = 0;
    for (std::size_t i = 1; i < seen.crossed.size(); ++i) crossed += static_cast<double>(seen.crossed[i]);
    return std::vector<double>{
        seen.stall_seconds, seen.stall_seconds / static_cast<double>(made.remote * made.versions),
        seen.longest_seconds, seen.last_seconds, crossed / model / static_cast<double>(made.versions)};
  };
  report::table table{
      "two datacenters: stall of the remote GPUs",
      {"GPU-seconds", "mean s", "longest s", "all have it after s", "models crossed per version"},
      {{all.name(), row(all.seen())}, {seed.name(), row(seed.seen())}, {offload.name(), row(offload.seen())}},
      {}};
  out.add(table);
  const double whole = all.seen().stall_seconds / offload.seen().stall_seconds;
  out.add({"two datacenters: factors",
           {"factor"},
           {{"everybody crosses over offload seeding", {whole}},
            {"  one crossing, local replication", {all.seen().stall_seconds / seed.seen().stall_seconds}},
            {"  crossing while GPUs generate", {seed.seen().stall_seconds / offload.seen().stall_seconds}}},
           {"the first is the product of the others; the paper has 19 (its workload is another one)"}});
  out.goal_at_least(
      "two datacenters, everybody crosses over offload seeding (our parameters, not the paper's)", whole, 19);
  for (std::size_t i = 0; i < seed.seen().crossed.size(); ++i) {
    const std::string version = ": wide-area bytes of version " + std::to_string(i + 1);
    out.exact(seed.name() + version, seed.seen().crossed[i], seed.model_bytes());
    out.exact(offload.name() + version, offload.seen().crossed[i], seed.model_bytes());
  }
}

}  // namespace wide_area_detail

const scenario wide_area{wide_area_detail::describe, wide_area_detail::simulate};

}  // namespace replication_bench
