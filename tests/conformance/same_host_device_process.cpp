// Device memory of other processes over the same-host transport: mapped once, staged where it cannot be
// mapped, revoked, freed, killed, with devices that are slow or fail.

#include <doctest/doctest.h>

#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "same_host_device.hpp"

using namespace same_host_device;
using gated_devices::gated_device;

TEST_CASE(
    "device memory of another process is mapped once, for all regions of an allocation and all readers") {
  const calm_device calm;
  auto& device = fake_device::instance();
  source_process source{};
  CHECK(source.says.find("mapped by readers") != std::string::npos);
  reading_side reader{};
  const std::uint64_t imports = device.counted.imports, before = device_mappings();
  for (int round = 0; round < 3; ++round) {
    reader.connect(source);
    for (std::uint64_t i = 0; i < regions_in_allocation; ++i) {
      const std::uint64_t copies = device.counted.copies;
      CHECK(reader.read(source.regions[i]) == all_well);
      CHECK(reader.target.holds(pattern(i)));
      CHECK(device.counted.copies == copies + 1);  // however large the read is
    }
  }
  CHECK(reader.endpoint->why().empty());
  CHECK(device.counted.imports == imports + 1);
  CHECK(device_mappings() == before + 1);
  source.end();
  CHECK(reader.read(source.regions[0]) == counts{{completion_status::peer_lost, 1}});
  reader.endpoint.reset();
  CHECK(device_mappings() == before);
}

TEST_CASE("device memory arrives in host memory: by a device of the reader's, or through the source's") {
  const calm_device calm;
  source_process source{};
  const some_memory weights{kind_of_memory::device};
  for (const kind_of_memory kind : {kind_of_memory::host_file, kind_of_memory::host_plain}) {
    CAPTURE(name_of(kind));
    reading_side reader{kind};
    reader.connect(source);
    CHECK(reader.read(source.regions[1]) == all_well);
    CHECK(reader.target.holds(pattern(1)));
    CHECK(reader.endpoint->why().find("no device is known here") != std::string::npos);
    // A worker with some memory on a device has registered it.
    reading_side with_device{kind};
    some_memory own{kind_of_memory::device};
    const auto own_range = own.range();
    const auto own_regions =
        with_device.through.register_memory(std::span{&own_range, 1}, region_access::both);
    with_device.connect(source);
    CHECK(with_device.read(source.regions[1]) == all_well);
    CHECK(with_device.target.holds(pattern(1)));
    CHECK(with_device.endpoint->why().empty());
  }
}

TEST_CASE("memory that cannot be exported is staged, and both sides say why") {
  const calm_device calm;
  source_process source{{.exports = false}};
  CHECK(source.says.find("told to export nothing") != std::string::npos);
  for (const kind_of_memory kind : {kind_of_memory::device, kind_of_memory::host_plain}) {
    CAPTURE(name_of(kind));
    reading_side reader{kind};
    reader.connect(source);
    CHECK(reader.endpoint->why().empty());
    for (std::uint64_t i = 0; i < regions_in_allocation; ++i) {
      CHECK(reader.read(source.regions[i], 3) == counts{{completion_status::ok, 3}});
      CHECK(reader.target.holds(pattern(i)));
    }
    CHECK(reader.endpoint->why().find("told to export nothing") != std::string::npos);
  }
}

TEST_CASE("host memory of another process arrives in device memory") {
  const calm_device calm;
  for (const kind_of_memory kind : {kind_of_memory::host_file, kind_of_memory::host_plain}) {
    CAPTURE(name_of(kind));
    source_process source{{.memory = kind}};
    reading_side reader{};
    reader.connect(source);
    CHECK(reader.read(source.regions[1]) == all_well);
    CHECK(reader.target.holds(pattern(1)));
  }
}

TEST_CASE("memory of the own process is copied at its own address") {
  const calm_device calm;
  auto& device = fake_device::instance();
  device.set.exports = false;  // of no use there
  some_memory from{kind_of_memory::device};
  from.fill(pattern(3));
  same_host source{{}, source_id};
  const auto range = from.range();
  const auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
  const auto remote = source.describe(regions.front());
  reading_side reader{};
  const std::uint64_t imports = device.counted.imports, copies = device.counted.copies;
  reader.endpoint.emplace(reader.through.connect(reader.queue, source.address(), source_id, 5s));
  CHECK(reader.read(remote) == all_well);
  CHECK(reader.target.holds(pattern(3)));
  CHECK(device.counted.imports == imports);
  CHECK(device.counted.copies == copies + 1);
}

