// Keys of the verbs transport that end: by memory windows and by another registration, many times, while
// others read, from several threads, and on devices that have no windows or stop making them.

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/verbs.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "rdma_addresses.hpp"
#include "source_process.hpp"

namespace {

using namespace std::chrono_literals;
using namespace source_processes;
using softroce_tests::rdma_addresses;
namespace parts = tensorhub::transports::verbs_detail;
using tensorhub::memory_range;
using tensorhub::region_access;
using tensorhub::remote_region;
using tensorhub::transports::revocation_mode;
using tensorhub::transports::verbs;

constexpr std::uint64_t source_bytes = 300'001;

verbs::options with(revocation_mode mode) {
  verbs::options options;
  options.listen_addresses = {rdma_addresses().front()};
  options.peer_timeout = 3s;
  options.revocation = mode;
  return options;
}

/// A source in this process, of one region of ones.
struct local_source {
  tensorhub::host_memory::allocation memory{source_bytes};
  memory_range range = memory.range();
  verbs through;
  std::vector<verbs::memory_region> regions;

  explicit local_source(const verbs::options& options, region_access access = region_access::remote_read)
      : through{options, source_id} {
    std::memset(range.data, 1, range.bytes);
    regions = through.register_memory(std::span{&range, 1}, access);
  }
  [[nodiscard]] verbs::memory_region& region() { return regions.front(); }
  [[nodiscard]] remote_region described() const { return through.describe(regions.front()); }
  [[nodiscard]] std::string how_read() const { return through.how_read(regions.front()); }
};

struct local_reader : reading_side<verbs> {
  local_reader() : reading_side<verbs>{with(revocation_mode::automatic), source_bytes} {}
  [[nodiscard]] bool reads(const remote_region& from) {
    std::memset(range.data, 0, range.bytes);
    return read(from, from.bytes) == completion_status::ok && others_than(std::byte{1}, std::byte{1}) == 0;
  }
  [[nodiscard]] bool is_denied(const local_source& by, const remote_region& from) {
    std::memset(range.data, 0, range.bytes);
    const auto status = read(from);
    const bool nothing_came = others_than(std::byte{0}, std::byte{0}) == 0;
    connect(by.through.address());
    return nothing_came &&
           (status == completion_status::access_denied || status == completion_status::peer_lost);
  }
};

std::set<std::uint32_t> rkeys_of(const remote_region& described) {
  parts::region_key key;
  REQUIRE(parts::decode_key(described.key, source_id, key));
  const auto count = std::size_t{key.head.rails} * key.head.pieces;
  return {key.rkeys.begin(), key.rkeys.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::atomic<bool> is_soft_roce = true;

/// The shared context of the device: while this lives, it seems to be an adapter's, whose windows are used by
/// default, and they are made as a test says.
struct spoiled_device {
  parts::handle<rdma_event_channel> channel = parts::make_event_channel();
  parts::handle<rdma_cm_id> id = parts::make_id(*channel);
  ibv_context_ops before;
  static inline decltype(ibv_context_ops::bind_mw) bind = nullptr;
  static inline std::uint32_t number_again = 0;
  static inline std::atomic<int> binding = 0;
  static inline std::atomic<bool> bound_at_once = false;

  spoiled_device() {
    auto here = parts::resolve(rdma_addresses().front(), {}, true);
    REQUIRE(::rdma_bind_addr(id.get(), here.get()) == 0);
    before = id->verbs->ops;
    bind = before.bind_mw;
    is_soft_roce = false;
  }
  ~spoiled_device() {
    mend();
    is_soft_roce = true;
  }
  spoiled_device(const spoiled_device&) = delete;
  spoiled_device& operator=(const spoiled_device&) = delete;

  void mend() { id->verbs->ops = before; }
  void has_no_windows() {
    id->verbs->ops.alloc_mw = [](ibv_pd*, ibv_mw_type) -> ibv_mw* {
      errno = ENOMEM;
      return nullptr;
    };
  }
  /// The device itself refuses: the window would reach over the registration's end.
  void refuses_to_bind() {
    id->verbs->ops.bind_mw = [](ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) {
      wanted->bind_info.length += 4096;
      return bind(pair, window, wanted);
    };
  }
  /// The next window seems to have this number.
  void gives_again(std::uint32_t number) {
    number_again = number;
    id->verbs->ops.bind_mw = [](ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) {
      const int trouble = bind(pair, window, wanted);
      if (number_again != 0) window->rkey = std::exchange(number_again, 0);
      return trouble;
    };
  }
  void is_slow() {
    bound_at_once = false;
    id->verbs->ops.bind_mw = [](ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) {
      if (++binding > 1) bound_at_once = true;
      std::this_thread::sleep_for(1ms);
      const int trouble = bind(pair, window, wanted);
      --binding;
      return trouble;
    };
  }
  void is_silent() {
    id->verbs->ops.bind_mw = [](ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) {
      wanted->send_flags = 0;
      return bind(pair, window, wanted);
    };
  }
};

bool says(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  return text.find(part) != std::string::npos;
}

template <typename Call>
std::string sentence_of(Call&& call) {
  try {
    call();
  } catch (const tensorhub::error& thrown) {
    CHECK(thrown.code() == errc::transport_failed);
    return thrown.sentence();
  }
  return "nothing was thrown";
}

}  // namespace

/// Instead of the library's.
extern "C" int ibv_query_device(ibv_context* context, ibv_device_attr* into) {
  static const auto original =
      reinterpret_cast<decltype(&::ibv_query_device)>(::dlsym(RTLD_NEXT, "ibv_query_device"));
  const int trouble = original(context, into);
  if (!is_soft_roce) into->vendor_id = 0x02c9;
  return trouble;
}

TEST_CASE("verbs: keys are windows by default on an adapter, never on Soft-RoCE, and as they are asked for") {
  says(local_source{with(revocation_mode::automatic)}.how_read(),
       "peers' keys are registrations: Soft-RoCE sends a packet after its memory window has been destroyed");
  const spoiled_device adapter;
  says(local_source{with(revocation_mode::automatic)}.how_read(), "peers' keys are memory windows");
  says(local_source{with(revocation_mode::memory_windows)}.how_read(), "peers' keys are memory windows");
  says(local_source{with(revocation_mode::registration)}.how_read(),
       "peers' keys are registrations: revocation_mode::registration");
}

TEST_CASE("verbs: read-only memory has no windows, and is read by a registration") {
  const spoiled_device adapter;
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  std::memset(mapped, 1, 4096);
  REQUIRE(::mprotect(mapped, 4096, PROT_READ) == 0);
  const memory_range range{static_cast<std::byte*>(mapped), 4096};
  {
    verbs source{with(revocation_mode::automatic), source_id};
    const auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
    says(source.how_read(regions.front()), "registrations: the memory is not mapped, or not writable");
    local_reader reader;
    reader.connect(source.address());
    CHECK(reader.read(source.describe(regions.front())) == completion_status::ok);
    CHECK(reader.others_than(std::byte{1}, std::byte{1}, 0, 4096) == 0);
  }
  ::munmap(mapped, 4096);
}

TEST_CASE("verbs: 300 revokes: no key is that before it, the last one works, the earlier ones do not") {
  for (const auto mode : {revocation_mode::memory_windows, revocation_mode::registration}) {
    CAPTURE(static_cast<int>(mode));
    auto options = with(mode);
    options.largest_registration_bytes = 128u << 10;
    options.listen_addresses.push_back(options.listen_addresses.front());
    local_source source{options};
    local_reader reader;
    reader.connect(source.through.address());
    std::vector<remote_region> keys{source.described()};
    CHECK(rkeys_of(keys.back()).size() == 6);  // three pieces, two rails
    for (int i = 1; i <= 300; ++i) {
      source.through.revoke(source.region());
      keys.push_back(source.described());
      const auto before = rkeys_of(keys[keys.size() - 2]);
      for (const std::uint32_t each : rkeys_of(keys.back())) REQUIRE(before.count(each) == 0);
      if (i % 30 != 0) continue;
      CHECK(reader.reads(keys.back()));
      CHECK(reader.is_denied(source, keys[keys.size() - 2]));
      CHECK(reader.is_denied(source, keys[keys.size() - 20]));
    }
    CHECK(reader.is_denied(source, keys.front()));
    CHECK(reader.reads(keys.back()));
  }
}

TEST_CASE("verbs: a device that gives a window the number of the one before is asked for another") {
  spoiled_device device;
  local_source source{with(revocation_mode::memory_windows)};
  local_reader reader;
  reader.connect(source.through.address());
  const auto before = rkeys_of(source.described());
  device.gives_again(*before.begin());
  source.through.revoke(source.region());
  CHECK(spoiled_device::number_again == 0);
  CHECK(rkeys_of(source.described()) != before);
  CHECK(reader.reads(source.described()));
}

TEST_CASE("verbs: a region that is source and target goes on receiving while it is revoked") {
  for (const auto mode : {revocation_mode::memory_windows, revocation_mode::registration}) {
    CAPTURE(static_cast<int>(mode));
    const local_source source{with(mode)};
    verbs both{with(mode), reader_id};
    const tensorhub::host_memory::allocation memory{source_bytes};
    const auto range = memory.range();
    auto regions = both.register_memory(std::span{&range, 1}, region_access::both);
    auto queue = both.make_queue(1);
    auto endpoint = both.connect(queue, source.through.address(), source_id, 10s);
    const auto described = source.described();
    std::atomic<int> revoked = 0;
    const std::jthread revoking{[&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); ++revoked) both.revoke(regions.front());
    }};
    const auto until = std::chrono::steady_clock::now() + 60s;
    for (int reads = 0; reads < 50 || (revoked < 50 && std::chrono::steady_clock::now() < until); ++reads) {
      std::memset(range.data, 0, range.bytes);
      REQUIRE(queue.post_read(endpoint, regions.front(), 0, {&described, 0, range.bytes}, 1) ==
              tensorhub::post_result::posted);
      REQUIRE(counted(drain_each(queue)).count(completion_status::ok) == 1);
      REQUIRE(std::memcmp(range.data, source.range.data, range.bytes) == 0);
    }
    CHECK(revoked >= 50);
  }
}

