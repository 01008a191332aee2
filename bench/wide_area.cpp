// What one reader in another datacenter gets over a path of 1 Gbit/s and 100 ms there and back, emulated with
// the kernel's own TCP (emulated_path.hpp): how much of the path an update fills, and how many round trips it
// takes beside the transfer itself. The reference server is in the trainer's datacenter.

#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "emulated_path.hpp"
#include "harness.hpp"

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;
using bench::path_end;
using namespace std::chrono_literals;

const bench::path_settings settings{
    .round_trip = std::chrono::milliseconds{std::getenv("RTT") ? std::atoi(std::getenv("RTT")) : 100},
    .loss = std::getenv("LOSS") ? std::atof(std::getenv("LOSS")) : 0};
/// Of IPv4 and TCP with time stamps, in packets of 1,500 bytes.
constexpr double payload_share = 1448.0 / 1500;

void serve(const bench::emulated_path& path, const processes::channel& line) {
  path.enter(path_end::here);
  tensorhub::reference_server_options how;
  how.address = std::string{"tcp://"} + bench::address_of(path_end::here) + ":0";
  hub::reference_server server{how};
  line.say(server.address());
  static_cast<void>(line.hear());
}

tensorhub::worker_options worker_at(path_end end, const std::string& server, std::size_t bytes) {
  tensorhub::worker_options out{.server = server,
                                .model = "model of " + std::to_string(bytes),
                                .replica = end == path_end::here ? "trainer" : "rollout"};
  out.location.datacenter = end == path_end::here ? "here" : "there";
  return out;
}

tensorhub::transports::tcp_options listening_at(path_end end) {
  tensorhub::transports::tcp_options o{.listen_host = bench::address_of(end)};
  if (const char* c = std::getenv("CC")) o.wide_area.congestion_control = c;
  if (const char* c = std::getenv("ST")) o.wide_area.streams = std::stoul(c);
  return o;
}

/// Publishes the version that it is told.
void train(const bench::emulated_path& path, const processes::channel& line, const std::string& server,
           std::size_t bytes) {
  path.enter(path_end::here);
  std::vector<std::byte> weights(bytes, std::byte{1});
  hub::publisher trainer{worker_at(path_end::here, server, bytes), listening_at(path_end::here)};
  trainer.add("w", weights.data(), {bytes}, tensorhub::dtype::u8);
  trainer.join();
  line.say("ready");
  for (;;) {
    const std::string version = line.hear();
    trainer.unpublish();
    trainer.publish(std::stoull(version));
    line.say("published");
  }
}

/// Updates to the version that it is told, and says how many seconds that took.
void roll_out(const bench::emulated_path& path, const processes::channel& line, const std::string& server,
              std::size_t bytes) {
  path.enter(path_end::there);
  std::vector<std::byte> weights(bytes);
  hub::subscriber worker{worker_at(path_end::there, server, bytes), listening_at(path_end::there)};
  worker.add("w", weights.data(), {bytes}, tensorhub::dtype::u8);
  worker.join();
  line.say("ready");
  for (;;) {
    const std::uint64_t version = std::stoull(line.hear());
    const double started = bench::now_seconds();
    static_cast<void>(worker.update(tensorhub::exactly(version), 120s));
    line.tell(bench::now_seconds() - started);
  }
}

/// One size, in a model of its own.
class pair_of_workers {
 public:
  pair_of_workers(const bench::emulated_path& path, const std::string& server, std::size_t bytes)
      : trainer_{[&](processes::channel& line) { train(path, line, server, bytes); }},
        rollout_{[&](processes::channel& line) { roll_out(path, line, server, bytes); }} {}

  void begin() {
    static_cast<void>(trainer_.line().hear(60s));
    static_cast<void>(rollout_.line().hear(60s));
  }
  [[nodiscard]] double update_seconds() {
    const std::string version = std::to_string(++version_);
    static_cast<void>(trainer_.ask(version));
    rollout_.line().say(version);
    return rollout_.line().take<double>(120s);
  }

 private:
  processes::child_process trainer_;
  processes::child_process rollout_;
  std::uint64_t version_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  if (const std::string why = bench::emulated_path::why_not(); !why.empty()) {
    std::printf("NOT RUN: a wide-area path cannot be emulated here: %s\n", why.c_str());
    return 0;
  }
  const bench::emulated_path path{settings};
  const processes::child_process server_process{[&](processes::channel& line) { serve(path, line); }};
  const std::string server = server_process.line().hear(10s);
  const std::vector<std::pair<std::string, std::size_t>> sizes = {
      {"64 KiB", 64u << 10},
      {"16 MiB", given.smoke ? 1u << 20 : 16u << 20},
      {"1 GiB", given.smoke ? 4u << 20 : 1u << 30}};
  std::vector<std::unique_ptr<pair_of_workers>> pairs;
  for (const auto& [name, bytes] : sizes)
    pairs.push_back(std::make_unique<pair_of_workers>(path, server, bytes));
  for (const auto& each : pairs) each->begin();

  bench::comparison result{
      given, "one reader over 1 Gbit/s and 100 ms",
      "server, trainer, reader in processes of their own, in two network namespaces; update: "
      "update() of a version that is there, over connections that are there; transfer: its "
      "bytes at the path's rate, less the headers of TCP; 5 rounds"};
  const double round_trip = std::chrono::duration<double>(settings.round_trip).count();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double transfer =
        static_cast<double>(sizes[i].second) / (settings.bytes_per_second * payload_share);
    result.add("update, " + sizes[i].first, [one = pairs[i].get(), transfer, round_trip] {
      const double seconds = one->update_seconds();
      return bench::figures{{"seconds", seconds},
                            {"round trips", (seconds - transfer) / round_trip},
                            {"of the path", transfer / seconds}};
    });
  }
  result.run(given.smoke ? 1 : 5);
  result.print({"seconds", "round trips", "of the path"});
  result.goal("2 round trips / those beside the transfer, 16 MiB",
              2 / result.figure("update, 16 MiB", "round trips"), 1.0);
  result.goal("share of the path that 1 GiB fills", result.figure("update, 1 GiB", "of the path"), 0.95);
  result.write_json(given.json_path);
}
