// A hub over first_of: workers of one machine use same_host, others TCP, in one model at the same time.

#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <tensorhub/server.hpp>
#include <tuple>
#include <vector>

#include "near_hub.hpp"

using namespace system_tests;
using composed_trainer = member<near_hub::publisher>;
using composed_rollout = member<near_hub::subscriber>;

TEST_CASE("a hub over first_of: each pair uses the first transport that reaches, and reports it") {
  near_hub::reference_server server;
  composed_trainer source{who(server.address(), "trainer-0")};
  source.publish(1);

  near_hub::subscriber::transport_options without_same_host;
  without_same_host.enabled[0] = false;
  composed_rollout near{who(server.address(), "rollout-near")};
  composed_rollout poor{who(server.address(), "rollout-poor"), 300'001, without_same_host};
  auto abroad = who(server.address(), "rollout-abroad");
  abroad.location.datacenter = "another";
  composed_rollout far{abroad, 300'001, without_same_host};

  const auto by_near = near.worker.update();
  CHECK(near.memory.holds(1));
  REQUIRE(by_near.paths.size() == 1);
  CHECK(by_near.paths.front() == "same_host");
  near.worker.leave();

  for (auto* const reader : {&poor, &far}) {
    const auto report = reader->worker.update();
    CHECK(reader->memory.holds(1));
    REQUIRE(report.paths.size() == 1);
    CHECK(report.paths.front() == "tcp (same_host: not started here: not enabled in this process)");
  }
}

TEST_CASE("a hub over first_of refuses a worker of another transport") {
  near_hub::reference_server server;
  composed_trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  rollout other{who(server.address(), "rollout-tcp")};
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(other.worker.update(latest, 3s)); }, &sentence);
  CHECK(code == errc::policy_mismatch);
  CHECK_MESSAGE(contains(sentence, "first_of<same_host,tcp>"), sentence);
}

TEST_CASE(
    "a hub over first_of logs the transports that it does without, and that nobody reaches it from "
    "elsewhere") {
  near_hub::reference_server server;
  std::mutex mutex;
  std::vector<tensorhub::log_line> lines;
  const auto lines_of = [&](near_hub::subscriber::transport_options through) {
    auto options = who(server.address(), "rollout-0");
    options.log = [&](const tensorhub::log_line& line) {
      const std::lock_guard lock{mutex};
      lines.push_back(line);
    };
    lines.clear();
    {
      composed_rollout reader{options, 100, std::move(through)};
      reader.worker.join();
      static_cast<void>(comes_true([&] {
        const std::lock_guard lock{mutex};
        return !lines.empty();
      }));
    }
    const std::lock_guard lock{mutex};
    return lines;
  };

  near_hub::subscriber::transport_options without_tcp;
  std::get<1>(without_tcp.members).listen_host = "192.0.2.1";  // no machine's (RFC 5737)
  auto seen = lines_of(without_tcp);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].level == tensorhub::log_level::warning);
  CHECK(seen[0].about.code == errc::transport_failed);
  CHECK_MESSAGE(contains(seen[0].text, "on other machines cannot reach this process: tcp: "), seen[0].text);
  CHECK_MESSAGE(contains(seen[0].text, "192.0.2.1"), seen[0].text);

  near_hub::subscriber::transport_options without_same_host;
  without_same_host.enabled[0] = false;
  seen = lines_of(without_same_host);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].level == tensorhub::log_level::info);
  CHECK_MESSAGE(contains(seen[0].text, "does without same_host: not enabled"), seen[0].text);
}

TEST_CASE("a hub over first_of does not go without a transport whose port the user has fixed") {
  near_hub::reference_server server;
  const tensorhub::transports::tcp taken{{}, tensorhub::incarnation{1}};
  near_hub::subscriber::transport_options through;
  const std::string address = taken.address().text;
  std::get<1>(through.members).listen_port =
      static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
  std::string sentence;
  CHECK(code_of(
            [&] {
              composed_rollout{who(server.address(), "rollout-0"), 100, through};
            },
            &sentence) == errc::transport_failed);
  CHECK_MESSAGE(contains(sentence, "in use"), sentence);
}
