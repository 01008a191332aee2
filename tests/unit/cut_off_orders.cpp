/// \file cut_off_orders.cpp
/// A worker's orders to cut off readers are carried out by a thread of its own, each once, one at a time.

#include "tensorhub/worker/cut_off_orders.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

using namespace tensorhub;
using namespace std::chrono_literals;

namespace {

/// Each order that is carried out waits here until the test lets it end.
struct slow_transport {
  std::mutex mutex;
  std::vector<incarnation> begun;
  std::atomic<std::size_t> may_end = 0;
  cut_off_orders orders{[this](incarnation reader) {
    std::size_t place = 0;
    {
      const std::lock_guard lock{mutex};
      place = begun.size();
      begun.push_back(reader);
    }
    while (may_end <= place) std::this_thread::sleep_for(1ms);
    orders.ended(reader);
  }};

  ~slow_transport() { may_end = 1000; }

  [[nodiscard]] std::vector<incarnation> seen() {
    const std::lock_guard lock{mutex};
    return begun;
  }
  void await(std::size_t count) {
    while (seen().size() < count) std::this_thread::sleep_for(1ms);
  }
};

constexpr incarnation one{1}, two{2};

}  // namespace

TEST_CASE(
    "an order to cut off a reader returns at once, and is carried out once, however often it is given") {
  slow_transport slow;
  CHECK(slow.orders.give(one));
  CHECK(slow.orders.give(one));
  slow.await(1);
  CHECK(slow.orders.give(one));
  CHECK(slow.orders.give(two));
  CHECK(!slow.orders.revokes());
  slow.may_end = 2;
  slow.orders.close();
  CHECK(slow.seen() == std::vector{one, two});
}

TEST_CASE("an order that has ended may be given again") {
  slow_transport slow;
  slow.may_end = 2;
  for (std::size_t round = 1; round <= 2; ++round) {
    while (slow.seen().size() < round) {
      CHECK(slow.orders.give(one));
      std::this_thread::sleep_for(1ms);
    }
  }
  slow.may_end = 1000;
}

TEST_CASE(
    "keys are revoked before further readers are cut off, and whoever waits for it is told of its end") {
  slow_transport slow;
  CHECK(slow.orders.give(one));
  slow.await(1);
  CHECK(slow.orders.give(two));
  CHECK(slow.orders.give(cut_off_orders::everybody));
  CHECK(slow.orders.revokes());
  slow.may_end = 2;
  slow.orders.await_revocation();
  CHECK(!slow.orders.revokes());
  slow.may_end = 3;
  slow.orders.close();
  CHECK(slow.seen() == std::vector{one, cut_off_orders::everybody, two});
}

TEST_CASE("after `close` the caller must carry an order out, unless the thread still does") {
  slow_transport slow;
  CHECK(slow.orders.give(one));
  slow.await(1);
  {
    const std::jthread closing{[&] { slow.orders.close(); }};
    for (std::uint64_t id = 10; slow.orders.give({id}); ++id) std::this_thread::sleep_for(1ms);
    CHECK(slow.orders.give(one));
    slow.may_end = 1000;
  }
  const std::vector<incarnation> seen = slow.seen();
  CHECK(std::count(seen.begin(), seen.end(), one) == 1);
  CHECK(!slow.orders.give(two));
  CHECK(!slow.orders.give(cut_off_orders::everybody));
  CHECK(!slow.orders.revokes());
}
