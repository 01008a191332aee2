// The TCP transport against a source in another process, which is killed, or stopped, with reads outstanding.

#include <tensorhub/transports/tcp.hpp>

#include "source_process.hpp"

namespace {

using namespace source_processes;
using tensorhub::transports::tcp;

std::uint16_t& port_of(tcp::options& options) {
  return options.listen_port;
}
std::map<completion_status, std::size_t> ends(int signal, bool at_once) {
  const source_process<tcp> source{{}, port_of};
  return end_while_reading<tcp>(source, {.peer_timeout = 700ms}, signal, at_once);
}

}  // namespace

TEST_CASE("a killed source: every outstanding read ends once, as peer_lost") {
  const auto ended = ends(SIGKILL, false);
  CHECK(ended.contains(completion_status::peer_lost));
  CHECK(!ended.contains(completion_status::access_denied));
}

TEST_CASE("a source that is dead already: the same") {
  CHECK(ends(SIGKILL, true).at(completion_status::peer_lost) == 8);
}

TEST_CASE("a stopped source says nothing: the peer time-out ends the reads") {
  CHECK(ends(SIGSTOP, true).at(completion_status::peer_lost) == 8);
}

TEST_CASE(
    "a source replaced by another process at its port while it is read: nothing of the new one arrives") {
  replace_while_reading<tcp>({}, {.peer_timeout = 2s}, port_of);
}
