#pragma once
/// \file places.hpp
/// The roles and locations of the workers in a simulated history.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "support/simulation/options.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Names: "trainer", "rollout-<n>", and "<replica>~<version>" for a temporary replica, which has the location
/// of that replica. Every fourth replica is spot. Time-outs suit the simulated network.
[[nodiscard]] inline session_options simulated_place(const std::string& replica, std::uint32_t shard,
                                                     const simulation_options& history, bool temporary) {
  session_options options;
  options.server = "simulated";
  options.model = "policy";
  options.replica = replica;
  options.shard = {shard, history.shards};
  options.transport = "simulated";
  options.temporary = temporary;
  options.renewable = !temporary;
  options.revokes_cheaply = history.seed % 2 == 0;
  const std::string base = replica.substr(0, replica.find('~'));
  const std::size_t number = base == "trainer" ? 0 : 1 + std::stoul(base.substr(8));
  options.location.host = base;
  options.location.rack = "rack-" + std::to_string(number % 3);
  options.location.datacenter =
      "dc-" + std::to_string(number % std::max<std::size_t>(1, history.datacenters));
  options.spot = number % 4 == 3 && !temporary;
  options.servers = history.takeovers_per_second > 0 ? 2 : 1;
  options.server_timeout = std::chrono::milliseconds{200};
  options.request_retry = std::chrono::milliseconds{100};
  options.drain_timeout = std::chrono::milliseconds{150};
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
