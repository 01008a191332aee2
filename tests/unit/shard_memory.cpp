/// \file shard_memory.cpp
/// A worker's tensors as registered segments: merging, packing, what a peer can read of them.

#include "tensorhub/transfer/shard_memory.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "support/calls.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/testing/memory_transport.hpp"

using namespace tensorhub;
using calls::contains;
using calls::error_of;
using testing::memory_transport;

namespace {

constexpr std::uint64_t chunk = 1024;
using shard = shard_memory<memory_transport, host_memory>;

/// Two "processes": the shard's, and one that reads from it.
struct scene {
  memory_transport source{{}, incarnation{1}};
  memory_transport reader{{}, incarnation{2}};
  shard memory{source};

  /// Adds bytes of ordinary memory.
  void add(const std::string& name, std::byte* data, std::uint64_t bytes) {
    memory.add({name, dtype::u8, {bytes}}, data);
  }
  [[nodiscard]] layout shape() const { return memory.build_layout(chunk, {}); }

  /// Reads a remote region wholly; how it ended and what arrived. What lies behind must stay untouched.
  [[nodiscard]] completion_status read(const remote_region& from, std::vector<std::byte>& into) {
    into.assign(from.bytes + 64, std::byte{0xee});
    const memory_range range{into.data(), into.size()};
    const auto region = reader.register_memory({&range, 1}, region_access::local_write);
    auto queue = reader.make_queue(1);
    auto endpoint = reader.connect(queue, source.address(), incarnation{1}, std::chrono::seconds{1});
    REQUIRE(queue.post_read(endpoint, region[0], 0, {&from, 0, from.bytes}, 1) == post_result::posted);
    std::array<completion, 1> done{};
    REQUIRE(queue.poll(done) == 1);
    for (std::size_t i = from.bytes; i < into.size(); ++i) REQUIRE(into[i] == std::byte{0xee});
    into.resize(from.bytes);
    return done[0].status;
  }
};

[[nodiscard]] std::vector<std::byte> numbered(std::size_t bytes, unsigned first = 0) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 7 + i / 256 + first) & 255u);
  return out;
}

// ---- regions

TEST_CASE("shard memory: neighbours become one region, in whatever order they were added") {
  scene s;
  auto bytes = numbered(5 * chunk);
  s.add("third", bytes.data() + 3 * chunk, 2 * chunk);
  s.add("first", bytes.data(), chunk);
  s.add("second", bytes.data() + chunk, 2 * chunk);
  const layout shape = s.shape();
  s.memory.register_all(shape);
  CHECK(s.memory.cost().regions == 1);
  CHECK(s.memory.cost().tensors == 3);
  CHECK(s.memory.cost().bytes == 5 * chunk);
  CHECK(s.source.registered_bytes() == 5 * chunk);
  const auto places = s.memory.places();
  REQUIRE(places.size() == 3);
  CHECK(places[0].region == places[1].region);
  CHECK(places[1].region == places[2].region);
  CHECK(places[0].offset == 3 * chunk);
  CHECK(places[1].offset == 0);
  CHECK(places[2].offset == chunk);
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(places[i].data == s.memory.regions()[places[i].region].range().data + places[i].offset);
  CHECK(places[0].data == bytes.data() + 3 * chunk);
}

TEST_CASE("shard memory: a gap in memory of which nothing is known, or another file, begins another region") {
  scene s;
  auto bytes = numbered(4 * chunk);
  s.add("first", bytes.data(), chunk);
  s.add("behind a gap", bytes.data() + chunk + 1, chunk);
  const layout shape = s.shape();
  s.memory.register_all(shape);
  CHECK(s.memory.cost().regions == 2);
  CHECK(s.source.registered_bytes() == 2 * chunk);

  scene t;
  host_memory space;
  const auto memory = space.allocate(8192);
  auto other_file = memory.range();
  const file_mapping known{memory.data() + 4096, 4096, other_file.backing_fd, 0};  // says: another place
  t.add("in the file", memory.data(), 4096);
  t.add("elsewhere in it", memory.data() + 4096, 4096);
  const layout two = t.shape();
  t.memory.register_all(two);
  CHECK(t.memory.cost().regions == 2);
  CHECK(t.memory.regions()[t.memory.places()[0].region].range().backing_fd == other_file.backing_fd);
}

