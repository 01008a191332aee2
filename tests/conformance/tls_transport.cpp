/// The conformance suite on the TLS transport: as it comes, over several connections, with small socket
/// buffers, and with a new key every few records.

#include <doctest/doctest.h>

#include <memory>
#include <tensorhub/transports/tls.hpp>

#include "run_rules.hpp"
#include "tls_certificates.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using tensorhub::transports::tls;

template void run_rules(const conformance_subject<tls>&, const conformance_options&, const rule_exclusions&);

namespace {

conformance_subject<tls> subject_with(const tls::options& options) {
  conformance_subject<tls> subject;
  subject.make = [options](incarnation self) { return std::make_unique<tls>(options, self); };
  return subject;
}

}  // namespace

TEST_CASE("tls: every rule, as it comes") {
  const tls_tests::authority authority;
  run_rules(subject_with(authority.options()));
}

TEST_CASE("tls: every rule, three streams, one I/O thread, names and hosts checked") {
  const tls_tests::authority authority;
  tls::options options = authority.options({.alternatives = "DNS:worker.example,IP:127.0.0.1"});
  options.allowed_names = {"worker.example"};
  options.verify_host = true;
  options.tcp.streams = 3;
  options.tcp.io_threads = 1;
  run_rules(subject_with(options));
}

TEST_CASE("tls: every rule, small socket buffers, and a new key every 40 kB") {
  const tls_tests::authority authority;
  tls::options options = authority.options();
  options.rekey_bytes = 40'000;
  options.kernel_tls = false;
  options.tcp.send_buffer_bytes = 16'384;
  options.tcp.receive_buffer_bytes = 16'384;
  run_rules(subject_with(options));
}
