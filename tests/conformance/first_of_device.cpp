// Compositions and device memory: a member that does not take it is stopped before anybody reads through it.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <vector>

using namespace std::chrono_literals;
using namespace tensorhub;
using tensorhub::testing::fake_device;
using tensorhub::testing::fake_device_memory;
using tensorhub::transports::same_host;
using tensorhub::transports::tcp;

namespace {

/// As a network adapter that cannot reach the memory of this machine's devices. Host memory of more than a
/// page is too much for it as well.
class without_devices : public same_host {
 public:
  static constexpr std::string_view name = "without_devices";
  using same_host::same_host;
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    for (const memory_range& each : ranges) {
      if (!each.host_accessible()) throw error(errc::transport_failed, "no way to the memory of that device");
      if (each.bytes > 4096) throw error(errc::transport_failed, "too much host memory");
    }
    return same_host::register_memory(ranges, access);
  }
};
using composed = first_of<without_devices, tcp>;

constexpr incarnation source_id{51};
constexpr incarnation reader_id{52};

[[nodiscard]] std::string sentence_of(composed& through, const std::vector<memory_range>& ranges) {
  try {
    static_cast<void>(through.register_memory(ranges, region_access::both));
    return {};
  } catch (const error& e) {
    return e.sentence();
  }
}

/// Reads all of it and returns how that ended.
template <typename Queue>
[[nodiscard]] completion_status read(Queue& queue, auto& endpoint, const auto& into,
                                     const remote_region& from) {
  static_cast<void>(queue.post_read(endpoint, into, 0, {&from, 0, from.bytes}, 1));
  std::array<completion, 1> done{completion{0, completion_status::cancelled}};
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (queue.poll(done) == 0 && std::chrono::steady_clock::now() < until) queue.wait(100ms);
  return done[0].status;
}

}  // namespace

TEST_CASE("first_of: a member that does not take device memory is stopped, the next one is used") {
  const fake_device_memory::allocation from{4096}, to{4096};
  const std::vector<std::byte> bytes(4096, std::byte{7});
  fake_device::instance().fill(from.data(), bytes);
  composed source{{}, source_id};
  composed reader{{}, reader_id};
  const transport_address before = source.address();
  const std::array from_ranges{from.range()};
  const auto offered = source.register_memory(from_ranges, region_access::remote_read);
  CHECK(source.not_started().find("no way to the memory of that device") != std::string::npos);
  CHECK(source.address().text != before.text);
  const auto remote = source.describe(offered.front());

  // The reader itself has registered nothing so far, and has both members.
  for (const transport_address& address : {source.address(), before}) {
    composed host_reader{{}, reader_id};
    std::vector<std::byte> plain(4096);
    const std::array range{memory_range{plain.data(), plain.size()}};
    const auto into = host_reader.register_memory(range, region_access::local_write);
    auto queue = host_reader.make_queue(1);
    auto endpoint = host_reader.connect(queue, address, source_id, 5s);
    CHECK(endpoint.through() == "tcp");
    CHECK(read(queue, endpoint, into.front(), remote) == completion_status::ok);
    CHECK(plain == bytes);
  }
  const std::array to_ranges{to.range()};
  const auto into = reader.register_memory(to_ranges, region_access::local_write);
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
  CHECK(endpoint.through() == "tcp");
  CHECK(endpoint.why().find("no way to the memory of that device") != std::string::npos);
  CHECK(read(queue, endpoint, into.front(), remote) == completion_status::ok);
  CHECK(fake_device::instance().bytes_of(to.data(), 4096) == bytes);
}

TEST_CASE("first_of: a member in use is left out; not the device's fault, or nobody left: an error") {
  const fake_device_memory::allocation memory{4096};
  std::vector<std::byte> small(4096), large(8192);
  const memory_range device = memory.range(), little{small.data(), small.size()},
                     much{large.data(), large.size()};
  {
    composed registered{{}, source_id};
    CHECK(sentence_of(registered, {little}).empty());
    CHECK(sentence_of(registered, {device}).empty());
    CHECK(registered.not_started().find("left out") != std::string::npos);
    CHECK(sentence_of(registered, {little}).empty());
  }
  {
    composed peer{{}, source_id}, connected{{}, reader_id};
    auto queue = connected.make_queue(1);
    const auto endpoint = connected.connect(queue, peer.address(), source_id, 5s);
    CHECK(endpoint.through() == "without_devices");
    CHECK(sentence_of(connected, {device}).empty());
    CHECK(connected.not_started().find("left out") != std::string::npos);
  }
  {
    composed poor{{}, source_id};
    CHECK(sentence_of(poor, {device, much}).find("too much host memory") != std::string::npos);
    CHECK(poor.not_started().empty());
  }
  {
    composed::options alone;
    alone.enabled = {true, false};
    composed poor{alone, source_id};
    CHECK(sentence_of(poor, {device}).find("no way to the memory") != std::string::npos);
  }
}

TEST_CASE("first_of: the member that is used says why memory is staged") {
  using near_or_tcp = first_of<same_host, tcp>;
  const fake_device_memory::allocation from{4096}, to{4096};
  const std::vector<std::byte> bytes(4096, std::byte{9});
  fake_device::instance().fill(from.data(), bytes);
  transports::same_host_options staged;
  staged.device = transports::device_memory::stage;
  near_or_tcp source{{}, source_id};
  near_or_tcp reader{near_or_tcp::with(staged), reader_id};
  const std::array from_ranges{from.range()}, to_ranges{to.range()};
  const auto offered = source.register_memory(from_ranges, region_access::remote_read);
  const auto into = reader.register_memory(to_ranges, region_access::local_write);
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
  CHECK(endpoint.why() == "same_host");  // nothing has been read
  CHECK(read(queue, endpoint, into.front(), source.describe(offered.front())) == completion_status::ok);
  CHECK(endpoint.why() == "same_host (memory of the peer is staged: the option device says so)");
}
