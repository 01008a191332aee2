/// \file listener_pause.cpp
/// A listener without descriptors or memory for another connection is not watched for a moment.

#include "tensorhub/detail/listener_pause.hpp"

#include <doctest/doctest.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>

#include "tensorhub/detail/wake_event.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t number = 7;

/// The event stands for a listener to which somebody has connected.
struct scene {
  detail::epoll_set set{"test"};
  detail::wake_event listener{"test"};
  detail::listener_pause pause;
  detail::listener_pause::time now{};

  scene() {
    set.must_add(listener.descriptor(), number);
    listener.raise();
  }
  void fails_with(int error) { pause.begin_if_short(error, set, listener.descriptor(), number, now); }
  void pass(std::chrono::milliseconds time) {
    now += time;
    pause.end_if_over(set, listener.descriptor(), number, now);
  }
  [[nodiscard]] bool is_watched() {
    std::array<epoll_event, 1> events{};
    return set.wait(events, 0ms) == 1 && events.front().data.u64 == number;
  }
};

}  // namespace

TEST_CASE("listener pause: it begins with a shortage, and ends after its time") {
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    CAPTURE(error);
    scene s;
    REQUIRE(s.is_watched());
    CHECK(s.pause.at_most(1s) == 1s);
    s.fails_with(error);
    CHECK_FALSE(s.is_watched());
    CHECK(s.pause.at_most(1s) == detail::listener_pause::length);
    CHECK(s.pause.at_most(0ms) == 0ms);
    s.pass(detail::listener_pause::length - 1ms);
    CHECK_FALSE(s.is_watched());
    s.pass(1ms);
    CHECK(s.is_watched());
    CHECK(s.pause.at_most(1s) == 1s);
  }
}

TEST_CASE("listener pause: pauses less than a minute apart are one shortage") {
  scene s;
  CHECK(s.pause.shortages() == 0);
  for (int i = 0; i < 100; ++i) {
    s.fails_with(EMFILE);
    s.pass(59s);
  }
  CHECK(s.pause.shortages() == 1);
  s.pass(1s);
  s.fails_with(ENFILE);
  CHECK(s.pause.shortages() == 2);
  CHECK(s.pause.text().find("ulimit -n") != std::string::npos);
}

TEST_CASE("listener pause: other errors begin none") {
  for (const int error : {EAGAIN, ECONNABORTED, EINTR}) {
    CAPTURE(error);
    scene s;
    s.fails_with(error);
    CHECK(s.is_watched());
    CHECK(s.pause.at_most(1s) == 1s);
  }
}
