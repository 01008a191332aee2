// What the verbs transport says when it is given a device, an address, memory or a peer that it cannot use;
// and what it takes although it looks difficult: read-only memory, regions in pieces, parts of a region.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/verbs.hpp>
#include <thread>
#include <vector>

#include "rdma_addresses.hpp"

namespace {

using namespace std::chrono_literals;
using namespace softroce_tests;
namespace parts = tensorhub::transports::verbs_detail;
using tensorhub::completion_status;
using tensorhub::errc;
using tensorhub::incarnation;
using tensorhub::memory_range;
using tensorhub::region_access;
using tensorhub::transports::verbs;

/// The call fails with this code and a sentence that has all these words.
void refused(const std::function<void()>& call, errc code, const std::vector<std::string>& words) {
  std::optional<tensorhub::error> thrown;
  try {
    call();
  } catch (const tensorhub::error& e) {
    thrown = e;
  }
  REQUIRE(thrown.has_value());
  INFO(thrown->what());
  CHECK(thrown->code() == code);
  for (const std::string& word : words)
    CHECK_MESSAGE(thrown->sentence().find(word) != std::string::npos, word);
}

void refused(const verbs::options& options, const std::vector<std::string>& words) {
  refused([&] { const verbs made{options, {1}}; }, errc::transport_failed, words);
}

verbs::options at(const std::string& address) {
  verbs::options options;
  options.listen_addresses = {address};
  return options;
}

completion_status finish(verbs::queue& queue) {
  std::array<tensorhub::completion, 1> done;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (queue.poll(done) == 0) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    queue.wait(1s);
  }
  return done[0].status;
}

}  // namespace

TEST_CASE("verbs: no such device, port, GID or address: the sentence lists what there is") {
  const std::string here = rdma_addresses().front();
  const std::vector<std::string> there_is{"There is: ", "rxe0 port 1 at " + here, "GID "};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), there_is.begin(), there_is.end());
    return words;
  };
  verbs::options options;
  options.device = "mlx5_9";
  refused(options, with({"device 'mlx5_9'"}));
  options.device = "rxe0";
  options.device_port = 7;
  refused(options, with({"device 'rxe0' port 7"}));
  options.device_port = 1;
  options.gid_index = 200;
  refused(options, with({"GID index 200"}));
  refused(at("127.0.0.1"), with({"127.0.0.1 belongs to no RDMA device"}));
  refused(at("192.0.2.77"), with({"192.0.2.77 belongs to no RDMA device"}));
  refused(at("no.such.host.invalid"), {"'no.such.host.invalid' cannot be resolved"});
  options = at(here);
  options.device = "mlx5_9";
  refused(options, with({"the address " + here + " is not that of device 'mlx5_9'"}));
  options = {};
  options.listen_addresses.assign(9, here);
  refused(options, {"at most 8 rails", "9 addresses"});
}

TEST_CASE("verbs: the device is found by name, port and GID, and without any of them") {
  const std::string here = rdma_addresses().front();
  CHECK(verbs{{}, {1}}.address().text.starts_with("verbs://"));
  verbs::options options;
  options.device = "rxe0";
  options.device_port = 1;
  options.gid_index = 1;  // 0 is that of the link-local address
  CHECK(verbs{options, {1}}.address().text.starts_with("verbs://" + here + ":"));
}

TEST_CASE("verbs: a port that is in use") {
  const verbs first{at(rdma_addresses().front()), {1}};
  const std::string text = first.address().text;
  auto options = at(rdma_addresses().front());
  options.listen_port = static_cast<std::uint16_t>(std::stoi(text.substr(text.rfind(':') + 1)));
  refused(options, {std::to_string(options.listen_port), "rxe0", rdma_addresses().front()});
}

TEST_CASE("verbs: addresses that are none, or are nobody's") {
  verbs through{at(rdma_addresses().front()), {1}};
  auto queue = through.make_queue(1);
  for (const std::string text : {"", "verbs://", "verbs://10.7.0.1", "verbs://:1", "tcp://10.7.0.1:1",
                                 "verbs://10.7.0.1:1,", "verbs://10.7.0.1:99999999"}) {
    CAPTURE(text);
    refused([&] { const auto made = through.connect(queue, {text}, {2}, 1s); }, errc::transport_failed,
            {"verbs: "});
  }
  refused([&] { const auto made = through.connect(queue, {"verbs://localhost:1"}, {2}, 1s); },
          errc::transport_failed, {"localhost", "have to be numeric"});
  std::string many = "verbs://";
  for (int i = 0; i < 9; ++i) many += (i > 0 ? "," : "") + rdma_addresses().front() + ":1";
  refused([&] { const auto made = through.connect(queue, {many}, {2}, 1s); }, errc::transport_failed,
          {"not an address"});
  refused(
      [&] {
        const auto made = through.connect(queue, {"verbs://" + rdma_addresses().front() + ":1"}, {2}, 5s);
      },
      errc::transport_failed, {"refused the connection: nothing is listening", "rxe0"});
}

