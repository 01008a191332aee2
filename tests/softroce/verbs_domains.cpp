// One process has the memory of two models: a reader of one that guesses a key of the other.

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/transports/verbs.hpp>

#include "rdma_addresses.hpp"
#include "system/hub.hpp"

using namespace system_tests;
using softroce_tests::rdma_addresses;
using tensorhub::transports::verbs;
namespace parts = tensorhub::transports::verbs_detail;

namespace {

verbs::options at_first_device() {
  verbs::options options;
  options.listen_addresses = {rdma_addresses().front()};
  return options;
}

struct verbs_worker : tensorhub::worker {
  using transport_options = verbs::options;
  explicit verbs_worker(tensorhub::worker_options options, transport_options through)
      : worker{std::move(options),
               tensorhub::policies_of<verbs, tensorhub::group_consistent, tensorhub::xxh3_128,
                                      tensorhub::host_memory>(std::move(through))} {}
};

struct trainer_of_model : member<verbs_worker> {
  trainer_of_model(const std::string& server, const std::string& model, const std::string& domain)
      : member{of(server, model), 1000, in(domain)} {
    worker.publish(1);
  }
  static tensorhub::worker_options of(const std::string& server, const std::string& model) {
    auto options = who(server, "trainer-0");
    options.model = model;
    return options;
  }
  static verbs::options in(const std::string& domain) {
    auto options = at_first_device();
    options.protection_domain = domain;
    return options;
  }
};

/// The same memory, under a key that `maker` seems to have made: the checksum is no secret.
tensorhub::remote_region as_if_made_by(tensorhub::incarnation maker, tensorhub::remote_region region) {
  parts::region_key key;
  std::memcpy(&key.head, region.key.bytes.data(), sizeof key.head);
  std::memcpy(key.rkeys.data(), region.key.bytes.data() + sizeof key.head,
              region.key.used_bytes - sizeof key.head);
  region.key = parts::encode_key(key, maker);
  return region;
}

}  // namespace

TEST_CASE("verbs: a reader of one model guesses a key of another model of the same process") {
  bool shared = false;
  SUBCASE("the models have a domain each: it reads nothing") {}
  SUBCASE("the user gives them one domain: it reads") {
    shared = true;
  }
  tensorhub::reference_server<> server{{.catalog = {.recovery_grace = 0ms}}};
  trainer_of_model policy{server.address(), "policy", shared ? "one" : ""};
  trainer_of_model reward{server.address(), "reward", shared ? "one" : ""};
  const tensorhub::incarnation self{99};
  verbs reader{at_first_device(), self};
  auto queue = reader.make_queue(1);
  std::array<std::byte, 64> target{};
  const tensorhub::memory_range range{target.data(), target.size()};
  const auto region = reader.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  const auto read = [&](const tensorhub::remote_region& from) {
    tensorhub::data_plane& data = policy.worker.data();
    const std::string lease =
        tensorhub::make_capability(data.capability_key(), self, policy.worker.self(), 1);
    auto connection = reader.connect(queue, {data.address().text, lease}, policy.worker.self(), 20s);
    REQUIRE(queue.post_read(connection, region.front(), 0, {&from, 0, target.size()}, 7) ==
            tensorhub::post_result::posted);
    tensorhub::completion done{};
    while (queue.poll(std::span{&done, 1}) == 0) queue.wait(10ms);
    return done.status == tensorhub::completion_status::ok;
  };
  CHECK(read(policy.worker.data().control()));
  CHECK(read(as_if_made_by(policy.worker.self(), reward.worker.data().control())) == shared);
}
