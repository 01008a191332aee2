// How much longer the updates of a small fleet take while somebody floods the reference server or the
// trainer's data port.

#include <memory>
#include <span>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "support/child_process.hpp"
#include "support/flooder.hpp"

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;

struct scene {
  tensorhub::curve_key_pair server_keys = tensorhub::make_curve_keys();
  tensorhub::curve_key_pair keys = tensorhub::make_curve_keys();
  std::string server{};

  [[nodiscard]] tensorhub::worker_options who(const std::string& replica) const {
    tensorhub::worker_options options;
    options.server = server;
    options.model = "policy";
    options.replica = replica;
    options.security = tensorhub::client_security{server_keys.public_key, keys, true};
    return options;
  }
};

void serve(const scene& where, processes::channel& line) {
  tensorhub::reference_server_options how;
  how.security = tensorhub::server_security{where.server_keys, {{where.keys.public_key, {}}}};
  const hub::reference_server server{how};
  line.say(server.address());
  static_cast<void>(line.hear());
}

/// A publisher whose data port the flooder is told.
struct trainer_worker : tensorhub::worker {
  explicit trainer_worker(tensorhub::worker_options options)
      : worker{std::move(options),
               tensorhub::policies_of<tensorhub::transports::tcp, tensorhub::group_consistent,
                                      tensorhub::xxh3_128, tensorhub::host_memory>({})} {}
};

struct rollout {
  std::vector<float> weights = std::vector<float>(1u << 18);
  hub::subscriber worker;
  explicit rollout(const tensorhub::worker_options& options) : worker{options} {
    worker.add("w", weights.data(), {weights.size()}, tensorhub::dtype::f32);
    worker.join();
  }
};

bench::figures publish_and_update(tensorhub::worker& trainer, std::span<float> weights,
                                  const std::vector<std::unique_ptr<rollout>>& fleet, std::uint64_t& version,
                                  int times) {
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    bench::change_pages(std::as_writable_bytes(weights), ++version);
    const double started = bench::now_seconds();
    trainer.publish(version);
    {
      std::vector<std::jthread> updates;
      for (const auto& each : fleet)
        updates.emplace_back([&worker = each->worker, version] {
          static_cast<void>(worker.update(tensorhub::at_least(version), std::chrono::seconds{60}));
        });
    }
    seconds.push_back(bench::now_seconds() - started);
    trainer.unpublish();
  }
  return {{"ms", bench::median(seconds) * 1e3}, {"worst ms", bench::percentile(seconds, 1) * 1e3}};
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  scene here;
  const processes::child_process server_process{[&](processes::channel& line) { serve(here, line); }};
  const processes::child_process flood_process{[&](processes::channel& line) {
    floods::flood({.server_key = here.server_keys.public_key, .member = here.keys}, line);
  }};
  here.server = server_process.line().hear();

  bench::comparison result{
      given, "updates beside floods",
      "a trainer and 4 rollouts in one process, the server with keys in another, one "
      "flooder at nice 19 in a third (requests as fast as the server takes them, strangers at its door or at "
      "the "
      "trainer's data port at most 1000 a second); 1 MiB; from publish() until all have updated"};
  std::vector<float> weights(1u << 18);
  trainer_worker trainer{here.who("trainer")};
  trainer.add("w", weights.data(), {weights.size()}, tensorhub::dtype::f32);
  trainer.join();
  const floods::worker_of_large_model<hub> wide{here.who("trainer")};
  flood_process.line().say(here.server);
  flood_process.line().say(trainer.data().address().text);
  std::vector<std::unique_ptr<rollout>> fleet;
  for (int i = 0; i < 4; ++i)
    fleet.push_back(std::make_unique<rollout>(here.who("rollout-" + std::to_string(i))));
  std::uint64_t version = 0;
  const auto turn = [&] {
    return publish_and_update(trainer, weights, fleet, version, given.smoke ? 1 : 10);
  };
  result.add("quiet", turn);
  for (const std::string& kind : floods::kinds)
    result.add(kind, [&, kind] {
      flood_process.line().say(kind);
      std::this_thread::sleep_for(std::chrono::milliseconds{given.smoke ? 20 : 300});
      const bench::figures seen = turn();
      flood_process.line().say("quiet");
      std::this_thread::sleep_for(std::chrono::milliseconds{given.smoke ? 20 : 300});
      return seen;
    });
  result.run(given.smoke ? 1 : 5);
  result.print({"ms", "worst ms"});
  // A fleet whose updates take at most 1.5 times as long.
  for (const std::string& kind : floods::kinds)
    result.goal("quiet / " + kind, result.ratio(kind, {"quiet"}, "ms", false), 1 / 1.5);
  result.write_json(given.json_path);
  flood_process.line().say("end");
}