TEST_CASE("slow devices: every read ends once, whoever is slow") {
  const calm_device calm;
  for (const bool exports : {true, false}) {
    CAPTURE(exports);
    source_process source{{.exports = exports, .delay_ns = 3'000'000}};
    fake_device::instance().set.delay_ns = 5'000'000;
    reading_side reader{};
    reader.connect(source);
    CHECK(reader.read(source.regions[1], 8) == counts{{completion_status::ok, 8}});
    CHECK(reader.target.holds(pattern(1)));
    calm_device::reset();
  }
}

TEST_CASE("a wait for a device ends by a wake") {
  const calm_device calm;
  source_process source{};
  gated_device gate;
  reading_side reader{gate};
  reader.connect(source);
  CHECK(reader.read(source.regions[0]) == all_well);
  gate.close();
  reader.begin(source.regions[0], 1, gate);
  const std::uint64_t before = gate.waits;
  const auto begun = std::chrono::steady_clock::now();
  {
    const std::jthread other{[&] {
      static_cast<void>(gate.wait_for_a_wait(before, [] { return false; }));
      reader.queue.wake();
    }};
    reader.queue.wait(60s);
  }
  CHECK(gate.waits > before);
  CHECK(std::chrono::steady_clock::now() - begun < 30s);
  std::array<completion, 1> none;
  CHECK(reader.queue.poll(none) == 0);
  gate.open();
  CHECK(reader.drain() == all_well);
}

TEST_CASE("the reader's device fails: the read that it failed with is a local error, the others go on") {
  const calm_device calm;
  auto& set = fake_device::instance().set;
  for (const bool exports : {true, false}) {
    for (const kind_of_memory kind : {kind_of_memory::device, kind_of_memory::host_plain}) {
      if (!exports && kind == kind_of_memory::host_plain) continue;  // no other way than the first
      CAPTURE(exports);
      CAPTURE(name_of(kind));
      source_process source{{.memory = kind, .exports = exports}};
      reading_side reader{};
      reader.connect(source);
      set.fail_after = 0;
      CHECK(reader.read(source.regions[0], 4) == counts{{completion_status::local_error, 4}});
      CHECK(reader.endpoint->usable());
      set.fail_after = UINT64_MAX;
      CHECK(reader.read(source.regions[0], 4) == counts{{completion_status::ok, 4}});
      CHECK(reader.target.holds(pattern(0)));
    }
  }
}

TEST_CASE("one read that the device cannot do costs one read, of those that were sent with it") {
  const calm_device calm;
  source_process source{};
  reading_side reader{};
  reader.connect(source);
  CHECK(reader.read(source.regions[0]) == all_well);
  auto freed = std::make_unique<tensorhub::testing::fake_device_memory::allocation>(region_bytes);
  const tensorhub::memory_range range = freed->range();
  const auto of_freed = reader.through.register_memory(std::span{&range, 1}, region_access::local_write);
  freed.reset();
  const std::uint64_t copies = fake_device::instance().counted.copies;
  reader.post(source.regions[0], 6);
  CHECK(reader.drain() == counts{{completion_status::ok, 6}});
  CHECK(fake_device::instance().counted.copies == copies + 1);
  for (const tensorhub::request_id id : {0u, 1u, 2u, 3u, 4u, 5u}) {
    const auto& into = id == 3 ? of_freed.front() : reader.into.front();
    REQUIRE(reader.queue.post_read(*reader.endpoint, into, 0, {&source.regions[0], 0, region_bytes}, id) ==
            tensorhub::post_result::posted);
  }
  const counts ended = reader.drain();
  CHECK(ended == counts{{completion_status::ok, 5}, {completion_status::local_error, 1}});
  CHECK(reader.endpoint->usable());
  reader.post(source.regions[0], 2);  // together again
  CHECK(reader.drain() == counts{{completion_status::ok, 2}});
}

TEST_CASE("the source's device fails at a staged piece: that source is lost") {
  const calm_device calm;
  source_process source{{.exports = false, .fail_after = 2}};
  reading_side reader{};
  reader.connect(source);
  CHECK(reader.read(source.regions[0], 2) == counts{{completion_status::peer_lost, 2}});
  CHECK(!reader.endpoint->usable());
}

TEST_CASE("a source that is killed while its memory is copied: every read ends, as lost or whole") {
  const calm_device calm;
  for (const bool exports : {true, false}) {
    CAPTURE(exports);
    source_process source{{.exports = exports}};
    gated_device gate;
    reading_side reader{gate};
    reader.connect(source);
    CHECK(reader.read(source.regions[0]) == all_well);
    gate.close();
    reader.begin(source.regions[0], 8, gate);
    source.end();
    gate.open();
    CHECK(reader.drain() == counts{{completion_status::peer_lost, 8}});
    CHECK(!reader.endpoint->usable());
    CHECK(reader.read(source.regions[0]) == counts{{completion_status::peer_lost, 1}});
  }
}

