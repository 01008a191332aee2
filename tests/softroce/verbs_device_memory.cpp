// Device memory that no RDMA device can reach: verbs says so with both reasons, first_of goes on without it.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <iostream>
#include <span>
#include <string>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <tensorhub/transports/verbs.hpp>
#include <vector>

#include "rdma_addresses.hpp"

using namespace std::chrono_literals;
using namespace tensorhub;
using tensorhub::testing::fake_device;
using tensorhub::testing::fake_device_memory;
using tensorhub::transports::tcp;
using tensorhub::transports::verbs;

namespace {

[[nodiscard]] verbs::options on_this_guest() {
  verbs::options options;
  options.listen_addresses = {softroce_tests::rdma_addresses().front()};
  return options;
}

}  // namespace

TEST_CASE("verbs: device memory that cannot be reached is refused with both reasons") {
  const fake_device_memory::allocation memory{64 << 10};
  verbs through{on_this_guest(), incarnation{71}};
  for (const region_access access : {region_access::local_write, region_access::remote_read}) {
    const auto range = memory.range();
    std::string sentence;
    try {
      static_cast<void>(through.register_memory(std::span{&range, 1}, access));
    } catch (const error& e) {
      CHECK(e.code() == errc::transport_failed);
      sentence = e.sentence();
    }
    std::cout << sentence << "\n";
    for (const char* const part : {"range 0 of 1", "fake device", "device memory", "no dmabufs",
                                   "nvidia_peermem", "first_of<verbs, tcp>"})
      CHECK_MESSAGE(sentence.find(part) != std::string::npos, std::string{part});
  }
  CHECK(through.registered_bytes() == 0);
  std::vector<std::byte> plain(4096);
  const memory_range host{plain.data(), plain.size()};
  const auto regions = through.register_memory(std::span{&host, 1}, region_access::both);
  CHECK(through.how_read(regions.front()).find("host memory") != std::string::npos);
}

TEST_CASE("verbs: managed memory is refused, its pages move away from those that were registered") {
  std::vector<std::byte> bytes(4096);
  const memory_range range{bytes.data(), bytes.size(), memory_kind::cuda_managed};
  verbs through{on_this_guest(), incarnation{74}};
  for (const region_access access : {region_access::local_write, region_access::remote_read}) {
    CHECK_THROWS_WITH_AS(static_cast<void>(through.register_memory(std::span{&range, 1}, access)),
                         doctest::Contains("managed memory (cudaMallocManaged)"), error);
  }
  CHECK(through.registered_bytes() == 0);
}

TEST_CASE("first_of<verbs, tcp>: device memory goes through tcp, and why is said") {
  using composed = first_of<verbs, tcp>;
  const fake_device_memory::allocation from{64 << 10}, to{64 << 10};
  const std::vector<std::byte> bytes(64 << 10, std::byte{5});
  fake_device::instance().fill(from.data(), bytes);
  composed source{composed::with(on_this_guest()), incarnation{72}};
  composed reader{composed::with(on_this_guest()), incarnation{73}};
  const std::array from_ranges{from.range()}, to_ranges{to.range()};
  const auto offered = source.register_memory(from_ranges, region_access::remote_read);
  CHECK(source.not_started().find("no dmabufs") != std::string::npos);
  const auto into = reader.register_memory(to_ranges, region_access::local_write);
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), incarnation{72}, 10s);
  CHECK(endpoint.through() == "tcp");
  CHECK(endpoint.why().find("no dmabufs") != std::string::npos);
  const auto remote = source.describe(offered.front());
  static_cast<void>(queue.post_read(endpoint, into.front(), 0, {&remote, 0, remote.bytes}, 1));
  std::array<completion, 1> done{completion{0, completion_status::cancelled}};
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (queue.poll(done) == 0 && std::chrono::steady_clock::now() < until) queue.wait(100ms);
  CHECK(done[0].status == completion_status::ok);
  CHECK(fake_device::instance().bytes_of(to.data(), bytes.size()) == bytes);
}
