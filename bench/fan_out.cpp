// One trainer, several readers that update at once: on one machine, with links of 1 Gbit/s between them,
// and with a source that is killed. (With a border between: two_datacenters.cpp.)
//
//     bench_fan_out [--smoke] [--json FILE] [--trace FILE]
//
// --trace writes one update of a trainer and five rollouts in Chrome trace format (chrome_trace.hpp).

#include <algorithm>
#include <numeric>
#include <tensorhub/testing/throttled.hpp>

#include "chrome_trace.hpp"
#include "cluster.hpp"

namespace {

using bench::bytes_of;
using bench::cluster;
using bench::figures;
using bench::process_settings;
using bench::reading;
using bench::scheme;

constexpr std::size_t reader_count = 4;
constexpr double reads_in_flight = 8;  // of one reader: 2 lanes, windows of 4 chunks
constexpr double chunk_bytes = 1u << 20;

std::vector<process_settings> named(const std::string& name, std::size_t count, std::uint64_t bytes,
                                    bool own_hosts = false) {
  std::vector<process_settings> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(
        {.replica = name + std::to_string(i), .bytes = bytes, .traced = own_hosts, .own_host = own_hosts});
  return out;
}

/// Every reader that lived has the trainer's bytes.
void all_right(bench::comparison& result, const std::vector<std::pair<std::string, double>>& expected) {
  for (const auto& [name, readers] : expected)
    result.goal("right digests, " + name, result.figure(name, "digests right") / readers, 1.0);
}

// ---- everybody at once
// --------------------------------------------------------------------------------------

figures fan_out(cluster& all, scheme which, std::uint64_t bytes) {
  all.publish(which);
  const double cpu = all.cpu();
  const double started = all.begin_update();
  double last = started, from_trainer = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const reading one = all.end_of(i);
    last = std::max(last, one.ended);
    from_trainer += bytes_of(one.sources, "trainer");
  }
  const double cpu_used = all.cpu() - cpu;
  return {{"last reader s", last - started},
          {"GB/s, all", static_cast<double>(bytes * all.size()) * 1e-9 / (last - started)},
          {"from trainer", from_trainer / static_cast<double>(bytes)},
          {"cpu s", cpu_used},
          {"digests right", all.right_digests()}};
}

// ---- links between them
// --------------------------------------------------------------------------------------

/// Each worker has a link of 1 Gbit/s each way and a host of its own, as far as the scheduler knows. The
/// workers share this process, because links know their peers only there.
class linked_fleet {
  using hub = bench::mesh_hub<tensorhub::testing::throttled<tensorhub::transports::tcp>>;
  template <typename Worker>
  struct member {
    tensorhub::host_memory::allocation memory;
    Worker worker;
    member(const std::string& server, const std::string& name, std::uint64_t bytes)
        : memory{bytes}, worker{who(server, name), {.receiving = link(), .sending = link()}} {
      std::memset(memory.data(), 1, bytes);
      worker.add("weights", memory.data(), {bytes}, tensorhub::dtype::u8);
      worker.join();
    }
  };
  static std::shared_ptr<tensorhub::testing::network_link> link() {
    return std::make_shared<tensorhub::testing::network_link>(
        tensorhub::testing::network_link_options{.bytes_per_second = 125e6});
  }
  static tensorhub::worker_options who(const std::string& server, const std::string& name) {
    tensorhub::worker_options out;
    out.server = server;
    out.model = "policy";
    out.replica = out.location.host = name;
    out.process = tensorhub::process::separate();
    return out;
  }

 public:
  linked_fleet(const std::string& server, std::size_t readers, std::uint64_t bytes)
      : trainer_{server, "trainer", bytes} {
    for (std::size_t i = 0; i < readers; ++i)
      readers_.push_back(
          std::make_unique<member<hub::subscriber>>(server, "rollout-" + std::to_string(i), bytes));
  }
  /// Until the last reader has a new version.
  figures update() {
    for (const auto& each : readers_) each->worker.unpublish();
    trainer_.worker.unpublish();
    std::memset(trainer_.memory.data(), static_cast<int>(++version_ % 251), trainer_.memory.range().bytes);
    trainer_.worker.publish(version_);
    const double started = bench::now_seconds();
    {
      std::vector<std::jthread> updates;
      for (const auto& each : readers_)
        updates.emplace_back([this, &each] {
          static_cast<void>(each->worker.update(tensorhub::exactly(version_), std::chrono::seconds{120}));
        });
    }
    const double seconds = bench::now_seconds() - started;
    for (const auto& each : readers_)
      if (std::memcmp(each->memory.data(), trainer_.memory.data(), trainer_.memory.range().bytes) != 0)
        throw std::runtime_error("a reader has other bytes than the trainer");
    return {{"last reader s", seconds}};
  }

