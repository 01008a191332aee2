/// \file lane_pool.cpp
/// What lanes keep from one update to the next (transfer/lane_pool.hpp): connections that nobody uses.

#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fragile_transport.hpp"
#include "tensorhub/transfer/lane_pool.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using pull_test::fragile_transport;

TEST_CASE("lane pool: nobody waits while connections are closed that were idle for too long") {
  using pool = lane_pool<fragile_transport>;
  fragile_transport through{{}, {1}};
  fragile_transport source{{}, {2}};
  pool lanes{through};
  const connection_ends ends{source.address().text, {2}, {1}};
  {
    auto one = lanes.borrow(0, 1, 8);
    auto other = lanes.borrow(0, 1, 8);
    for (pool::lane* lane : {one.get(), other.get()})
      lane->keep(ends, through.connect(lane->queue(), source.address(), {2}, 10s));
    lanes.give_back(0, std::move(one));
    lanes.give_back(0, std::move(other));
  }
  int closed = 0;
  int waited = 0;
  std::vector<std::future<void>> others;
  through.on_close = [&](incarnation) {
    ++closed;
    others.push_back(std::async(std::launch::async, [&] { lanes.give_back(0, lanes.borrow(0, 1, 8)); }));
    waited += others.back().wait_for(5s) == std::future_status::ready ? 0 : 1;
  };
  SUBCASE("not so long") {
    CHECK(lanes.borrow(0, 1, 8, pool::clock::now() + pool::kept_for / 2)->take(ends).has_value());
    CHECK(closed == 1);  // the one that was taken
  }
  SUBCASE("too long") {
    CHECK_FALSE(lanes.borrow(0, 1, 8, pool::clock::now() + pool::kept_for + 1s)->take(ends).has_value());
    CHECK(closed == 2);
  }
  CHECK(waited == 0);
  through.on_close = {};
}

TEST_CASE("lane pool: a lane gets what the lane of its number had, in whatever order they were given back") {
  using pool = lane_pool<fragile_transport>;
  fragile_transport through{{}, {1}};
  pool lanes{through};
  std::vector<std::unique_ptr<pool::lane>> had;
  for (std::size_t number = 0; number < 3; ++number) had.push_back(lanes.borrow(number, 1, 8));
  const std::vector<pool::lane*> expected{had[0].get(), had[1].get(), had[2].get()};
  for (const std::size_t number : {1u, 2u, 0u}) lanes.give_back(number, std::move(had[number]));
  for (const std::size_t number : {2u, 0u, 1u}) {
    had[number] = lanes.borrow(number, 1, 8);
    CHECK(had[number].get() == expected[number]);
  }
  lanes.give_back(1, std::move(had[1]));
  CHECK(lanes.borrow(7, 1, 8).get() == expected[1]);  // rather than a new one
}

TEST_CASE("lane pool: a lane keeps the latest connections, also after one from the middle was taken") {
  using pool = lane_pool<fragile_transport>;
  fragile_transport through{{}, {1}};
  fragile_transport source{{}, {2}};
  pool lanes{through};
  auto lane = lanes.borrow(0, 1, 8);
  int closed = 0;
  through.on_close = [&](incarnation) { ++closed; };
  const auto ends_of = [](std::size_t number) {
    return connection_ends{"peer " + std::to_string(number), {2}, {1}};
  };
  const auto keep = [&](std::size_t number) {
    lane->keep(ends_of(number), through.connect(lane->queue(), source.address(), {2}, 10s));
  };
  for (std::size_t i = 0; i < pool::most_kept; ++i) keep(i);
  CHECK(closed == 0);
  CHECK(lane->take(ends_of(3)).has_value());
  CHECK(closed == 1);  // the one that was taken
  keep(100);           // in the place of that one
  CHECK(closed == 1);
  keep(101);  // in the place of the oldest
  CHECK(closed == 2);
  CHECK_FALSE(lane->take(ends_of(0)).has_value());
  CHECK_FALSE(lane->take(ends_of(3)).has_value());
  CHECK(closed == 2);
  for (const std::size_t left : {1u, 2u, 4u, 5u, 6u, 7u, 100u, 101u}) {
    CAPTURE(left);
    CHECK(lane->take(ends_of(left)).has_value());
  }
  CHECK(closed == 2 + pool::most_kept);
  through.on_close = {};
}
