// first_of: which member is used and why; damaged addresses and keys; queues with several members at once.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/testing/faulty.hpp>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <thread>
#include <vector>

#include "support/calls.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using namespace std::chrono_literals;

namespace {

/// The memory transport under other names and with other abilities.
template <int number, bool hosts, bool datacenters>
class variant_of_memory : public memory_transport {
 public:
  static constexpr std::string_view name = number == 1 ? "one" : number == 2 ? "two" : "three";
  static constexpr transport_capabilities capabilities{
      .survives_access_errors = true, .crosses_hosts = hosts, .crosses_datacenters = datacenters};
  struct options : memory_transport_options {
    bool broken = false;
  };
  explicit variant_of_memory(const options& how = {}, incarnation self = {})
      : memory_transport{(how.broken ? throw error(errc::transport_failed, "no such device") : how), self} {}
};
using one = variant_of_memory<1, false, false>;  // this host only
using two = variant_of_memory<2, true, false>;   // this datacenter only
using three = variant_of_memory<3, true, true>;  // everywhere
/// `three`, encrypted.
class encrypted : public three {
 public:
  using three::three;
  static constexpr std::string_view name = "encrypted";
  static constexpr transport_capabilities capabilities{
      .survives_access_errors = true, .crosses_hosts = true, .crosses_datacenters = true, .encrypts = true};
};
/// `two`, where nobody answers for some calls of `connect`.
class late : public two {
 public:
  using two::two;
  static inline std::atomic<int> unanswered = 0;
  static inline std::atomic<bool> hangs = false;  ///< takes all the time that it is given
  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout) {
    if (hangs) {
      std::this_thread::sleep_for(timeout);
      throw error(errc::timed_out, "it hangs");
    }
    if (unanswered > 0) {
      --unanswered;
      throw error(errc::timed_out, "nobody answers");
    }
    return two::connect(on, address, peer, timeout);
  }
};
/// `two`, which registers no memory of devices.
class host_only : public two {
 public:
  using two::two;
  static constexpr std::string_view name = "host_only";
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    for (const memory_range& each : ranges)
      if (!each.host_accessible()) throw error(errc::transport_failed, "no device memory");
    return two::register_memory(ranges, access);
  }
};
/// `two`, whose NIC takes device memory and no managed memory.
class of_nic : public two {
 public:
  using two::two;
  static constexpr std::string_view name = "of_nic";
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    tensorhub::detail::check_pages_stay(name, ranges);
    return two::register_memory(ranges, access);
  }
};
/// `three`, which needs some time to connect.
class slow : public three {
 public:
  using three::three;
  static constexpr std::string_view name = "slow";
  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout) {
    if (timeout < 20ms) throw error(errc::timed_out, "there was no time");
    return three::connect(on, address, peer, timeout);
  }
};
/// `two`, while this machine gives it no descriptor.
class poor : public two {
 public:
  using two::two;
  static constexpr std::string_view name = "poor";
  static inline std::atomic<bool> is_out = false;
  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout) {
    if (is_out) throw error(errc::system_failed, "no descriptor");
    return two::connect(on, address, peer, timeout);
  }
};
class host_only_too : public host_only {
 public:
  using host_only::host_only;
  static constexpr std::string_view name = "host_only_too";
};
using all_three = first_of<one, two, three>;
static_assert(transport<all_three>);
static_assert(all_three::name == "first_of<one,two,three>");
static_assert(all_three::capabilities.crosses_datacenters && all_three::capabilities.survives_access_errors);

/// A process with one region of 64 KiB.
struct node {
  incarnation self;
  all_three through;
  std::vector<std::byte> bytes;
  std::vector<all_three::memory_region> regions;

  explicit node(std::uint64_t id, const all_three::options& how = {}, std::byte fill = std::byte{0})
      : self{id}, through{how, self}, bytes(65'536, fill) {
    const memory_range range{bytes.data(), bytes.size()};
    regions = through.register_memory(std::span{&range, 1}, region_access::both);
  }
};

