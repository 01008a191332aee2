/// The conformance suite on the verbs transport, on a real device (Soft-RoCE in a guest): as it comes, with
/// several queue pairs, with everything cut small, by polling, over two rails, and with memory windows.

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <tensorhub/transports/verbs.hpp>
#include <utility>

#include "rdma_addresses.hpp"
#include "run_rules.hpp"

using namespace std::chrono_literals;
using namespace tensorhub;
using namespace tensorhub::testing;
using softroce_tests::rdma_addresses;
using tensorhub::transports::verbs;

namespace {

/// The guest touches fresh memory slowly, and has one processor.
constexpr conformance_options of_a_guest{
    .deadline = 60s, .largest_read_bytes = 1u << 20, .rounds = 3, .concurrent_overwrites = true};

const std::string one_packet =
    "Soft-RoCE sends a packet after its memory window has been destroyed; registrations keep it. 2026-11-23";
const rule_exclusions not_by_windows{{"no_later_bytes", one_packet},
                                     {"no_later_bytes_while_reading", one_packet}};

verbs::options at_first_address() {
  verbs::options options;
  options.listen_addresses = {rdma_addresses().front()};
  options.peer_timeout = softroce_tests::suite_peer_timeout;
  return options;
}

conformance_subject<verbs> subject_with(const verbs::options& options) {
  conformance_subject<verbs> subject;
  subject.make = [options](incarnation self) { return std::make_unique<verbs>(options, self); };
  return subject;
}

}  // namespace

TEST_CASE("verbs: every rule, as it comes") {
  verbs::options options;
  options.peer_timeout = softroce_tests::suite_peer_timeout;
  run_rules(subject_with(options), of_a_guest);
}

TEST_CASE("verbs: every rule, with memory windows") {
  verbs::options options = at_first_address();
  options.revocation = tensorhub::transports::revocation_mode::memory_windows;
  run_rules(subject_with(options), of_a_guest, not_by_windows);
}

TEST_CASE("verbs: every rule, with memory windows over small registrations on two rails") {
  verbs::options options = at_first_address();
  options.revocation = tensorhub::transports::revocation_mode::memory_windows;
  options.listen_addresses.push_back(options.listen_addresses.front());
  options.largest_registration_bytes = 128u << 10;
  run_rules(subject_with(options), of_a_guest, not_by_windows);
}

TEST_CASE("verbs: every rule, three queue pairs") {
  verbs::options options = at_first_address();
  options.queue_pairs = 3;
  run_rules(subject_with(options), of_a_guest);
}

TEST_CASE("verbs: every rule, small work requests, registrations and queue pairs") {
  verbs::options options = at_first_address();
  options.queue_pairs = 2;
  options.queue_pair_depth = 5;
  options.signal_interval = 3;
  options.work_request_bytes = 20'000;
  options.largest_registration_bytes = 128u << 10;
  run_rules(subject_with(options), of_a_guest);
}

TEST_CASE("verbs: every rule, polling, with strict ordering and a completion per work request") {
  verbs::options options = at_first_address();
  options.completions = tensorhub::transports::completion_mode::polling;
  options.relaxed_ordering = false;
  options.signal_interval = 1;
  options.work_request_bytes = 64u << 10;
  run_rules(subject_with(options), of_a_guest);
}

TEST_CASE("verbs: every rule, two rails on one device") {
  verbs::options options = at_first_address();
  options.listen_addresses.push_back(options.listen_addresses.front());
  options.work_request_bytes = 100'000;
  run_rules(subject_with(options), of_a_guest);
}
