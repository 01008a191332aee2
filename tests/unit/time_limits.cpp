/// \file time_limits.cpp
/// Time-outs as callers give them: any number of milliseconds, of which the largest means for ever.

#include <doctest/doctest.h>

#include <array>
#include <chrono>

#include "tensorhub/detail/machine_id.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/catalog/options.hpp"

using namespace tensorhub;
using std::chrono::milliseconds;

TEST_CASE("time limits: a server's, too") {
  const auto all = [](catalog_options& of) {
    return std::array{&of.worker_timeout, &of.progress_timeout, &of.group_timeout, &of.recovery_grace};
  };
  catalog_options given;
  for (milliseconds* each : all(given)) *each = milliseconds::max();
  given.heartbeat_interval = milliseconds::max();
  catalog_options longest = validated(given);
  for (const milliseconds* each : all(longest)) CHECK(*each == std::chrono::hours{24 * 365});
  CHECK(longest.heartbeat_interval == limits::heartbeat_interval);
  for (milliseconds* each : all(given)) *each = milliseconds::min();
  given.heartbeat_interval = milliseconds::min();
  CHECK(validated(given).worker_timeout == milliseconds{0});
  CHECK(validated(given).heartbeat_interval == milliseconds{1});
  given = {.heartbeat_interval = milliseconds{500}, .worker_timeout = milliseconds{300}};
  CHECK(validated(given).heartbeat_interval == milliseconds{100});  // or idle workers would be declared dead
}

TEST_CASE("time limits: options that clocks cannot add are brought within a year") {
  worker_options given;
  given.server = "tcp://127.0.0.1:5570";
  given.model = "policy";
  given.replica = "rollout-0";
  const auto all = [](worker_options& of) {
    return std::array{&of.join_timeout, &of.drain_timeout, &of.connect_timeout, &of.request_retry,
                      &of.server_timeout};
  };
  for (milliseconds* each : all(given)) *each = milliseconds::max();
  worker_options longest = validated(given);
  // Names of hosts are not unique ("localhost").
  CHECK(longest.location.host.ends_with("/" + tensorhub::detail::machine_id().substr(0, 8)));
  CHECK(longest.location.host.size() > 9);
  for (const milliseconds* each : all(longest)) CHECK(*each == std::chrono::hours{24 * 365});
  for (milliseconds* each : all(given)) *each = milliseconds::min();
  const worker_options shortest = validated(given);
  CHECK(shortest.join_timeout == milliseconds{0});
  CHECK(shortest.drain_timeout == milliseconds{0});
  CHECK(shortest.connect_timeout == milliseconds{0});
  CHECK(shortest.request_retry == milliseconds{1});  // else nothing else would be done
  CHECK(shortest.server_timeout == milliseconds{1});
  const worker_options usual = validated(shortest);
  CHECK(usual.request_retry == milliseconds{1});
}
