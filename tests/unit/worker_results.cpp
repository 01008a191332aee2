/// \file worker_results.cpp
/// Where a worker's calls wait: results by ticket, the order before its result, a thread that never comes.

#include "tensorhub/worker/results.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

using namespace tensorhub;
using namespace std::chrono_literals;

namespace {

[[nodiscard]] session_result result_of(session_ticket ticket, std::uint64_t version) {
  session_result out;
  out.ticket = ticket;
  out.version = version_number{version};
  return out;
}
[[nodiscard]] worker_results::deadline in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

}  // namespace

TEST_CASE("worker results: each caller gets the result of its ticket, once") {
  worker_results results;
  results.deliver({result_of(1, 10), result_of(2, 20)});
  CHECK(results.wait(2, in(10s))->version == 20);
  CHECK(results.wait(1, in(10s))->version == 10);
  CHECK_FALSE(results.wait(1, in(1ms)));
  CHECK_FALSE(results.wait(3, in(1ms)));
}

TEST_CASE("worker results: who waits is woken") {
  worker_results results;
  std::jthread later{[&] {
    std::this_thread::sleep_for(5ms);
    results.deliver({result_of(7, 1)});
    results.wake();
  }};
  const auto begun = std::chrono::steady_clock::now();
  CHECK(results.wait(7, in(60s)).has_value());
  CHECK(std::chrono::steady_clock::now() - begun < 30s);  // not by the deadline
}

TEST_CASE("worker results: an update sees its order before its result, and the newest order only") {
  worker_results results;
  pull_order first, second;
  first.ordinal = 1;
  second.ordinal = 2;
  results.order(std::move(first));
  results.order(std::move(second));
  results.deliver({result_of(4, 9)});
  const auto to_read = results.next(4, in(10s));
  REQUIRE(to_read.order);
  CHECK(to_read.order->ordinal == 2);
  CHECK_FALSE(to_read.result);
  const auto ended = results.next(4, in(10s));
  CHECK_FALSE(ended.order);
  REQUIRE(ended.result);
  CHECK(ended.result->version == 9);
  const auto nothing = results.next(4, in(1ms));
  CHECK_FALSE(nothing.order);
  CHECK_FALSE(nothing.result);
}
