/// Retained versions between real workers: handed over into host memory before their last holder lets go.

#include <doctest/doctest.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "faulty_hub.hpp"
#include "tensorhub/leave_on_signal.hpp"
#include "throttled_hub.hpp"

using namespace system_tests;
using tensorhub::version_number;

namespace {

template <typename Worker>
std::vector<std::string> replicas_of(Worker& asked) {
  std::vector<std::string> names;
  for (const auto& model : asked.list("policy")) {
    for (const auto& replica : model.replicas) {
      if (replica.version) names.push_back(replica.name + " " + to_string(replica.version));
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

TEST_CASE("retention: the last holder's version is in host memory before unpublish returns") {
  system_tests::hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(1);
  source.worker.retain(1);
  const auto done = source.worker.unpublish();
  CHECK_FALSE(done.forced);
  CHECK_FALSE(done.lost);
  source.memory.fill(77);  // the optimizer
  CHECK(source.worker.offloaded_bytes() > 0);
  CHECK(replicas_of(reader.worker) == std::vector<std::string>{"trainer-0~1 1"});
  CHECK(reader.worker.update(exactly(1)).version == 1);
  CHECK(reader.memory.holds(1));
  // Somebody reliable has it now: the temporary replica is not needed any more.
  CHECK(comes_true([&] { return source.worker.offloaded_bytes() == 0; }));
  CHECK(replicas_of(reader.worker) == std::vector<std::string>{"rollout-0 1"});
}

TEST_CASE("retention: a large version may take longer than drain_timeout into host memory, if it advances") {
  using slow_rollout = member<throttled_hub::subscriber>;
  system_tests::hub::reference_server server;
  auto how = who(server.address(), "trainer-0");
  how.chunk_bytes = 64u << 10;
  how.offload_limit_bytes = 0;   // another process has to take it
  trainer source{how, 300'001};  // 3.6 MB
  how.replica = "rollout-0";
  how.offload_limit_bytes = tensorhub::worker_options{}.offload_limit_bytes;
  how.drain_timeout = 400ms;
  const tensorhub::testing::network_link_options rate{.bytes_per_second = 4e6};
  slow_rollout host{how, 300'001,
                    throttled_hub::subscriber::transport_options{
                        .receiving = std::make_shared<tensorhub::testing::network_link>(rate)}};
  host.worker.join();
  source.publish(1);
  source.worker.retain(1);
  const auto done = source.worker.unpublish(20s);
  CHECK_FALSE(done.forced);
  CHECK_FALSE(done.lost);
  CHECK(done.seconds > 0.4);  // else the link was not slow
  CHECK(replicas_of(source.worker) == std::vector<std::string>{"rollout-0~1 1"});
  CHECK(host.worker.offloaded_bytes() > 0);
}

TEST_CASE("retention: the holder's own process copies, and reads nothing over its transport") {
  system_tests::hub::reference_server server;
  member<faulty_hub::publisher> source{
      who(server.address(), "trainer-0"), 300'001,
      faulty_hub::publisher::transport_options{.faults = {.failed_connections = 1}}};
  source.publish(1);
  source.worker.retain(1);
  CHECK_FALSE(source.worker.unpublish().lost);
  source.memory.fill(77);
  CHECK(replicas_of(source.worker) == std::vector<std::string>{"trainer-0~1 1"});
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update(exactly(1)).version == 1);
  CHECK(reader.memory.holds(1));
}

TEST_CASE("retention: the memory of a version that is gone takes the next one") {
  system_tests::hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  const auto memory_files = [] {  // of the size of these tensors
    std::set<std::uint64_t> numbers;
    for (const auto& each : std::filesystem::directory_iterator{"/proc/self/fd"}) {
      std::error_code gone;
      struct stat about {};
      const std::string target = std::filesystem::read_symlink(each.path(), gone).string();
      if (contains(target, "memfd:tensorhub") && ::stat(each.path().c_str(), &about) == 0 &&
          about.st_size > (1 << 20))
        numbers.insert(about.st_ino);
    }
    return numbers;
  };
  source.worker.retain(1);
  std::uint64_t one = 0;
  for (std::uint64_t version = 1; version <= 8; ++version) {
    source.publish(version);
    CHECK_FALSE(source.worker.unpublish().lost);
    const std::string newest = "trainer-0~" + std::to_string(version) + " " + std::to_string(version);
    REQUIRE(comes_true([&] { return replicas_of(source.worker) == std::vector<std::string>{newest}; }));
    if (version == 1) one = source.worker.offloaded_bytes();
    REQUIRE(comes_true([&] { return source.worker.offloaded_bytes() == one; }));
  }
  // One that is served, and while the next one is copied perhaps two more: one being filled, and one whose
  // worker has said that it is gone and is being destroyed.
  const std::size_t files = memory_files().size();
  CHECK(files >= 1);
  CHECK(files <= 3);
}

TEST_CASE("retention: beside a worker on a fixed port, temporary replicas listen on free ones") {
  system_tests::hub::reference_server server;
  // A port that was free a moment ago; somebody else may have taken it meanwhile.
  std::optional<trainer> source;
  REQUIRE(system_tests::comes_true([&] {
    tensorhub::transports::tcp_options through;
    const std::string free = tensorhub::transports::tcp{through}.address().text;
    through.listen_port = static_cast<std::uint16_t>(std::stoi(free.substr(free.rfind(':') + 1)));
    static_cast<void>(code_of([&] { source.emplace(who(server.address(), "trainer-0"), 1000, through); }));
    return source.has_value();
  }));
  source->worker.retain(3);
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source->memory.fill(version);
    source->worker.publish(version);
    CHECK_FALSE(source->worker.unpublish().lost);
  }
  rollout reader{who(server.address(), "rollout-0"), 1000};
  CHECK(reader.worker.update(exactly(1)).version == 1);
  CHECK(reader.memory.holds(1));
}

TEST_CASE("retention: a version that is not retained any more is given back") {
  system_tests::hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source.publish(version);
    if (version == 1) source.worker.pin(1);
    CHECK_FALSE(source.worker.unpublish().forced);
  }
  CHECK(replicas_of(source.worker) == std::vector<std::string>{"trainer-0~1 1"});
  source.worker.release(1);
  CHECK(comes_true([&] { return source.worker.offloaded_bytes() == 0; }));
  CHECK(replicas_of(source.worker).empty());
}

TEST_CASE("retention: the end of a worker does not wait for those that still read what it kept for others") {
  constexpr std::size_t words = 4'000'000;
  system_tests::hub::reference_server server;
  auto options = who(server.address(), "trainer-0");
  options.drain_timeout = 10min;
  std::optional<trainer> source;
  source.emplace(options, words);
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(std::uint64_t{1} << 20);
  gated_rollout slow{who(server.address(), "rollout-0"), words, {.gate = gate}};
  rollout quick{who(server.address(), "rollout-1"), words};
  source->memory.fill(1);
  source->worker.publish(1);
  source->worker.retain(1);
  source->worker.unpublish();
  auto reading = slow.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  CHECK(quick.worker.update(exactly(1)).version == 1);
  const std::vector<std::string> only_the_reliable{"rollout-1 1"};
  REQUIRE(comes_true([&] { return replicas_of(quick.worker) == only_the_reliable; }));
  auto end = std::async(std::launch::async, [&] { source.reset(); });
  CHECK(end.wait_for(30s) == std::future_status::ready);
  gate->open();
  static_cast<void>(code_of([&] { reading.wait(60s); }));
}

TEST_CASE("retention: who leaves hands over to another process; a spot worker is never relied upon") {
  system_tests::hub::reference_server server;
  auto spot_options = who(server.address(), "rollout-spot");
  spot_options.spot = true;
  rollout spot{spot_options};
  rollout host{who(server.address(), "rollout-host")};
  rollout late{who(server.address(), "rollout-late")};
  host.worker.join();
  {
    trainer source{who(server.address(), "trainer-0")};
    source.publish(5);
    source.worker.retain(1);
    CHECK(spot.worker.update().version == 5);
    source.worker.leave(20s);
  }
  spot.worker.leave(20s);
  CHECK(host.worker.offloaded_bytes() > 0);
  CHECK(host.worker.held_version() == version_number{});
  CHECK(late.worker.update(exactly(5)).version == 5);
  CHECK(late.memory.holds(5));
}

TEST_CASE(
    "retention: of a temporary replica one shard copies what its process holds, and the other one reads") {
  system_tests::hub::reference_server server;
  const auto together = [](auto&& work, auto&&... shards) {
    std::vector<std::future<void>> all;
    (all.push_back(std::async(std::launch::async, [&] { work(shards); })), ...);
    for (auto& each : all) each.get();
  };
  auto options = who(server.address(), "trainer-0", {0, 2});
  options.chunk_bytes = 64u << 10;
  options.drain_timeout = 400ms;  // the copy does not wait for the other shard
  trainer first{options, 300'001};
  options.shard = {1, 2};
  const tensorhub::testing::network_link_options rate{.bytes_per_second = 4e6};
  member<throttled_hub::publisher> second{
      options, 300'001,
      throttled_hub::publisher::transport_options{
          .receiving = std::make_shared<tensorhub::testing::network_link>(rate)}};  // for almost a second
  options.replica = options.location.host = "rollout-0";
  options.drain_timeout = 30s;
  options.offload_limit_bytes = 0;
  rollout far{options, 300'001};
  options.shard = {0, 2};
  rollout near{options, 300'001};
  together([](auto& each) { each.publish(1); }, first, second);
  first.worker.retain(1);
  together([](rollout& each) { CHECK(each.worker.update(exactly(1)).version == 1); }, near, far);
  CHECK_FALSE(second.worker.unpublish().lost);
  second.memory.fill(77);
  std::array<tensorhub::unpublish_report, 2> reports;
  together([&](rollout& each) { reports[&each == &near ? 0 : 1] = each.worker.unpublish(20s); }, near, far);
  for (const auto& report : reports) {
    CHECK_FALSE(report.forced);
    CHECK_FALSE(report.lost);
  }
  CHECK(replicas_of(near.worker) == std::vector<std::string>{"trainer-0~1 1"});
}

TEST_CASE("retention: without memory for it, or anybody to take it, it is said that the version is lost") {
  system_tests::hub::reference_server server;
  auto options = who(server.address(), "trainer-0");
  options.offload_limit_bytes = 1000;
  trainer source{options};
  source.publish(1);
  source.worker.retain(2);
  const auto done = source.worker.unpublish();
  CHECK_FALSE(done.forced);
  CHECK(done.lost);
  CHECK(source.worker.offloaded_bytes() == 0);
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(code_of([&] { reader.worker.update(exactly(1), 20s); }) == errc::unavailable);
}

TEST_CASE(
    "retention: a version that the machine has no memory for is refused, without any limit of the user's") {
  said_lines said;
  system_tests::hub::reference_server server{{.log = said.writer()}};
  // Four times the memory of the machine, of which no page is ever touched: no digests, and no reader.
  const std::uint64_t bytes = 4 * static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                              static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  void* const pages = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  auto options = who(server.address(), "trainer-0");
  options.chunk_bytes = 64u << 20;
  {
    unchecked_hub::publisher source{options};
    source.add("w", pages, {bytes}, tensorhub::dtype::u8);
    source.publish(1);
    source.retain(1);
    CHECK(source.unpublish().lost);
    CHECK(source.offloaded_bytes() == 0);
  }
  ::munmap(pages, bytes);
  CHECK(contains(said.text(), "cannot take version 1 into its host memory"));
  CHECK(contains(said.text(), "that this machine, or the process's control group, has available"));
}

TEST_CASE("retention: an in-place update waits until the version before is safe") {
  system_tests::hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(1);
  CHECK(reader.worker.update().version == 1);
  source.worker.pin(1);
  source.worker.unpublish();
  source.publish(2);
  CHECK(reader.worker.update().version == 2);  // overwrites the last copy of 1
  CHECK(reader.memory.holds(2));
  CHECK(source.worker.offloaded_bytes() + reader.worker.offloaded_bytes() > 0);
  rollout second{who(server.address(), "rollout-1")};
  CHECK(second.worker.update(exactly(1)).version == 1);
  CHECK(second.memory.holds(1));
}

TEST_CASE("leave_on_signal: at SIGTERM the workers hand over and leave; nothing else ends") {
  system_tests::hub::reference_server server;
  rollout host{who(server.address(), "rollout-host")};
  host.worker.join();
  trainer source{who(server.address(), "trainer-0")};
  source.publish(3);
  source.worker.retain(1);
  tensorhub::leave_on_signal on_notice{20s};
  on_notice.watch(source.worker);
  CHECK_FALSE(on_notice.requested());
  kill(getpid(), SIGTERM);
  CHECK(comes_true([&] { return on_notice.done(); }));
  CHECK(on_notice.requested());
  CHECK(code_of([&] { source.worker.publish(4); }) == errc::invalid_argument);  // it has left
  CHECK(host.worker.offloaded_bytes() > 0);
  CHECK(host.worker.update(exactly(3)).version == 3);
  CHECK(host.memory.holds(3));
}
