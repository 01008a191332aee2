// faulty and throttled: that they do what their options say, and again so with the same seed.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tensorhub/testing/faulty.hpp>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/testing/throttled.hpp>
#include <vector>

using namespace tensorhub;
using namespace tensorhub::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t piece_bytes = 1000;

/// How `reads` reads of one piece each end, in the order of posting; 100 stands for "queue full".
template <typename T>
struct scene {
  std::vector<std::byte> from = std::vector<std::byte>(piece_bytes, std::byte{7});
  std::vector<std::byte> to = std::vector<std::byte>(piece_bytes);
  T source;
  T target;
  std::vector<typename T::memory_region> exported, into;

  explicit scene(const typename T::options& of_target, const typename T::options& of_source = {})
      : source{of_source, incarnation{1}}, target{of_target, incarnation{2}} {
    const memory_range from_range{from.data(), from.size()};
    exported = source.register_memory(std::span{&from_range, 1}, region_access::remote_read);
    const memory_range to_range{to.data(), to.size()};
    into = target.register_memory(std::span{&to_range, 1}, region_access::local_write);
  }
  std::vector<int> read(std::size_t reads, std::size_t* torn = nullptr, bool* usable = nullptr) {
    auto queue = target.make_queue(4);
    auto endpoint = target.connect(queue, source.address(), {1}, 1s);
    const remote_region region = source.describe(exported.front());
    std::vector<int> ended(reads, -1);
    for (std::size_t i = 0; i < reads; ++i) {
      if (queue.post_read(endpoint, into.front(), 0, {&region, 0, piece_bytes}, i) ==
          post_result::queue_full) {
        ended[i] = 100;
        continue;
      }
      while (queue.outstanding() > 0) {
        std::array<completion, 4> done;
        const std::size_t count = queue.poll(done);
        for (std::size_t k = 0; k < count; ++k) {
          CHECK(ended[done[k].id] == -1);
          ended[done[k].id] = static_cast<int>(done[k].status);
        }
        if (count == 0) queue.wait(1s);
      }
      if (torn != nullptr && ended[i] == 0) *torn += to == from ? 0 : 1;
    }
    if (usable != nullptr) *usable = endpoint.usable();
    return ended;
  }
};
using faulty_memory = faulty<memory_transport>;

}  // namespace

TEST_CASE("faulty: each fault comes about as often as asked, and is counted") {
  const auto counts = std::make_shared<fault_counts>();
  scene<faulty_memory> all{
      {.seed = 5,
       .faults = {.delays = 0.1, .max_delay = 1us, .queue_full = 0.1, .errors = 0.1, .torn_bytes = 0.1},
       .counts = counts}};
  std::size_t torn = 0;
  const auto ended = all.read(4000, &torn);
  const auto times = [&](int status) { return std::count(ended.begin(), ended.end(), status); };
  CHECK(times(-1) == 0);
  CHECK(times(100) == static_cast<std::ptrdiff_t>(counts->queue_full.load()));
  CHECK(times(static_cast<int>(completion_status::local_error)) ==
        static_cast<std::ptrdiff_t>(counts->errors.load()));
  CHECK(torn == counts->torn_bytes.load());
  for (const auto* count : {&counts->delays, &counts->queue_full, &counts->errors, &counts->torn_bytes}) {
    CHECK(count->load() > 250);
    CHECK(count->load() < 550);
  }
}

TEST_CASE("faulty: the same seed, the same faults; another seed, others") {
  const auto run = [](std::uint64_t seed) {
    return scene<faulty_memory>{{.seed = seed, .faults = {.queue_full = 0.2, .errors = 0.2}}}.read(300);
  };
  CHECK(run(8) == run(8));
  CHECK(run(8) != run(9));
}

TEST_CASE("faulty: a lost peer stays lost on its endpoint") {
  scene<faulty_memory> lossy{{.seed = 2, .faults = {.lost_peers = 0.02}}};
  bool usable = true;
  const auto ended = lossy.read(1000, nullptr, &usable);
  CHECK(!usable);
  const auto first = std::find(ended.begin(), ended.end(), static_cast<int>(completion_status::peer_lost));
  CHECK(first != ended.begin());
  CHECK(std::all_of(ended.begin(), first, [](int status) { return status == 0; }));
  CHECK(std::all_of(first, ended.end(),
                    [](int status) { return status == static_cast<int>(completion_status::peer_lost); }));
  CHECK(lossy.read(1).size() == 1);  // a new endpoint
}

TEST_CASE("throttled: a link carries one byte after the other") {
  network_link path{{.bytes_per_second = 1e6, .latency = 5ms}};
  const auto now = std::chrono::steady_clock::now();
  CHECK(path.carry(1000, now) - now == 6ms);
  CHECK(path.carry(2000, now) - now == 8ms);          // behind the first
  CHECK(path.carry(1000, now + 1s) - now == 1006ms);  // the link was idle
  CHECK(path.carried_bytes() == 4000);
}

TEST_CASE("throttled: a link that was made before a fork is one link for both processes") {
  network_link path{{.bytes_per_second = 1e6, .latency = 5ms}};
  const auto now = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(path.carry(1000, now) - now == 6ms ? 0 : 1);
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(path.carry(1000, now) - now == 7ms);  // behind the child's
  CHECK(path.carried_bytes() == 2000);
}

TEST_CASE("throttled: reads wait for the slower of both links, and all of them come") {
  using slow_memory = throttled<memory_transport>;
  const auto down = std::make_shared<network_link>(network_link_options{.bytes_per_second = 1e6});
  const auto up = std::make_shared<network_link>(network_link_options{.bytes_per_second = 1e5});
  scene<slow_memory> both{{.receiving = down}, {.sending = up}};
  const auto before = std::chrono::steady_clock::now();
  CHECK(both.read(20) == std::vector<int>(20, 0));
  CHECK(std::chrono::steady_clock::now() - before >= 199ms);  // 20 kB at 100 kB/s: no machine is faster
  CHECK(down->carried_bytes() == 20'000);
  CHECK(up->carried_bytes() == 20'000);
}
