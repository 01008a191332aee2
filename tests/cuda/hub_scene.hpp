#pragma once
/// \file hub_scene.hpp
/// Whole hubs whose weights live in CUDA memory, over the fake driver and over a real one.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tensorhub/memory/cuda.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <vector>

#include "support/child_process.hpp"

namespace hubs {

template <typename Driver, typename Transport>
using hub = tensorhub::hub<Transport, tensorhub::nearest_source, tensorhub::group_consistent,
                           tensorhub::xxh3_128, tensorhub::basic_cuda_memory<Driver>>;
template <typename Driver>
using near_hub =
    hub<Driver, tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>>;

inline tensorhub::worker_options who(const std::string& server, const std::string& replica) {
  tensorhub::worker_options options;
  options.server = server;
  options.model = "policy";
  options.replica = replica;
  options.location.host = "here";
  return options;
}

/// Two large tensors and 300 small ones on devices, one large in pinned memory, one small in plain host
/// memory.
template <typename Driver>
struct weights {
  using memory = tensorhub::basic_cuda_memory<Driver>;
  static constexpr std::uint64_t large_bytes = 2'500'003;
  static constexpr std::uint64_t small_count = 300;

  memory space{};
  memory last_device{{.device = tensorhub::cuda_device<Driver>::count() - 1}};
  tensorhub::basic_cuda_pinned_memory<Driver> pinned_space{};
  typename memory::allocation large = space.allocate(large_bytes);
  typename memory::allocation elsewhere = last_device.allocate(large_bytes);
  typename memory::allocation small = space.allocate(small_count * 2048);
  typename tensorhub::basic_cuda_pinned_memory<Driver>::allocation pinned =
      pinned_space.allocate(large_bytes);
  std::vector<std::byte> plain = std::vector<std::byte>(777);

  template <typename Visit>
  void visit(Visit&& each) {
    each(0, large.data(), large_bytes);
    each(1, elsewhere.data(), large_bytes);
    each(2, pinned.data(), large_bytes);
    each(3, plain.data(), plain.size());
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

/// One trainer, two rollouts in this process, each new version handed on.
template <typename Driver, typename Hub>
void versions_travel() {
  typename Hub::reference_server server;
  member<Driver, typename Hub::publisher> trainer{who(server.address(), "trainer")};
  member<Driver, typename Hub::subscriber> first{who(server.address(), "rollout-0")};
  member<Driver, typename Hub::subscriber> second{who(server.address(), "rollout-1")};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    trainer.memory.fill(version);
    trainer.worker.publish(version);
    CHECK(first.worker.update(tensorhub::exactly(version)).version == version);
    CHECK(first.memory.holds(version));
    trainer.worker.unpublish();
    CHECK(second.worker.update(tensorhub::exactly(version)).version == version);  // nobody else has it
    CHECK(second.memory.holds(version));
  }
}

/// The rollout's process: takes the versions that it is told, and says whether it holds them.
template <typename Driver>
void be_a_rollout() {
  const processes::channel line = processes::channel_of_parent();
  char server[64] = {};
  REQUIRE(line.try_take(server, std::chrono::minutes{1}));
  member<Driver, typename near_hub<Driver>::subscriber> rollout{who(server, "rollout")};
  std::uint64_t version = 0;
  while (line.try_take(version, std::chrono::minutes{1})) {
    std::uint64_t answer = 0;
    try {
      const auto update = rollout.worker.update(tensorhub::exactly(version));
      const bool by_ipc =
          update.paths.size() == 1 && update.paths.front().find("same_host") != std::string::npos;
      answer = rollout.memory.holds(version) ? (by_ipc ? 2 : 1) : 0;
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
  char address[64] = {};
  server.address().copy(address, sizeof address - 1);
  rollout.line().tell(address);
  member<Driver, typename near_hub<Driver>::publisher> trainer{who(server.address(), "trainer")};
  for (std::uint64_t version = 1; version <= 2; ++version) {
    trainer.memory.fill(version);
    trainer.worker.publish(version);
    rollout.line().tell(version);
    CHECK(rollout.line().take<std::uint64_t>() == 2);
    trainer.worker.unpublish();
  }
}

}  // namespace hubs
