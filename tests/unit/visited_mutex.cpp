/// \file visited_mutex.cpp
/// The mutex of a busy thread: visitors get in between two of its steps, and leave whatever happens.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tensorhub/detail/visited_mutex.hpp"

using namespace std::chrono_literals;

namespace {

/// A thread that does one step after the other, without a rest.
struct busy_thread {
  tensorhub::detail::visited_mutex mutex;
  int steps = 0;  ///< guarded by mutex
  std::atomic<bool> ends = false;
  std::jthread thread{[this] {
    while (!ends) {
      const std::lock_guard lock{mutex};
      ++steps;
    }
  }};
  ~busy_thread() { ends = true; }
};

}  // namespace

TEST_CASE("visited mutex: no step begins while somebody visits, and others follow") {
  busy_thread busy;
  for (int visit = 0; visit < 50; ++visit) {
    int before = 0;
    busy.mutex.visit([&] {
      before = busy.steps;
      std::this_thread::sleep_for(100us);
      CHECK(busy.steps == before);
    });
    for (int now = before; now == before; std::this_thread::yield())
      busy.mutex.visit([&] { now = busy.steps; });
  }
}

TEST_CASE("visited mutex: a visit that throws is over") {
  busy_thread busy;
  CHECK_THROWS_AS(busy.mutex.visit([] { throw std::runtime_error{"no memory"}; }), std::runtime_error);
  int before = 0;
  busy.mutex.visit([&] { before = busy.steps; });
  for (int now = before; now == before; std::this_thread::yield())  // else the test's time-out ends this
    busy.mutex.visit([&] { now = busy.steps; });
}
