// The libfabric transport against sources in other processes, which are killed, stopped or replaced while
// they are read; against strangers; with options that cannot be met; and with keys forged so that only the
// source's provider can tell.

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/libfabric.hpp>
#include <thread>
#include <vector>

#include "shm_files.hpp"
#include "source_process.hpp"
#include "support/calls.hpp"

namespace {

using namespace source_processes;
using calls::contains;
using tensorhub::transports::libfabric;
namespace detail = tensorhub::transports::libfabric_detail;

constexpr const char* test_case_of_source = "libfabric: what a source does (a process of its own)";

libfabric::options options_of(const std::string& provider, std::uint16_t port = 0) {
  libfabric::options options;
  options.provider = provider;
  options.listen_port = port;
  options.peer_timeout = 700ms;
  return options;
}

struct source_order {
  std::array<char, 32> provider{};
  std::uint16_t port = 0;
  incarnation self{};
};

/// A process that serves one region until it is killed: this program again, with one test case. (A fork alone
/// would inherit a libfabric that has been used.)
class fabric_source {
 public:
  tensorhub::transport_address address{};
  tensorhub::remote_region region{};

  explicit fabric_source(const std::string& provider, incarnation self = source_id, std::uint16_t port = 0)
      : provider_{provider} {
    source_order order{.provider = {}, .port = port, .self = self};
    provider.copy(order.provider.data(), order.provider.size() - 1);
    process_.line().tell(order);
    address.text = process_.line().take<text>().data();
    region = process_.line().take<tensorhub::remote_region>();
  }
  ~fabric_source() { end(); }
  fabric_source(const fabric_source&) = delete;
  fabric_source& operator=(const fabric_source&) = delete;

  void signal(int number) const {
    // A source over `shm` that has nothing to do looks for work, under one of its spin locks, a hundred times
    // a second only; right after work it does so all the time.
    if (provider_ == "shm") std::this_thread::sleep_for(50ms);
    process_.signal(number);
  }
  void end() {
    process_.end();
    shm_files::remove(process_.id());
  }

 private:
  child_process process_ = child_process::of_test_case(test_case_of_source);
  std::string provider_;
};

struct reader : reading_side<libfabric> {
  explicit reader(const std::string& provider) : reading_side{options_of(provider)} {}
};

counts ends(const std::string& provider, int signal, moment when) {
  const fabric_source source{provider};
  return end_while_reading<libfabric>(source, options_of(provider), signal, when);
}

std::uint16_t port_of(const tensorhub::transport_address& address) {
  const auto parsed = detail::peer_address::parsed(address.text);
  REQUIRE(parsed);
  const std::string text = parsed->raw.readable();
  return static_cast<std::uint16_t>(std::stoul(text.substr(text.rfind(':') + 1)));
}

std::string sentence_of(const auto& work) {
  try {
    work();
  } catch (const tensorhub::error& thrown) {
    return thrown.sentence();
  }
  return {};
}

/// What is at a port, and is none of ours.
struct stranger {
  tensorhub::detail::unique_fd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  tensorhub::transport_address address{};
  std::jthread thread;
  /// What it says to whoever comes; nothing: it is silent.
  explicit stranger(const std::string& greeting) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof where;
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&where), bytes) == 0);
    REQUIRE(::listen(listener.get(), 4) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&where), &bytes) == 0);
    detail::raw_address raw{FI_SOCKADDR_IN, std::vector<std::byte>(sizeof where)};
    std::memcpy(raw.bytes.data(), &where, sizeof where);
    address.text = detail::peer_address{"tcp", true, raw}.text();
    thread = std::jthread{[this, greeting](const std::stop_token& stop) {
      std::vector<tensorhub::detail::unique_fd> guests;
      while (!stop.stop_requested()) {
        pollfd waiting{listener.get(), POLLIN, 0};
        if (::poll(&waiting, 1, 50) != 1) continue;
        guests.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        static_cast<void>(::send(guests.back().get(), greeting.data(), greeting.size(), MSG_NOSIGNAL));
      }
    }};
  }
};

const std::array<std::string, 3> providers{"tcp", "tcp;ofi_rxm", "shm"};

}  // namespace

TEST_CASE("libfabric: what a source does (a process of its own)" * doctest::skip()) {
  const channel line = processes::channel_of_parent();
  const auto order = line.take<source_order>();
  const tensorhub::host_memory::allocation memory{region_bytes};
  fill<tensorhub::host_memory>(memory.range(), byte_of(order.self));
  libfabric through{options_of(order.provider.data(), order.port), order.self};
  const auto range = memory.range();
  const auto regions = through.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
  introduce(line, through, regions.front());
  for (;;) ::pause();
}

TEST_CASE("libfabric: the bytes of another process arrive") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    const fabric_source source{provider};
    reader own{provider};
    own.connect(source.address);
    CHECK(own.read(source.region) == completion_status::ok);
    CHECK(own.target.data()[4095] == byte_of_source);
  }
}

