// Versions that are read while their publisher still fills them.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "hub.hpp"

using namespace system_tests;

namespace {

/// One large tensor (some chunks), and small ones that share a chunk.
struct contents {
  std::vector<std::uint64_t> large = std::vector<std::uint64_t>(400'000);
  std::vector<std::uint32_t> bias = std::vector<std::uint32_t>(500);
  std::vector<std::uint8_t> norm = std::vector<std::uint8_t>(33);

  explicit contents(std::uint64_t seed) {
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = (seed + i) * 0x9e3779b97f4a7c15ull;
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<std::uint32_t>(large[i] >> 7);
    for (std::size_t i = 0; i < norm.size(); ++i) norm[i] = static_cast<std::uint8_t>(large[i] >> 17);
  }
  bool operator==(const contents&) const = default;
};

template <typename Worker>
void declare(Worker& worker) {
  worker.add("norm", {33}, tensorhub::dtype::u8);
  worker.add("large", {400'000}, tensorhub::dtype::u64);
  worker.add("bias", {500}, tensorhub::dtype::u32);
  worker.add("nothing", {0}, tensorhub::dtype::f32);
}

template <typename Words>
[[nodiscard]] std::span<const std::byte> bytes_of(const Words& words) {
  return std::as_bytes(std::span{words});
}

template <typename Publisher>
void put_all(Publisher& trainer, const contents& from) {
  trainer.put("bias", bytes_of(from.bias));
  trainer.put("large", bytes_of(from.large));
  trainer.put("nothing", {});
  trainer.put("norm", bytes_of(from.norm));
}

template <typename Subscriber>
[[nodiscard]] contents live(const Subscriber& rollout) {
  contents out{0};
  const auto copy = [&](const char* name, auto& into) {
    std::memcpy(into.data(), rollout.tensor(name), into.size() * sizeof into[0]);
  };
  copy("large", out.large);
  copy("bias", out.bias);
  copy("norm", out.norm);
  return out;
}

/// The chunks of an update have arrived, all but those that are missing at its source.
[[nodiscard]] bool arrives(const tensorhub::update_handle& running, std::uint64_t bytes) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (running.progress().bytes < bytes) {
    if (std::chrono::steady_clock::now() > until || running.done()) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

template <typename Hub>
void fill_and_commit() {
  typename Hub::reference_server server;
  typename Hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  double_buffered_of<typename Hub::subscriber> first{who(server.address(), "rollout-0")};
  double_buffered_of<typename Hub::subscriber> second{who(server.address(), "rollout-1")};
  declare(trainer);
  declare(first);
  declare(second);
  for (std::uint64_t version = 1; version <= 3; ++version) {
    CAPTURE(version);
    const contents source{version};
    auto running = first.stage_async(at_least(version), 60s);
    auto other = second.stage_async(at_least(version), 60s);
    trainer.begin(version);
    CHECK(trainer.held_version() == 0);
    trainer.put("large", bytes_of(source.large));
    CHECK(arrives(running, 3 << 20));  // all of it is there before the version is whole
    CHECK(arrives(other, 3 << 20));
    trainer.put("bias", bytes_of(source.bias));
    trainer.put("nothing", {});
    CHECK(code_of([&] { trainer.commit(version); }) == errc::invalid_argument);
    trainer.put("norm", bytes_of(source.norm));
    CHECK(!running.done());
    CHECK(!first.newer());
    CHECK(trainer.list("policy").front().available.size() == (version == 1 ? 0 : 1));
    CHECK(trainer.commit(version).version == version);
    CHECK(running.wait(20s).version == version);
    CHECK(other.wait(20s).version == version);
    first.install();
    second.install();
    CHECK(live(first) == source);
    CHECK(live(second) == source);
    CHECK(trainer.held_version() == version);
  }
}

/// Host memory that calls `given_back` before it gives an allocation back.
struct watched_memory : tensorhub::host_memory {
  static inline std::function<void()> given_back{};
  class allocation {
   public:
    explicit allocation(std::uint64_t bytes) : inner_{bytes} {}
    allocation(allocation&&) noexcept = default;
    allocation& operator=(allocation&&) noexcept = default;
    ~allocation() {
      if (inner_.data() != nullptr && given_back) given_back();
    }
    [[nodiscard]] tensorhub::memory_range range() const noexcept { return inner_.range(); }

   private:
    tensorhub::host_memory::allocation inner_;
  };
  [[nodiscard]] allocation allocate(std::uint64_t bytes) { return allocation{bytes}; }
};
using watched_hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::group_consistent,
                                   tensorhub::xxh3_128, watched_memory>;

}  // namespace

TEST_CASE("open versions: a reader that has read whole versions reads the next one while it is filled") {
  hub::reference_server server;
  const auto in_many_chunks = [&](const std::string& replica) {
    auto options = who(server.address(), replica);
    options.chunk_bytes = 1024;  // what is read of an open version grows with their number
    return options;
  };
  hub::arena_publisher trainer{in_many_chunks("trainer-0")};
  double_buffered_of<hub::subscriber> reader{in_many_chunks("rollout-0")};
  declare(trainer);
  declare(reader);
  for (std::uint64_t version = 1; version <= 2; ++version) {  // into either buffer
    trainer.begin(version);
    put_all(trainer, contents{version});
    trainer.commit(version);
    CHECK(reader.stage(at_least(version), 60s).version == version);
    reader.install();
  }
  const contents last{3};
  auto running = reader.stage_async(at_least(3), 60s);
  trainer.begin(3);
  trainer.put("large", bytes_of(last.large));
  CHECK(arrives(running, 3 << 20));
  trainer.put("bias", bytes_of(last.bias));
  trainer.put("nothing", {});
  trainer.put("norm", bytes_of(last.norm));
  trainer.commit(3);
  CHECK(running.wait(20s).version == 3);
  reader.install();
  CHECK(live(reader) == last);
  CHECK(server.statistics().sources_failed.failed() == 0);
}

TEST_CASE("an arena that is made anew goes back to a checkpoint before it publishes anything") {
  hub::reference_server server;
  double_buffered_of<hub::subscriber> rollout{who(server.address(), "rollout-0")};
  declare(rollout);
  {
    hub::arena_publisher trainer{who(server.address(), "trainer-0")};
    declare(trainer);
    for (std::uint64_t version = 1; version <= 2; ++version) {
      put_all(trainer, contents{version});
      trainer.commit(version);
      CHECK(rollout.stage(exactly(version), 60s).version == version);
      rollout.install();
    }
    trainer.leave();
  }
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  declare(trainer);
  trainer.retain(1);
  trainer.roll_back_to(1);
  put_all(trainer, contents{7});
  trainer.commit(2);
  CHECK(rollout.stage(exactly(2), 60s).version == 2);
  rollout.install();
  CHECK(live(rollout) == contents{7});
}

TEST_CASE("open versions: a chunk that no tensor has bytes in is whole, too") {
  hub::reference_server server;
  const auto in_odd_chunks = [&](const std::string& replica) {
    auto options = who(server.address(), replica);
    options.chunk_bytes = 1000;  // small tensors lie 64 bytes apart: 1000 to 1023 are nobody's
    return options;
  };
  hub::arena_publisher trainer{in_odd_chunks("trainer-0")};
  hub::subscriber reader{in_odd_chunks("rollout-0")};
  const std::vector<std::byte> told(990, std::byte{7});
  std::vector<std::byte> got(990);
  trainer.add("w", {990}, tensorhub::dtype::u8);
  reader.add("w", got.data(), {990}, tensorhub::dtype::u8);
  trainer.begin(1);
  trainer.put("w", told);
  trainer.commit(1);
  CHECK(reader.update(latest, 20s).version == 1);
  CHECK(got == told);
}

TEST_CASE("an open version is received while it is filled, and counts when it is committed") {
  fill_and_commit<hub>();
}

TEST_CASE("the same with integrity off") {
  fill_and_commit<unchecked_hub>();
}

TEST_CASE("an arena that begins nothing shows a version when it is committed, and takes it back by itself") {
  hub::reference_server server;
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  double_buffered_of<hub::subscriber> rollout{who(server.address(), "rollout-0")};
  declare(trainer);
  declare(rollout);
  for (std::uint64_t version = 1; version <= 2; ++version) {
    put_all(trainer, contents{version});
    CHECK(trainer.held_version() == 0);
    trainer.commit(version);
    CHECK(rollout.stage().version == version);
    rollout.install();
    CHECK(live(rollout) == contents{version});
  }
}

TEST_CASE("an open version that is taken back fails its readers at once, and the next one reaches them") {
  hub::reference_server server;
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  double_buffered_of<hub::subscriber> rollout{who(server.address(), "rollout-0")};
  declare(trainer);
  declare(rollout);
  const contents one{1};
  const contents two{2};
  put_all(trainer, one);
  trainer.commit(1);
  rollout.stage();
  rollout.install();
  auto running = rollout.stage_async(at_least(2), 60s);
  trainer.begin(2);
  trainer.put("large", bytes_of(two.large));
  REQUIRE(arrives(running, 1 << 20));
  trainer.unpublish();
  CHECK(code_of([&] { static_cast<void>(running.wait(20s)); }) == errc::unavailable);
  CHECK(live(rollout) == one);
  CHECK(rollout.held_version() == 1);
  put_all(trainer, two);
  trainer.commit(2);
  CHECK(rollout.stage(at_least(2)).version == 2);
  rollout.install();
  CHECK(live(rollout) == two);
}

TEST_CASE("a trainer that dies in the middle of an open version fails its readers") {
  hub::reference_server server;
  auto trainer = std::make_unique<hub::arena_publisher>(who(server.address(), "trainer-0"));
  double_buffered_of<hub::subscriber> rollout{who(server.address(), "rollout-0")};
  declare(*trainer);
  declare(rollout);
  auto running = rollout.stage_async(at_least(1), 60s);
  trainer->begin(1);
  trainer->put("large", bytes_of(contents{1}.large));
  REQUIRE(arrives(running, 1 << 20));
  trainer.reset();
  CHECK(code_of([&] { static_cast<void>(running.wait(20s)); }) == errc::unavailable);
}

TEST_CASE("the memory of an arena is given back when its worker has left") {
  hub::reference_server server;
  hub::subscriber observer{who(server.address(), "rollout-0")};
  const auto is_listed = [&] {
    const auto models = observer.list();
    return !models.empty() && std::ranges::any_of(models.front().replicas, [](const auto& replica) {
      return replica.name == "trainer-0";
    });
  };
  std::size_t given_back = 0;
  std::size_t asked = 0;
  std::size_t while_listed = 0;
  {
    watched_hub::arena_publisher trainer{who(server.address(), "trainer-0")};
    declare(trainer);
    put_all(trainer, contents{1});
    trainer.commit(1);
    REQUIRE(is_listed());
    watched_memory::given_back = [&] {
      ++given_back;
      if (code_of([&] { while_listed += is_listed() ? 1 : 0; }) == errc::ok) ++asked;
    };
  }
  watched_memory::given_back = {};
  CHECK(given_back > 0);
  CHECK(asked == given_back);
  CHECK(while_listed == 0);
}

TEST_CASE("updates in place wait for a version to be whole") {
  hub::reference_server server;
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  declare(trainer);
  contents target{7};
  hub::subscriber rollout{who(server.address(), "rollout-0")};
  rollout.add("norm", target.norm.data(), {33}, tensorhub::dtype::u8);
  rollout.add("large", target.large.data(), {400'000}, tensorhub::dtype::u64);
  rollout.add("bias", target.bias.data(), {500}, tensorhub::dtype::u32);
  rollout.add("nothing", nullptr, {0}, tensorhub::dtype::f32);
  auto running = rollout.update_async(at_least(1), 60s);
  trainer.begin(1);
  put_all(trainer, contents{1});
  std::this_thread::sleep_for(50ms);
  CHECK(running.progress().bytes == 0);
  CHECK(target == contents{7});
  trainer.commit(1);
  CHECK(running.wait(20s).version == 1);
  CHECK(target == contents{1});
}

TEST_CASE("what an arena refuses") {
  hub::reference_server server;
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  declare(trainer);
  CHECK(code_of([&] { trainer.add("norm", {3}, tensorhub::dtype::u8); }) == errc::invalid_argument);
  const contents source{1};
  trainer.begin(5);
  CHECK(code_of([&] { trainer.add("late", {3}, tensorhub::dtype::u8); }) == errc::invalid_argument);
  CHECK(code_of([&] { trainer.put("wq", {}); }) == errc::invalid_argument);
  CHECK(code_of([&] { trainer.put("norm", {}); }) == errc::invalid_argument);
  put_all(trainer, source);
  CHECK(code_of([&] { trainer.put("norm", bytes_of(source.norm)); }) == errc::invalid_argument);
  CHECK(code_of([&] { trainer.commit(6); }) == errc::invalid_argument);
  trainer.commit(5);
  CHECK(code_of([&] { trainer.begin(5); }) == errc::version_conflict);
  CHECK(code_of([&] { trainer.begin(4); }) == errc::version_conflict);
  CHECK(code_of([&] { trainer.begin(0); }) == errc::invalid_argument);
  trainer.begin(6);
  put_all(trainer, contents{6});
  trainer.commit(6);
  CHECK(trainer.held_version() == 6);
}

TEST_CASE("tensors are put from several threads, and written where they belong") {
  hub::reference_server server;
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  double_buffered_of<hub::subscriber> rollout{who(server.address(), "rollout-0")};
  declare(trainer);
  declare(rollout);
  const contents source{3};
  auto running = rollout.stage_async(at_least(3), 60s);
  trainer.begin(3);
  {
    std::jthread large{[&] { trainer.put("large", bytes_of(source.large)); }};
    std::jthread bias{[&] {
      std::memcpy(trainer.tensor("bias"), source.bias.data(), bytes_of(source.bias).size());
      trainer.put("bias");
    }};
    std::jthread norm{[&] { trainer.put("norm", bytes_of(source.norm)); }};
    trainer.put("nothing", {});
  }
  trainer.commit(3);
  CHECK(running.wait(20s).version == 3);
  rollout.install();
  CHECK(live(rollout) == source);
}

TEST_CASE("no put is refused because another thread joins, or takes the last version back") {
  static constexpr int threads = 8;
  static constexpr int tensors_each = 16;
  hub::reference_server server;
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  const auto name_of = [](int thread, int i) { return std::to_string(thread) + "." + std::to_string(i); };
  for (int thread = 0; thread < threads; ++thread) {
    for (int i = 0; i < tensors_each; ++i) trainer.add(name_of(thread, i), {64}, tensorhub::dtype::u8);
  }
  const std::vector<std::byte> bytes(64);
  for (const std::uint64_t version : {1u, 2u, 3u}) {
    std::latch begin{threads};
    std::atomic<int> refused = 0;
    std::vector<std::jthread> putting;
    for (int thread = 0; thread < threads; ++thread) {
      putting.emplace_back([&, thread] {
        begin.arrive_and_wait();
        for (int i = 0; i < tensors_each; ++i) {
          if (code_of([&] { trainer.put(name_of(thread, i), bytes); }) != errc::ok) ++refused;
        }
      });
    }
    putting.clear();
    REQUIRE(refused == 0);
    CHECK(trainer.commit(version).version == version);
  }
}

TEST_CASE("open: an arena whose first call fails says the same again, and has one memory") {
  hub::reference_server server;
  hub::arena_publisher trainer{who(server.address(), "trainer-0")};
  trainer.add("wq", {8}, tensorhub::dtype::f32);
  trainer.add("", {8}, tensorhub::dtype::f32);
  std::string first;
  CHECK(code_of([&] { trainer.join(); }, &first) == errc::invalid_argument);
  CHECK_MESSAGE(contains(first, "a tensor has no name"), first);
  const int before = count_memory_files();
  for (int i = 0; i < 3; ++i) {
    std::string again;
    CHECK(code_of([&] { trainer.join(); }, &again) == errc::invalid_argument);
    CHECK(again == first);
  }
  CHECK(count_memory_files() == before);
}
