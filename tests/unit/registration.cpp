/// \file registration.cpp
/// Which regions are registered for a shard's tensors. (The addresses are made up: nothing is read.)

#include "tensorhub/transfer/registration.hpp"

#include <doctest/doctest.h>
#include "support/calls.hpp"
#include "tensorhub/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

using namespace tensorhub;
using calls::contains;
using calls::error_of;

namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;

[[nodiscard]] std::byte* at(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

/// An allocation of 1 GiB at `address` in file `descriptor` (-1: none), and tensors in it.
struct allocation {
  std::uint64_t address = 0;
  int descriptor = -1;
  [[nodiscard]] memory_range range() const {
    return {at(address), 1024 * mib, memory_kind::host, descriptor, 0};
  }
  [[nodiscard]] registration_item tensor(std::uint64_t offset, std::uint64_t bytes,
                                         std::string_view name = "t") const {
    const std::uint64_t backing = descriptor < 0 ? 0 : offset;
    return {name, {at(address + offset), bytes, memory_kind::host, descriptor, backing}, range()};
  }
};
constexpr std::uint64_t base = 0x7000'0000'0000;
const allocation file{base, 5};

/// Memory of which nothing is known.
[[nodiscard]] registration_item loose(std::uint64_t address, std::uint64_t bytes,
                                      memory_kind kind = memory_kind::host) {
  const memory_range range{at(address), bytes, kind};
  return {"loose", range, range};
}

/// What every plan owes: each item lies in one region, at its place, with its file; regions are within the
/// limits, do not overlap, and begin and end with a tensor.
void check_plan(const std::vector<registration_item>& items, const registration_plan& plan,
                const registration_limits& limits = {}) {
  REQUIRE(plan.places.size() == items.size());
  std::uint64_t registered = 0, wanted = 0;
  std::vector<bool> begins(plan.regions.size()), ends(plan.regions.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto [region, offset] = plan.places[i];
    REQUIRE(region < plan.regions.size());
    const memory_range& whole = plan.regions[region];
    const memory_range& part = items[i].range;
    CHECK(whole.data + offset == part.data);
    CHECK(offset + part.bytes <= whole.bytes);
    CHECK(whole.kind == part.kind);
    CHECK(whole.backing_fd == part.backing_fd);
    if (part.backing_fd >= 0) CHECK(whole.backing_offset + offset == part.backing_offset);
    if (offset == 0) begins[region] = true;
    if (offset + part.bytes == whole.bytes) ends[region] = true;
    wanted += part.bytes;
  }
  for (std::size_t i = 0; i < plan.regions.size(); ++i) {
    CHECK(begins[i]);
    CHECK(ends[i]);
    CHECK(plan.regions[i].bytes <= limits.max_region_bytes);
    registered += plan.regions[i].bytes;
    if (i > 0) CHECK(plan.regions[i - 1].data + plan.regions[i - 1].bytes <= plan.regions[i].data);
  }
  CHECK(plan.padding_bytes == registered - wanted);
}

[[nodiscard]] registration_plan planned(const std::vector<registration_item>& items,
                                        const registration_limits& limits = {}) {
  registration_plan plan = plan_registration(items, limits);
  check_plan(items, plan, limits);
  return plan;
}

TEST_CASE(
    "registration: thousands of tensors of one allocation are one region, in whatever order they come") {
  std::vector<registration_item> items;
  for (std::uint64_t i = 0; i < 4000; ++i) items.push_back(file.tensor(i * 20 * kib, 16 * kib));
  CHECK(planned(items).regions.size() == 1);
  std::ranges::shuffle(items, std::mt19937_64{3});
  const registration_plan plan = planned(items);
  REQUIRE(plan.regions.size() == 1);
  CHECK(plan.regions[0].data == at(base));
  CHECK(plan.regions[0].bytes == 3999 * 20 * kib + 16 * kib);
  CHECK(plan.padding_bytes == 3999 * 4 * kib);
}

TEST_CASE("registration: no item, no region") {
  const registration_plan plan = planned({});
  CHECK(plan.regions.empty());
  CHECK(plan.padding_bytes == 0);
}

TEST_CASE("registration: a gap is bridged up to the limit, and not a byte further") {
  const registration_limits limits{.max_gap_bytes = 1000};
  CHECK(planned({file.tensor(0, 10), file.tensor(1010, 10)}, limits).regions.size() == 1);
  CHECK(planned({file.tensor(0, 10), file.tensor(1011, 10)}, limits).regions.size() == 2);
  CHECK(planned({file.tensor(0, 10), file.tensor(1011, 10)}, limits).padding_bytes == 0);
  // By default two tensors at the ends of a large file do not register all of it.
  CHECK(planned({file.tensor(0, mib), file.tensor(900 * mib, mib)}).regions.size() == 2);
}

TEST_CASE("registration: a gap is bridged only inside a known allocation") {
  CHECK(planned({loose(base, 100), loose(base + 101, 100)}).regions.size() == 2);
  CHECK(planned({loose(base, 100), loose(base + 100, 100)}).regions.size() == 1);
  const allocation one{base, -1}, next{base + 1024 * mib, -1};
  CHECK(planned({one.tensor(0, 100), one.tensor(200, 100)}).regions.size() == 1);
  CHECK(planned({one.tensor(1024 * mib - 200, 100), next.tensor(0, 100)}).regions.size() == 2);
}

TEST_CASE("registration: neighbours in different allocations are never joined, however close") {
  const allocation one{base, -1}, next{base + 1024 * mib, -1};
  const std::uint64_t end = 1024 * mib;
  CHECK(planned({one.tensor(end - 100, 100), next.tensor(0, 100)}).regions.size() == 2);
  // The allocation of one of the two is not known.
  CHECK(planned({one.tensor(end - 100, 100), loose(base + end, 100)}).regions.size() == 2);
  CHECK(planned({loose(base - 100, 100), one.tensor(0, 100)}).regions.size() == 2);
  // A tensor that fills an allocation of a device looks like memory of which nothing is known.
  for (const memory_kind kind :
       {memory_kind::cuda_device, memory_kind::cuda_pinned, memory_kind::cuda_managed}) {
    CHECK(planned({loose(base, 32 * mib, kind), loose(base + 32 * mib, 32 * mib, kind)}).regions.size() == 2);
  }
  CHECK(planned({one.tensor(0, end / 2), one.tensor(end / 2, end / 2)}).regions.size() == 1);
}

TEST_CASE("registration: different files, and different kinds of memory, are never joined") {
  const allocation next{base + 1024 * mib, 6};
  CHECK(planned({file.tensor(1024 * mib - 100, 100), next.tensor(0, 100)}).regions.size() == 2);
  // The same file, mapped twice, one behind the other: the file does not go on where the memory does.
  const allocation again{base + 1024 * mib, 5};
  CHECK(planned({file.tensor(1024 * mib - 100, 100), again.tensor(0, 100)}).regions.size() == 2);
  // A file beside memory without one.
  CHECK(planned({file.tensor(1024 * mib - 100, 100), loose(base + 1024 * mib, 10)}).regions.size() == 2);
  CHECK(planned({loose(base, 100), loose(base + 100, 100, memory_kind::cuda_device)}).regions.size() == 2);
}

TEST_CASE("registration: a run that is too long is cut between tensors") {
  const registration_limits limits{.max_region_bytes = 1000};
  std::vector<registration_item> items;
  for (std::uint64_t i = 0; i < 10; ++i) items.push_back(file.tensor(i * 300, 300));
  const registration_plan plan = planned(items, limits);
  CHECK(plan.regions.size() == 4);  // three tensors each, and one
  CHECK(plan.regions[0].bytes == 900);
  // Exactly the limit fits; the gap counts.
  CHECK(planned({file.tensor(0, 500), file.tensor(500, 500)}, limits).regions.size() == 1);
  CHECK(planned({file.tensor(0, 500), file.tensor(501, 500)}, limits).regions.size() == 2);
  CHECK(planned({file.tensor(0, 1000), file.tensor(1000, 1000)}, limits).regions.size() == 2);
}

TEST_CASE("registration: one tensor above the limit is refused by name, with both sizes") {
  const error refused = error_of([] {
    static_cast<void>(
        plan_registration(std::vector{file.tensor(0, 10, "small"), file.tensor(5000, 1001, "layers.0.wq")},
                          {.max_region_bytes = 1000}));
  });
  CHECK(refused.code() == errc::limit_exceeded);
  CHECK(contains(refused.what(), "'layers.0.wq'"));
  CHECK(contains(refused.what(), "1001"));
  CHECK(contains(refused.what(), "1000"));
}

TEST_CASE("registration: overlapping tensors are refused, both by name") {
  for (const auto& items :
       std::vector<std::vector<registration_item>>{{file.tensor(0, 100, "a"), file.tensor(99, 100, "b")},
                                                   {file.tensor(99, 100, "b"), file.tensor(0, 100, "a")},
                                                   {file.tensor(0, 100, "a"), file.tensor(0, 100, "b")},
                                                   {file.tensor(0, 2000, "a"), file.tensor(10, 5, "b")}}) {
    const error refused = error_of([&] { static_cast<void>(plan_registration(items)); });
    CHECK(refused.code() == errc::invalid_argument);
    CHECK(contains(refused.what(), "'a'"));
    CHECK(contains(refused.what(), "'b'"));
    CHECK(contains(refused.what(), "if they are tied, add the memory once"));
  }
}

TEST_CASE("registration: random shards under random limits keep what a plan owes") {
  std::mt19937_64 random{17};
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<registration_item> items;
    std::uint64_t offset = random() % 100;
    const std::size_t count = 1 + random() % 60;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = 1 + random() % 300;
      items.push_back(random() % 5 == 0 ? loose(base + 2048 * mib + offset, bytes)
                                        : file.tensor(offset, bytes));
      offset += bytes + (random() % 2 == 0 ? 0 : random() % 200);
    }
    std::ranges::shuffle(items, random);
    static_cast<void>(
        planned(items, {.max_region_bytes = 300 + random() % 2000, .max_gap_bytes = random() % 200}));
  }
}

}  // namespace