TEST_CASE(
    "verbs: a region of too many pieces for its key: said, with what to do; as a target it is welcome") {
  auto options = at(rdma_addresses().front());
  options.largest_registration_bytes = 4096;
  verbs through{options, {1}};
  constexpr std::uint64_t most = tensorhub::transports::verbs_detail::most_rkeys;
  std::string one_more = std::to_string(most + 1);
  one_more += " registrations";  // g++ 12 sees a copy out of bounds in the sum of both (precompiled headers)
  const tensorhub::host_memory::allocation memory{(most + 1) * 4096};
  const std::array ranges{memory_range{memory.range().data, most * 4096}, memory.range()};
  for (const auto access : {region_access::remote_read, region_access::both}) {
    refused([&] { static_cast<void>(through.register_memory(ranges, access)); }, errc::limit_exceeded,
            {"range 1 of 2", one_more, "Register it as several ranges"});
    CHECK(through.registered_bytes() == 0);
  }
  CHECK(through.register_memory(ranges, region_access::local_write).size() == 2);
}

TEST_CASE("verbs: memory that cannot be a target is said to be; it can be a source") {
  constexpr std::uint64_t bytes = 64u << 10;
  verbs source{at(rdma_addresses().front()), {1}};
  verbs reader{at(rdma_addresses().front()), {2}};
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  std::memset(mapped, 1, bytes);
  REQUIRE(::mprotect(mapped, bytes, PROT_READ) == 0);
  const memory_range range{static_cast<std::byte*>(mapped), bytes};
  for (const auto access : {region_access::local_write, region_access::both}) {
    refused(
        [&] {
          static_cast<void>(source.register_memory(std::span{&range, 1}, access));
        },
        errc::transport_failed, {"range 0 of 1", "rxe0", "not writable"});
  }
  const tensorhub::host_memory::allocation target{bytes};
  const auto to = target.range();
  {
    auto strict_options = at(rdma_addresses().front());
    strict_options.revocation = tensorhub::transports::revocation_mode::memory_windows;
    verbs strict{strict_options, {3}};
    refused(
        [&] {
          static_cast<void>(strict.register_memory(std::span{&range, 1}, region_access::remote_read));
        },
        errc::transport_failed, {"revocation_mode::memory_windows", "not writable"});
    const auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
    const auto into = reader.register_memory(std::span{&to, 1}, region_access::local_write);
    auto queue = reader.make_queue(1);
    auto endpoint = reader.connect(queue, source.address(), {1}, 5s);
    // A region that is no target.
    const auto unsuited = reader.register_memory(std::span{&to, 1}, region_access::remote_read);
    const auto described = source.describe(regions.front());
    REQUIRE(queue.post_read(endpoint, unsuited.front(), 0, {&described, 0, bytes}, 1) ==
            tensorhub::post_result::posted);
    CHECK(finish(queue) == completion_status::local_error);
    REQUIRE(queue.post_read(endpoint, into.front(), 0, {&described, 0, bytes}, 1) ==
            tensorhub::post_result::posted);
    CHECK(finish(queue) == completion_status::ok);
    CHECK(std::memcmp(to.data, mapped, bytes) == 0);
    CHECK_THROWS_AS(static_cast<void>(reader.describe(into.front())), tensorhub::error);
  }
  ::munmap(mapped, bytes);
}