// The provider names its queues after the process: a killed one of the same number, or one of another
// container that shares /dev/shm, has them already.
TEST_CASE("libfabric: queues of shm whose names are taken are given other names") {
  const libfabric first{options_of("shm"), source_id};
  const auto files = shm_files::of(::getpid());
  const auto number = [](const std::filesystem::path& file) {
    const std::string name = file.string();
    return std::stoi(name.substr(name.rfind(':') + 1));
  };
  REQUIRE(!files.empty());
  const auto latest = std::ranges::max_element(files, {}, number);
  const std::string stem = latest->string().substr(0, latest->string().rfind(':') + 1);
  std::vector<std::filesystem::path> taken;
  for (int i = 1; i <= 20; ++i) {
    std::filesystem::copy_file(*latest, taken.emplace_back(stem + std::to_string(number(*latest) + i)));
  }
  const std::string refusal = sentence_of([&] {
    const libfabric second{options_of("shm"), source_id};
    CHECK(second.address().text != first.address().text);
  });
  CHECK_MESSAGE(refusal.empty(), refusal);
  for (const auto& file : taken) std::filesystem::remove(file);
}

TEST_CASE("libfabric: reads bring their own bytes after a connection was closed in the middle of others") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    const fabric_source source{provider};
    reader own{provider};
    for (int round = 0; round < 40; ++round) {
      own.connect(source.address);
      own.post_all(source.region);
      const auto until = std::chrono::steady_clock::now() + round % 16 * 100us;
      std::array<completion, 16> done;
      while (std::chrono::steady_clock::now() < until) static_cast<void>(own.queue.poll(done));
      own.connect(source.address);
      own.drain();
      std::memset(own.target.data(), 1, region_bytes);
      own.post_all(source.region);
      CHECK(own.drain() == counts{{completion_status::ok, reads_at_once}});
      const auto* const bytes = own.target.data();
      REQUIRE(std::all_of(bytes, bytes + region_bytes, [](std::byte b) { return b == byte_of_source; }));
    }
  }
}

// Not over `shm`: a process that is killed while it holds one of the spin locks of shared memory leaves its
// peers spinning in the provider (transports/libfabric/README.md).
TEST_CASE("libfabric: a source killed in the middle of reads: each ends once, as ok or peer_lost") {
  for (const std::string& provider : {providers[0], providers[1]}) {
    CAPTURE(provider);
    CHECK(ends(provider, SIGKILL, moment::after_a_completion).contains(completion_status::peer_lost));
  }
}

TEST_CASE("libfabric: a source that is dead already: all reads are lost") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    CHECK(ends(provider, SIGKILL, moment::before_the_reads)[completion_status::peer_lost] == reads_at_once);
  }
}

TEST_CASE("libfabric: a stopped source says nothing: the peer time-out ends the reads") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    CHECK(ends(provider, SIGSTOP, moment::before_the_reads)[completion_status::peer_lost] == reads_at_once);
  }
}

TEST_CASE("libfabric: a stopped source that goes on after the time-out brings no late bytes") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    constexpr std::uint64_t elsewhere = region_bytes - 4096;
    const fabric_source source{provider};
    reader own{provider};
    own.connect(source.address);
    CHECK(own.read(source.region, 4096) == completion_status::ok);
    source.signal(SIGSTOP);
    own.post_all(source.region);
    own.drain();
    std::memset(own.target.data(), 1, region_bytes);
    source.signal(SIGCONT);
    for (int round = 0; round < 4; ++round) {
      own.connect(source.address);
      own.post(source.region, 4096, 0, 0, elsewhere);
      CHECK(own.drain().contains(completion_status::ok));
    }
    std::uint64_t late = 0;
    for (std::uint64_t i = 0; i < elsewhere; ++i) late += own.target.data()[i] != std::byte{1};
    CHECK(late == 0);
  }
}

TEST_CASE("libfabric: connecting to a process that is gone, and to one that is stopped") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    fabric_source source{provider};
    reader own{provider};
    source.signal(SIGSTOP);
    const auto connect = [&] {
      own.endpoint.emplace(own.through.connect(own.queue, source.address, source_id, 300ms));
    };
    // A stopped process's kernel accepts connections, but nobody says welcome.
    CHECK(!sentence_of(connect).empty());
    source.end();
    CHECK(!sentence_of(connect).empty());
  }
}

TEST_CASE("libfabric: another process at the same address: old reads end, the old incarnation is refused") {
  for (const std::string& provider : {providers[0], providers[1]}) {
    CAPTURE(provider);
    fabric_source source{provider};
    std::optional<fabric_source> successor;
    replace_while_reading<libfabric>(
        options_of(provider), source, [&] { source.end(); },
        [&]() -> auto& { return successor.emplace(provider, successor_id, port_of(source.address)); });
  }
}

TEST_CASE("libfabric: strangers that come to a source do not disturb it") {
  for (const std::string& provider : {providers[0], providers[1]}) {
    CAPTURE(provider);
    const fabric_source source{provider};
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port_of(source.address));
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::vector<tensorhub::detail::unique_fd> strangers;
    for (const std::string_view greeting : {"", "GET / HTTP/1.0\r\n\r\n", "x"}) {
      strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      REQUIRE(::connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&where), sizeof where) == 0);
      static_cast<void>(::send(strangers.back().get(), greeting.data(), greeting.size(), MSG_NOSIGNAL));
    }
    strangers.pop_back();  // one goes away, two stay
    reader own{provider};
    own.connect(source.address);
    CHECK(own.read(source.region, region_bytes) == completion_status::ok);
    CHECK(own.target.data()[region_bytes - 1] == byte_of_source);
  }
}

