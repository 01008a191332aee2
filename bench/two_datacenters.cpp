// One trainer and rollouts in two datacenters, each in a process of its own, with an emulated wide-area path
// between them that all of them share (testing/wide_area.hpp): how long an update takes, and how often the
// version crosses, with one seed per datacenter, with one_to_many among workers that do not say where they
// are (the reference server elects a seed under any scheduler), and when the seed is killed on its way.
//
//     bench_two_datacenters [--smoke] [--json FILE]

#include <tensorhub/testing/wide_area.hpp>

#include "cluster.hpp"

namespace {

using bench::bytes_of;
using bench::figures;
using bench::process_settings;
using bench::reading;
using bench::scheme;
using tensorhub::testing::network_link;
using tensorhub::testing::throttled;
using tensorhub::transports::tcp;

using data_path = tensorhub::testing::wide_area<tcp>;

/// 1 Gbit/s and 50 ms there and back: a tenth of what the processes read from each other on this machine.
constexpr double path_bytes_per_second = 125e6;
constexpr std::chrono::milliseconds round_trip{50};
/// With 2 lanes: 16 MiB, 2.7 times what the path holds.
constexpr std::size_t window_chunks = 8, default_window_chunks = 32;
constexpr std::size_t readers_here = 1, readers_there = 3;

struct world {
  std::shared_ptr<network_link> path =
      std::make_shared<network_link>(tensorhub::testing::network_link_options{
          .bytes_per_second = path_bytes_per_second, .latency = round_trip});
  bench::basic_cluster<data_path> all;

  explicit world(std::uint64_t bytes, std::size_t window = window_chunks)
      : all{{{.replica = "here-trainer", .datacenter = "here", .bytes = bytes, .own_host = true}},
            readers(bytes, window),
            [this](const process_settings& who) {
              data_path::options out;
              out.here.datacenter = who.datacenter;  // also where the reference server is not told
              if (who.datacenter == "there") std::get<throttled<tcp>::options>(out.members).receiving = path;
              return out;
            }} {}
  static std::vector<process_settings> readers(std::uint64_t bytes, std::size_t window) {
    std::vector<process_settings> out;
    for (std::size_t i = 0; i < readers_here; ++i)
      out.push_back({"here-" + std::to_string(i), "here", bytes, false, window, true});
    for (std::size_t i = 0; i < readers_there; ++i)
      out.push_back({"there-" + std::to_string(i), "there", bytes, false, window, true});
    return out;
  }
};

/// With `kill_seed`, the rollout there that reads from across the border is killed when it has half.
figures update(world& in, scheme which, std::uint64_t bytes, bool kill_seed = false) {
  auto& all = in.all;
  all.publish(which);
  const std::uint64_t carried = in.path->carried_bytes();
  const double started = all.begin_update(kill_seed);
  std::optional<std::size_t> dead;
  double crossed = 0;
  const double give_up = started + 120;
  while (kill_seed && !dead && bench::now_seconds() < give_up) {
    for (std::size_t i = readers_here; i < all.size() && !dead; ++i) {
      const auto half = all.half_of(i, 1);
      if (!half || bytes_of(*half, "here") == 0) continue;
      all.reader(i).signal(SIGKILL);
      crossed += bytes_of(*half, "here");
      dead = i;
    }
  }
  double last = started, last_here = started, stall = 0, seeds = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == dead) continue;
    const reading one = all.end_of(i);
    stall += one.ended - started;
    last = std::max(last, one.ended);
    if (i < readers_here) {
      last_here = std::max(last_here, one.ended);
      continue;
    }
    crossed += bytes_of(one.sources, "here");
    if (bytes_of(one.sources, "here") > 0) ++seeds;
  }
  const double passed = static_cast<double>(in.path->carried_bytes() - carried);
  const double model = static_cast<double>(bytes);
  return {{"last reader s", last - started},
          {"last here s", last_here - started},
          {"all readers s", stall},
          {"crossed, models", crossed / model},
          {"path, models", passed / model},
          {"besides, KiB", (passed - crossed) / 1024},
          {"path's own s", model / path_bytes_per_second + 1e-3 * static_cast<double>(round_trip.count())},
          {"seeds", seeds},
          {"digests right", all.right_digests(dead)}};
}

void run(const bench::arguments& given) {
  const std::uint64_t bytes = given.smoke ? 128u << 20 : 256u << 20;
  const std::size_t rounds = given.smoke ? 1 : 5;
  bench::comparison apart{
      given, "two datacenters, a wide-area path between them",
      "one shard of " + std::to_string(bytes >> 20) +
          " MiB; a trainer and one rollout in one datacenter, three rollouts in the other, a process each, "
          "all "
          "on this machine over loopback TCP; a read across completes when a path of 1 Gbit/s that all of "
          "them "
          "share, first come, first served, has carried it, and 50 ms later; no loss; messages to the server "
          "are not delayed. one_to_many: the server does not know of datacenters and elects no seed, the "
          "path is the "
          "same. All updates are asked for at once; last reader: from then until the slowest has "
          "the version; all readers: the sum of their times; crossed: models that rollouts there read from "
          "here, by their reports (a killed seed's: what it had when it was killed); path: what the path "
          "itself "
          "counted, control blocks included, and besides: that without the models; path's own: one model "
          "over "
          "the idle path. A reader has 16 MiB on their way (2 lanes, 8 chunks). Killed: new processes each "
          "time. 1 warming round, then " +
          std::to_string(rounds) + ", order rotates; medians"};
  {
    world in{bytes};
    apart.add("nearest_source", [&] { return update(in, scheme::mesh, bytes); });
    apart.add("one_to_many", [&] { return update(in, scheme::star, bytes); });
    apart.add("nearest_source, the seed is killed at half", [&] {
      world other{bytes};
      return update(other, scheme::mesh, bytes, true);
    });
    apart.add("  with 64 MiB on their way", [&] {
      world other{bytes, default_window_chunks};
      return update(other, scheme::mesh, bytes, true);
    });
    apart.run(rounds);
  }
  apart.print({"last reader s", "last here s", "all readers s", "path's own s", "crossed, models",
               "path, models", "besides, KiB", "seeds", "digests right"});
  const auto right = [&](const std::string& name, double readers) {
    apart.goal("right digests, " + name, apart.figure(name, "digests right") / readers, 1.0);
  };
  right("nearest_source", readers_here + readers_there);
  right("one_to_many", readers_here + readers_there);
  right("nearest_source, the seed is killed at half", readers_here + readers_there - 1);
  right("  with 64 MiB on their way", readers_here + readers_there - 1);
  apart.goal("one model / models that crossed", 1.0 / apart.figure("nearest_source", "crossed, models"), 1.0);
  apart.goal("1.5 models / models that crossed, the seed is killed at half",
             1.5 / apart.figure("nearest_source, the seed is killed at half", "crossed, models"), 1.0);
  apart.goal("time of one_to_many / time of nearest_source",
             apart.ratio("nearest_source", {"one_to_many"}, "last reader s", false), 2.5);
  bench::write_json(given.json_path, {&apart});
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  try {
    run(given);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_two_datacenters: %s\n", e.what());
    return 1;
  }
}
