// The TCP transport from device memory of another process into device memory of this one; and when that
// process is killed, or stopped, with copies under way.

#include <algorithm>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "source_process.hpp"

namespace {

using namespace source_processes;
using tensorhub::testing::fake_device_memory;
using tensorhub::transports::tcp;
using device_source = source_process<tcp, fake_device_memory>;

std::uint16_t& port_of(tcp::options& options) {
  return options.listen_port;
}
counts ends(int signal, moment when) {
  const device_source source{{}, port_of};
  return end_while_reading<tcp, fake_device_memory>(source, {.peer_timeout = 700ms}, signal, when);
}

}  // namespace

TEST_CASE("device memory of another process arrives in device memory of this one") {
  const device_source source{{}, port_of};
  reading_side<tcp, fake_device_memory> reader;
  fake_device_memory memory;
  const std::vector<std::byte> other(region_bytes, std::byte{0x5a});
  memory.copy(reader.target.data(), other.data(), region_bytes);
  reader.connect(source.address);
  // All but the first and the last byte, in two reads.
  constexpr std::uint64_t half = region_bytes / 2;
  reader.post(source.region, half - 1, 1, 1, 1);
  reader.post(source.region, half - 1, half, 2, half);
  CHECK(reader.drain() == counts{{completion_status::ok, 2}});
  std::vector<std::byte> here(region_bytes);
  memory.copy(here.data(), reader.target.data(), region_bytes);
  CHECK(here.front() == std::byte{0x5a});
  CHECK(here.back() == std::byte{0x5a});
  CHECK(std::all_of(here.begin() + 1, here.end() - 1, [](std::byte each) { return each == byte_of_source; }));
}

TEST_CASE("a killed source of device memory: every outstanding read ends once, as peer_lost") {
  CHECK(ends(SIGKILL, moment::after_the_posts).contains(completion_status::peer_lost));
}

TEST_CASE("a stopped source of device memory: the peer time-out ends the reads") {
  CHECK(ends(SIGSTOP, moment::before_the_reads).at(completion_status::peer_lost) == reads_at_once);
}
