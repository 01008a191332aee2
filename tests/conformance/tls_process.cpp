// The TLS transport against a source in another process, which is killed, or stopped, with reads outstanding.

#include <tensorhub/transports/tls.hpp>

#include "source_process.hpp"
#include "tls_certificates.hpp"

namespace {

using namespace source_processes;
using tensorhub::transports::tls;

std::uint16_t& port_of(tls::options& options) {
  return options.tcp.listen_port;
}
tls::options with_timeout(tls::options options, std::chrono::milliseconds peer_timeout) {
  options.tcp.peer_timeout = peer_timeout;
  return options;
}
counts ends(int signal, moment when) {
  const tls_tests::authority authority;
  const source_process<tls> source{authority.options({.name = "source"}), port_of};
  return end_while_reading<tls>(source, with_timeout(authority.options({.name = "reader"}), 700ms), signal,
                                when);
}

}  // namespace

TEST_CASE("tls: a killed source: every outstanding read ends once, as peer_lost") {
  CHECK(ends(SIGKILL, moment::after_the_posts).contains(completion_status::peer_lost));
}

TEST_CASE("tls: a source that is dead already: the same, and no signal") {
  CHECK(ends(SIGKILL, moment::before_the_reads).at(completion_status::peer_lost) == reads_at_once);
}

TEST_CASE("tls: a stopped source says nothing: the peer time-out ends the reads") {
  CHECK(ends(SIGSTOP, moment::before_the_reads).at(completion_status::peer_lost) == reads_at_once);
}

TEST_CASE("tls: a source replaced by another process at its port while it is read") {
  const tls_tests::authority authority;
  replace_forked_source<tls>(authority.options({.name = "source"}),
                             with_timeout(authority.options({.name = "reader"}), 2s), port_of);
}
