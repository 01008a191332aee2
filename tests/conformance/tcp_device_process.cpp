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
std::map<completion_status, std::size_t> ends(int signal, bool at_once) {
  const device_source source{{}, port_of};
  return end_while_reading(source, {.peer_timeout = 700ms}, signal, at_once);
}

}  // namespace

TEST_CASE("device memory of another process arrives in device memory of this one") {
  const device_source source{{}, port_of};
  tcp through{{}, reader_id};
  fake_device_memory memory;
  const auto target = memory.allocate(region_bytes);
  const std::vector<std::byte> other(region_bytes, std::byte{0x5a});
  memory.copy(target.data(), other.data(), region_bytes);
  const auto range = target.range();
  const auto into = through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  auto queue = through.make_queue(2);
  auto endpoint = through.connect(queue, source.address, source_id, 5s);
  // All but the first and the last byte, in two reads. The source's memory is zero.
  constexpr std::uint64_t half = region_bytes / 2;
  REQUIRE(queue.post_read(endpoint, into.front(), 1, {&source.region, 1, half - 1}, 1) ==
          tensorhub::post_result::posted);
  REQUIRE(queue.post_read(endpoint, into.front(), half, {&source.region, half, half - 1}, 2) ==
          tensorhub::post_result::posted);
  std::size_t good = 0;
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
    std::array<completion, 2> done;
    const std::size_t count = queue.poll(done);
    for (std::size_t i = 0; i < count; ++i) good += done[i].status == completion_status::ok ? 1 : 0;
    if (count == 0) queue.wait(1s);
  }
  CHECK(good == 2);
  std::vector<std::byte> here(region_bytes);
  memory.copy(here.data(), target.data(), region_bytes);
  CHECK(here.front() == std::byte{0x5a});
  CHECK(here.back() == std::byte{0x5a});
  CHECK(std::all_of(here.begin() + 1, here.end() - 1, [](std::byte each) { return each == std::byte{0}; }));
}

TEST_CASE("a killed source of device memory: every outstanding read ends once, as peer_lost") {
  const auto ended = ends(SIGKILL, false);
  CHECK(ended.contains(completion_status::peer_lost));
  CHECK(!ended.contains(completion_status::access_denied));
  CHECK(!ended.contains(completion_status::local_error));
}

TEST_CASE("a stopped source of device memory: the peer time-out ends the reads") {
  CHECK(ends(SIGSTOP, true).at(completion_status::peer_lost) == 8);
}