 private:
  member<hub::publisher> trainer_;
  std::vector<std::unique_ptr<member<hub::subscriber>>> readers_;
  std::uint64_t version_ = 0;
};

bench::comparison over_links(const bench::arguments& given) {
  bench::comparison result{
      given, "the same with links of 1 Gbit/s each way",
      "256 MiB in each of five workers of one process (testing/throttled.hpp over loopback TCP), "
      "each a host of its own; one reader: without the other three; medians of 3 rounds after a "
      "warming one, order rotates"};
  const std::uint64_t bytes = given.smoke ? 16u << 20 : 256u << 20;
  const tensorhub::reference_server<> mesh;
  const tensorhub::reference_server<> alone;
  const tensorhub::reference_server<baselines::one_to_many> star;
  linked_fleet one{alone.address(), 1, bytes};
  linked_fleet by_mesh{mesh.address(), reader_count, bytes};
  linked_fleet by_star{star.address(), reader_count, bytes};
  result.add("one reader", [&] { return one.update(); });
  result.add("nearest_source", [&] { return by_mesh.update(); });
  result.add("one_to_many", [&] { return by_star.update(); });
  result.run(given.smoke ? 1 : 3);
  result.print({"last reader s"});
  result.goal(
      "1.1 x time of one reader / time of nearest_source",
      1.1 * result.figure("one reader", "last reader s") / result.figure("nearest_source", "last reader s"),
      1.0);
  return result;
}

// ---- a source dies
// ------------------------------------------------------------------------------------------

enum class victim { none, trainer, reader };

