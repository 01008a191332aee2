/// The conformance suite on the same-host transport over memory that faults when the CPU touches it: by each
/// way that such bytes take. (All of the suite's processes are one: mappings of other processes' memory are
/// in same_host_device_process.cpp.)

#include <doctest/doctest.h>

#include <memory>
#include <tensorhub/testing/conformance/device_bytes.hpp>
#include <tensorhub/transports/same_host.hpp>

#include "run_rules.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using tensorhub::transports::backing_files;
using tensorhub::transports::device_memory;
using tensorhub::transports::same_host;

/// Compiled in same_host_transport.cpp.
extern template void run_rules(const conformance_subject<same_host>&, const conformance_options&,
                               const rule_exclusions&);

namespace {

const rule_exclusions known{
    {"silent_peer_ends_reads",
     "2026-11-21: the memory of a stopped process can be read as before; only what the "
     "source has to be asked for ends by the peer time-out"}};

void run(const same_host::options& options, device_side side) {
  conformance_subject<same_host> subject;
  subject.make = [options](incarnation self) { return std::make_unique<same_host>(options, self); };
  run_rules(over_device(subject, side), {}, known);
}

}  // namespace

TEST_CASE("same_host: every rule, from device memory to host memory, through the staging file") {
  run({}, device_side::source);
}

TEST_CASE("same_host: every rule, from host memory to device memory, out of mappings and by pinned pieces") {
  run({}, device_side::target);
}

TEST_CASE("same_host: every rule, from host memory to device memory, files are read instead of mapped") {
  run({.files = backing_files::read, .kept_connections = 0}, device_side::target);
}

TEST_CASE("same_host: every rule, from device memory to device memory") {
  run({}, device_side::both);
}

TEST_CASE("same_host: every rule, from device memory to device memory, all of it staged") {
  run({.device = device_memory::stage}, device_side::both);
}