TEST_CASE("verbs: several threads revoke regions of one transport, whose windows are made one by one") {
  constexpr std::size_t threads = 4;
  spoiled_device device;
  local_source source{with(revocation_mode::memory_windows)};
  device.is_slow();
  std::vector<verbs::memory_region> regions;
  for (std::size_t i = 0; i < threads; ++i) {
    auto made = source.through.register_memory(std::span{&source.range, 1}, region_access::remote_read);
    regions.push_back(std::move(made.front()));
  }
  {
    std::vector<std::jthread> revoking;
    for (auto& region : regions) {
      revoking.emplace_back([&] {
        for (int i = 0; i < 100; ++i) source.through.revoke(region);
      });
    }
  }
  CHECK(!spoiled_device::bound_at_once);
  local_reader reader;
  reader.connect(source.through.address());
  std::set<std::uint32_t> all;
  for (const auto& region : regions) {
    all.merge(rkeys_of(source.through.describe(region)));
    CHECK(reader.reads(source.through.describe(region)));
  }
  CHECK(all.size() == threads);
}

TEST_CASE("verbs: a device without memory windows: said if they are asked for, registrations otherwise") {
  spoiled_device device;
  device.has_no_windows();
  const auto sentence = sentence_of([] { const verbs made{with(revocation_mode::memory_windows), {1}}; });
  for (const std::string part : {"revocation_mode::memory_windows", "rxe0", "there is no memory window",
                                 "Cannot allocate memory", "revocation_mode::automatic"})
    says(sentence, part);
  device.mend();
  device.refuses_to_bind();
  says(sentence_of([] {
         const verbs made{with(revocation_mode::memory_windows), {1}};
       }),
       "the device does not bind a memory window: ");
  local_source source{with(revocation_mode::automatic)};
  says(source.how_read(), "peers' keys are registrations: the device does not bind a memory window: ");
  const auto before = source.described();
  source.through.revoke(source.region());
  local_reader reader;
  reader.connect(source.through.address());
  CHECK(reader.is_denied(source, before));
  CHECK(reader.reads(source.described()));
}