std::string used_between(node& reader, const node& source) {
  auto queue = reader.through.make_queue(4);
  auto endpoint = reader.through.connect(queue, source.through.address(), source.self, 5s);
  const remote_region from = source.through.describe(source.regions.front());
  CHECK(queue.post_read(endpoint, reader.regions.front(), 0, {&from, 0, 65'536}, 7) == post_result::posted);
  std::array<completion, 2> done;
  CHECK(queue.poll(done) == 1);
  CHECK(done[0].id == 7);
  CHECK(done[0].status == completion_status::ok);
  CHECK(reader.bytes == source.bytes);
  return endpoint.why();
}

all_three::options in_datacenter(const std::string& name) {
  all_three::options how;
  how.here.datacenter = name;
  return how;
}

std::string failure_of(const auto& call) {
  try {
    call();
  } catch (const error& e) {
    return e.what();
  }
  return {};
}
bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the first member that both have is used, and why is said") {
  node source{1, {}, std::byte{5}};
  node reader{2};
  CHECK(used_between(reader, source) == "one");

  all_three::options without;
  without.enabled[0] = false;
  node poor{3, without};
  CHECK(used_between(poor, source) == "two (one: not started here: not enabled in this process)");
  node other{4, without, std::byte{6}};
  CHECK(used_between(reader, other) == "two (one: not started by the peer)");
}

TEST_CASE("a member that cannot be started is left out; if none can, the reasons are told") {
  one::options no_device;
  no_device.broken = true;
  node source{1, all_three::with(no_device), std::byte{5}};
  CHECK(contains(source.through.not_started(), "one: "));
  CHECK(contains(source.through.not_started(), "no such device"));
  node reader{2};
  CHECK(contains(used_between(reader, source), "two (one: not started by the peer)"));

  all_three::options none;
  none.enabled = {false, false, false};
  const std::string sentence = failure_of([&] { all_three{none, {5}}; });
  CHECK(contains(sentence, "none can be started"));
  CHECK(contains(sentence, "three: not enabled"));
}

TEST_CASE("members that cannot reach are not tried") {
  node source{1, in_datacenter("eu-1"), std::byte{5}};
  SUBCASE("the same datacenter") {
    node reader{2, in_datacenter("eu-1")};
    CHECK(used_between(reader, source) == "one");
  }
  SUBCASE("another datacenter") {
    node reader{2, in_datacenter("us-1")};
    CHECK(
        used_between(reader, source) ==
        "three (one: the peer is in another datacenter, eu-1; two: the peer is in another datacenter, eu-1)");
  }
  SUBCASE("another machine") {
    auto where = *first_of_detail::decode(source.through.address().text, 3);
    where.machine = "some other machine";
    node reader{2, in_datacenter("eu-1")};
    auto queue = reader.through.make_queue(4);
    const auto endpoint = reader.through.connect(queue, {first_of_detail::encode(where)}, source.self, 5s);
    CHECK(endpoint.through() == "two");
    CHECK(endpoint.why() == "two (one: the peer is on another machine)");
  }
}

TEST_CASE("required encryption fails closed: unknown places count as far away") {
  using mixed = first_of<one, three, encrypted>;
  static_assert(!mixed::capabilities.encrypts && first_of<encrypted>::capabilities.encrypts);
  // The source does not run on this machine, so that `one` does not reach it.
  const auto used = [](encryption required, const std::string& here, const std::string& there) {
    mixed::options how;
    how.here.datacenter = there;
    mixed source{how, {1}};
    auto where = *first_of_detail::decode(source.address().text, 3);
    where.machine = "some other machine";
    how.here.datacenter = here;
    how.required_encryption = required;
    mixed reader{how, {2}};
    auto queue = reader.make_queue(4);
    const auto made = reader.connect(queue, {first_of_detail::encode(where)}, {1}, 5s);
    return std::pair{std::string{made.through()}, made.why()};
  };
  CHECK(used(encryption::nowhere, "eu-1", "us-1").first == "three");
  CHECK(used(encryption::across_datacenters, "eu-1", "eu-1").first == "three");
  for (const auto& [here, there] : {std::pair{"eu-1", "us-1"}, {"", "us-1"}, {"eu-1", ""}, {"", ""}}) {
    const auto [through, why] = used(encryption::across_datacenters, here, there);
    CHECK(through == "encrypted");
    CHECK(contains(why, "three: does not encrypt, which required_encryption asks for"));
  }
  CHECK(used(encryption::everywhere, "eu-1", "eu-1").first == "encrypted");
}

TEST_CASE("required encryption everywhere: members in the clear are not started, those of one machine are") {
  first_of<one, three, encrypted>::options how;
  how.required_encryption = encryption::everywhere;
  first_of<one, three, encrypted> through{how, {1}};
  CHECK(contains(through.not_started(), "three: does not encrypt"));
  CHECK_FALSE(contains(through.not_started(), "one: "));
  first_of<three>::options clear_only;
  clear_only.required_encryption = encryption::everywhere;
  CHECK(contains(failure_of([&] { first_of<three>{clear_only, {1}}; }), "none can be started"));
}

TEST_CASE("device memory that a member does not take later is registered by the others, and not refused") {
  using both = first_of<host_only, three>;
  struct process {
    incarnation self;
    both through;
    host_memory::allocation bytes{4096};
    fake_device_memory::allocation on_device = fake_device_memory{}.allocate(4096);
    process(std::uint64_t id) : self{id}, through{{}, self} {}
    std::vector<both::memory_region> registered(const memory_range& range) {
      return through.register_memory(std::span{&range, 1}, region_access::both);
    }
  };
  process source{1};
  const auto copy = source.registered(source.bytes.range());  // a stage's, say
  const auto own = source.registered(source.on_device.range());
  CHECK(contains(source.through.not_started(), "host_only: left out, since it does not take this device"));
  CHECK(source.through.address_of(copy.front()).text == source.through.address().text);

  process reader{2};
  const auto into = reader.registered(reader.bytes.range());
  const auto read = [&](const transport_address& where, const both::memory_region& what) {
    auto queue = reader.through.make_queue(1);
    auto endpoint = reader.through.connect(queue, where, source.self, 5s);
    const remote_region from = source.through.describe(what);
    CHECK(queue.post_read(endpoint, into.front(), 0, {&from, 0, 4096}, 7) == post_result::posted);
    std::array<completion, 1> done;
    CHECK(queue.poll(done) == 1);
    CHECK(done[0].status == completion_status::ok);
    return std::string{endpoint.through()};
  };
  CHECK(read(source.through.address_of(own.front()), own.front()) == "three");
  CHECK(read(source.through.address_of(copy.front()), copy.front()) == "host_only");
  // A refusal by all members is the caller's, and leaves none of them out.
  first_of<host_only, host_only_too> neither{{}, {3}};
  const memory_range of_host = reader.bytes.range();
  const memory_range of_device = reader.on_device.range();
  const auto kept = neither.register_memory(std::span{&of_host, 1}, region_access::both);
  CHECK(contains(failure_of([&] {
                   static_cast<void>(neither.register_memory(std::span{&of_device, 1}, region_access::both));
                 }),
                 "no member takes this memory"));
  CHECK(neither.not_started().empty());
  auto queue = source.through.make_queue(1);  // it reads into device memory
  CHECK(source.through.connect(queue, reader.through.address(), reader.self, 5s).through() == "three");
}

TEST_CASE("managed memory that a member refuses is registered by the others, and its device memory stays") {
  using both = first_of<of_nic, three>;
  const host_memory::allocation bytes{4096};
  const auto on_device = fake_device_memory{}.allocate(4096);
  memory_range managed = bytes.range();
  managed.kind = memory_kind::cuda_managed;
  both through{{}, {1}};
  SUBCASE("with device memory") {
    const memory_range device = on_device.range();
    static_cast<void>(through.register_memory(std::span{&device, 1}, region_access::both));
  }
  SUBCASE("by itself") {}
  const std::array ranges{managed, on_device.range(), bytes.range()};
  static_cast<void>(through.register_memory(ranges, region_access::both));
  const std::string why = through.not_started();
  CAPTURE(why);
  CHECK(contains(why, "of_nic: "));
  CHECK(contains(why, "range 0 of 3 (4096 bytes) cannot be registered: it is managed memory"));
  CHECK(contains(why, "first_of<of_nic, tcp>"));
}

TEST_CASE("two threads whose device memory a member refuses at the same time both go on without it") {
  for (int round = 0; round < 50; ++round) {
    using both = first_of<host_only, three>;
    both through{{}, {1}};
    std::atomic<int> ready{0};
    std::atomic<int> refused{0};
    const auto register_some = [&] {
      const auto on_device = fake_device_memory{}.allocate(4096);
      const memory_range range = on_device.range();
      ready += 1;
      while (ready < 2) std::this_thread::yield();
      if (!failure_of([&] {
             static_cast<void>(through.register_memory(std::span{&range, 1}, region_access::both));
           }).empty())
        ++refused;
    };
    {
      const std::jthread other{register_some};
      register_some();
    }
    CHECK(refused == 0);
  }
}

TEST_CASE("a member that hangs leaves the ones behind it their share of the time") {
  using hanging = first_of<late, slow>;
  hanging source{{}, {1}};
  hanging reader{{}, {2}};
  auto queue = reader.make_queue(1);
  late::hangs = true;
  CHECK(reader.connect(queue, source.address(), {1}, 400ms).through() == "slow");
  CHECK(reader.connect(queue, source.address(), {1}, 400ms).through() == "slow");
  late::hangs = false;
}

TEST_CASE("a member that fails to connect: the next one is used, and the failure is remembered") {
  using flaky_or_three = first_of<faulty<two>, three>;
  flaky_or_three source{{}, {1}};
  auto broken = flaky_or_three::with(faulty<two>::options{.faults = {.failed_connections = 1}});
  SUBCASE("remembered") {
    flaky_or_three reader{broken, {2}};
    auto queue = reader.make_queue(4);
    const auto first = reader.connect(queue, source.address(), {1}, 5s);
    CHECK(first.through() == "three");
    CHECK(contains(first.why(), "a planted fault"));
    const auto second = reader.connect(queue, source.address(), {1}, 5s);
    CHECK(second.why() == "three (two: failed with this peer a short time ago)");
  }
  SUBCASE("tried again when the time is over") {
    broken.retry_after = 0ms;
    flaky_or_three reader{broken, {2}};
    auto queue = reader.make_queue(4);
    static_cast<void>(reader.connect(queue, source.address(), {1}, 5s));
    CHECK(contains(reader.connect(queue, source.address(), {1}, 5s).why(), "a planted fault"));
  }
}

TEST_CASE("a member for which this machine has no descriptor: the next one, or an error of this machine") {
  poor::is_out = true;
  SUBCASE("another one connects") {
    using poor_or_three = first_of<poor, three>;
    poor_or_three source{{}, {1}}, reader{{}, {2}};
    auto queue = reader.make_queue(4);
    CHECK(reader.connect(queue, source.address(), {1}, 5s).through() == "three");
    poor::is_out = false;
    CHECK(reader.connect(queue, source.address(), {1}, 5s).why() == "poor");  // the peer is not to blame
  }
  SUBCASE("none connects, and the peer is not to blame") {
    first_of<poor> source{{}, {1}}, reader{{}, {2}};
    auto queue = reader.make_queue(4);
    CHECK(calls::code_of([&] { static_cast<void>(reader.connect(queue, source.address(), {1}, 5s)); }) ==
          errc::system_failed);
  }
  SUBCASE("none connects, and one says that it is the peer") {
    using poor_or_faulty = first_of<poor, faulty<three>>;
    poor_or_faulty source{{}, {1}};
    poor_or_faulty reader{poor_or_faulty::with(faulty<three>::options{.faults = {.failed_connections = 1}}),
                          {2}};
    auto queue = reader.make_queue(4);
    CHECK(calls::code_of([&] { static_cast<void>(reader.connect(queue, source.address(), {1}, 5s)); }) ==
          errc::transport_failed);
  }
  poor::is_out = false;
}

TEST_CASE("a member that only took too long is tried again soon, and less often each time") {
  using late_or_three = first_of<late, three>;
  late_or_three source{{}, {1}};
  late_or_three::options how;
  how.attempt_timeout = 500ms;  // so long the first failure is remembered, however slow this machine is
  late_or_three reader{how, {2}};
  auto queue = reader.make_queue(4);
  const auto path = [&] { return std::string{reader.connect(queue, source.address(), {1}, 5s).why()}; };
  late::unanswered = 2;
  CHECK(contains(path(), "three (two: "));
  CHECK(path() == "three (two: failed with this peer a short time ago)");
  // The default memory of a refusal is a minute.
  std::string last;
  for (int i = 0; i < 2000 && last != "two"; ++i) {
    std::this_thread::sleep_for(10ms);
    last = path();
  }
  CHECK(last == "two");
  CHECK(late::unanswered == 0);
  CHECK(path() == "two");
}

TEST_CASE("a member that failed a short time ago is tried before it is said that none connects") {
  using late_or_three = first_of<late, three>;
  const late_or_three source{{}, {1}};
  late_or_three reader{{}, {2}};
  auto queue = reader.make_queue(4);
  late::unanswered = 1;
  CHECK(reader.connect(queue, source.address(), {1}, 5s).through() == "three");
  auto where = first_of_detail::decode(source.address().text, 2).value();
  where.members.pop_back();
  const auto second = reader.connect(queue, {first_of_detail::encode(where)}, {1}, 5s);
  CHECK(second.through() == "two");
  CHECK(contains(second.why(), "three: not started by the peer"));
}

TEST_CASE("a member that was passed over is given time when its turn comes after all") {
  using slow_or_late = first_of<slow, late>;
  const slow_or_late source{{}, {1}};
  slow_or_late::options how;
  how.attempt_timeout = 10s;
  slow_or_late reader{how, {2}};
  auto queue = reader.make_queue(4);
  CHECK(reader.connect(queue, source.address(), {1}, 30ms).through() == "two");  // half of it is too little
  late::hangs = true;
  CHECK(reader.connect(queue, source.address(), {1}, 2s).through() == "slow");
  late::hangs = false;
}

TEST_CASE("how long a failure is remembered") {
  using namespace first_of_detail;
  failure_memory memory;
  const incarnation peer{1};
  memory.note(peer, 0b01, 0, {1s, 1h});  // refused
  memory.note(peer, 0b10, 0b10, {1s, 1h});
  CHECK(memory.holds(peer, 0));
  CHECK(memory.holds(peer, 1));
  CHECK(!memory.holds(peer, 2));
  CHECK(!memory.holds({2}, 0));
  const auto is_over = [&] {
    for (int i = 0; i < 2000 && memory.holds(peer, 1); ++i) std::this_thread::sleep_for(10ms);
    return !memory.holds(peer, 1);
  };
  REQUIRE(is_over());
  for (int i = 0; i < 30; ++i) memory.note(peer, 0b10, 0b10, {10ms, 1h});  // at most an hour
  CHECK(memory.holds(peer, 1));
  memory.forget(peer, 1);
  CHECK(!memory.holds(peer, 1));
  memory.note(peer, 0b10, 0b10, {10ms, 1h});
  REQUIRE(is_over());
  CHECK(memory.holds(peer, 0));
}

TEST_CASE("nobody there: one error that names every attempt") {
  node reader{2};
  std::string address;
  {
    const node gone{1};
    address = gone.through.address().text;
  }
  auto queue = reader.through.make_queue(4);
  const std::string sentence =
      failure_of([&] { static_cast<void>(reader.through.connect(queue, {address}, {1}, 2s)); });
  for (const char* part : {"no member reaches the peer", "one: ", "two: ", "three: "})
    CHECK_MESSAGE(contains(sentence, part), sentence);
  CHECK(contains(
      failure_of([&] { static_cast<void>(reader.through.connect(queue, {"tcp://127.0.0.1:1"}, {1}, 2s)); }),
      "uses another transport"));
}

TEST_CASE("damaged addresses are refused, whole ones are read back") {
  const first_of_detail::place where{
      "machine", "eu-1", {{0, "memory://1"}, {2, "tcp://[::1]:80 with 3:colons"}}};
  const std::string text = first_of_detail::encode(where);
  CHECK(first_of_detail::decode(text, 3) == where);
  CHECK(!first_of_detail::decode(text, 2));  // there is no third member
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    const auto part = first_of_detail::decode(text.substr(0, bytes), 3);
    CHECK((!part || part->members.size() < where.members.size()));
  }
  std::mt19937 random{5};
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = text;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    if (const auto got = first_of_detail::decode(damaged, 3)) CHECK(got->members.size() <= 3);
  }
  CHECK(!first_of_detail::decode("first_of/1 9999:", 3));
  CHECK(!first_of_detail::decode("first_of/1 99999999999999999999:a", 3));
  CHECK(!first_of_detail::decode(std::string(5000, 'x'), 3));
}