/// A new cluster each time. The second trainer, or the first reader, is killed when the first reader has
/// half.
figures with_victim(std::size_t trainers, std::size_t readers, victim who, std::uint64_t bytes) {
  cluster all{named("trainer-", trainers, bytes, true), named("rollout-", readers, bytes, true)};
  all.publish(scheme::mesh);
  const double started = all.begin_update(true);
  const auto half = all.half_of(0, 120'000);
  if (!half) throw std::runtime_error("no reader has come to the middle of its update");
  const double killed = bench::now_seconds();
  if (who == victim::trainer) all.trainer(1).signal(SIGKILL);
  if (who == victim::reader) all.reader(0).signal(SIGKILL);
  const std::string its_name = who == victim::trainer ? "trainer-1" : "rollout-0";
  const auto dead = who == victim::reader ? std::optional<std::size_t>{0} : std::nullopt;
  double last = started, noticed = 0, pause = 0, from_victim = 0;
  for (std::size_t i = dead ? 1 : 0; i < readers; ++i) {
    const reading one = all.end_of(i);
    last = std::max(last, one.ended);
    if (one.lost > 0) noticed = std::max(noticed, one.lost - killed);
    pause = std::max(pause, one.pause_s);
    from_victim += bytes_of(one.sources, its_name);
  }
  figures out{{"last reader s", last - started},
              {"pause ms", pause * 1e3},
              {"digests right", all.right_digests(dead)}};
  if (who != victim::none) {
    out["noticed ms"] = noticed * 1e3;
    out["from victim"] = from_victim / static_cast<double>(bytes);
  }
  return out;
}

/// Detection has a bound of its own: else a slow one would make the goal of the extra time easier.
constexpr double longest_detection_ms = 50;

/// What the victim cost on top, against the chunks that were in flight and the time until it was noticed.
void judge(bench::comparison& result, const std::string& calm, const std::string& killed,
           std::uint64_t bytes) {
  const double calm_s = result.figure(calm, "last reader s");
  const double extra_s = result.figure(killed, "last reader s") - calm_s;
  const double in_flight_s = reads_in_flight * chunk_bytes / static_cast<double>(bytes) * calm_s;
  const double noticed_ms = result.figure(killed, "noticed ms");
  const double allowed_s = in_flight_s + std::min(noticed_ms, longest_detection_ms) * 1e-3;
  std::printf("%s: extra time %.1f ms; chunks in flight %.1f ms, noticed after %.1f ms\n", killed.c_str(),
              extra_s * 1e3, in_flight_s * 1e3, noticed_ms);
  result.goal(killed + ": 50 ms / time until it was noticed", longest_detection_ms / noticed_ms, 1.0);
  result.goal(killed + ": (in flight + detection, at most 50 ms) / extra time",
              allowed_s / std::max(extra_s, 1e-3), 1.0);
}

// ---- the trace
// ----------------------------------------------------------------------------------------------

void write_trace(const std::string& path, std::uint64_t bytes) {
  constexpr std::size_t rollouts = 5;
  cluster all{named("trainer-", 1, bytes, true), named("rollout-", rollouts, bytes, true)};
  all.publish(scheme::mesh);
  all.begin_update();
  for (std::size_t i = 0; i < rollouts; ++i) static_cast<void>(all.end_of(i));
  if (all.right_digests() != rollouts) throw std::runtime_error("a rollout has other bytes than the trainer");
  bench::chrome_trace trace;
  for (std::size_t i = 0; i < rollouts; ++i) trace.add("rollout-" + std::to_string(i), all.records_of(i));
  trace.write(path);
  std::printf("\na Chrome trace of one update of %zu rollouts is in %s\n", rollouts, path.c_str());
}

void run(const bench::arguments& given, const std::string& trace_path) {
  const std::uint64_t bytes = given.smoke ? 64u << 20 : 1u << 30;
  const std::size_t rounds = given.smoke ? 1 : 5;
  const std::string mib = std::to_string(bytes >> 20) + " MiB";
  const std::string how = mib + " in a memfd per process, loopback TCP, 2 lanes, window 4; ";

  bench::comparison fan{
      given, "one trainer, four readers that update at once",
      how +
          "one host; all updates are asked for at once; last reader: from then until the slowest "
          "has it; from trainer: models read from its memory, by the readers' reports; cpu: "
          "of all six processes; 1 warming round, then " +
          std::to_string(rounds) + ", order rotates; medians"};
  {
    cluster all{named("trainer-", 1, bytes), named("rollout-", reader_count, bytes)};
    fan.add("nearest_source", [&] { return fan_out(all, scheme::mesh, bytes); });
    fan.add("one_to_many", [&] { return fan_out(all, scheme::star, bytes); });
    fan.run(rounds);
  }
  fan.print({"last reader s", "GB/s, all", "from trainer", "cpu s", "digests right"});
  all_right(fan, {{"nearest_source", reader_count}, {"one_to_many", reader_count}});
  const std::vector<std::string> star{"one_to_many"};
  fan.goal("time of one_to_many / time of nearest_source",
           fan.ratio("nearest_source", star, "last reader s", false), 1.0);
  fan.goal("cpu of one_to_many / cpu of nearest_source", fan.ratio("nearest_source", star, "cpu s", false),
           1.0);

  const bench::comparison linked = over_links(given);

  const std::size_t kill_rounds = given.smoke ? 1 : 5;
  bench::comparison killed{
      given, "a source is killed in the middle",
      how +
          "SIGKILL when the first reader has half; new processes each time; extra time: "
          "of medians; noticed: from the signal until the last survivor knows, and so the time that the "
          "kernel needs to end a process of this size is in it; pause: a "
          "survivor's longest time without a chunk in the second half; from victim: "
          "models that survivors read from it; " +
          std::to_string(kill_rounds) + " rounds after a warming one, order rotates"};
  killed.add("one trainer, four readers", [&] { return with_victim(1, 4, victim::none, bytes); });
  killed.add("  a reader is killed", [&] { return with_victim(1, 4, victim::reader, bytes); });
  killed.add("one trainer, one reader", [&] { return with_victim(1, 1, victim::none, bytes); });
  killed.add("two trainers, one reader", [&] { return with_victim(2, 1, victim::none, bytes); });
  killed.add("  a trainer is killed", [&] { return with_victim(2, 1, victim::trainer, bytes); });
  killed.run(kill_rounds);
  killed.print({"last reader s", "pause ms", "noticed ms", "from victim", "digests right"});
  all_right(killed, {{"one trainer, four readers", 4},
                     {"  a reader is killed", 3},
                     {"one trainer, one reader", 1},
                     {"two trainers, one reader", 1},
                     {"  a trainer is killed", 1}});
  judge(killed, "one trainer, four readers", "  a reader is killed", bytes);
  judge(killed, "two trainers, one reader", "  a trainer is killed", bytes);

  bench::write_json(given.json_path, {&fan, &linked, &killed});
  if (!trace_path.empty()) write_trace(trace_path, given.smoke ? 16u << 20 : 256u << 20);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  std::string trace_path;
  for (int i = 1; i + 1 < argc; ++i)
    if (std::string_view{argv[i]} == "--trace") trace_path = argv[i + 1];
  try {
    run(given, trace_path);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_fan_out: %s\n", e.what());
    return 1;
  }
}
