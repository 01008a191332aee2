/// \file lane.cpp
/// Lanes over the fake driver: order, tickets, batches, digests, failures, what is left behind.

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <tensorhub/types/blake3.hpp>
#include <tensorhub/types/xxh3.hpp>
#include <thread>
#include <vector>

#include "fake_scene.hpp"

using namespace fake_scenes;
using namespace std::chrono_literals;
using fake_cuda::origin;
using tensorhub::copy_run;
using tensorhub::digest128;
using tensorhub::digest_job;
using tensorhub::keyed_digest_job;
using tensorhub::lane_state;

namespace {

constexpr auto long_enough = 30s;

std::vector<std::byte> filled(std::size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

}  // namespace

TEST_CASE("cuda lane: pieces are done in order, and not before they are") {
  scene here;
  const auto lane = device::at(0).open_lane();
  memory space;
  const auto one = space.allocate(4096);
  const auto first = filled(4096, 1);
  const auto second = filled(4096, 2);
  std::vector<std::byte> taken(4096);
  here.driver.set.held = true;
  const auto a = lane->copy(one.data(), first.data(), 4096);
  const auto b = lane->copy(taken.data(), one.data(), 4096);
  const auto c = lane->copy(one.data(), second.data(), 4096);
  CHECK((a == 1 && b == 2 && c == 3));
  CHECK(lane->state(a) == lane_state::pending);
  CHECK(lane->wait(c, 1ms) == lane_state::pending);
  CHECK(lane->state(4) == lane_state::pending);
  here.driver.set.held = false;
  CHECK(lane->wait(c, long_enough) == lane_state::done);
  CHECK(lane->state(a) == lane_state::done);
  CHECK(lane->state(b) == lane_state::done);
  CHECK(taken == first);
  CHECK(here.driver.bytes_of(one.data(), 4096) == second);
  CHECK(lane->trouble().empty());
  CHECK(lane->state(0) == lane_state::failed);
}

TEST_CASE("cuda lane: nothing to do is a piece as well") {
  const scene here;
  const auto lane = device::at(1).open_lane();
  CHECK(lane->wait(lane->copy(nullptr, nullptr, 0), long_enough) == lane_state::done);
  CHECK(lane->wait(lane->copy_all({}), long_enough) == lane_state::done);
  CHECK(lane->wait(lane->digest({}, nullptr), long_enough) == lane_state::done);
}

TEST_CASE("cuda lane: 2,000 runs are one launch") {
  scene here;
  constexpr std::size_t count = 2000;
  memory space;
  const auto packed = space.allocate(count * 1100);
  std::vector<memory::allocation> tensors;
  std::vector<copy_run> pack;
  std::vector<copy_run> unpack;
  std::vector<std::vector<std::byte>> given;
  std::uint64_t offset = 0;
  tensors.reserve(count / 10);
  for (std::size_t i = 0; i < count; ++i) {
    // Ten tensors to an allocation, of odd sizes at odd places.
    if (i % 10 == 0) tensors.push_back(space.allocate(16'384));
    std::byte* const at = tensors.back().data() + i % 10 * 1500 + i % 3;
    given.push_back(noise(i % 1030 + 1, i));
    here.driver.fill(at, given.back());
    pack.push_back({packed.data() + offset, at, given.back().size()});
    unpack.push_back({at, packed.data() + offset, given.back().size()});
    offset += given.back().size();
  }
  const auto lane = device::at(0).open_lane();
  const auto launches = here.driver.counted.launches.load();
  REQUIRE(lane->wait(lane->copy_all(pack), long_enough) == lane_state::done);
  CHECK(here.driver.counted.launches.load() == launches + 1);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += here.driver.bytes_of(pack[i].to, pack[i].bytes) == given[i] ? 0 : 1;
    here.driver.fill(unpack[i].to, filled(unpack[i].bytes, 0));
  }
  REQUIRE(lane->wait(lane->copy_all(unpack), long_enough) == lane_state::done);
  for (std::size_t i = 0; i < count; ++i)
    wrong += here.driver.bytes_of(unpack[i].to, unpack[i].bytes) == given[i] ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("cuda lane: a batch of runs between all kinds of memory, short and long") {
  scene here;
  constexpr std::size_t bytes = 9u << 20;
  const auto given = noise(bytes, 5);
  std::vector<std::byte> plain = given;
  std::vector<std::byte> taken(bytes);
  std::byte* const own = here.driver.allocate(origin::device, 0, bytes);
  std::byte* const other = here.driver.allocate(origin::device, 1, bytes);
  std::byte* const pinned = here.driver.allocate(origin::pinned, 0, bytes);
  const auto lane = device::at(0).open_lane();
  const auto do_all = [&](std::vector<copy_run> runs) {
    const auto before = here.driver.counted.launches.load();
    REQUIRE(lane->wait(lane->copy_all(runs), long_enough) == lane_state::done);
    return here.driver.counted.launches.load() - before;
  };
  // Plain host memory and other devices are not for kernels; pinned memory is, for short runs.
  CHECK(do_all({{own, plain.data(), bytes}, {other, plain.data(), 1000}}) == 0);
  CHECK(do_all({{other + 1000, own + 1000, bytes - 1000}}) == 0);
  CHECK(do_all({{pinned + 1000, own + 1000, bytes - 1000}, {pinned, own, 1000}}) == 1);
  CHECK(
      do_all({{own, pinned, 3u << 20}, {own + (3u << 20), other + (3u << 20), 100}, {nullptr, nullptr, 0}}) ==
      0);
  CHECK(do_all({{taken.data(), pinned, bytes}}) == 0);
  CHECK(taken == given);
  CHECK(here.driver.bytes_of(other, bytes) == given);
  CHECK(here.driver.bytes_of(own, bytes) == given);
  // Within a device up to 8 MiB by a kernel, cut into parts.
  const auto blocks = here.driver.counted.blocks.load();
  std::byte* const copy = here.driver.allocate(origin::device, 0, bytes);
  CHECK(do_all({{copy + (1u << 20), own + (1u << 20), 8u << 20}, {copy, own, 1u << 20}}) == 1);
  CHECK(here.driver.counted.blocks.load() == blocks + 4);
  CHECK(here.driver.bytes_of(copy, bytes) == given);
  // Runs that continue each other, in the same allocations, are one.
  here.driver.fill(copy, std::vector<std::byte>(bytes));
  const auto copies = here.driver.counted.copies.load();
  CHECK(do_all({{copy, own, 4u << 20}, {copy + (4u << 20), own + (4u << 20), 5u << 20}}) == 0);
  CHECK(here.driver.counted.copies.load() == copies + 1);
  CHECK(here.driver.bytes_of(copy, bytes) == given);
  for (std::byte* const each : {own, other, pinned, copy}) here.driver.free(each);
}

TEST_CASE("cuda lane: digests are the host's, for any length and place") {
  scene here;
  memory space;
  constexpr std::size_t bytes = 300'000;
  const auto given = noise(bytes, 9);
  const auto data = space.allocate(bytes);
  here.driver.fill(data.data(), given);
  std::vector<digest_job> jobs;
  for (std::size_t length = 0; length < 600; ++length)
    jobs.push_back({data.data() + length % 19, length, length});
  for (const std::uint64_t length :
       std::initializer_list<std::uint64_t>{1024, 4097, 57'344, 57'345, 200'000, 300'000})
    jobs.push_back({data.data(), length, 0x9e3779b97f4a7c15u});
  jobs.push_back({nullptr, 0, 3});
  std::vector<digest128> made(jobs.size());
  const auto lane = device::at(0).open_lane();
  const auto ticket = lane->digest(jobs, made.data());
  REQUIRE(lane->wait(ticket, long_enough) == lane_state::done);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto offset = static_cast<std::size_t>(jobs[i].data != nullptr ? jobs[i].data - data.data() : 0);
    const auto expected = tensorhub::detail::xxh3_128({given.data() + offset, jobs[i].bytes}, jobs[i].seed);
    wrong += made[i] == expected ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda lane: keyed digests are the host's, for any length and place") {
  scene here;
  memory space;
  constexpr std::size_t bytes = 600'000;
  const auto given = noise(bytes, 10);
  const auto data = space.allocate(bytes);
  here.driver.fill(data.data(), given);
  std::vector<keyed_digest_job> jobs;
  for (const std::uint64_t length : std::initializer_list<std::uint64_t>{
           0, 1, 63, 64, 65, 1023, 1024, 1025, 4097, 57'344, 262'144, 262'145, 524'288, 524'300})
    jobs.push_back({data.data() + length % 19, length, {7, 6, 5, static_cast<std::uint32_t>(length)}});
  std::vector<digest128> made(jobs.size());
  const auto lane = device::at(0).open_lane();
  REQUIRE(lane->wait(lane->keyed_digest(jobs, made.data()), long_enough) == lane_state::done);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    CAPTURE(jobs[i].bytes);
    const auto part = std::span{given}.subspan(static_cast<std::size_t>(jobs[i].data - data.data()));
    const auto key = std::bit_cast<tensorhub::detail::blake3_value>(jobs[i].key);
    CHECK(made[i] == tensorhub::detail::blake3_keyed_hash(key, part.first(jobs[i].bytes)).first_half());
  }
}

TEST_CASE("cuda lane: a batch that is larger than the ring is cut, and its results are all there") {
  scene here;
  memory space;
  constexpr std::size_t count = 60'000;  // 40 bytes of the ring each: 2.4 MB
  const auto given = noise(count + 8, 11);
  const auto data = space.allocate(given.size());
  here.driver.fill(data.data(), given);
  std::vector<digest_job> jobs;
  std::vector<copy_run> runs;
  const auto target = space.allocate(count * 2);
  for (std::size_t i = 0; i < count; ++i) {
    jobs.push_back({data.data() + i, 8, i});
    runs.push_back({target.data() + 2 * i, data.data() + i, 2});
  }
  std::vector<digest128> made(count);
  const auto lane = device::at(0).open_lane();
  const auto launches = here.driver.counted.launches.load();
  const auto first = lane->digest(jobs, made.data());
  const auto second = lane->copy_all(runs);
  CHECK((first == 1 && second == 2));
  REQUIRE(lane->wait(second, long_enough) == lane_state::done);
  CHECK(here.driver.counted.launches.load() == launches + 30);  // 4,096 jobs each
  std::size_t wrong = 0;
  const auto copied = here.driver.bytes_of(target.data(), count * 2);
  for (std::size_t i = 0; i < count; ++i) {
    wrong += made[i] == tensorhub::detail::xxh3_128({given.data() + i, 8}, i) ? 0 : 1;
    wrong += copied[2 * i] == given[i] && copied[2 * i + 1] == given[i + 1] ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda lane: lanes do not wait for each other") {
  scene here;
  memory space;
  const auto one = space.allocate(64);
  const auto given = filled(64, 7);
  const auto stuck = device::at(0).open_lane();
  here.driver.set.held_stream = here.driver.counted.streams.load();
  const auto free = device::at(0).open_lane();
  const auto waits = stuck->copy(one.data(), given.data(), 32);
  CHECK(free->wait(free->copy(one.data() + 32, given.data(), 32), long_enough) == lane_state::done);
  CHECK(stuck->state(waits) == lane_state::pending);
  here.driver.set.held_stream = 0;
  CHECK(stuck->wait(waits, long_enough) == lane_state::done);
}

TEST_CASE("cuda lane: several threads, each with a lane of its own") {
  const scene here;
  memory space;
  constexpr std::size_t bytes = 100'000;
  std::array<std::size_t, 4> wrong{};
  std::vector<memory::allocation> blocks;
  for (std::size_t i = 0; i < wrong.size(); ++i) blocks.push_back(space.allocate(bytes));
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto lane = device::at(0).open_lane();
        for (std::uint64_t round = 0; round < 5; ++round) {
          const auto given = noise(bytes, 10 * i + round);
          const digest_job job{blocks[i].data(), bytes, round};
          digest128 made{};
          static_cast<void>(lane->copy(blocks[i].data(), given.data(), bytes));
          const auto last = lane->digest(std::span{&job, 1}, &made);
          if (lane->wait(last, long_enough) != lane_state::done ||
              made != tensorhub::detail::xxh3_128(given, round))
            ++wrong[i];
        }
      });
    }
  }
  CHECK(wrong == std::array<std::size_t, 4>{});
}

TEST_CASE("cuda lane: a copy that the driver refuses fails the lane, and it says which") {
  scene here;
  memory space;
  const auto one = space.allocate(100);
  std::vector<std::byte> given(100);
  const auto lane = device::at(0).open_lane();
  const auto good = lane->copy(one.data(), given.data(), 100);
  REQUIRE(lane->wait(good, long_enough) == lane_state::done);
  here.driver.set.refuse_copies = true;
  CHECK(lane->copy(one.data(), given.data(), 100) == 0);
  here.driver.set.refuse_copies = false;
  CHECK(lane->trouble().find("cuMemcpyAsync: CUDA_ERROR_INVALID_VALUE") != std::string::npos);
  CHECK(lane->trouble().find("100 bytes") != std::string::npos);
  CHECK(lane->trouble().find("cuda:0 (fake GPU)") != std::string::npos);
  CHECK(lane->copy(one.data(), given.data(), 100) == 0);
  CHECK(lane->state(good) == lane_state::done);
  CHECK(lane->wait(good + 1, 1ms) == lane_state::failed);
}

TEST_CASE("cuda lane: what was queued before a refused copy is done all the same") {
  scene here;
  memory space;
  const auto one = space.allocate(100);
  const auto given = noise(100, 8);
  const auto lane = device::at(0).open_lane();
  here.driver.set.held = true;
  const auto queued = lane->copy(one.data(), given.data(), 100);
  CHECK(lane->copy(one.data(), reinterpret_cast<const void*>(std::uintptr_t{64}), 100) == 0);  // nobody's
  CHECK(lane->state(queued) == lane_state::pending);
  CHECK(lane->state(queued + 1) == lane_state::failed);
  here.driver.set.held = false;
  CHECK(lane->wait(queued, long_enough) == lane_state::done);
  CHECK(here.driver.bytes_of(one.data(), 100) == given);
}

TEST_CASE("cuda lane: work that fails later fails the lane from there on") {
  scene here;
  memory space;
  const auto one = space.allocate(100);
  std::vector<std::byte> given(100);
  const auto lane = device::at(0).open_lane();
  here.driver.set.fail_after = 2;
  const auto a = lane->copy(one.data(), given.data(), 100);
  const auto b = lane->copy(one.data(), given.data(), 100);
  const auto c = lane->copy(one.data(), given.data(), 100);
  CHECK(lane->wait(c, long_enough) == lane_state::failed);
  CHECK(lane->state(a) == lane_state::done);
  CHECK(lane->state(b) == lane_state::done);
  CHECK(lane->trouble().find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos);
  here.driver.set.fail_after = UINT64_MAX;
}

TEST_CASE("cuda lane: an address that nobody has is found before the device sees it") {
  scene here;
  memory space;
  const auto live = space.allocate(4096);
  std::byte* const other = here.driver.allocate(origin::device, 1, 4096);
  std::vector<std::byte> plain(64);
  std::byte* freed = nullptr;
  {
    const auto gone = space.allocate(4096);
    freed = gone.data();
  }
  digest128 out{};
  const auto trouble_of = [&](auto&& ask) {
    const auto lane = device::at(0).open_lane();
    CHECK(ask(*lane) == 0);
    return lane->trouble();
  };
  const auto launches = here.driver.counted.launches.load();
  CHECK(trouble_of([&](auto& lane) { return lane.copy(freed, live.data(), 64); }).find("was it freed") !=
        std::string::npos);
  CHECK(trouble_of([&](auto& lane) {
          const copy_run run{live.data(), freed, 64};
          return lane.copy_all(std::span{&run, 1});
        }).find("was it freed") != std::string::npos);
  CHECK(trouble_of([&](auto& lane) {
          return lane.copy(live.data(), live.data() + 4000, 9000);
        }).find("reach beyond their allocation") != std::string::npos);
  for (const std::byte* data : {static_cast<const std::byte*>(freed), static_cast<const std::byte*>(other),
                                static_cast<const std::byte*>(plain.data())}) {
    const digest_job job{data, 64, 0};
    CHECK_FALSE(trouble_of([&](auto& lane) { return lane.digest(std::span{&job, 1}, &out); }).empty());
  }
  CHECK(here.driver.counted.launches.load() == launches);
  here.driver.free(other);
}

TEST_CASE("cuda lane: reserved addresses without memory are found before the device sees them") {
  scene here;
  constexpr std::uint64_t unit = 2u << 20;
  std::byte* const data = here.driver.allocate(origin::reserved, 0, 8 * unit);
  std::byte* const other = here.driver.allocate(origin::device, 0, 8 * unit);
  for (const std::uint64_t at : {0u, 1u, 3u}) here.driver.map(data + at * unit, unit);
  const auto given = noise(unit, 12);
  here.driver.fill(data + unit / 2, given);
  const auto trouble_of = [&](std::vector<copy_run> runs) {
    const auto lane = device::at(0).open_lane();
    const auto ticket = lane->copy_all(runs);
    if (ticket != 0) CHECK(lane->wait(ticket, long_enough) == lane_state::done);
    return lane->trouble();
  };
  // Over two mappings that touch, and runs of several mappings.
  CHECK(trouble_of({{other, data + unit / 2, unit}}).empty());
  CHECK(here.driver.bytes_of(other, unit) == given);
  CHECK(trouble_of({{data, other, 100}, {data + unit - 50, other + 100, 100}, {data + 3 * unit, other, unit}})
            .empty());
  CHECK(here.driver.bytes_of(data + 3 * unit, unit) == given);
  CHECK(trouble_of({{other, data, unit}, {other + unit, data + 2 * unit, 64}}).find("was it freed") !=
        std::string::npos);
  CHECK(trouble_of({{data, other, unit}, {data + 4 * unit, other, 64}}).find("was it freed") !=
        std::string::npos);
  CHECK(trouble_of({{data + unit, other, unit + 1}}).find("reach beyond") != std::string::npos);
  here.driver.unmap(data);
  const digest_job job{data, 64, 0};
  digest128 out{};
  const auto lane = device::at(0).open_lane();
  CHECK(lane->digest(std::span{&job, 1}, &out) == 0);
  here.driver.free(data);
  here.driver.free(other);
}

TEST_CASE("cuda lane: if the driver has no memory to say when its work has ended, it gives back nothing") {
  scene here;
  memory space;
  const auto one = space.allocate(5000);
  const auto given = noise(5000, 7);
  here.driver.set.refuse_events = true;
  { const auto idle = device::at(0).open_lane(); }
  CHECK(here.driver.now().streams == here.before.streams);
  {
    const auto lane = device::at(0).open_lane();
    here.driver.set.held = true;
    static_cast<void>(lane->copy(one.data(), given.data(), 5000));  // it is queued, and has no event
    CHECK_FALSE(lane->trouble().empty());
  }
  here.driver.set.refuse_events = false;
  CHECK(here.driver.now().streams == here.before.streams + 1);  // it is still there, and so is its ring
  here.driver.set.held = false;
  for (int tries = 0; tries < 10'000 && here.driver.bytes_of(one.data(), 5000) != given; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  CHECK(here.driver.bytes_of(one.data(), 5000) == given);
  here.before.streams = here.driver.now().streams;
  here.before.events = here.driver.now().events;
  here.before.blocks = here.driver.now().blocks - 1;  // `one` goes
}

TEST_CASE("cuda lane: its end waits for its work, and writes no digest any more") {
  scene here;
  memory space;
  const auto one = space.allocate(5000);
  const auto given = noise(5000, 6);
  const auto none = digest128{};
  digest128 out{};
  {
    const auto lane = device::at(0).open_lane();
    here.driver.set.delay_ns = 3'000'000;
    CHECK(lane->copy(one.data(), given.data(), 5000) == 1);
    const digest_job job{one.data(), 5000, 1};
    CHECK(lane->digest(std::span{&job, 1}, &out) == 2);
  }
  CHECK(here.driver.bytes_of(one.data(), 5000) == given);
  CHECK(out == none);
}