TEST_CASE("an address is read by people as those of its members, also of members that are compositions") {
  using namespace first_of_detail;
  const std::string inner = encode({"machine", "", {{0, "tcp://10.0.0.1:4711"}, {1, "tls://10.0.0.1:4712"}}});
  const std::string text = encode({"machine", "eu-1", {{0, "same-host://x/7"}, {2, inner}}});
  CHECK(readable_address(text) == "same-host://x/7, tcp://10.0.0.1:4711, tls://10.0.0.1:4712");
  for (const std::string other : {"tcp://10.0.0.1:4711", "", "first_of/1 9999:", "first_of/1 0:0:"})
    CHECK(readable_address(other) == other);
}

TEST_CASE("damaged keys end as access_denied, once each") {
  node source{1, {}, std::byte{5}};
  node reader{2};
  auto queue = reader.through.make_queue(2);
  auto endpoint = reader.through.connect(queue, source.through.address(), source.self, 5s);
  const remote_region good = source.through.describe(source.regions.front());
  std::mt19937 random{6};
  for (int round = 0; round < 2000; ++round) {
    remote_region bad = good;
    const auto entries = bad.key.bytes.data() + first_of_detail::key_check_bytes;
    switch (round % 4) {
      case 0:
        bad.key.used_bytes = static_cast<std::uint8_t>(random() % bad.key.used_bytes);
        break;
      case 1:
        entries[0] = std::byte{9};  // the member is not in the key
        break;
      case 2:
        entries[1] = std::byte{255};  // its key ends behind the key
        break;
      default:
        bad.key.used_bytes = 255;
        break;
    }
    if (round % 8 < 4 && bad.key.used_bytes >= 8 && bad.key.used_bytes <= bad.key.bytes.size()) {
      // The sum is right: what is wrong behind it must be found all the same.
      const auto sum = first_of_detail::key_checksum(bad.key.view().subspan(8));
      std::memcpy(bad.key.bytes.data(), &sum, sizeof sum);
      if (bad.key == good.key || round % 4 == 0) continue;  // a shorter, whole key may still name this member
    }
    REQUIRE(queue.post_read(endpoint, reader.regions.front(), 0, {&bad, 0, 100}, 1) == post_result::posted);
    std::array<completion, 4> done;
    REQUIRE(queue.poll(done) == 1);
    REQUIRE(done[0].status == completion_status::access_denied);
    REQUIRE(queue.outstanding() == 0);
  }
}

