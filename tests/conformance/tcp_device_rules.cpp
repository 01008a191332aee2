/// The conformance suite on the TCP transport, over memory that the CPU cannot touch: at the source, at the
/// reader, at both; with copies that take their time.

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <tensorhub/testing/conformance/device_bytes.hpp>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "run_rules.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using tensorhub::transports::tcp;

/// Compiled in tcp_transport.cpp.
extern template void run_rules(const conformance_subject<tcp>&, const conformance_options&,
                               const rule_exclusions&);

namespace {

conformance_subject<tcp> subject_with(const tcp::options& options) {
  conformance_subject<tcp> subject;
  subject.make = [options](incarnation self) { return std::make_unique<tcp>(options, self); };
  return subject;
}

/// Every piece of the device's work takes so long.
struct slow_device {
  explicit slow_device(std::int64_t delay_ns) { fake_device::instance().set.delay_ns = delay_ns; }
  ~slow_device() { fake_device::instance().set.delay_ns = 0; }
};

}  // namespace

TEST_CASE("tcp, device memory at the source: every rule") {
  run_rules(over_device<tcp>({}, device_side::source));
}

TEST_CASE("tcp, device memory at the reader: every rule") {
  run_rules(over_device<tcp>({}, device_side::target));
}

TEST_CASE("tcp, device memory at both: every rule") {
  run_rules(over_device<tcp>({}, device_side::both));
}

TEST_CASE("tcp, device memory at both: every rule, three streams, one I/O thread, small socket buffers") {
  tcp::options options;
  options.streams = 3;
  options.io_threads = 1;
  options.send_buffer_bytes = 16'384;
  options.receive_buffer_bytes = 16'384;
  run_rules(over_device(subject_with(options), device_side::both));
}

TEST_CASE("tcp, device memory at both, and each of its copies takes 300 us: every rule") {
  const slow_device slow{300'000};
  run_rules(over_device<tcp>({}, device_side::both));
}
