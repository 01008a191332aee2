// The TCP transport against a source in another process, which is killed, or stopped, with reads outstanding.

#include <tensorhub/transports/tcp.hpp>

#include "source_process.hpp"

namespace {

using namespace source_processes;
using tensorhub::transports::tcp;

std::uint16_t& port_of(tcp::options& options) {
  return options.listen_port;
}
counts ends(int signal, moment when) {
  const source_process<tcp> source{{}, port_of};
  return end_while_reading<tcp>(source, {.peer_timeout = 700ms}, signal, when);
}

}  // namespace

TEST_CASE("a killed source: every outstanding read ends once, as peer_lost") {
  CHECK(ends(SIGKILL, moment::after_the_posts).contains(completion_status::peer_lost));
}

TEST_CASE("a source that is dead already: the same") {
  CHECK(ends(SIGKILL, moment::before_the_reads).at(completion_status::peer_lost) == reads_at_once);
}

TEST_CASE("a stopped source says nothing: the peer time-out ends the reads") {
  CHECK(ends(SIGSTOP, moment::before_the_reads).at(completion_status::peer_lost) == reads_at_once);
}

TEST_CASE(
    "a source replaced by another process at its port while it is read: nothing of the new one arrives") {
  replace_forked_source<tcp>({}, {.peer_timeout = 2s}, port_of);
}