TEST_CASE("shard memory: the tensors of one allocation are one region, with the gaps between them") {
  scene s;
  host_memory space;
  const auto memory = space.allocate(16 * chunk);
  const auto bytes = numbered(16 * chunk);
  std::memcpy(memory.data(), bytes.data(), bytes.size());
  s.add("third", memory.data() + 9 * chunk, 2 * chunk);
  s.add("first", memory.data() + 1 * chunk, chunk);
  s.add("small", memory.data() + 2 * chunk + 64, 100);  // lies in the gap
  s.add("second", memory.data() + 4 * chunk + 8, 2 * chunk);
  const layout shape = s.shape();
  s.memory.register_all(shape);
  CHECK(s.memory.cost().regions == 2);  // the packed buffer and one for all
  CHECK(s.memory.cost().tensors == 4);
  CHECK(s.memory.cost().bytes == shape.bytes());
  CHECK(s.memory.cost().padding_bytes == 5 * chunk);
  CHECK(s.memory.cost().packed_tensors == 1);
  CHECK(s.memory.cost().packed_bytes == 128);
  CHECK(s.source.registered_bytes() == 10 * chunk + 128);
  const auto places = s.memory.places();
  REQUIRE(places.size() == 4);
  CHECK(places[0].region != places[1].region);
  CHECK(places[1].region == places[2].region);
  CHECK(places[2].region == places[3].region);
  CHECK(s.memory.regions()[places[1].region].range().backing_fd == memory.range().backing_fd);
  CHECK(s.memory.regions()[places[1].region].range().backing_offset == chunk);
  const std::array<std::uint64_t, 3> offsets{9 * chunk, 1 * chunk, 4 * chunk + 8};
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(places[i + 1].data == memory.data() + offsets[i]);
    std::vector<std::byte> arrived;
    REQUIRE(s.read(s.memory.remote(i + 1), arrived) == completion_status::ok);
    REQUIRE(arrived.size() == shape.segments()[i + 1].bytes);
    CHECK(std::memcmp(arrived.data(), bytes.data() + offsets[i], arrived.size()) == 0);
  }
  // Versions come and go; what is registered stays.
  std::vector<remote_region> described;
  for (std::size_t i = 0; i < 4; ++i) described.push_back(s.memory.remote(i));
  for (int version = 0; version < 3; ++version) {
    s.memory.pack();
    s.memory.unpack();
    for (std::size_t i = 0; i < 4; ++i) CHECK(s.memory.remote(i) == described[i]);
  }
  CHECK(s.source.registered_bytes() == 10 * chunk + 128);
}

TEST_CASE("shard memory: a tensor inside a merged region is read exactly, by its own remote region") {
  scene s;
  auto bytes = numbered(6 * chunk);
  s.add("a", bytes.data(), chunk + 100);
  s.add("b", bytes.data() + chunk + 100, 2 * chunk);
  s.add("c", bytes.data() + 3 * chunk + 100, chunk);
  const layout shape = s.shape();
  s.memory.register_all(shape);
  REQUIRE(s.memory.cost().regions == 1);
  const std::array<std::pair<std::uint64_t, std::uint64_t>, 3> where{
      {{0, chunk + 100}, {chunk + 100, 2 * chunk}, {3 * chunk + 100, chunk}}};
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    const remote_region remote = s.memory.remote(i);
    REQUIRE(remote.bytes == where[i].second);
    std::vector<std::byte> arrived;
    REQUIRE(s.read(remote, arrived) == completion_status::ok);
    CHECK(std::memcmp(arrived.data(), bytes.data() + where[i].first, arrived.size()) == 0);
  }
}

TEST_CASE("shard memory: revoked keys stop working, new ones work") {
  scene s;
  auto bytes = numbered(4 * chunk);
  auto small = numbered(10, 3);
  s.add("a", bytes.data(), chunk);
  s.add("behind a gap", bytes.data() + 2 * chunk, chunk);
  s.add("small", small.data(), small.size());
  const layout shape = s.shape();
  s.memory.register_all(shape);
  REQUIRE(s.memory.places().size() == 3);
  std::vector<remote_region> old;
  for (std::size_t i = 0; i < 3; ++i) old.push_back(s.memory.remote(i));
  s.memory.revoke_all();
  std::vector<std::byte> arrived;
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(s.read(old[i], arrived) == completion_status::access_denied);
    CHECK(s.read(s.memory.remote(i), arrived) == completion_status::ok);
  }
}

