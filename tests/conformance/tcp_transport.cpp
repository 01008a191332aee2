/// The conformance suite on the TCP transport: over one connection per endpoint and over several, with and
/// without `sendfile`.

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <tensorhub/transports/tcp.hpp>
#include <utility>

#include "descriptor_shortage.hpp"
#include "run_rules.hpp"

using namespace std::chrono_literals;
using namespace tensorhub;
using namespace tensorhub::testing;
using tensorhub::transports::tcp;

template void run_rules(const conformance_subject<tcp>&, const conformance_options&, const rule_exclusions&);

namespace {

conformance_subject<tcp> subject_with(const tcp::options& options) {
  conformance_subject<tcp> subject;
  subject.make = [options](incarnation self) { return std::make_unique<tcp>(options, self); };
  return subject;
}

}  // namespace

TEST_CASE("tcp: every rule, as it comes") {
  run_rules(conformance_subject<tcp>{});
}

TEST_CASE("tcp: every rule, three streams and one I/O thread") {
  tcp::options options;
  options.streams = 3;
  options.io_threads = 1;
  run_rules(subject_with(options));
}

TEST_CASE("tcp: every rule, by sendfile") {
  tcp::options options;
  options.send_from_file = tensorhub::transports::file_sending::always;
  run_rules(subject_with(options));
}

TEST_CASE("tcp: every rule, small socket buffers") {
  tcp::options options;
  options.send_buffer_bytes = 16'384;
  options.receive_buffer_bytes = 16'384;
  run_rules(subject_with(options));
}

TEST_CASE("tcp: a source that has had no descriptor for a reader accepts it soon when it has") {
  if (!shortages::may_be_total("conformance.tcp_transport")) return;
  struct pair {
    tcp source{{}, incarnation{1}};
    tcp reader{{}, incarnation{2}};
    tcp::queue queue = reader.make_queue(1);
  };
  const auto time = shortages::time_to_connect_after_shortage(
      [] { return std::make_unique<pair>(); },
      [](pair& both) {
        CHECK(both.reader.connect(both.queue, both.source.address(), incarnation{1}, 20s).usable());
      });
  CHECK(time < 500ms);  // so long a reader waits that has another source
}
