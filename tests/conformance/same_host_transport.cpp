/// The conformance suite on the same-host transport: by each of its ways to copy, with one thread and with
/// two.

#include <doctest/doctest.h>

#include <memory>
#include <tensorhub/transports/same_host.hpp>

#include "run_rules.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using tensorhub::transports::backing_files;
using tensorhub::transports::same_host;

template void run_rules(const conformance_subject<same_host>&, const conformance_options&,
                        const rule_exclusions&);

namespace {

/// What cannot hold here; what holds instead is shown with real processes in same_host_process.cpp.
const rule_exclusions known{{"silent_peer_ends_reads",
                             "2026-11-21: the memory of a stopped process can be read as before, so reads of "
                             "regions that are known end "
                             "ok; only what the source has to be asked for ends by the peer time-out"}};

conformance_subject<same_host> subject_with(const same_host::options& options) {
  conformance_subject<same_host> subject;
  subject.make = [options](incarnation self) { return std::make_unique<same_host>(options, self); };
  return subject;
}

}  // namespace

TEST_CASE("same_host: every rule, as it comes") {
  run_rules(conformance_subject<same_host>{}, {}, known);
}

TEST_CASE("same_host: every rule, one thread, cached copies only, nothing kept") {
  same_host::options options;
  options.copy_threads = 1;
  options.streaming_from_bytes = UINT64_MAX;
  options.kept_connections = 0;
  run_rules(subject_with(options), {}, known);
}

TEST_CASE("same_host: every rule, three threads, streaming copies only") {
  same_host::options options;
  options.copy_threads = 3;
  options.streaming_from_bytes = 0;
  run_rules(subject_with(options), {}, known);
}

TEST_CASE("same_host: every rule, files are read instead of mapped") {
  same_host::options options;
  options.files = backing_files::read;
  run_rules(subject_with(options), {}, known);
}

TEST_CASE("same_host: every rule, all memory by process_vm_readv") {
  same_host::options options;
  options.files = backing_files::ignore;
  options.copy_threads = 2;
  run_rules(subject_with(options), {}, known);
}

TEST_CASE("same_host: every rule, for tenants: all memory is staged") {
  run_rules(subject_with(same_host::options::for_tenants()));
}
