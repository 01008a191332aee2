// What the reference server's decisions cost when a model has thousands of replicas, by Google Benchmark.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <tensorhub/service/catalog.hpp>
#include <variant>
#include <vector>

namespace {

namespace messages = tensorhub::messages;
using tensorhub::incarnation;

/// A trainer and `count` replicas that are all receiving its newest version at once: 8 to a host, 32 to a
/// rack. The server remembers as many older versions as it may.
class large_model {
 public:
  static constexpr std::uint64_t newest = 17;

  explicit large_model(std::uint64_t count) : sequences_(count + 1), operations_(count + 1) {
    for (std::uint64_t i = 0; i <= count; ++i) join(i);
    messages::publish_request publish;
    publish.held.epoch = 1;
    for (std::uint64_t version = 1; version <= newest; ++version) {
      publish.held.version = version;
      send(0, publish);
    }
    for (std::uint64_t i = 1; i <= count; ++i) ask(i);
    for (std::uint64_t i = 1; i <= count; ++i) {  // not the state that so many first calls in a row leave
      give_up(i);
      ask(i);
      forget_output();
    }
  }

  /// Ends a replica's update as one that has not written anything; it may ask again.
  void give_up(std::uint64_t replica) {
    messages::finish_request finish;
    finish.operation = operations_[replica];
    finish.result = {tensorhub::errc::cancelled, "the benchmark asks again"};
    finish.intact = true;
    send(replica, finish);
  }
  /// Asks for the version; how many sources the answer has.
  std::size_t ask(std::uint64_t replica) {
    messages::update_request update;
    update.selector = tensorhub::exactly(newest);
    update.timeout_ms = 1'000'000;
    update.shows = messages::announcement{++epoch_, {}};
    send(replica, update);
    for (const tensorhub::outgoing& out : catalog_.take_output()) {
      const auto* reply = get_if<messages::update_reply>(&out.message.body);
      if (reply == nullptr || out.to.value != replica + 1) continue;
      operations_[replica] = reply->operation;
      return reply->sources.size();
    }
    return 0;
  }
  /// Ends a replica's update; it serves the version.
  void finish(std::uint64_t replica) {
    messages::finish_request finish;
    finish.operation = operations_[replica];
    finish.version = newest;
    finish.held.emplace();
    finish.held->version = newest;
    finish.held->epoch = epoch_;
    held_epoch_ = epoch_;
    send(replica, finish);
  }
  /// Pre-condition: of the replica that has finished last. It holds nothing afterwards, and may ask again.
  void withdraw(std::uint64_t replica) {
    send(replica, messages::unpublish_request{newest, held_epoch_, {}, false});
    send(replica, messages::cut_off_done_request{});
  }
  /// Every replica also waits for the version after the newest.
  void wait() {
    messages::wait_request wait;
    wait.selector = tensorhub::at_least(newest + 1);
    wait.timeout_ms = 1'000'000'000;
    for (std::uint64_t i = 1; i < sequences_.size(); ++i) send(i, wait);
  }
  void retain() { send(0, messages::retain_request{2, {}, {}}); }
  /// Lets the timers of the server run once.
  void tick() {
    now_ = now_ + std::chrono::milliseconds{20};
    catalog_.advance(now_);
  }
  void forget_output() {
    benchmark::DoNotOptimize(catalog_.take_output());
    benchmark::DoNotOptimize(catalog_.take_log());
  }

 private:
  void join(std::uint64_t replica) {
    messages::join_request join;
    join.model = "policy";
    join.replica = "replica-" + std::to_string(replica);
    join.location = {.datacenter = "eu-1",
                     .rack = "rack-" + std::to_string(replica / 32),
                     .host = "host-" + std::to_string(replica / 8)};
    join.form.consistency = tensorhub::group_consistent::name;
    join.form.layout_digest = shape_.digest();
    join.form.chunk_bytes = shape_.chunk_bytes();
    join.form.chunk_count = shape_.chunk_count();
    join.form.tensors.assign(shape_.tensors().begin(), shape_.tensors().end());
    send(replica, join);
  }
  void send(std::uint64_t replica, messages::message body) {
    const std::uint64_t sequence = ++sequences_[replica];
    catalog_.receive(now_, {replica + 1, {sequence}, {sequence - 1}, std::move(body)});
  }

  tensorhub::layout shape_{{{"weights", tensorhub::dtype::u8, {1ull << 30}}}, 1u << 20};
  tensorhub::catalog catalog_{{.worker_timeout = std::chrono::hours{10'000}}, tensorhub::server_epoch{1}};
  tensorhub::time_point now_{1};
  std::vector<std::uint64_t> sequences_;
  std::vector<tensorhub::operation_counter> operations_;
  std::uint64_t epoch_ = 1;
  std::uint64_t held_epoch_ = 1;
};

/// One update request and its answer: the version, eight sources, and the pushes to those who make room.
void assignment(benchmark::State& state) {
  const auto count = static_cast<std::uint64_t>(state.range(0));
  large_model model{count};
  std::uint64_t replica = 0;
  std::size_t sources = 0;
  for (auto _ : state) {
    state.PauseTiming();
    replica = replica % count + 1;
    model.give_up(replica);
    model.forget_output();
    state.ResumeTiming();
    sources += model.ask(replica);
  }
  state.counters["sources"] =
      benchmark::Counter(static_cast<double>(sources), benchmark::Counter::kAvgIterations);
}
BENCHMARK(assignment)->Arg(100)->Arg(1000)->Arg(10000);

/// One report of a finished update, while all other replicas are still receiving and wait for a newer
/// version.
void end_of_update(benchmark::State& state) {
  const auto count = static_cast<std::uint64_t>(state.range(0));
  large_model model{count};
  model.wait();
  if (state.range(1) != 0) model.retain();
  model.forget_output();
  std::uint64_t replica = 0;
  std::size_t sources = 0;
  for (auto _ : state) {
    replica = replica % count + 1;
    model.finish(replica);
    state.PauseTiming();
    model.withdraw(replica);
    sources += model.ask(replica);
    model.forget_output();
    state.ResumeTiming();
  }
  state.counters["sources"] =
      benchmark::Counter(static_cast<double>(sources), benchmark::Counter::kAvgIterations);
}
BENCHMARK(end_of_update)->ArgsProduct({{100, 1000, 10000}, {0, 1}})->ArgNames({"", "retained"});

/// What all replicas ask together: which version comes next.
void wait(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    large_model model{static_cast<std::uint64_t>(state.range(0))};
    state.ResumeTiming();
    model.wait();
    state.PauseTiming();
    model.forget_output();
    state.ResumeTiming();
  }
}
BENCHMARK(wait)->Arg(100)->Arg(1000)->Arg(10000)->Iterations(3)->Unit(benchmark::kMillisecond);

/// The periodic work of a server, every 20 ms, while all replicas are receiving and wait for a newer version.
void tick(benchmark::State& state) {
  large_model model{static_cast<std::uint64_t>(state.range(0))};
  model.wait();
  for (auto _ : state) {
    model.tick();
    state.PauseTiming();
    model.forget_output();
    state.ResumeTiming();
  }
}
BENCHMARK(tick)->Arg(100)->Arg(1000)->Arg(10000);

}  // namespace