TEST_CASE(
    "verbs: regions in pieces, of odd sizes on both sides, and parts of them: every byte in its place") {
  auto options = at(rdma_addresses().front());
  options.largest_registration_bytes = 40'000;
  options.work_request_bytes = 7001;
  options.queue_pairs = 3;
  options.queue_pair_depth = 4;
  verbs source{options, {1}};
  options.largest_registration_bytes = 12'288;
  verbs reader{options, {2}};
  constexpr std::uint64_t bytes = 300'001;
  const tensorhub::host_memory::allocation memory{bytes};
  const tensorhub::host_memory::allocation target{bytes};
  const auto from = memory.range();
  const auto to = target.range();
  for (std::uint64_t i = 0; i < bytes; ++i) from.data[i] = static_cast<std::byte>(i * 131 + i / 251);
  auto regions = source.register_memory(std::span{&from, 1}, region_access::both);
  auto into = reader.register_memory(std::span{&to, 1}, region_access::both);
  auto queue = reader.make_queue(2);
  auto endpoint = reader.connect(queue, source.address(), {1}, 5s);
  for (int round = 0; round < 2; ++round) {
    auto part = source.describe(regions.front());
    part.base += 1234;  // as the owner of a region names a part of it
    part.bytes -= 2345;
    for (const auto& part_of_it : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
             {0, part.bytes}, {39'999, 2}, {17, 123'457}, {part.bytes - 1, 1}}) {
      const std::uint64_t offset = part_of_it.first;
      const std::uint64_t count = part_of_it.second;
      CAPTURE(offset);
      std::memset(to.data, 0, bytes);
      REQUIRE(queue.post_read(endpoint, into.front(), 77, {&part, offset, count}, 1) ==
              tensorhub::post_result::posted);
      reader.revoke(into.front());  // does not disturb this process's own read into the region
      CHECK(finish(queue) == completion_status::ok);
      CHECK(std::memcmp(to.data + 77, from.data + 1234 + offset, count) == 0);
      CHECK(to.data[76] == std::byte{0});
      if (77 + count < bytes) CHECK(to.data[77 + count] == std::byte{0});
    }
    source.revoke(regions.front());
  }
}

TEST_CASE("verbs: many work requests on a queue of one, with queue pairs of one") {
  auto options = at(rdma_addresses().front());
  options.work_request_bytes = 100;
  options.queue_pair_depth = 1;
  verbs source{options, {1}};
  verbs reader{options, {2}};
  constexpr std::uint64_t bytes = 20'050;
  const tensorhub::host_memory::allocation memory{bytes};
  const tensorhub::host_memory::allocation target{bytes};
  const auto from = memory.range();
  const auto to = target.range();
  for (std::uint64_t i = 0; i < bytes; ++i) from.data[i] = static_cast<std::byte>(i * 7 + i / 256);
  const auto regions = source.register_memory(std::span{&from, 1}, region_access::remote_read);
  const auto into = reader.register_memory(std::span{&to, 1}, region_access::local_write);
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), {1}, 5s);
  const auto described = source.describe(regions.front());
  REQUIRE(queue.post_read(endpoint, into.front(), 0, {&described, 0, bytes}, 1) ==
          tensorhub::post_result::posted);
  CHECK(finish(queue) == completion_status::ok);
  CHECK(std::memcmp(to.data, from.data, bytes) == 0);
}

namespace {

/// Connects as some other program would, and says what came of it.
parts::cm_answer connect_as(const verbs& to, const void* greeting, std::uint8_t bytes) {
  const auto until = std::chrono::steady_clock::now() + 10s;
  const auto channel = parts::make_event_channel();
  const auto id = parts::make_id(*channel);
  auto remote = parts::parse_address(to.address().text).front();
  REQUIRE(::rdma_resolve_addr(id.get(), nullptr, remote.address.get(), 5000) == 0);
  REQUIRE(parts::next_answer(*channel, until)->type == RDMA_CM_EVENT_ADDR_RESOLVED);
  REQUIRE(::rdma_resolve_route(id.get(), 5000) == 0);
  REQUIRE(parts::next_answer(*channel, until)->type == RDMA_CM_EVENT_ROUTE_RESOLVED);
  ibv_qp_init_attr wanted{};
  wanted.cap = {1, 1, 1, 1, 0};
  wanted.qp_type = IBV_QPT_RC;
  REQUIRE(::rdma_create_qp(id.get(), nullptr, &wanted) == 0);
  rdma_conn_param asked{};
  asked.private_data = greeting;
  asked.private_data_len = bytes;
  REQUIRE(::rdma_connect(id.get(), &asked) == 0);
  const auto answer = parts::next_answer(*channel, until);
  ::rdma_destroy_qp(id.get());
  REQUIRE(answer.has_value());
  return *answer;
}

parts::welcome_status status_in(const parts::cm_answer& answer) {
  parts::welcome said;
  REQUIRE(answer.type == RDMA_CM_EVENT_REJECTED);
  REQUIRE(answer.private_bytes >= sizeof said);
  std::memcpy(&said, answer.private_data.data(), sizeof said);
  CHECK(said.magic == parts::welcome_magic);
  return said.status;
}

}  // namespace

