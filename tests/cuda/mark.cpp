/// \file mark.cpp
/// Marks behind the user's own work on a stream; the ring's bookkeeping.

#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <random>
#include <tensorhub/memory/cuda/ring.hpp>
#include <thread>
#include <utility>

#include "fake_scene.hpp"

using namespace fake_scenes;
using tensorhub::error;
using tensorhub::lane_state;

namespace {

/// A stream of the user's, on a device of his choice.
struct user_stream {
  explicit user_stream(int on) : number{on} {
    const tensorhub::detail::cuda_scope scope{cuda, device::at(number).context()};
    REQUIRE(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
  }
  ~user_stream() {
    const tensorhub::detail::cuda_scope scope{cuda, device::at(number).context()};
    CHECK(cuda.stream_destroy(stream) == CUDA_SUCCESS);
  }
  void clear(std::byte* data, std::size_t bytes) const {
    const tensorhub::detail::cuda_scope scope{cuda, device::at(number).context()};
    REQUIRE(cuda.memory_fill_async(tensorhub::detail::cuda_address(data), 1, bytes, stream) == CUDA_SUCCESS);
  }
  const tensorhub::cuda_functions& cuda = fake_cuda_driver::functions();
  int number;
  CUstream stream = nullptr;
};

lane_state until_known(const memory::mark_type& mark) {
  for (int i = 0; i < 100'000 && mark.state() == lane_state::pending; ++i)
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  return mark.state();
}

}  // namespace

TEST_CASE("cuda mark: done when what the stream held is, whatever comes later") {
  scene here;
  memory space;
  const auto one = space.allocate(1000);
  for (const int number : {0, 1}) {
    const user_stream user{number};
    here.driver.set.held = true;
    user.clear(one.data(), 1000);
    auto mark = space.mark(user.stream);
    CHECK(mark.state() == lane_state::pending);
    CHECK(mark.trouble().empty());
    here.driver.set.held = false;
    CHECK(until_known(mark) == lane_state::done);
    here.driver.set.held = true;
    user.clear(one.data(), 1000);
    CHECK(mark.state() == lane_state::done);
    here.driver.set.held = false;
    auto moved = std::move(mark);
    CHECK(moved.state() == lane_state::done);
    moved = space.mark(user.stream);
    CHECK(until_known(moved) == lane_state::done);
  }
}

TEST_CASE("cuda mark: work that failed is a failed mark") {
  scene here;
  memory space;
  const auto one = space.allocate(1000);
  const user_stream user{0};
  here.driver.set.fail_after = 0;
  user.clear(one.data(), 1000);
  const auto mark = space.mark(user.stream);
  CHECK(until_known(mark) == lane_state::failed);
  CHECK(mark.trouble().find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos);
  here.driver.set.fail_after = UINT64_MAX;
}

TEST_CASE("cuda mark: destroyed while the work goes on; a stream that is captured; one that is no more") {
  scene here;
  memory space;
  const auto one = space.allocate(1000);
  CUstream gone = nullptr;
  {
    const user_stream user{0};
    gone = user.stream;
    here.driver.set.delay_ns = 2'000'000;
    user.clear(one.data(), 1000);
    { const auto mark = space.mark(user.stream); }
    here.driver.set.capturing = true;
    CHECK_THROWS_AS(static_cast<void>(space.mark(user.stream)), error);
    here.driver.set.capturing = false;
  }
  CHECK_THROWS_AS(static_cast<void>(space.mark(gone)), error);
}

TEST_CASE("cuda mark: behind the legacy stream, unless a capture would be ended by it") {
  scene here;
  memory space;
  const auto one = space.allocate(1000);
  const auto& cuda = fake_cuda_driver::functions();
  const tensorhub::detail::cuda_scope scope{cuda, device::at(1).context()};
  here.driver.set.held = true;
  REQUIRE(cuda.memory_fill_async(tensorhub::detail::cuda_address(one.data()), 1, 1000, nullptr) ==
          CUDA_SUCCESS);
  {
    const auto mark = space.mark(nullptr);
    CHECK(mark.state() == lane_state::pending);
    here.driver.set.held = false;
    CHECK(until_known(mark) == lane_state::done);
  }
  here.driver.set.capturing_globally = true;
  try {
    static_cast<void>(space.mark(nullptr));
    FAIL("marked what a capture holds back");
  } catch (const error& e) {
    CHECK(e.code() == tensorhub::errc::invalid_argument);
    CHECK(e.sentence().find("captured") != std::string::npos);
  }
  CHECK(here.driver.counted.broken_captures == 0);
}

TEST_CASE("cuda ring: runs never overlap those in use, and room comes back") {
  using tensorhub::detail::ring_space;
  constexpr std::uint64_t size = 4096;
  std::mt19937 random{7};
  ring_space space{size};
  std::deque<std::pair<ring_space::run, std::uint64_t>> used;
  std::size_t taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bytes = random() % (size / 2) + 1;
    if (const auto run = space.take(bytes)) {
      ++taken;
      REQUIRE(run->offset % 64 == 0);
      REQUIRE(run->offset + bytes <= size);
      for (const auto& [other, length] : used)
        REQUIRE((run->offset + bytes <= other.offset || other.offset + length <= run->offset));
      used.emplace_back(*run, bytes);
    } else {
      REQUIRE_FALSE(used.empty());  // half of the ring fits when nothing is in use
      space.give_back(used.front().first.until);
      used.pop_front();
    }
  }
  CHECK(taken > 5000);
  CHECK_FALSE(ring_space{size}.take(size + 1).has_value());
}