TEST_CASE("keys that do not fit together are refused") {
  first_of_detail::key_writer key;
  remote_region member;
  member.key.used_bytes = limits::remote_key_bytes - 28;
  CHECK(key.append(0, member));
  CHECK(!key.append(1, member));
  CHECK(key.finish().used_bytes == limits::remote_key_bytes - 10);
}

TEST_CASE("the keys of same_host, tcp, and verbs with eight ports fit together") {
  first_of_detail::key_writer key;
  remote_region near, ports;
  near.key.used_bytes = 24;
  ports.key.used_bytes = 24 + 8 * 3 * 4;  // three pieces on each port
  CHECK(key.append(0, near));
  CHECK(key.append(1, ports));
  CHECK(key.append(2, near));
}

TEST_CASE("one queue reads through two members, at most as deep as it was made") {
  all_three::options only_three;
  only_three.enabled = {false, false, true};
  node near{1, {}, std::byte{5}};
  node far{2, only_three, std::byte{6}};
  node reader{3};
  auto queue = reader.through.make_queue(3);
  auto through_one = reader.through.connect(queue, near.through.address(), near.self, 5s);
  auto through_three = reader.through.connect(queue, far.through.address(), far.self, 5s);
  CHECK(through_one.through() == "one");
  CHECK(through_three.through() == "three");
  const remote_region from_near = near.through.describe(near.regions.front());
  const remote_region from_far = far.through.describe(far.regions.front());
  const auto post = [&](auto& endpoint, const remote_region& from, std::uint64_t offset, request_id id) {
    return queue.post_read(endpoint, reader.regions.front(), offset, {&from, 0, 1000}, id);
  };
  CHECK(post(through_one, from_near, 0, 1) == post_result::posted);
  CHECK(post(through_three, from_far, 1000, 2) == post_result::posted);
  CHECK(post(through_three, from_far, 2000, 3) == post_result::posted);
  CHECK(post(through_one, from_near, 3000, 4) == post_result::queue_full);
  CHECK(post(through_three, from_far, 3000, 4) == post_result::queue_full);
  std::size_t came = 0;
  while (came < 3) {
    queue.wait(1s);
    std::array<completion, 1> done;
    const std::size_t count = queue.poll(done);
    if (count == 1) CHECK(done[0].status == completion_status::ok);
    came += count;
  }
  CHECK(queue.outstanding() == 0);
  CHECK(reader.bytes[500] == std::byte{5});
  CHECK(reader.bytes[1500] == std::byte{6});
  CHECK(reader.bytes[2500] == std::byte{6});
}

TEST_CASE("a wake reaches a wait whatever the members do") {
  node source{1};
  node reader{2};
  auto queue = reader.through.make_queue(4);
  const auto check_that_a_wake_ends_it = [&] {
    const auto begun = std::chrono::steady_clock::now();
    queue.wait(60s);
    CHECK(std::chrono::steady_clock::now() - begun < 30s);
  };
  for (int round = 0; round < 3; ++round) {
    std::jthread waker{[&] {
      std::this_thread::sleep_for(std::chrono::milliseconds{round * 5});
      queue.wake();
    }};
    check_that_a_wake_ends_it();
    waker.join();
    queue.wake();
    check_that_a_wake_ends_it();
  }
  const auto endpoint = reader.through.connect(queue, source.through.address(), source.self, 5s);
  std::jthread waker{[&] {
    std::this_thread::sleep_for(5ms);
    queue.wake();
  }};
  check_that_a_wake_ends_it();
}