TEST_CASE("revoked or cut off while it is copied: no byte of later counts") {
  const calm_device calm;
  for (const bool exports : {true, false}) {
    for (const char order : {'r', 'c'}) {
      CAPTURE(exports);
      CAPTURE(order);
      source_process source{{.exports = exports}};
      gated_device gate;
      reading_side reader{gate};
      reader.connect(source);
      CHECK(reader.read(source.regions[0]) == all_well);
      gate.close();
      const auto remote = source.regions[0];
      reader.begin(remote, 1, gate);
      source.order(order);
      gate.open();
      CHECK(reader.drain() ==
            counts{{order == 'r' ? completion_status::access_denied : completion_status::cut_off, 1}});
      CHECK(reader.endpoint->usable() == (order == 'r'));
    }
  }
}

TEST_CASE("memory that was freed without being deregistered: nothing of it arrives, nothing faults") {
  const calm_device calm;
  for (const bool exports : {true, false}) {
    CAPTURE(exports);
    source_process source{{.exports = exports}};
    reading_side reader{};
    reader.connect(source);
    source.order('f');
    CHECK(reader.read(source.regions[0]) == counts{{completion_status::peer_lost, 1}});
    if (exports) CHECK(reader.endpoint->why().find("gone") != std::string::npos);
  }
}

TEST_CASE("other memory in the place of what was deregistered is mapped anew, the old mapping goes") {
  const calm_device calm;
  source_process source{};
  reading_side reader{};
  const std::size_t before = device_mappings();
  reader.connect(source);
  CHECK(reader.read(source.regions[0]) == all_well);
  const auto old = source.regions[0];
  source.order('n');
  CHECK(reader.read(old) == counts{{completion_status::access_denied, 1}});
  CHECK(reader.read(source.regions[0]) == all_well);
  CHECK(reader.target.holds(pattern(7)));
  CHECK(device_mappings() == before + 1);
}

TEST_CASE("a source that is renamed is the same source: what was mapped of its memory still is") {
  const calm_device calm;
  auto& device = fake_device::instance();
  source_process source{};
  reading_side reader{};
  reader.connect(source);
  CHECK(reader.read(source.regions[0]) == all_well);
  const std::uint64_t imports = device.counted.imports, copies = device.counted.copies;
  const auto before = std::exchange(reader.endpoint, std::nullopt);  // has its connection, and the mapping
  source.order('m');
  reader.endpoint.emplace(reader.through.connect(reader.queue, source.address, renamed_id, 5s));
  CHECK(reader.read(source.regions[0]) == all_well);
  CHECK(reader.endpoint->why() == "");
  CHECK(device.counted.imports == imports);
  CHECK(device.counted.copies == copies + 1);  // a staged region is copied in pieces
}

