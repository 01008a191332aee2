/// \file few_descriptors.cpp
/// Readers that can open few descriptors, or none, to connect to their source; and a source that has none for
/// its readers.

#include "support/few_descriptors.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "near_hub.hpp"
#include "support/child_process.hpp"

using namespace system_tests;
using tensorhub::retry;

namespace {

constexpr const char* poor_case = "the process of readers with few descriptors";
constexpr const char* poor_source_case = "the process of a source without descriptors";

template <typename Hub>
void check_readers_of(const std::string& server, const std::string& transport) {
  for (std::size_t left = 0; left <= 10; ++left) {
    CAPTURE(transport);
    CAPTURE(left);
    member<typename Hub::subscriber> reader{who_here(server, transport + std::to_string(left))};
    reader.worker.join();
    {
      const few_descriptors scarce{left};
      std::string sentence;
      const errc ended = code_of([&] { reader.worker.update(latest, retry, 20s); }, &sentence);
      // Nothing is gained by asking again: what is missing is missing on this machine.
      CHECK_MESSAGE((ended == errc::ok || ended == errc::system_failed), sentence);
      if (ended != errc::ok) CHECK_MESSAGE(contains(sentence, "ulimit -n"), sentence);
    }
    CHECK(reader.worker.update(latest, 20s).version == 1);
    CHECK(reader.memory.holds(1));
  }
}

}  // namespace

TEST_CASE("few descriptors: an update that cannot connect for want of one says so, and is not repeated") {
  if (!shortages::may_be_total("system.few_descriptors")) return;
  const typename hub::reference_server server;
  const typename near_hub::reference_server near_server;
  trainer source{who_here(server.address(), "trainer-0")};
  member<near_hub::publisher> near_source{who_here(near_server.address(), "trainer-0")};
  source.publish(1);
  near_source.publish(1);
  processes::child_process poor = processes::child_process::of_test_case(poor_case);
  poor.line().say(server.address());
  poor.line().say(near_server.address());
  CHECK(poor.how_it_ended() == "ended with status 0");
}

TEST_CASE("the process of readers with few descriptors" * doctest::skip()) {
  const processes::channel parent = processes::channel_of_parent();
  check_readers_of<hub>(parent.hear(), "tcp-");
  check_readers_of<near_hub>(parent.hear(), "near-");
}

TEST_CASE("few descriptors: a source that has none for its readers says so in its log, and not each time") {
  if (!shortages::may_be_total("system.few_descriptors")) return;
  const typename near_hub::reference_server server;
  processes::child_process poor = processes::child_process::of_test_case(poor_source_case);
  poor.line().say(server.address());
  REQUIRE(poor.line().hear(30s) == "published, and without descriptors");
  auto options = who_here(server.address(), "rollout-0");
  options.connect_timeout = 1s;
  member<near_hub::subscriber> reader{options};
  CHECK(code_of([&] { reader.worker.update(latest, 4s); }) != errc::ok);
  poor.line().say("go on");
  const std::string said = poor.line().hear(30s);
  CHECK_MESSAGE((contains(said, "1: ") || contains(said, "2: ")), said);  // one of each transport
  CHECK_MESSAGE(contains(said, "can accept no further connection"), said);
  CHECK_MESSAGE(contains(said, "ulimit -n"), said);
  CHECK(reader.worker.update(latest, 20s).version == 1);
  poor.line().say("end");
  CHECK(poor.how_it_ended() == "ended with status 0");
}

TEST_CASE("the process of a source without descriptors" * doctest::skip()) {
  const processes::channel parent = processes::channel_of_parent();
  std::mutex mutex;
  std::vector<std::string> warnings;
  auto options = who_here(parent.hear(), "trainer-0");
  options.log = [&](const tensorhub::log_line& line) {
    const std::lock_guard lock{mutex};
    if (line.about.code == errc::system_failed) warnings.push_back(line.text);
  };
  member<near_hub::publisher> source{options};
  source.publish(1);
  {
    const few_descriptors scarce{0};
    parent.say("published, and without descriptors");
    static_cast<void>(parent.hear());
  }
  {
    const std::lock_guard lock{mutex};
    parent.say(std::to_string(warnings.size()) + ": " + (warnings.empty() ? "" : warnings.front()));
  }
  static_cast<void>(parent.hear());
}
