// Compositions with verbs: the conformance suite, and a hub whose workers reach each other in several ways.

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <tensorhub/transports/verbs.hpp>

#include "rdma_addresses.hpp"
#include "run_rules.hpp"
#include "system/hub.hpp"

using namespace system_tests;
using namespace tensorhub;
using namespace tensorhub::testing;
using softroce_tests::rdma_addresses;
using tensorhub::transports::same_host;
using tensorhub::transports::tcp;
using tensorhub::transports::verbs;

using verbs_or_tcp = first_of<verbs, tcp>;
using nearest_of_three = first_of<same_host, verbs, tcp>;
using composed_hub = tensorhub::hub<nearest_of_three>;
using composed_trainer = member<composed_hub::publisher>;
using composed_rollout = member<composed_hub::subscriber>;

namespace {

/// The emulated machine is slow.
constexpr conformance_options of_a_guest{
    .deadline = 60s, .largest_read_bytes = 1u << 20, .rounds = 3, .concurrent_overwrites = true};

verbs::options at(const std::string& address) {
  verbs::options options;
  options.listen_addresses = {address};
  options.peer_timeout = softroce_tests::suite_peer_timeout;
  return options;
}

/// Process number n goes without the members whose bits are in `without[n % size]`.
template <typename T>
conformance_subject<T> subject_without(std::vector<unsigned> without) {
  conformance_subject<T> subject;
  subject.make = [=, started = std::make_shared<std::atomic<std::size_t>>(0)](incarnation self) {
    auto options = T::with(at(rdma_addresses().front()));
    const unsigned missing = without[(*started)++ % without.size()];
    for (std::size_t i = 0; i < options.enabled.size(); ++i) options.enabled[i] = (missing >> i & 1u) == 0;
    return std::make_unique<T>(options, self);
  };
  return subject;
}

}  // namespace

TEST_CASE("first_of<verbs, tcp>: every rule, through verbs") {
  run_rules(subject_without<verbs_or_tcp>({0}), of_a_guest);
}

TEST_CASE("first_of<verbs, tcp>: every rule, where only every other process has verbs") {
  run_rules(subject_without<verbs_or_tcp>({0, 1}), of_a_guest);
}

TEST_CASE("first_of<same_host, verbs, tcp>: every rule, through same_host") {
  run_rules(subject_without<nearest_of_three>({0}), of_a_guest);
}

TEST_CASE("first_of: hub of three transports: each pair of workers uses the first that both have") {
  composed_hub::reference_server server;
  composed_trainer source{who(server.address(), "trainer-0"), 300'001,
                          nearest_of_three::with(at(rdma_addresses().front()))};
  const auto join = [&](const std::string& replica, bool near, bool device) {
    auto options = nearest_of_three::with(at(rdma_addresses().back()));
    options.enabled = {near, device, true};
    return composed_rollout{who(server.address(), replica), 300'001, options};
  };
  auto near = join("rollout-near", true, true);
  auto by_device = join("rollout-device", false, true);
  auto poor = join("rollout-poor", false, false);
  for (std::uint64_t version = 1; version <= 2; ++version) {
    source.memory.fill(version);
    source.worker.publish(version);
    const std::pair<composed_rollout*, std::string> expected[] = {
        {&near, "same_host"}, {&by_device, "verbs"}, {&poor, "tcp"}};
    for (const auto& [reader, through] : expected) {
      const auto report = reader->worker.update();
      CHECK(report.version == version);
      CHECK(reader->memory.holds(version));
      REQUIRE(report.paths.size() == 1);
      CHECK_MESSAGE(report.paths.front().starts_with(through), report.paths.front());
      reader->worker.unpublish();  // the next one reads from the trainer, too
    }
    CHECK(!source.worker.unpublish().forced);
  }
}

TEST_CASE("first_of: hub where the source's device is not there: the others get its weights by TCP") {
  composed_hub::reference_server server;
  const auto start = [&] {
    auto options = nearest_of_three::with(at("127.0.0.1"));  // no device has this address
    options.enabled[0] = false;
    return composed_trainer{who(server.address(), "trainer-0"), 300'001, options};
  };
  auto source = start();
  auto options = nearest_of_three::with(at(rdma_addresses().back()));
  options.enabled[0] = false;
  composed_rollout reader{who(server.address(), "rollout-0"), 300'001, options};
  source.memory.fill(1);
  source.worker.publish(1);
  const auto report = reader.worker.update();
  CHECK(reader.memory.holds(1));
  REQUIRE(report.paths.size() == 1);
  CHECK_MESSAGE(contains(report.paths.front(), "verbs: not started by the peer"), report.paths.front());
}
