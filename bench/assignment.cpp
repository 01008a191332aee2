// What the reference server's decisions cost when a model has thousands of replicas, by Google Benchmark.

#include <benchmark/benchmark.h>

#include <string>
#include <tensorhub/service/catalog.hpp>
#include <variant>
#include <vector>

namespace {

namespace messages = tensorhub::messages;
using tensorhub::incarnation;

/// A trainer and `count` replicas that are all receiving version 1 at once: 8 to a host, 32 to a rack.
class large_model {
 public:
  explicit large_model(std::uint64_t count) : sequences_(count + 1) {
    for (std::uint64_t i = 0; i <= count; ++i) join(i);
    messages::publish_request publish;
    publish.held.version = 1;
    publish.held.epoch = 1;
    send(0, publish);
    for (std::uint64_t i = 1; i <= count; ++i) ask(i);
  }

  /// Ends a replica's update as one that has not written anything; it may ask again.
  void give_up(std::uint64_t replica) {
    messages::finish_request finish;
    finish.operation = operation_;
    finish.result = {tensorhub::errc::cancelled, "the benchmark asks again"};
    finish.intact = true;
    send(replica, finish);
  }
  /// Asks for the version; how many sources the answer has.
  std::size_t ask(std::uint64_t replica) {
    messages::update_request update;
    update.selector = tensorhub::exactly(1);
    update.timeout_ms = 1'000'000;
    update.shows = messages::announcement{++epoch_, {}};
    send(replica, update);
    for (const tensorhub::outgoing& out : catalog_.take_output()) {
      const auto* reply = get_if<messages::update_reply>(&out.message.body);
      if (reply == nullptr || out.to.value != replica + 1) continue;
      operation_ = reply->operation;
      return reply->sources.size();
    }
    return 0;
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
    join.place = {.datacenter = "eu-1",
                  .rack = "rack-" + std::to_string(replica / 32),
                  .host = "host-" + std::to_string(replica / 8)};
    join.consistency = tensorhub::group_consistent::name;
    join.layout_digest = shape_.digest();
    join.chunk_bytes = shape_.chunk_bytes();
    join.chunk_count = shape_.chunk_count();
    join.tensors.assign(shape_.tensors().begin(), shape_.tensors().end());
    send(replica, join);
  }
  void send(std::uint64_t replica, messages::message body) {
    const std::uint64_t sequence = ++sequences_[replica];
    catalog_.receive({1}, {replica + 1, {sequence}, {sequence - 1}, std::move(body)});
  }

  tensorhub::layout shape_{{{"weights", tensorhub::dtype::u8, {1ull << 30}}}, 1u << 20};
  tensorhub::catalog catalog_{{}, tensorhub::server_epoch{1}};
  std::vector<std::uint64_t> sequences_;
  tensorhub::operation_counter operation_{};
  std::uint64_t epoch_ = 1;
};

/// One update request and its answer: the version, eight sources, and the pushes to those who make room.
void assignment(benchmark::State& state) {
  const auto count = static_cast<std::uint64_t>(state.range(0));
  large_model model{count};
  for (std::uint64_t i = 1; i <= count; ++i) {  // not the state that so many first calls in a row leave
    model.give_up(i);
    model.ask(i);
    model.forget_output();
  }
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

}  // namespace