TEST_CASE("libfabric: strangers at the address: an error that names it, in time") {
  for (const std::string greeting : {"", "HTTP/1.1 400 Bad Request\r\n\r\n", "THTHUBW1"}) {
    CAPTURE(greeting);
    const stranger somebody{greeting + std::string(greeting.empty() ? 0 : 512, 'x')};
    libfabric through{{}, reader_id};
    auto queue = through.make_queue(1);
    const std::string sentence =
        sentence_of([&] { const auto never = through.connect(queue, somebody.address, source_id, 700ms); });
    CHECK_MESSAGE(!sentence.empty(), sentence);
  }
  libfabric through{{}, reader_id};
  auto queue = through.make_queue(1);
  for (const std::string text : {"tcp://127.0.0.1:1", "libfabric://", "libfabric://tcp/msg/2/zz",
                                 "libfabric://tcp/msg/2/7f00", "libfabric://tcp/msg/99999999999999/00"}) {
    const std::string sentence =
        sentence_of([&] { const auto never = through.connect(queue, {text}, source_id, 700ms); });
    CHECK_MESSAGE(contains(sentence, text), sentence);
  }
  const libfabric other{options_of("shm"), source_id};
  const std::string sentence =
      sentence_of([&] { const auto never = through.connect(queue, other.address(), source_id, 700ms); });
  CHECK_MESSAGE(contains(sentence, "both sides must use the same"), sentence);
}

TEST_CASE("libfabric: options that cannot be met: the sentence says what there is") {
  const auto refusal_of = [](const libfabric::options& options) {
    return sentence_of([&] { const libfabric never{options, source_id}; });
  };
  const std::string nobody = refusal_of(options_of("nobody"));
  CHECK_MESSAGE(contains(nobody, "no provider 'nobody'"), nobody);
  CHECK_MESSAGE(contains(nobody, "tcp"), nobody);
  CHECK_MESSAGE(contains(nobody, "shm"), nobody);
  const std::string unnamed = refusal_of(options_of(""));
  CHECK_MESSAGE(contains(unnamed, "no provider is named"), unnamed);
  libfabric::options options = options_of("tcp");
  options.domain = "ib9";
  CHECK_MESSAGE(contains(refusal_of(options), "no domain (network device) 'ib9'"), refusal_of(options));
  options = options_of("tcp");
  options.fabric = "10.9.8.0/24";
  CHECK_MESSAGE(contains(refusal_of(options), "no fabric '10.9.8.0/24'"), refusal_of(options));
  options = options_of("tcp");
  options.listen_host = "192.0.2.77";
  CHECK_MESSAGE(contains(refusal_of(options), "192.0.2.77"), refusal_of(options));
  options = options_of("shm");
  options.endpoint_type = tensorhub::transports::fabric_endpoint::connected;
  CHECK_MESSAGE(contains(refusal_of(options), "connected (FI_EP_MSG)"), refusal_of(options));
  const libfabric first{options_of("tcp"), source_id};
  const std::string taken = refusal_of(options_of("tcp", port_of(first.address())));
  CHECK_MESSAGE(contains(taken, "cannot listen at 127.0.0.1"), taken);
}

// The reader's own check of a description is switched off by sealing the forgery again.
TEST_CASE("libfabric: a provider denies what the reader's check would let through") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    const fabric_source source{provider};
    reader own{provider};
    own.connect(source.address);
    const auto forged = [&](const auto& change) {
      auto key = detail::region_key::unpacked(source.region.key);
      REQUIRE(key);
      change(*key);
      key->seal = key->compute_seal();
      tensorhub::remote_region out = source.region;
      out.bytes = key->bytes;
      out.key = key->packed();
      return out;
    };
    const auto require_denied = [&](const tensorhub::remote_region& what, std::uint64_t offset,
                                    const char* which) {
      CAPTURE(which);
      if (!own.endpoint->usable()) own.connect(source.address);
      std::memset(own.target.data(), 1, 4096);
      CHECK(own.read(what, 4096, offset) != completion_status::ok);
      CHECK(own.target.data()[0] == std::byte{1});
    };
    require_denied(forged([](detail::region_key& key) { key.keys[0] ^= 1; }), 0,
                   "one bit of the provider's key");
    require_denied(forged([](detail::region_key& key) { key.keys[0] = 0; }), 0, "the provider's key 0");
    require_denied(forged([](detail::region_key& key) { key.part_bytes = key.bytes *= 2; }),
                   region_bytes - 2048, "a region made larger, across its end");
    require_denied(forged([](detail::region_key& key) { key.part_bytes = key.bytes *= 2; }), region_bytes,
                   "a region made larger, behind its end");
    if (!own.endpoint->usable()) own.connect(source.address);
    CHECK(own.read(source.region, 4096) == completion_status::ok);
  }
}