TEST_CASE("memory whose older mapping is in use is staged only until that one ends") {
  const calm_device calm;
  auto& device = fake_device::instance();
  source_process source{};
  reading_side reader{};
  const std::size_t mappings = device_mappings();
  reader.connect(source);
  CHECK(reader.read(source.regions[0]) == all_well);
  {
    auto other_queue = reader.through.make_queue(1);
    auto other = reader.through.connect(other_queue, source.address, source_id, 5s);
    REQUIRE(other_queue.post_read(other, reader.into.front(), 0, {&source.regions[0], 0, region_bytes}, 1) ==
            tensorhub::post_result::posted);
    CHECK(source_processes::counted(source_processes::drain_each(other_queue)) == all_well);
    source.order('d');
    CHECK(reader.read(source.regions[0]) == all_well);
    CHECK(reader.endpoint->why().find("older mapping") != std::string::npos);
  }
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (device_mappings() != mappings && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(10ms);
  const std::uint64_t copies = device.counted.copies;
  CHECK(reader.read(source.regions[0]) == all_well);
  CHECK(reader.target.holds(pattern(0)));
  CHECK(device.counted.copies == copies + 1);  // a staged region is copied in pieces
}

TEST_CASE("memory at whose address the device finds an older mapping is staged only until that one ends") {
  const calm_device calm;
  auto& device = fake_device::instance();
  source_process source{};
  reading_side reader{};
  reader.connect(source);
  device.set.older_mapping = true;
  CHECK(reader.read(source.regions[0]) == all_well);
  CHECK(reader.endpoint->why().find("older mapping") != std::string::npos);
  device.set.older_mapping = false;
  const std::uint64_t copies = device.counted.copies;
  CHECK(reader.read(source.regions[0]) == all_well);
  CHECK(reader.target.holds(pattern(0)));
  CHECK(device.counted.copies == copies + 1);  // a staged region is copied in pieces
}

TEST_CASE("deregistering waits for the piece that is being staged") {
  const calm_device calm;
  auto& device = fake_device::instance();
  gated_device counting;  // never closed
  some_memory from{kind_of_memory::device}, other{kind_of_memory::device};
  other.fill(pattern(3));
  same_host source{{}, source_id};
  const std::array ranges{counting.over(from.range()), other.range()};
  auto regions = source.register_memory(ranges, region_access::remote_read);
  const auto remote = source.describe(regions[0]), later = source.describe(regions[1]);
  reading_side reader{kind_of_memory::host_plain};
  reader.endpoint.emplace(reader.through.connect(reader.queue, source.address(), source_id, 5s));
  CHECK(reader.read(remote) == all_well);
  device.set.delay_ns = 100'000'000;
  const std::uint64_t queued = counting.queued, runs = device.counted.runs;
  reader.post(remote);
  std::array<completion, 1> none;
  while (reader.queue.poll(none) == 0 && counting.queued < queued + 2) reader.queue.wait(1ms);
  regions.erase(regions.begin());  // in the middle of the second piece
  const std::uint64_t copies = counting.queued - queued;
  CHECK(device.counted.runs == runs + copies);  // no copy is under way
  CHECK(copies < 5);
  device.set.delay_ns = 0;
  CHECK(reader.drain() == counts{{completion_status::access_denied, 1}});
  CHECK(reader.read(later) == all_well);  // after all that was asked for before
  CHECK(reader.target.holds(pattern(3)));
  CHECK(counting.queued == queued + copies);
}

TEST_CASE("an endpoint or a queue that goes while a device copies: nothing is written afterwards") {
  const calm_device calm;
  for (const bool exports : {true, false}) {
    CAPTURE(exports);
    source_process source{{.exports = exports}};
    gated_device gate;
    reading_side reader{gate};
    reader.connect(source);
    CHECK(reader.read(source.regions[0]) == all_well);
    gate.close();
    reader.begin(source.regions[0], 4, gate);
    const std::uint64_t before = gate.waits;
    std::atomic<bool> returned = false;
    std::thread ending{[&] {
      reader.endpoint.reset();
      returned = true;
    }};
    CHECK(gate.wait_for_a_wait(before, [&] { return returned.load(); }));
    CHECK(!returned);
    const std::uint64_t copies = gate.queued;
    gate.open();
    ending.join();
    CHECK(reader.drain() == counts{{completion_status::cancelled, 4}});
    CHECK(gate.queued == copies);
    // The connection was kept; what was asked for on it is forgotten.
    reader.connect(source);
    CHECK(reader.read(source.regions[1], 4) == counts{{completion_status::ok, 4}});
    CHECK(reader.target.holds(pattern(1)));
  }
}

TEST_CASE("an endpoint that goes while a device hangs does not wait for ever") {
  const calm_device calm;
  source_process source{};
  gated_device gate;
  reading_side reader{gate};
  reader.connect(source);
  CHECK(reader.read(source.regions[0]) == all_well);
  gate.close();
  reader.begin(source.regions[0], 4, gate);
  const std::uint64_t lanes = gate.lanes;
  gate.hangs = true;
  auto ending = std::async(std::launch::async, [&] { reader.endpoint.reset(); });
  CHECK(ending.wait_for(60s) == std::future_status::ready);
  gate.hangs = false;
  gate.open();
  ending.get();
  CHECK(reader.drain() == counts{{completion_status::cancelled, 4}});
  reader.connect(source);
  CHECK(reader.read(source.regions[1], 4) == counts{{completion_status::ok, 4}});
  CHECK(reader.target.holds(pattern(1)));
  CHECK(gate.lanes > lanes);  // the lane that hung is not used again
}

TEST_CASE("a stopped source: what is mapped is read on, what has to be staged ends by a time-out") {
  const calm_device calm;
  for (const bool exports : {true, false}) {
    CAPTURE(exports);
    source_process source{{.exports = exports}};
    reading_side reader{kind_of_memory::device, {.peer_timeout = 700ms}};
    reader.connect(source);
    CHECK(reader.read(source.regions[0]) == all_well);
    source.signal(SIGSTOP);
    CHECK(reader.read(source.regions[0], 2) ==
          counts{{exports ? completion_status::ok : completion_status::peer_lost, 2}});
    CHECK(reader.endpoint->usable() == exports);
  }
}

TEST_CASE("device memory without its device is refused by a sentence") {
  same_host through{{}, source_id};
  some_memory memory{kind_of_memory::device};
  auto range = memory.range();
  range.device = nullptr;
  std::string sentence;
  try {
    static_cast<void>(through.register_memory(std::span{&range, 1}, region_access::both));
  } catch (const tensorhub::error& e) {
    CHECK(e.code() == errc::invalid_argument);
    sentence = e.sentence();
  }
  CHECK(sentence.find("range 0 of 1") != std::string::npos);
  CHECK(sentence.find("memory_range::device") != std::string::npos);
}
