// A device that does not give up a queue pair: its reads may go on after the connection's end.

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <tensorhub/error.hpp>
#include <tensorhub/transports/verbs.hpp>
#include <vector>

#include "rdma_addresses.hpp"

using namespace std::chrono_literals;
using softroce_tests::rdma_addresses;
using tensorhub::incarnation;
using tensorhub::transports::verbs;

namespace {

std::atomic<bool> keeps_queue_pairs = false;
std::mutex kept_mutex;
std::vector<ibv_qp*> kept;

int really_destroy(ibv_qp* pair) {
  static auto* const original = reinterpret_cast<int (*)(ibv_qp*)>(::dlsym(RTLD_NEXT, "ibv_destroy_qp"));
  return original(pair);
}

/// While it lives, no queue pair can be destroyed.
struct device_that_keeps {
  device_that_keeps() { keeps_queue_pairs = true; }
  device_that_keeps(const device_that_keeps&) = delete;
  device_that_keeps& operator=(const device_that_keeps&) = delete;
  ~device_that_keeps() {
    keeps_queue_pairs = false;
    const std::lock_guard lock{kept_mutex};
    CHECK(!kept.empty());
    for (ibv_qp* const each : kept) CHECK(really_destroy(each) == 0);
    kept.clear();
  }
};

verbs::options at_first_device() {
  verbs::options options;
  options.listen_addresses = {rdma_addresses().front()};
  return options;
}

struct end_of_pair {
  static constexpr std::size_t bytes = 4096;

  end_of_pair(incarnation self, tensorhub::region_access access)
      : through{at_first_device(), self}, regions{through.register_memory(std::span{&range, 1}, access)} {}

  std::vector<std::byte> memory = std::vector<std::byte>(bytes);
  tensorhub::memory_range range{memory.data(), bytes};
  verbs through;
  std::vector<verbs::memory_region> regions;
};

struct reading_end : end_of_pair {
  explicit reading_end(incarnation self) : end_of_pair{self, tensorhub::region_access::local_write} {}
  void connect(const end_of_pair& source) {
    endpoint.emplace(through.connect(queue, source.through.address(), incarnation{1}, 20s));
  }
  [[nodiscard]] bool can_connect(const end_of_pair& source) {
    try {
      connect(source);
      return true;
    } catch (const tensorhub::error&) {
      return false;
    }
  }
  verbs::queue queue = through.make_queue(1);
  std::optional<verbs::endpoint> endpoint{};
};

}  // namespace

extern "C" int ibv_destroy_qp(ibv_qp* pair) {
  if (!keeps_queue_pairs) return really_destroy(pair);
  const std::lock_guard lock{kept_mutex};
  kept.push_back(pair);
  return EBUSY;
}

TEST_CASE("verbs: a source whose device keeps the queue pair of a reader that is cut off takes no reader") {
  end_of_pair source{incarnation{1}, tensorhub::region_access::remote_read};
  reading_end reader{incarnation{2}};
  reading_end other{incarnation{3}};
  reader.connect(source);
  REQUIRE(other.can_connect(source));
  {
    const device_that_keeps device;
    source.through.cut_off(incarnation{2});
  }
  CHECK(!other.can_connect(source));
}

TEST_CASE("verbs: a read that the device may go on with ends as local_error") {
  end_of_pair source{incarnation{1}, tensorhub::region_access::remote_read};
  reading_end reader{incarnation{2}};
  reader.connect(source);
  const tensorhub::remote_region from = source.through.describe(source.regions.front());
  source.through.cut_off(incarnation{2});  // it does not answer this read
  {
    const device_that_keeps device;
    REQUIRE(reader.queue.post_read(*reader.endpoint, reader.regions.front(), 0, {&from, 0, source.bytes},
                                   7) == tensorhub::post_result::posted);
    reader.endpoint.reset();
  }
  tensorhub::completion done{};
  REQUIRE(reader.queue.poll(std::span{&done, 1}) == 1);
  CHECK(done.status == tensorhub::completion_status::local_error);
}
