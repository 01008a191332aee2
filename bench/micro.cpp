// Single parts of the library, by Google Benchmark: digests, codec, catalog, scheduler, the pull's
// bookkeeping, registration. (Assignments of a large catalog: assignment.cpp.)

#include <benchmark/benchmark.h>

#include <cstring>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/policy/integrity/blake3_128.hpp>
#include <tensorhub/policy/integrity/xxh3_128.hpp>
#include <tensorhub/policy/scheduler/nearest_source.hpp>
#include <tensorhub/service/catalog.hpp>
#include <tensorhub/service/codec.hpp>
#include <tensorhub/transfer/pull.hpp>
#include <tensorhub/transfer/shard_memory.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <vector>

namespace {

namespace messages = tensorhub::messages;

template <tensorhub::integrity Integrity>
void chunk_digest(benchmark::State& state) {
  const std::vector<std::byte> chunk(static_cast<std::size_t>(state.range(0)), std::byte{3});
  for (auto _ : state) benchmark::DoNotOptimize(Integrity::chunk_digest(1, 2, chunk));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(chunk_digest<tensorhub::xxh3_128>)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20);
BENCHMARK(chunk_digest<tensorhub::blake3_128>)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20);

messages::envelope an_assignment() {
  messages::update_reply reply;
  messages::assignment& source = reply.sources.emplace_back();
  source.source_replica = "rollout-17";
  source.address.text = "tcp://10.0.0.17:40123";
  source.control.key.used_bytes = 24;
  return {1, {2}, {1}, reply};
}

void encode_assignment(benchmark::State& state) {
  tensorhub::encoder encoder;
  const auto message = an_assignment();
  for (auto _ : state) benchmark::DoNotOptimize(encoder.encode(message).data());
}
BENCHMARK(encode_assignment);

void decode_assignment(benchmark::State& state) {
  tensorhub::encoder encoder;
  tensorhub::decoder decoder;
  const auto frame = encoder.encode(an_assignment());
  for (auto _ : state) benchmark::DoNotOptimize(decoder.decode(frame).fault);
}
BENCHMARK(decode_assignment);

void nearest_source_of(benchmark::State& state) {
  tensorhub::nearest_source scheduler{tensorhub::nearest_source::options{}};
  std::vector<tensorhub::location> places(static_cast<std::size_t>(state.range(0)));
  std::vector<tensorhub::source_candidate> candidates;
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i] = {.datacenter = "eu-1", .rack = "r" + std::to_string(i % 32), .host = "h" + std::to_string(i)};
    candidates.push_back({{i + 1}, &places[i], static_cast<std::uint32_t>(i % 7), 100, 100, true, false});
  }
  const tensorhub::location here{.datacenter = "eu-1", .rack = "r3", .host = "other"};
  const tensorhub::source_query query{{9999}, &here, {1}, {0, 1}};
  for (auto _ : state) benchmark::DoNotOptimize(scheduler.choose(query, candidates));
}
BENCHMARK(nearest_source_of)->Arg(10)->Arg(1000);

