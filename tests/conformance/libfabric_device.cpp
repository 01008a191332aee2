// Device memory over libfabric: there is no provider here that takes it, and the sentence says so.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <functional>
#include <iostream>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/libfabric.hpp>
#include <thread>

#include "support/bare_device.hpp"

using namespace tensorhub;
using tensorhub::testing::fake_device;
using tensorhub::testing::fake_device_memory;
using tensorhub::transports::libfabric;

namespace {

/// A device that says that it is one of CUDA's.
class called_cuda final : public tensorhub::testing::bare_device {
 public:
  [[nodiscard]] std::string description() const override { return "cuda:0 (called so)"; }
  [[nodiscard]] int ordinal() const override { return 0; }
  void in_context(const std::function<void()>& work) override {
    {
      const std::lock_guard lock{mutex_};
      threads_.insert(std::this_thread::get_id());
    }
    is_current = true;
    work();
    is_current = false;
  }

  bool flush_arrived() noexcept override { return ++flushes > 0; }

  int flushes = 0;
  static inline thread_local bool is_current = false;
  /// Those in which its context has been current.
  [[nodiscard]] std::set<std::thread::id> threads() const {
    const std::lock_guard lock{mutex_};
    return threads_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

/// A provider over the host's memory that says of itself that it takes CUDA's.
struct takes_cuda {
  static inline ::fi_ops_mr operations{};
  static inline int (*original)(::fid*, const ::fi_mr_attr*, std::uint64_t, ::fid_mr**) = nullptr;
  static inline int without_context = 0;

  static void make(transports::libfabric_detail::provider& chosen) {
    chosen.listening_info()->caps |= FI_HMEM;
    operations = *chosen.domain()->mr;
    original = operations.regattr;
    operations.regattr = [](::fid* domain, const ::fi_mr_attr* attributes, std::uint64_t flags,
                            ::fid_mr** made) {
      if (!called_cuda::is_current) ++without_context;
      ::fi_mr_attr of_host = *attributes;
      of_host.iface = FI_HMEM_SYSTEM;
      return original(domain, &of_host, flags, made);
    };
    chosen.domain()->mr = &operations;
  }
};

/// Code and sentence of the refusal.
[[nodiscard]] std::pair<errc, std::string> refusal(libfabric& through, const memory_range& range,
                                                   region_access access) {
  try {
    static_cast<void>(through.register_memory(std::span{&range, 1}, access));
    return {errc::ok, {}};
  } catch (const error& e) {
    return {e.code(), e.sentence()};
  }
}

}  // namespace

TEST_CASE("libfabric: device memory is refused by a sentence that says what is lacking") {
  const fake_device_memory::allocation memory{8192};
  called_cuda named;
  for (const bool asks : {false, true}) {
    CAPTURE(asks);
    libfabric::options options;
    options.device_memory = asks;
    libfabric through{options, incarnation{61}};  // a provider without it is used all the same
    for (const region_access access : {region_access::local_write, region_access::remote_read}) {
      auto range = memory.range();
      const auto other = refusal(through, range, access);
      CHECK(other.first == errc::transport_failed);
      CHECK(other.second.find("not of a CUDA device") != std::string::npos);
      CHECK(other.second.find("range 0 of 1") != std::string::npos);
      range.device = &named;
      const auto lacking = refusal(through, range, access);
      CHECK(lacking.first == errc::transport_failed);
      CHECK(lacking.second.find("FI_HMEM") != std::string::npos);
      CHECK(lacking.second.find("cuda:0 (called so)") != std::string::npos);
      CHECK(lacking.second.find("first_of<libfabric, tcp>") != std::string::npos);
      std::cout << through.description() << ": " << lacking.second << "\n";
      range.device = nullptr;
      const auto nameless = refusal(through, range, access);
      CHECK(nameless.first == errc::invalid_argument);
      CHECK(nameless.second.find("memory_range::device") != std::string::npos);
    }
    CHECK(through.registered_bytes() == 0);
  }
}

TEST_CASE("libfabric: managed memory is refused, its pages move away from those that were registered") {
  std::array<std::byte, 4096> bytes;
  memory_range range{bytes.data(), bytes.size(), memory_kind::cuda_managed};
  libfabric through{{}, incarnation{62}};
  for (const region_access access : {region_access::local_write, region_access::remote_read}) {
    const auto managed = refusal(through, range, access);
    CHECK(managed.first == errc::transport_failed);
    CHECK(managed.second.find("range 0 of 1 (4096 bytes)") != std::string::npos);
    CHECK(managed.second.find("managed memory (cudaMallocManaged)") != std::string::npos);
    CHECK(managed.second.find("first_of<libfabric, tcp>") != std::string::npos);
  }
  CHECK(through.registered_bytes() == 0);
  range.kind = memory_kind::cuda_pinned;
  CHECK(refusal(through, range, region_access::both).first == errc::ok);
}

TEST_CASE("libfabric: a provider that offers FI_HMEM, but knows no CUDA here") {
  called_cuda named;
  libfabric::options options;
  options.provider = "shm";
  options.device_memory = true;
  libfabric through{options, incarnation{62}};
  if (through.description().find("device memory") == std::string::npos) {
    std::cout << "libfabric: skipped, provider shm does not offer FI_HMEM here\n";
    return;
  }
  const fake_device_memory::allocation memory{8192};
  auto range = memory.range();
  range.device = &named;
  for (const region_access access : {region_access::local_write, region_access::remote_read}) {
    const auto [code, sentence] = refusal(through, range, access);
    std::cout << sentence << "\n";
    CHECK(code == errc::transport_failed);
    CHECK(sentence.find("FI_HMEM") != std::string::npos);
    CHECK(sentence.find("built with CUDA") != std::string::npos);
  }
  std::array<std::byte, 4096> plain{};
  CHECK(refusal(through, {plain.data(), plain.size()}, region_access::both).first == errc::ok);
}

TEST_CASE("libfabric: a device's context is current wherever the provider may call its driver") {
  namespace wire = transports::libfabric_detail;
  const libfabric::options options;
  called_cuda device;  // outlives whoever drives the provider
  wire::provider chosen{options};
  const wire::source serving{chosen, options, incarnation{1}, 7};
  takes_cuda::make(chosen);
  const wire::registrar registrar{chosen, options, 7};
  std::array<std::byte, 4096> from{std::byte{1}, std::byte{2}};
  wire::region_core into;
  std::array<std::byte, 4096> to{};
  const auto on_device = [&](std::array<std::byte, 4096>& bytes) {
    memory_range range{bytes.data(), bytes.size(), memory_kind::cuda_device};
    range.device = &device;
    return range;
  };
  const wire::registration shown = registrar.for_peers(on_device(from));
  into.range = on_device(to);
  into.local = registrar.for_own_reads(into.range);
  CHECK(takes_cuda::without_context == 0);

  const auto until = wire::clock::now() + std::chrono::seconds{30};
  wire::queue_core queue{chosen, options, 4};
  const auto endpoint = queue.connect(serving.address(), {}, incarnation{2}, incarnation{1}, until);
  wire::posted_read read;
  read.into = &into;
  read.key = shown.key;
  read.bytes = to.size();
  REQUIRE(queue.post(*endpoint, read) == post_result::posted);
  std::array<completion, 1> done{};
  while (queue.poll(done) == 0 && wire::clock::now() < until) queue.wait(std::chrono::milliseconds{10});
  CHECK(done.front().status == completion_status::ok);
  CHECK(to == from);
  CHECK(device.flushes == 1);
  const auto threads = device.threads();
  CHECK(threads.contains(std::this_thread::get_id()));
  CHECK(threads.size() == 2);  // and the source's
}
