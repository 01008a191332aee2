/// The conformance suite on the TLS transport, over memory that the CPU cannot touch.

#include <doctest/doctest.h>

#include <memory>
#include <tensorhub/testing/conformance/device_bytes.hpp>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/tls.hpp>

#include "run_rules.hpp"
#include "tls_certificates.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using tensorhub::transports::tls;

/// Compiled in tls_transport.cpp.
extern template void run_rules(const conformance_subject<tls>&, const conformance_options&,
                               const rule_exclusions&);

namespace {

conformance_subject<tls> subject_with(const tls::options& options) {
  conformance_subject<tls> subject;
  subject.make = [options](incarnation self) { return std::make_unique<tls>(options, self); };
  return subject;
}

}  // namespace

TEST_CASE("tls, device memory at both: every rule") {
  const tls_tests::authority authority;
  run_rules(over_device(subject_with(authority.options()), device_side::both));
}

TEST_CASE(
    "tls, device memory at both: every rule, small socket buffers, slow copies, a new key every 40 kB") {
  const tls_tests::authority authority;
  tls::options options = authority.options();
  options.rekey_bytes = 40'000;
  options.kernel_tls = false;
  options.tcp.send_buffer_bytes = 16'384;
  options.tcp.receive_buffer_bytes = 16'384;
  options.tcp.io_threads = 1;
  fake_device::instance().set.delay_ns = 100'000;
  run_rules(over_device(subject_with(options), device_side::both));
  fake_device::instance().set.delay_ns = 0;
}