TEST_CASE("verbs: clients that are no readers, or speak another protocol, are turned away with the reason") {
  const verbs source{at(rdma_addresses().front()), {1}};
  CHECK(status_in(connect_as(source, nullptr, 0)) == parts::welcome_status::other_transport);
  const char text[] = "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n";
  CHECK(status_in(connect_as(source, text, sizeof text)) == parts::welcome_status::other_transport);
  parts::hello greeting;
  greeting.reader = 2;
  greeting.source = 1;
  greeting.protocol = 99;
  CHECK(status_in(connect_as(source, &greeting, sizeof greeting)) == parts::welcome_status::other_protocol);
  greeting.protocol = parts::data_protocol;
  greeting.source = 3;
  CHECK(status_in(connect_as(source, &greeting, sizeof greeting)) == parts::welcome_status::other_process);
  greeting.source = 1;
  CHECK(connect_as(source, &greeting, sizeof greeting).type == RDMA_CM_EVENT_ESTABLISHED);
}

TEST_CASE("verbs: a server that is no source, or speaks another protocol, is told from one") {
  const auto channel = parts::make_event_channel();
  const auto listener = parts::make_id(*channel);
  auto here = parts::resolve(rdma_addresses().front(), {}, true);
  REQUIRE(::rdma_bind_addr(listener.get(), here.get()) == 0);
  REQUIRE(::rdma_listen(listener.get(), 4) == 0);
  const std::string address = "verbs://" + rdma_addresses().front() + ":" +
                              std::to_string(ntohs(::rdma_get_src_port(listener.get())));
  verbs reader{at(rdma_addresses().front()), {2}};
  auto queue = reader.make_queue(1);
  enum class manner { accepts, rejects, rejects_as_other_protocol, says_nothing };
  for (const manner how :
       {manner::accepts, manner::rejects, manner::rejects_as_other_protocol, manner::says_nothing}) {
    std::jthread server{[&] {
      rdma_cm_event* event = nullptr;
      const auto until = std::chrono::steady_clock::now() + 10s;
      while (::rdma_get_cm_event(channel.get(), &event) != 0 ||
             event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
        if (event != nullptr) ::rdma_ack_cm_event(event);
        event = nullptr;
        if (std::chrono::steady_clock::now() > until) return;
        std::this_thread::sleep_for(5ms);
      }
      parts::handle<rdma_cm_id> id{event->id};
      ::rdma_ack_cm_event(event);
      ibv_qp_init_attr wanted{};
      wanted.cap = {1, 1, 1, 1, 0};
      wanted.qp_type = IBV_QPT_RC;
      if (::rdma_create_qp(id.get(), nullptr, &wanted) != 0) return;
      rdma_conn_param given{};
      parts::welcome said;
      said.protocol = 42;
      said.status = parts::welcome_status::other_protocol;
      if (how == manner::accepts) ::rdma_accept(id.get(), &given);
      if (how == manner::rejects) ::rdma_reject(id.get(), nullptr, 0);
      if (how == manner::rejects_as_other_protocol) ::rdma_reject(id.get(), &said, sizeof said);
      std::this_thread::sleep_for(1s);
      ::rdma_destroy_qp(id.get());
    }};
    switch (how) {
      case manner::accepts:
      case manner::rejects:
        refused([&] { const auto made = reader.connect(queue, {address}, {1}, 5s); }, errc::transport_failed,
                {"not a TensorHub data port", address.substr(8)});
        break;
      case manner::rejects_as_other_protocol:
        refused([&] { const auto made = reader.connect(queue, {address}, {1}, 5s); }, errc::transport_failed,
                {"speaks data protocol 42, this process speaks 3"});
        break;
      case manner::says_nothing:
        refused([&] { const auto made = reader.connect(queue, {address}, {1}, 300ms); }, errc::timed_out,
                {"does not answer within the connect timeout"});
        break;
    }
  }
}

TEST_CASE("verbs: an endpoint without connections, as a broken one is, has a name for the maker of keys") {
  parts::queue_core queue{2, {}};
  const parts::endpoint_core none{queue, {1}, 1, 1};
  CHECK(none.key_maker() == incarnation{});
}