/// A worker's messages to the catalog, without sockets: update, finish, unpublish among so many workers.
void catalog_update(benchmark::State& state) {
  tensorhub::catalog catalog{{}, tensorhub::server_epoch{5}};
  const std::vector<tensorhub::tensor_spec> tensors{{"w", tensorhub::dtype::f32, {1024, 1024}}};
  const tensorhub::layout shape{tensors};
  const auto workers = static_cast<std::uint64_t>(state.range(0));
  const tensorhub::time_point now{1};
  const auto tell = [&](std::uint64_t worker, std::uint64_t sequence, messages::message body) {
    catalog.receive(now, {worker, {sequence}, {sequence - 1}, std::move(body)});
    return catalog.take_output();
  };
  for (std::uint64_t i = 1; i <= workers + 1; ++i) {
    messages::join_request join;
    join.model = "m";
    join.replica = "r" + std::to_string(i);
    join.form.consistency = tensorhub::group_consistent::name;
    join.form.layout_digest = shape.digest();
    join.form.chunk_bytes = shape.chunk_bytes();
    join.form.chunk_count = shape.chunk_count();
    join.form.tensors = tensors;
    tell(i, 1, join);
  }
  tell(workers + 1, 2, messages::publish_request{{1}, {{1}, 1, {7, 7}, {}}});
  std::vector<std::uint64_t> sequence(workers + 1, 1);
  std::uint64_t at = 0;
  for (auto _ : state) {
    const std::uint64_t worker = at++ % workers + 1;
    std::uint64_t& number = sequence[worker];
    const tensorhub::operation_counter operation{(number - 1) / 3 + 1};
    const auto answers =
        tell(worker, ++number, messages::update_request{operation, tensorhub::latest, 60'000});
    messages::finish_request finish;
    finish.operation = operation;
    finish.version = {1};
    finish.held = messages::reference{{1}, operation.value, {7, 7}, {}};
    for (const auto& each : answers) {
      if (const auto* reply = get_if<messages::update_reply>(&each.message.body);
          reply && !reply->sources.empty())
        finish.lease = reply->sources.front().lease;
    }
    if (!finish.lease) state.SkipWithError("no source was assigned");
    tell(worker, ++number, finish);
    tell(worker, ++number, messages::unpublish_request{{1}, operation.value, {}});
  }
}
BENCHMARK(catalog_update)->Arg(100)->Arg(1000);

/// The pull's decisions for one chunk: next, arrived, and its share of the header reads.
void pull_per_chunk(benchmark::State& state) {
  const std::vector<tensorhub::tensor_spec> tensors{{"w", tensorhub::dtype::u8, {1ull << 32}}};
  const tensorhub::layout shape{tensors};
  tensorhub::control_block block{{3}, shape};
  block.set_segment(0, {0, 1ull << 32, {}});
  block.show({1}, 1);
  const auto memory = std::as_bytes(block.memory());
  std::int64_t chunks = 0;
  for (auto _ : state) {
    tensorhub::pull core{shape, {}, 0};
    const auto slot = core.add_source({{1}, {3}, {1}, 1, {}});
    const auto channel = core.open_channel(slot);
    while (!core.done()) {
      const auto task = core.next(channel);
      if (!task) {
        state.SkipWithError("the pull is stuck");
        break;
      }
      using kind = tensorhub::pull_task::kind_type;
      if (task->kind == kind::block) {
        core.block_arrived(channel, tensorhub::completion_status::ok, memory, {});
      } else if (task->kind == kind::header) {
        core.header_arrived(channel, tensorhub::completion_status::ok,
                            memory.first(sizeof(tensorhub::control_header)));
      } else {
        core.chunk_arrived(channel, task->chunk, tensorhub::completion_status::ok, {});
        ++chunks;
      }
    }
  }
  state.SetItemsProcessed(chunks);
}
BENCHMARK(pull_per_chunk);

/// So many regions of 1 MiB in one call, and their end. (What a device's registration costs depends on the
/// device: transport_bench shows it as rows.)
template <tensorhub::transport Transport>
void register_regions(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const tensorhub::host_memory::allocation memory{count << 20};
  std::memset(memory.data(), 1, count << 20);
  std::vector<tensorhub::memory_range> ranges(count, memory.range());
  for (std::size_t i = 0; i < count; ++i) {
    ranges[i].data += i << 20;
    ranges[i].bytes = 1u << 20;
    ranges[i].backing_offset = i << 20;
  }
  Transport through{{}, {7}};
  for (auto _ : state)
    benchmark::DoNotOptimize(through.register_memory(ranges, tensorhub::region_access::remote_read).data());
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(register_regions<tensorhub::transports::tcp>)->Arg(1)->Arg(64);
BENCHMARK(register_regions<tensorhub::transports::same_host>)->Arg(1)->Arg(64);

/// What a worker does before its first version: so many small tensors are added, laid out and registered.
void register_tensors(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> memory(count * 4096);
  tensorhub::transports::tcp through{{}, {7}};
  for (auto _ : state) {
    tensorhub::shard_memory<tensorhub::transports::tcp, tensorhub::host_memory> shard{through};
    for (std::size_t i = 0; i < count; ++i)
      shard.add({"t" + std::to_string(i), tensorhub::dtype::u8, {4096}}, memory.data() + i * 4096);
    const auto shape = shard.build_layout(tensorhub::defaults::chunk_bytes, {});
    shard.register_all(shape);
    benchmark::DoNotOptimize(shard.places().data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(register_tensors)->Arg(1000);

}  // namespace

BENCHMARK_MAIN();
