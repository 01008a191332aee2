/// The conformance suite on the libfabric transport through provider `verbs`, on a real device (Soft-RoCE in
/// a guest).

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <tensorhub/transports/libfabric.hpp>

#include "rdma_addresses.hpp"
#include "run_rules.hpp"

using namespace std::chrono_literals;
using namespace tensorhub;
using namespace tensorhub::testing;
using softroce_tests::rdma_addresses;
using tensorhub::transports::libfabric;

namespace {

/// The guest touches fresh memory slowly, and has one processor.
constexpr conformance_options of_a_guest{
    .deadline = 60s, .largest_read_bytes = 1u << 20, .rounds = 4, .concurrent_overwrites = true};

libfabric::options at_first_address() {
  // Before the first use of libfabric in this process: its cache keeps closed registrations readable.
  ::setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
  libfabric::options options;
  options.provider = "verbs";
  options.listen_host = rdma_addresses().front();
  options.peer_timeout = softroce_tests::suite_peer_timeout;
  return options;
}

conformance_subject<libfabric> subject_with(const libfabric::options& options) {
  conformance_subject<libfabric> subject;
  subject.make = [options](incarnation self) { return std::make_unique<libfabric>(options, self); };
  return subject;
}

}  // namespace

TEST_CASE("libfabric: every rule, provider verbs, connected endpoints") {
  run_rules(subject_with(at_first_address()), of_a_guest);
}

TEST_CASE("libfabric: every rule, provider verbs, small pieces and registrations") {
  libfabric::options options = at_first_address();
  options.piece_bytes = 50'000;
  options.largest_registration_bytes = 512u << 10;
  run_rules(subject_with(options), of_a_guest);
}