// ---- small tensors

TEST_CASE("shard memory: small tensors are packed, served packed, and unpacked as they were") {
  scene s;
  const auto values = numbered(100 + 65 + 1, 9);
  auto a = std::vector(values.begin(), values.begin() + 100);
  auto b = std::vector(values.begin() + 100, values.begin() + 165);
  auto c = std::vector(values.begin() + 165, values.end());
  auto large = numbered(chunk, 1);
  s.add("a", a.data(), a.size());
  s.add("large", large.data(), large.size());
  s.memory.add({"none", dtype::f32, {0}}, nullptr);
  s.add("b", b.data(), b.size());
  s.add("c", c.data(), c.size());
  const layout shape = s.shape();
  s.memory.register_all(shape);
  REQUIRE(shape.packed_bytes() == 128 + 128 + 64);
  s.memory.pack();
  std::vector<std::byte> packed;
  REQUIRE(s.read(s.memory.remote(0), packed) == completion_status::ok);
  REQUIRE(packed.size() == shape.packed_bytes());
  CHECK(std::memcmp(packed.data(), a.data(), 100) == 0);
  CHECK(std::memcmp(packed.data() + 128, b.data(), 65) == 0);
  CHECK(packed[256] == c[0]);
  CHECK(packed[100] == std::byte{0});  // padding

  // Other bytes arrive in the packed segment, as from a pull.
  const auto news = numbered(shape.packed_bytes(), 77);
  std::memcpy(s.memory.places()[0].data, news.data(), news.size());
  CHECK(a[0] == values[0]);  // not before unpack
  s.memory.unpack();
  CHECK(std::memcmp(a.data(), news.data(), 100) == 0);
  CHECK(std::memcmp(b.data(), news.data() + 128, 65) == 0);
  CHECK(c[0] == news[256]);
  CHECK(large == numbered(chunk, 1));
}

TEST_CASE(
    "shard memory: one small tensor is unpacked before the others, and each once per transfer,"
    " of which only the last one counts") {
  scene s;
  auto a = numbered(100, 1);
  auto b = numbered(65, 2);
  auto large = numbered(chunk, 3);
  s.add("a", a.data(), a.size());
  s.add("large", large.data(), large.size());
  s.add("b", b.data(), b.size());
  const layout shape = s.shape();
  s.memory.register_all(shape);
  const auto arrives = [&](unsigned seed) {
    const auto news = numbered(shape.packed_bytes(), seed);
    std::memcpy(s.memory.places()[0].data, news.data(), news.size());
    return std::pair{std::vector(news.begin(), news.begin() + 100),
                     std::vector(news.begin() + 128, news.begin() + 128 + 65)};
  };
  s.memory.expect();
  const auto [first_a, first_b] = arrives(77);
  CHECK(s.memory.unpack(2, s.memory.transfers()));
  CHECK(b == first_b);
  CHECK(a == numbered(100, 1));
  CHECK(s.memory.unpack(1, s.memory.transfers()));  // a large one: nothing to do
  CHECK(large == numbered(chunk, 3));
  b[0] = std::byte{1};  // its reader's own business now
  b[1] = std::byte{2};
  const auto taken = b;
  CHECK(s.memory.unpack(2, s.memory.transfers()));
  s.memory.unpack();
  CHECK(a == first_a);
  CHECK(b == taken);
  const std::uint64_t first = s.memory.transfers();
  s.memory.expect();
  CHECK_FALSE(s.memory.unpack(2, first));  // its bytes are about to be overwritten
  CHECK_FALSE(s.memory.unpack(1, first));
  CHECK(b == taken);
  const auto [second_a, second_b] = arrives(88);
  s.memory.unpack();
  CHECK(a == second_a);
  CHECK(b == second_b);
}

TEST_CASE("shard memory: a shard of tensors without bytes needs no memory") {
  scene s;
  s.memory.add({"none", dtype::f32, {4, 0}}, nullptr);
  const layout shape = s.shape();
  s.memory.register_all(shape);
  s.memory.pack();
  s.memory.unpack();
  CHECK(s.memory.places().empty());
  CHECK(s.memory.cost().regions == 0);
  CHECK(s.memory.cost().tensors == 1);
}

// ---- what is refused

