// From the call of publish() to the moment at which a subscriber knows: one subscriber that waits, and many.

#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>

#include "harness.hpp"
#include "support/child_process.hpp"

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;

tensorhub::worker_options who(const std::string& server, const std::string& replica) {
  tensorhub::worker_options options;
  options.server = server;
  options.model = "policy";
  options.replica = replica;
  return options;
}

struct subscriber {
  float weights[256] = {};
  hub::subscriber worker;
  subscriber(const std::string& server, const std::string& replica) : worker{who(server, replica)} {
    worker.add("w", weights, {256}, tensorhub::dtype::f32);
    worker.join();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const processes::child_process server_process{[](processes::channel& line) {
    hub::reference_server server;
    line.say(server.address());
    static_cast<void>(line.hear());
  }};
  const std::string server = server_process.line().hear();
  bench::comparison result{
      given, "publish to visible",
      "publisher and subscribers in one process, the server in another; a shard of 1 KiB; time "
      "from the call of publish() until wait() of a subscriber returns, or until newer() of the "
      "last of 50 subscribers tells of the version; 500 and 100 versions"};
  float weights[256] = {};
  hub::publisher publisher{who(server, "trainer")};
  publisher.add("w", weights, {256}, tensorhub::dtype::f32);
  std::uint64_t version = 0;
  const auto report = [&](const std::string& name, const std::vector<double>& seconds) {
    result.add(name, [seconds] {
      return bench::figures{{"p50 us", bench::percentile(seconds, 0.5) * 1e6},
                            {"p99 us", bench::percentile(seconds, 0.99) * 1e6},
                            {"versions", static_cast<double>(seconds.size())}};
    });
  };

  {
    subscriber one{server, "rollout"};
    std::vector<double> seconds;
    for (int i = 0; i < (given.smoke ? 5 : 500); ++i) {
      ++version;
      double seen = 0;
      std::jthread waiting{[&] {
        static_cast<void>(one.worker.wait(tensorhub::at_least(version), std::chrono::seconds{10}));
        seen = bench::now_seconds();
      }};
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
      const double started = bench::now_seconds();
      publisher.publish(version);
      waiting.join();
      seconds.push_back(seen - started);
      publisher.unpublish();
    }
    report("wait() of one subscriber", seconds);
  }
  {
    std::vector<std::unique_ptr<subscriber>> many;
    for (int i = 0; i < (given.smoke ? 3 : 50); ++i)
      many.emplace_back(std::make_unique<subscriber>(server, "rollout-" + std::to_string(i)))->worker.join();
    std::vector<double> seconds;
    for (int i = 0; i < (given.smoke ? 5 : 100); ++i) {
      ++version;
      const double started = bench::now_seconds();
      publisher.publish(version);
      for (const auto& each : many) {
        while (each->worker.newer().value_or(0) < tensorhub::version_number{version})
          std::this_thread::yield();
      }
      seconds.push_back(bench::now_seconds() - started);
      publisher.unpublish();
    }
    report("newer() of the last of " + std::to_string(many.size()) + " subscribers", seconds);
  }
  result.run(1);
  result.print({"p50 us", "p99 us", "versions"});
  result.write_json(given.json_path);
}
