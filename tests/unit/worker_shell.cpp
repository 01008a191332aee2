/// \file worker_shell.cpp
/// What is thrown in a step of a worker's control connection ends its session with the reason, and nothing
/// else: neither the thread nor the caller sees the exception.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tensorhub/error.hpp"
#include "tensorhub/service/client.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/units.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;

namespace {

/// What a test and the control thread share.
struct observed {
  std::atomic<bool> throws_in_step = false;
  std::atomic<bool> throws_in_advance = false;
  std::mutex mutex;
  std::vector<messages::status> goodbyes;

  [[nodiscard]] std::vector<messages::status> seen() {
    const std::lock_guard lock{mutex};
    return goodbyes;
  }
  /// Waits for the first one, for a while.
  [[nodiscard]] messages::status first() {
    for (int tries = 0; tries < 400 && seen().empty(); ++tries) std::this_thread::sleep_for(10ms);
    return seen().empty() ? messages::status{} : seen().front();
  }
};

/// A core that has nothing to say.
struct quiet_core {
  observed* all;
  void receive(time_point, const messages::envelope& envelope) {
    if (const auto* goodbye = get_if<messages::goodbye_push>(&envelope.body)) {
      const std::lock_guard lock{all->mutex};
      all->goodbyes.push_back(goodbye->reason);
    }
  }
  void advance(time_point) {
    if (all->throws_in_advance.exchange(false)) throw std::runtime_error{"no clock"};
  }
  [[nodiscard]] time_point next_deadline() const {
    return all->throws_in_advance ? time_point{} : time_point::never();
  }
  [[nodiscard]] std::vector<messages::envelope> take_output() { return {}; }
};

using shell = client_shell<quiet_core>;

[[nodiscard]] std::shared_ptr<control_connection> nobody() {
  return std::make_shared<control_connection>("tcp://127.0.0.1:9", std::nullopt);
}

}  // namespace

TEST_CASE("a step that throws in a caller's thread ends the session with the reason") {
  observed all;
  shell client{nobody(), quiet_core{&all}, [&](quiet_core&) {
                 if (all.throws_in_step.exchange(false)) throw std::runtime_error{"no memory"};
               }};
  all.throws_in_step = true;
  CHECK_NOTHROW(client.with([](quiet_core&, time_point) {}));
  const messages::status reason = all.first();
  CHECK(reason.code == errc::system_failed);
  CHECK(reason.sentence.find("no memory") != std::string::npos);
}

TEST_CASE("a step that throws in the control thread ends the session, and not the process") {
  observed all;
  shell client{nobody(), quiet_core{&all}, [](quiet_core&) {}};
  all.throws_in_advance = true;
  client.use_server(0);  // wakes the thread
  const messages::status reason = all.first();
  CHECK(reason.code == errc::system_failed);
  CHECK(reason.sentence.find("no clock") != std::string::npos);
  int answers = 0;
  client.with([&](quiet_core&, time_point) { ++answers; });
  CHECK(answers == 1);
}

TEST_CASE("whom a step wakes finds the core free, whoever has stepped it") {
  observed all;
  std::atomic<bool> asked = false;
  std::atomic<int> free = 0, taken = 0;
  shell* told = nullptr;
  std::future<void> other;
  shell client{nobody(), quiet_core{&all}, [](quiet_core&) {},
               [&] {
                 if (!asked.exchange(false)) return;
                 other = std::async(std::launch::async, [&] { told->with([](quiet_core&, time_point) {}); });
                 ++(other.wait_for(10s) == std::future_status::ready ? free : taken);
               }};
  told = &client;
  SUBCASE("a caller") {
    asked = true;
    client.with([](quiet_core&, time_point) {});
  }
  SUBCASE("a caller that has failed") {
    asked = true;
    try {
      throw std::runtime_error{"no words"};
    } catch (...) {
      client.fail();
    }
  }
  SUBCASE("the control thread") {
    asked = true;
    client.use_server(0);
  }
  for (int tries = 0; tries < 1000 && free + taken == 0; ++tries) std::this_thread::sleep_for(10ms);
  CHECK(free == 1);
  CHECK(taken == 0);
}

TEST_CASE("a step that throws something else, and again at the goodbye, is survived") {
  observed all;
  std::atomic<int> left = 2;
  shell client{nobody(), quiet_core{&all}, [&](quiet_core&) {
                 if (left > 0 && all.throws_in_step) {
                   --left;
                   throw 42;
                 }
               }};
  all.throws_in_step = true;
  CHECK_NOTHROW(client.with([](quiet_core&, time_point) {}));
  CHECK(all.first().code == errc::system_failed);
}

TEST_CASE("a caller that cannot tell how something ended ends the session with the reason, sooner or later") {
  observed all;
  std::atomic<int> left = 0;
  SUBCASE("at once") {}
  SUBCASE("when there is memory for it") {
    left = 3;
  }
  shell client{nobody(), quiet_core{&all}, [&](quiet_core&) {
                 if (left > 0 && !all.seen().empty()) {
                   --left;
                   throw std::bad_alloc{};
                 }
               }};
  try {
    throw std::runtime_error{"no words"};
  } catch (...) {
    client.fail();
  }
  for (int tries = 0; tries < 400 && left > 0; ++tries) std::this_thread::sleep_for(10ms);
  CHECK(left == 0);
  for (const messages::status& reason : all.seen()) {
    CHECK(reason.code == errc::system_failed);
    CHECK(reason.sentence.find("no words") != std::string::npos);
  }
  CHECK(!all.seen().empty());
}
