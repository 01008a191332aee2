// A transport whose address is another one after memory was registered (first_of, when a member that does not
// take device memory is stopped): the server must be told the later one.

#include <doctest/doctest.h>

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "hub.hpp"

using namespace system_tests;
using tensorhub::transports::tcp;

namespace {

/// Nobody is behind its address until it has memory.
class late : public tcp {
 public:
  using tcp::tcp;
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const tensorhub::memory_range> ranges,
                                                           tensorhub::region_access access) {
    has_memory_ = true;
    return tcp::register_memory(ranges, access);
  }
  [[nodiscard]] tensorhub::transport_address address() const {
    return has_memory_ ? tcp::address() : tensorhub::transport_address{"tcp://127.0.0.1:1"};
  }

 private:
  std::atomic<bool> has_memory_ = false;
};
using late_hub = tensorhub::hub<late>;

}  // namespace

TEST_CASE("a worker that readers of other machines cannot reach says so, if there may be such readers") {
  const auto warnings = [](const std::string& server, const tcp::options& through) {
    std::vector<std::string> said;
    auto options = who(server, "trainer-0");
    options.log = [&](const tensorhub::log_line& line) { said.push_back(line.text); };
    const tensorhub::hub<tcp>::publisher source{options, through};
    return said;
  };
  CHECK(warnings("tcp://127.0.0.1:5570,tcp://localhost:5571", {}).empty());
  const auto said = warnings("tcp://127.0.0.1:5570,tcp://10.0.0.1:5570", {});
  REQUIRE(said.size() == 1);
  CHECK(said.front().find("set the option listen_host") != std::string::npos);
  CHECK(warnings("tcp://10.0.0.1:5570", {.listen_host = "0.0.0.0"}).size() == 1);
  CHECK(warnings("tcp://10.0.0.1:5570", {.advertised_host = "10.0.0.2"}).empty());
}

TEST_CASE("the address that readers are told is the one after registration") {
  late_hub::reference_server server;
  member<late_hub::publisher> source{who(server.address(), "trainer-0"), 1000};
  member<late_hub::subscriber> reader{who(server.address(), "rollout-0"), 1000};
  source.memory.fill(1);
  source.worker.publish(1);
  CHECK(reader.worker.update(exactly(1), 10s).version == 1);
  CHECK(reader.memory.holds(1));
}
