#pragma once
/// \file hub_scene.hpp
/// Whole hubs whose weights live in CUDA memory, over the fake driver and over a real one.

#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <tensorhub/memory/cuda.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transfer/shard_memory.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <utility>
#include <vector>

#include "support/child_process.hpp"

namespace hubs {

template <typename Driver, typename Transport>
using hub = tensorhub::hub<Transport, tensorhub::nearest_source, tensorhub::group_consistent,
                           tensorhub::xxh3_128, tensorhub::basic_cuda_memory<Driver>>;
template <typename Driver>
using near_hub =
    hub<Driver, tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>>;

constexpr std::uint64_t chunk_bytes = 64u << 10;

inline tensorhub::worker_options who(const std::string& server, const std::string& replica) {
  tensorhub::worker_options options;
  options.server = server;
  options.model = "policy";
  options.replica = replica;
  options.location.host = "here";
  options.chunk_bytes = chunk_bytes;
  return options;
}

/// One allocation of the driver, with exactly as many bytes as were asked for: a real driver, like the fake
/// one, gives allocations of whole 2 MiB addresses that follow one another.
template <typename Driver>
class exact_block {
 public:
  using device = tensorhub::cuda_device<Driver>;
  exact_block(int device_number, std::uint64_t bytes)
      : device_{&device::at(device_number)}, data_{device_->allocate(bytes)} {}
  exact_block(exact_block&& other) noexcept : device_{other.device_}, data_{std::exchange(other.data_, 0)} {}
  exact_block& operator=(exact_block&&) = delete;
  ~exact_block() {
    if (data_ != 0) device_->free(data_);
  }
  [[nodiscard]] std::byte* data() const noexcept {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(data_));
  }

 private:
  device* device_;
  CUdeviceptr data_;
};

/// Two large tensors, two that fill neighbouring allocations and 300 small ones on devices, one large in
/// pinned memory, one small in plain host memory.
template <typename Driver>
struct weights {
  using memory = tensorhub::basic_cuda_memory<Driver>;
  static constexpr std::uint64_t large_bytes = 2'500'003;
  static constexpr std::uint64_t small_count = 300;
  static constexpr std::uint64_t exact_bytes = 2u << 20;

  memory space{};
  memory last_device{{.device = tensorhub::cuda_device<Driver>::count() - 1}};
  tensorhub::basic_cuda_pinned_memory<Driver> pinned_space{};
  typename memory::allocation large = space.allocate(large_bytes);
  typename memory::allocation elsewhere = last_device.allocate(large_bytes);
  typename memory::allocation small = space.allocate(small_count * 2048);
  typename tensorhub::basic_cuda_pinned_memory<Driver>::allocation pinned =
      pinned_space.allocate(large_bytes);
  std::vector<std::byte> plain = std::vector<std::byte>(777);
  exact_block<Driver> neighbour{0, exact_bytes};
  exact_block<Driver> next_neighbour{0, exact_bytes};

  template <typename Visit>
  void visit(Visit&& each) {
    each(0, large.data(), large_bytes);
    each(1, elsewhere.data(), large_bytes);
    each(2, pinned.data(), large_bytes);
    each(3, plain.data(), plain.size());
    each(4, neighbour.data(), exact_bytes);
    each(5, next_neighbour.data(), exact_bytes);
    for (std::uint64_t i = 0; i < small_count; ++i) each(10 + i, small.data() + i * 2048, i * 6 % 2000 + 1);
  }
  template <typename Worker>
  void add_to(Worker& worker) {
    visit([&](std::uint64_t tensor, std::byte* at, std::uint64_t bytes) {
      worker.add("t" + std::to_string(tensor), at, {bytes}, tensorhub::dtype::u8);
    });
  }
  [[nodiscard]] static std::vector<std::byte> bytes_of(std::uint64_t version, std::uint64_t tensor,
                                                       std::uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    std::uint64_t word = version * 1'000'003 + tensor;
    for (std::byte& each : out) {
      word = word * 6364136223846793005ull + 1442695040888963407ull;
      each = static_cast<std::byte>(word >> 56);
    }
    return out;
  }
  void fill(std::uint64_t version) {
    visit([&](std::uint64_t tensor, std::byte* at, std::uint64_t bytes) {
      space.copy(at, bytes_of(version, tensor, bytes).data(), bytes);
    });
    REQUIRE(space.trouble().empty());
  }
  [[nodiscard]] bool holds(std::uint64_t version) {
    bool same = true;
    visit([&](std::uint64_t tensor, std::byte* at, std::uint64_t bytes) {
      std::vector<std::byte> taken(bytes);
      space.copy(taken.data(), at, bytes);
      same = same && taken == bytes_of(version, tensor, bytes);
    });
    return same && space.trouble().empty();
  }
};

template <typename Driver, typename Worker>
struct member {
  weights<Driver> memory{};
  Worker worker;
  explicit member(const tensorhub::worker_options& options) : worker{options} { memory.add_to(worker); }
};

/// One trainer, two rollouts in this process, each new version handed on, all of it by `path`.
template <typename Driver, typename Hub>
void versions_travel(const std::string& path) {
  typename Hub::reference_server server;
  member<Driver, typename Hub::publisher> trainer{who(server.address(), "trainer")};
  member<Driver, typename Hub::subscriber> first{who(server.address(), "rollout-0")};
  member<Driver, typename Hub::subscriber> second{who(server.address(), "rollout-1")};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    trainer.memory.fill(version);
    trainer.worker.publish(version, tensorhub::all_done);
    CHECK(first.worker.update(tensorhub::exactly(version), tensorhub::all_done).paths == std::vector{path});
    CHECK(first.memory.holds(version));
    trainer.worker.unpublish();
    CHECK(second.worker.update(tensorhub::exactly(version), tensorhub::all_done).paths ==
          std::vector{path});  // nobody else has it
    CHECK(second.memory.holds(version));
  }
}