TEST_CASE("shard memory: wrong tensors are refused by name and leave nothing behind") {
  scene s;
  auto bytes = numbered(chunk);
  CHECK(error_of([&] { s.add("", bytes.data(), 8); }).code() == errc::invalid_argument);
  const error null = error_of([&] { s.add("null", nullptr, 8); });
  CHECK(null.code() == errc::invalid_argument);
  CHECK(contains(null.what(), "'null'"));
  const error huge = error_of([&] { s.add("huge", bytes.data(), limits::shard_bytes + 1); });
  CHECK(huge.code() == errc::limit_exceeded);
  CHECK(contains(huge.what(), "'huge'"));
  CHECK(error_of([&] {
          s.memory.add({"wraps", dtype::f64, {1ull << 62}}, bytes.data());
        }).code() == errc::limit_exceeded);
  CHECK(error_of([&] { static_cast<void>(s.shape()); }).code() == errc::invalid_argument);  // still none

  s.add("norm", bytes.data(), 8);
  const error twice = error_of([&] { s.add("norm", bytes.data() + 8, 8); });
  CHECK(twice.code() == errc::invalid_argument);
  CHECK(contains(twice.what(), "'norm'"));
  CHECK(s.shape().tensors().size() == 1);
}

TEST_CASE("shard memory: memory that cannot be written is served, and refused where bytes are to arrive") {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::byte* const mapped = static_cast<std::byte*>(
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(mapped != MAP_FAILED);
  mapped[0] = std::byte{7};
  mapped[2 * page - 1] = std::byte{8};
  REQUIRE(::mprotect(mapped + page, page, PROT_READ) == 0);
  scene s;
  std::vector<std::byte> own = numbered(chunk);
  s.add("own", own.data(), chunk);
  s.add("mapped", mapped, 2 * page);  // its end cannot be written
  const layout shape = s.shape();
  s.memory.register_all(shape);
  const error refused = error_of([&] { s.memory.expect(); });
  CHECK(refused.code() == errc::invalid_argument);
  CHECK(contains(refused.sentence(), "tensor 'mapped' lies in memory that this process cannot write"));
  CHECK(s.memory.transfers() == 0);
  REQUIRE(::mprotect(mapped, 2 * page, PROT_READ | PROT_WRITE) == 0);
  s.memory.expect();
  CHECK(own == numbered(chunk));
  CHECK(mapped[0] == std::byte{7});
  CHECK(mapped[2 * page - 1] == std::byte{8});
  ::munmap(mapped, 2 * page);
}

TEST_CASE("shard memory: overlapping tensors are both named, touching ones are fine") {
  auto bytes = numbered(4 * chunk);
  const auto overlap = [&](std::vector<std::pair<std::uint64_t, std::uint64_t>> places) {
    scene s;
    int number = 0;
    for (const auto& [offset, count] : places)
      s.add("t" + std::to_string(number++), bytes.data() + offset, count);
    error_context context;
    context.model = "policy";
    return error_of([&] { static_cast<void>(s.memory.build_layout(chunk, context)); });
  };
  CHECK(overlap({{0, 100}, {100, 100}, {200, 1}}).code() == errc::ok);
  for (const auto& places : std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>>{
           {{0, 100}, {99, 100}},    // the last byte of the first
           {{99, 100}, {0, 100}},    // added the other way round
           {{0, 100}, {0, 100}},     // the same
           {{0, 2000}, {10, 5}}}) {  // one inside the other
    const error found = overlap(places);
    CHECK(found.code() == errc::invalid_argument);
    CHECK(contains(found.what(), "'t0'"));
    CHECK(contains(found.what(), "'t1'"));
    CHECK(contains(found.what(), "if they are tied, add the memory once"));
    CHECK(found.context().model == "policy");
  }
}

TEST_CASE("shard memory: a tensor without bytes overlaps nothing and hides no overlap") {
  auto bytes = numbered(chunk);
  scene s;
  s.add("a", bytes.data(), 100);
  s.add("none", bytes.data() + 50, 0);
  CHECK(error_of([&] { static_cast<void>(s.shape()); }).code() == errc::ok);
  s.add("b", bytes.data() + 60, 10);
  const error found = error_of([&] { static_cast<void>(s.shape()); });
  CHECK(found.code() == errc::invalid_argument);
  CHECK(contains(found.what(), "'a'"));
  CHECK(contains(found.what(), "'b'"));
}

}  // namespace
