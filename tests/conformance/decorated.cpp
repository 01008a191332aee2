// The conformance suite on compositions and decorators: what wraps a transport keeps its promises.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <tensorhub/testing/faulty.hpp>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/testing/throttled.hpp>
#include <tensorhub/testing/wide_area.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "run_rules.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using namespace std::chrono_literals;
using tensorhub::transports::tcp;

using near_or_tcp = first_of<memory_transport, tcp>;

template <typename T>
static conformance_subject<T> subject_with(const typename T::options& options) {
  conformance_subject<T> subject;
  subject.make = [options](incarnation self) { return std::make_unique<T>(options, self); };
  return subject;
}

TEST_CASE("first_of<memory, tcp>: every rule, through the first") {
  run_rules(conformance_subject<near_or_tcp>{});
}

TEST_CASE("first_of<memory, tcp>: every rule, where only every other process has the first") {
  conformance_subject<near_or_tcp> subject;
  std::atomic<std::uint64_t> started = 0;
  subject.make = [&](incarnation self) {
    near_or_tcp::options options;
    options.enabled[0] = started++ % 2 == 0;
    return std::make_unique<near_or_tcp>(options, self);
  };
  run_rules(subject);
}

TEST_CASE("throttled<tcp>: every rule") {
  throttled<tcp>::options options;
  options.receiving =
      std::make_shared<network_link>(network_link_options{.bytes_per_second = 2e9, .latency = 100us});
  options.sending = std::make_shared<network_link>(network_link_options{.bytes_per_second = 1e9});
  run_rules(subject_with<throttled<tcp>>(options));
}

TEST_CASE("wide_area<tcp>: every rule, across") {
  throttled<tcp>::options link;
  link.receiving =
      std::make_shared<network_link>(network_link_options{.bytes_per_second = 1e9, .latency = 100us});
  auto options = wide_area<tcp>::with(link);
  options.enabled[0] = false;  // so that everything goes through the link
  run_rules(subject_with<wide_area<tcp>>(options));
}

TEST_CASE("wide_area<tcp>: every rule, in one datacenter, and nothing goes through the link") {
  throttled<tcp>::options link;
  link.receiving = std::make_shared<network_link>();
  auto options = wide_area<tcp>::with(link);
  options.here.datacenter = "one";
  run_rules(subject_with<wide_area<tcp>>(options));
  CHECK(link.receiving->carried_bytes() == 0);
}

TEST_CASE("faulty<tcp> that only delays: every rule") {
  run_rules(subject_with<faulty<tcp>>({.seed = 3, .faults = {.delays = 0.5, .max_delay = 3ms}}));
}

TEST_CASE("faulty<memory> that only delays, in a first_of: every rule") {
  using slow_or_tcp = first_of<faulty<memory_transport>, tcp>;
  run_rules(subject_with<slow_or_tcp>(slow_or_tcp::with(
      faulty<memory_transport>::options{.seed = 4, .faults = {.delays = 0.5, .max_delay = 3ms}})));
}