TEST_CASE("verbs: a device that stops making windows: other regions have registrations, or it is said") {
  struct way {
    void (spoiled_device::*spoil)();
    std::string reason;
  };
  for (const way& how :
       std::vector<way>{{&spoiled_device::has_no_windows, "there is no memory window"},
                        {&spoiled_device::refuses_to_bind, "the device does not bind a memory window"},
                        {&spoiled_device::is_silent, "does not say within 2 s"}}) {
    CAPTURE(how.reason);
    spoiled_device device;
    local_source source{with(revocation_mode::automatic)};
    local_source strict{with(revocation_mode::memory_windows)};
    const auto before = source.described();
    (device.*how.spoil)();
    const auto second = source.through.register_memory(std::span{&source.range, 1}, region_access::both);
    says(source.through.how_read(second.front()), "peers' keys are registrations: ");
    says(source.through.how_read(second.front()), how.reason);
    const auto sentence = sentence_of([&] {
      static_cast<void>(strict.through.register_memory(std::span{&strict.range, 1}, region_access::both));
    });
    for (const std::string& part :
         {std::string{"range 0 of 1"}, std::string{"revocation_mode::memory_windows: "}, how.reason})
      says(sentence, part);
    CHECK(strict.through.registered_bytes() == source_bytes);
    source.through.revoke(source.region());
    says(sentence_of([&] { static_cast<void>(source.described()); }), "cannot be read any more");
    says(sentence_of([&] { static_cast<void>(source.described()); }), how.reason);
    local_reader reader;
    reader.connect(source.through.address());
    CHECK(reader.is_denied(source, before));
    CHECK(reader.reads(source.through.describe(second.front())));
    device.mend();
    source.through.revoke(source.region());  // the queue pair that failed has been replaced
    CHECK(reader.reads(source.described()));
    CHECK(reader.is_denied(source, before));
  }
}