/// What a rollout's process is told first.
struct rollout_name {
  char server[64] = {};
  char replica[16] = {};
  rollout_name() = default;
  rollout_name(const std::string& address, const std::string& name) {
    address.copy(server, sizeof server - 1);
    name.copy(replica, sizeof replica - 1);
  }
};

/// The rollout's process: takes the versions that it is told, and says whether it holds them (1), and whether
/// it mapped all of the trainer's memory (2).
template <typename Driver>
void be_a_rollout() {
  const processes::channel line = processes::channel_of_parent();
  rollout_name name;
  REQUIRE(line.try_take(name, std::chrono::minutes{1}));
  member<Driver, typename near_hub<Driver>::subscriber> rollout{who(name.server, name.replica)};
  std::uint64_t version = 0;
  while (line.try_take(version, std::chrono::minutes{1})) {
    std::uint64_t answer = 0;
    try {
      const auto update = rollout.worker.update(tensorhub::exactly(version), tensorhub::all_done);
      // A path that names a reason goes through host memory, or over another transport.
      const bool mapped = update.paths == std::vector<std::string>{"same_host"};
      if (!mapped) MESSAGE("not mapped: " << (update.paths.empty() ? "no path" : update.paths.front()));
      answer = rollout.memory.holds(version) ? (mapped ? 2 : 1) : 0;
    } catch (const tensorhub::error& e) {
      MESSAGE(e.what());
    }
    if (!line.try_tell(answer)) return;
  }
}

/// A trainer here, a rollout in another process: over CUDA IPC, in place.
template <typename Driver>
void two_processes(const std::string& rollout_case) {
  const auto rollout = processes::child_process::of_test_case(rollout_case);
  typename near_hub<Driver>::reference_server server;
  rollout.line().tell(rollout_name{server.address(), "rollout"});
  member<Driver, typename near_hub<Driver>::publisher> trainer{who(server.address(), "trainer")};
  for (std::uint64_t version = 1; version <= 2; ++version) {
    trainer.memory.fill(version);
    trainer.worker.publish(version, tensorhub::all_done);
    rollout.line().tell(version);
    CHECK(rollout.line().take<std::uint64_t>() == 2);
    trainer.worker.unpublish();
  }
}

/// Two rollouts in processes of their own hold a version, and the trainer has withdrawn it. The one that a
/// third rollout reads from is killed when its first chunk has arrived: the other one has the rest. The
/// device of the reader, which was copying from memory of a process that is dead, works as before.
template <typename Driver>
void a_killed_source_is_replaced(const std::string& rollout_case) {
  const processes::child_process sources[] = {processes::child_process::of_test_case(rollout_case),
                                              processes::child_process::of_test_case(rollout_case)};
  typename near_hub<Driver>::reference_server server;
  member<Driver, typename near_hub<Driver>::publisher> trainer{who(server.address(), "trainer")};
  trainer.memory.fill(1);
  trainer.worker.publish(1, tensorhub::all_done);
  for (const auto& source : sources) {
    source.line().tell(rollout_name{server.address(), &source == sources ? "a" : "b"});
    source.line().tell(std::uint64_t{1});
    REQUIRE(source.line().template take<std::uint64_t>() == 2);
  }
  trainer.worker.unpublish();
  std::mutex mutex;
  std::string killed{};
  auto options = who(server.address(), "c");
  options.trace = [&](const tensorhub::chunk_event& chunk) {
    const std::lock_guard lock{mutex};
    if (!killed.empty()) return;
    killed = chunk.source;
    sources[killed.starts_with("a") ? 0 : 1].signal(SIGKILL);
  };
  member<Driver, typename near_hub<Driver>::subscriber> reader{options};
  const auto update = reader.worker.update(tensorhub::exactly(1), tensorhub::all_done);
  CHECK(reader.memory.holds(1));
  CHECK(!killed.empty());
  std::uint64_t from_the_other = 0;
  for (std::size_t i = 0; i < update.sources.size(); ++i)
    from_the_other += update.sources[i] == killed ? 0 : update.source_bytes[i];
  CHECK(from_the_other > 0);
  trainer.memory.fill(2);
  trainer.worker.publish(2, tensorhub::all_done);
  CHECK(reader.worker.update(tensorhub::exactly(2), tensorhub::all_done).version == 2);
  CHECK(reader.memory.holds(2));
}

/// Tensors that fill allocations which lie beside each other are regions of their own, and readers map each.
template <typename Driver>
void neighbours_are_mapped() {
  constexpr std::uint64_t bytes = 4u << 20;
  std::vector<exact_block<Driver>> blocks;
  tensorhub::transports::same_host through;
  tensorhub::shard_memory<tensorhub::transports::same_host, tensorhub::basic_cuda_memory<Driver>> shard{
      through};
  std::size_t touching = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    blocks.emplace_back(0, bytes);
    if (i > 0) touching += blocks[i - 1].data() + bytes == blocks.back().data() ? 1 : 0;
    shard.add({"t" + std::to_string(i), tensorhub::dtype::u8, {bytes}}, blocks.back().data());
  }
  MESSAGE(touching << " of 7 allocations begin where the previous one ends");
  const tensorhub::layout shape = shard.build_layout(1u << 20, {});
  shard.register_all(shape);
  REQUIRE(shard.places().size() == 8);
  for (const auto& place : shard.places()) {
    CHECK(place.offset == 0);
    CHECK(through.how_read(shard.regions()[place.region]).find("mapped by readers") != std::string::npos);
  }
}

}  // namespace hubs
