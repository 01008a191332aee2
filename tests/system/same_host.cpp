// A hub over the same-host transport: workers of one machine that read each other's memory.

#include <tensorhub/transports/same_host.hpp>

#include <doctest/doctest.h>

#include <string>

#include "hub.hpp"
#include "process.hpp"

using namespace system_tests;
using tensorhub::transports::same_host;

namespace {

using host_hub = tensorhub::hub<same_host>;

}  // namespace

TEST_CASE("same_host: versions arrive in place, from a trainer and then from a rollout") {
  host_hub::reference_server server;
  member<host_hub::subscriber> first{who(server.address(), "rollout-0")};
  member<host_hub::subscriber> second{who(server.address(), "rollout-1")};
  {
    member<host_hub::publisher> trainer{who(server.address(), "trainer-0")};
    for (std::uint64_t version = 1; version <= 3; ++version) {
      trainer.memory.fill(version);
      trainer.worker.publish(version);
      CHECK(first.worker.update().version == version);
      CHECK(first.memory.holds(version));
      CHECK(!trainer.worker.unpublish().forced);
    }
    trainer.worker.leave();
  }
  const auto done = second.worker.update(exactly(3));
  CHECK(done.sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(second.memory.holds(3));
}

TEST_CASE("same_host: a trainer in another process, which is killed: the reader is told, and nothing hangs") {
  // The server's port is known before the trainer's process is made.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  process trainer_process{[&] {
    char text[128] = {};
    if (::read(ends[0], text, sizeof text - 1) <= 0) return 1;
    member<host_hub::publisher> trainer{who(text, "trainer-0")};
    trainer.memory.fill(1);
    trainer.worker.publish(1);
    std::cout << "published" << std::endl;
    for (;;) ::pause();
    return 0;
  }};
  host_hub::reference_server server;
  const std::string address = server.address();
  REQUIRE(::write(ends[1], address.data(), address.size()) == static_cast<ssize_t>(address.size()));
  CHECK(trainer_process.line() == "published");
  member<host_hub::subscriber> rollout{who(address, "rollout-0")};
  CHECK(rollout.worker.update(exactly(1), 20s).version == 1);
  CHECK(rollout.memory.holds(1));
  trainer_process.kill(SIGKILL);
  // Who holds it is its own source now, for a reader that comes later.
  member<host_hub::subscriber> late{who(address, "rollout-1")};
  CHECK(late.worker.update(exactly(1), 30s).version == 1);
  CHECK(late.memory.holds(1));
  ::close(ends[0]);
  ::close(ends[1]);
}
