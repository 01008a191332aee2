// Floods of each kind with a fleet beside them: all updates are made, nobody is declared dead, and the
// memory of the server stays within the bound that SECURITY.md tells.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <tensorhub/server.hpp>
#include <thread>
#include <vector>

#include "hub.hpp"
#include "support/child_process.hpp"
#include "support/flooder.hpp"

using namespace processes;
using namespace system_tests;

namespace {

[[nodiscard]] std::size_t resident_mib(pid_t process) {
  std::unique_ptr<FILE, int (*)(FILE*)> file{
      std::fopen(("/proc/" + std::to_string(process) + "/statm").c_str(), "r"), &std::fclose};
  std::size_t total_pages = 0, resident_pages = 0;
  REQUIRE(file);
  REQUIRE(std::fscanf(file.get(), "%zu %zu", &total_pages, &resident_pages) == 2);
  return resident_pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) >> 20;
}

struct keys_of_both {
  tensorhub::curve_key_pair server = tensorhub::make_curve_keys();
  tensorhub::curve_key_pair members = tensorhub::make_curve_keys();
  [[nodiscard]] tensorhub::worker_options who(const std::string& server_address,
                                              const std::string& replica) const {
    auto options = system_tests::who(server_address, replica);
    options.security = tensorhub::client_security{server.public_key, members, true};
    return options;
  }
};

/// Answers every line with the number of its workers, and of those that left without a word.
void serve(const keys_of_both& keys, const channel& line) {
  tensorhub::reference_server_options how;
  how.security = tensorhub::server_security{keys.server, {{keys.members.public_key, {}}}};
  const hub::reference_server server{how};
  line.say(server.address());
  for (;;) {
    static_cast<void>(line.hear());
    const auto seen = server.statistics();
    line.say(std::to_string(seen.workers) + " workers, " + std::to_string(seen.workers_dead) + " dead");
  }
}

}  // namespace

TEST_CASE("floods of each kind beside a fleet") {
  const keys_of_both keys;
  const child_process server{[&](channel& line) { serve(keys, line); }};
  const child_process flooder{[&](channel& line) {
    floods::flood({.server_key = keys.server.public_key, .member = keys.members}, line);
  }};
  const std::string address = server.line().hear();
  member<worker_of_both_doors> source{keys.who(address, "trainer-0")};
  source.worker.join();
  const floods::worker_of_large_model<hub> wide{keys.who(address, "trainer-0")};
  std::vector<std::unique_ptr<rollout>> fleet;
  for (int i = 0; i < 3; ++i)
    fleet.push_back(std::make_unique<rollout>(keys.who(address, "rollout-" + std::to_string(i))));
  std::uint64_t version = 0;
  const auto round = [&] {
    source.memory.fill(++version);
    source.worker.publish(version);
    for (const auto& each : fleet) {
      CHECK(each->worker.update(at_least(version), 60s).version == version);
      CHECK(each->memory.holds(version));
    }
    source.worker.unpublish(60s);
  };
  round();
  const std::size_t quiet_mib = resident_mib(server.id());
  flooder.line().say(address);
  flooder.line().say(source.worker.data().address().text);
  // Of a connection: 144 MiB of messages that wait, 32 MiB of answers that it does not read. Of 500
  // strangers: what libzmq keeps for each, 64 KiB at most.
  [[maybe_unused]] constexpr std::size_t bound_mib = 144 + 32 + 32;
  for (const std::string& kind : floods::kinds) {
    CAPTURE(kind);
    flooder.line().say(kind);
    const auto until = std::chrono::steady_clock::now() + 1s;
    std::size_t most_mib = 0;
    do {
      round();
      most_mib = std::max(most_mib, resident_mib(server.id()));
    } while (std::chrono::steady_clock::now() < until);
    flooder.line().say("quiet");
    CHECK(server.ask("how many?") == "5 workers, 0 dead");
    MESSAGE(kind << ": the server has " << most_mib << " MiB, " << quiet_mib << " when it is quiet");
#if defined(TENSORHUB_FEWER_ROUNDS)
    std::cout << "SKIPPED: system.floods: the server's memory: a sanitizer keeps freed memory\n";
#else
    CHECK(most_mib < quiet_mib + bound_mib);
#endif
  }
}
