// What one reader in another datacenter gets over a path of 1 Gbit/s and 100 ms there and back, emulated with
// the kernel's own TCP (emulated_path.hpp): how much of the path an update fills, and how many round trips it
// takes beside the transfer itself. The reference server is in the trainer's datacenter.

#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "bare_tcp.hpp"
#include "emulated_path.hpp"
#include "harness.hpp"

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;
using bench::path_end;
using namespace std::chrono_literals;

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
  return {.listen_host = bench::address_of(end)};
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
    const std::uint64_t version = std::stoull(line.hear());
    trainer.unpublish();
    bench::change_pages(weights, version);
    trainer.publish(version);
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

/// As the transport sets its connections over a wide-area path.
bench::bare_path bare_path_of(path_end source) {
  const tensorhub::transports::tcp_path set = tensorhub::transports::tcp_options{}.wide_area;
  return {bench::address_of(source), set.congestion_control, static_cast<int>(set.send_buffer_bytes)};
}

/// One exchange of some bytes, as a request to the server, and then one read over a connection that is there:
/// less than an update cannot take.
class bare_exchange {
 public:
  bare_exchange(const bench::emulated_path& path, std::size_t bytes)
      : bytes_{bytes},
        source_{[&path, bytes](processes::channel& line) {
          path.enter(path_end::here);
          const std::vector<std::byte> weights(bytes, std::byte{1});
          const bench::bare_source source{weights.data(), -1, false, bare_path_of(path_end::here)};
          line.tell(source.port());
          static_cast<void>(line.hear());
        }},
        reader_{[&path, bytes](processes::channel& line) {
          path.enter(path_end::there);
          bench::bare_reader reader{line.take<std::uint16_t>(60s), 1, bare_path_of(path_end::here)};
          std::vector<std::byte> weights(bytes);
          for (;;) {
            static_cast<void>(line.hear());
            const double started = bench::now_seconds();
            reader.read(weights.data(), 1, 1, 1);
            reader.read(weights.data(), bytes, bytes, 1);
            line.tell(bench::now_seconds() - started);
          }
        }} {}

  void begin() { reader_.line().tell(source_.line().take<std::uint16_t>(60s)); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] double seconds() {
    reader_.line().say("read");
    return reader_.line().take<double>(120s);
  }

 private:
  std::size_t bytes_;
  processes::child_process source_;
  processes::child_process reader_;
};

/// One size, in a model of its own.
class pair_of_workers {
 public:
  pair_of_workers(const bench::emulated_path& path, const std::string& server, std::size_t bytes)
      : bytes_{bytes},
        trainer_{[&](processes::channel& line) { train(path, line, server, bytes); }},
        rollout_{[&](processes::channel& line) { roll_out(path, line, server, bytes); }} {}

  void begin() {
    static_cast<void>(trainer_.line().hear(60s));
    static_cast<void>(rollout_.line().hear(60s));
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] double seconds() {
    const std::string version = std::to_string(++version_);
    static_cast<void>(trainer_.ask(version));
    rollout_.line().say(version);
    return rollout_.line().take<double>(120s);
  }

 private:
  std::size_t bytes_;
  processes::child_process trainer_;
  processes::child_process rollout_;
  std::uint64_t version_ = 0;
};

/// A path with a reference server and pairs of workers at its two ends.
struct world {
  bench::path_settings settings;
  bench::emulated_path path{settings};
  processes::child_process server{[this](processes::channel& line) { serve(path, line); }};
  std::string address = server.line().hear(10s);
  std::vector<std::unique_ptr<pair_of_workers>> pairs{};
  std::vector<std::unique_ptr<bare_exchange>> bare{};

  explicit world(const bench::path_settings& of) : settings{of} {}

  /// All processes come before the first update.
  void add(std::size_t bytes) { pairs.push_back(std::make_unique<pair_of_workers>(path, address, bytes)); }
  void add_bare(std::size_t bytes) { bare.push_back(std::make_unique<bare_exchange>(path, bytes)); }
  void begin() const {
    for (const auto& each : pairs) each->begin();
    for (const auto& each : bare) each->begin();
  }

  template <typename Measured>
  [[nodiscard]] bench::figures turn(Measured& measured) const {
    const double transfer =
        static_cast<double>(measured.bytes()) / (settings.bytes_per_second * payload_share);
    const double seconds = measured.seconds();
    return {
        {"seconds", seconds},
        {"round trips", (seconds - transfer) / std::chrono::duration<double>(settings.round_trip).count()},
        {"of the path", transfer / seconds}};
  }
};

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  if (const std::string why = bench::emulated_path::why_not(); !why.empty()) {
    std::printf("NOT RUN: a wide-area path cannot be emulated here: %s\n", why.c_str());
    return 0;
  }
  const std::size_t large = given.smoke ? 4u << 20 : 1u << 30;
  world clean{{}}, lossy{{.round_trip = 50ms, .loss = 0.001}};
  constexpr std::size_t small = 64u << 10, middle = 16u << 20;
  for (const std::size_t bytes : {small, middle, large}) clean.add(bytes);
  for (const std::size_t bytes : {small, middle}) clean.add_bare(bytes);
  lossy.add(large);
  for (const world* each : {&clean, &lossy}) each->begin();

  bench::comparison result{given, "one reader over 1 Gbit/s and 100 ms",
                           "server, trainer and reader in processes of their own, in two network namespaces; "
                           "update: update() of a "
                           "version that is there, over connections that are there; round trips: its time "
                           "less that of its bytes at "
                           "the path's rate, without TCP's headers; bare: an exchange of some bytes, then "
                           "one read by a blocking loop, over one connection with the transport's settings; "
                           "7 rounds"};
  result.add("update, 64 KiB", [&clean] { return clean.turn(*clean.pairs[0]); });
  result.add("update, 16 MiB", [&clean] { return clean.turn(*clean.pairs[1]); });
  result.add("bare, 64 KiB", [&clean] { return clean.turn(*clean.bare[0]); });
  result.add("bare, 16 MiB", [&clean] { return clean.turn(*clean.bare[1]); });
  result.add("update, 1 GiB", [&clean] { return clean.turn(*clean.pairs[2]); });
  result.add("update, 1 GiB, 50 ms, 0.1 % of packets lost", [&lossy] { return lossy.turn(*lossy.pairs[0]); });
  result.run(given.smoke ? 1 : 7);
  result.print({"seconds", "round trips", "of the path"});
  for (const char* size : {"64 KiB", "16 MiB"}) {
    result.goal(
        "time of the bare loop / of an update, " + std::string{size},
        result.ratio(std::string{"update, "} + size, {std::string{"bare, "} + size}, "seconds", false), 0.97);
  }
  result.goal("share of the path that 1 GiB fills", result.figure("update, 1 GiB", "of the path"), 0.95);
  result.write_json(given.json_path);
}
