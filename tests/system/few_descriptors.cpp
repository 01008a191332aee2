/// \file few_descriptors.cpp
/// Readers that can open few descriptors, or none, to connect to their source.

#include "support/few_descriptors.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include "near_hub.hpp"
#include "support/child_process.hpp"

using namespace system_tests;
using tensorhub::retry;

namespace {

constexpr const char* poor_case = "the process of readers with few descriptors";

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
