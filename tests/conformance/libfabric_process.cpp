// The libfabric transport against sources in other processes, which are killed, stopped or replaced while
// they are read; against strangers; with options that cannot be met; and with keys forged so that only the
// source's provider can tell.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/libfabric.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "../process_signal.hpp"

namespace {

using namespace std::chrono_literals;
using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::incarnation;
using tensorhub::transports::libfabric;
namespace detail = tensorhub::transports::libfabric_detail;

constexpr std::uint64_t region_bytes = 64u << 20;
constexpr incarnation source_id{21};
constexpr incarnation reader_id{22};
constexpr const char* order_variable =
    "TENSORHUB_LIBFABRIC_SOURCE";  // "provider port incarnation descriptor"
constexpr int child_descriptor = 50;

libfabric::options options_of(const std::string& provider, std::uint16_t port = 0) {
  libfabric::options options;
  options.provider = provider;
  options.listen_port = port;
  options.peer_timeout = 700ms;
  return options;
}

/// A process that serves one region until it is killed: this program again, with one test case. (A fork alone
/// would inherit a libfabric that has been used.)
class source_process {
 public:
  tensorhub::transport_address address{};
  tensorhub::remote_region region{};

  explicit source_process(const std::string& provider, incarnation self = source_id, std::uint16_t port = 0) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    const tensorhub::detail::unique_fd from_child{ends[0]};
    tensorhub::detail::unique_fd to_parent{ends[1]};
    std::string order = std::string{order_variable} + "=" + provider + " " + std::to_string(port) + " " +
                        std::to_string(self.value);
    std::vector<char*> variables{order.data()};
    for (char** each = environ; *each != nullptr; ++each) variables.push_back(*each);
    variables.push_back(nullptr);
    std::string program = "/proc/self/exe";
    std::string only = "--test-case=*(a process of its own)";
    std::string even_if_skipped = "--no-skip=1";
    std::array<char*, 4> words{program.data(), only.data(), even_if_skipped.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to_parent.get(), child_descriptor);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int spawned =
        ::posix_spawn(&id_, program.c_str(), &actions, nullptr, words.data(), variables.data());
    ::posix_spawn_file_actions_destroy(&actions);
    REQUIRE(spawned == 0);
    to_parent.reset();
    std::array<char, 1024> text{};
    receive(from_child.get(), text.data(), text.size());
    receive(from_child.get(), &region, sizeof region);
    address.text = text.data();
  }
  ~source_process() { end(); }
  source_process(const source_process&) = delete;
  source_process& operator=(const source_process&) = delete;

  void signal(int number) const { signal_process(id_, number); }
  void end() {
    if (id_ < 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    // Provider shm's queues are files, which nobody removes when their process is killed.
    const std::string mine = std::to_string(id_) + ":";
    std::error_code ignored;
    for (const auto& each : std::filesystem::directory_iterator{"/dev/shm", ignored}) {
      if (each.path().filename().string().starts_with(mine)) std::filesystem::remove(each.path(), ignored);
    }
    id_ = -1;
  }

 private:
  void receive(int descriptor, void* into, std::size_t bytes) {
    std::size_t have = 0;
    while (have < bytes) {
      pollfd readable{descriptor, POLLIN, 0};
      const bool came = ::poll(&readable, 1, 30'000) == 1;
      const auto taken = came ? ::read(descriptor, static_cast<char*>(into) + have, bytes - have) : 0;
      if (taken <= 0) end();
      REQUIRE(taken > 0);
      have += static_cast<std::size_t>(taken);
    }
  }
  pid_t id_ = -1;
};

void serve(const char* order) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::istringstream words{order};
  std::string provider;
  std::uint16_t port = 0;
  incarnation self;
  words >> provider >> port >> self.value;
  const tensorhub::host_memory::allocation memory{region_bytes};
  std::memset(memory.data(), 7, region_bytes);
  libfabric through{options_of(provider, port), self};
  const auto range = memory.range();
  const auto regions = through.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
  const auto described = through.describe(regions.front());
  std::array<char, 1024> text{};
  through.address().text.copy(text.data(), text.size() - 1);
  static_cast<void>(::write(child_descriptor, text.data(), text.size()));
  static_cast<void>(::write(child_descriptor, &described, sizeof described));
  for (;;) ::pause();
}

/// A process that reads: one queue, one region.
struct reader {
  static constexpr std::size_t reads = 8;
  libfabric through;
  tensorhub::host_memory::allocation target{region_bytes};
  std::vector<libfabric::memory_region> into;
  libfabric::queue queue;
  std::optional<libfabric::endpoint> endpoint;
  std::map<completion_status, std::size_t> ended{};

  explicit reader(const std::string& provider)
      : through{options_of(provider), reader_id}, into{registered()}, queue{through.make_queue(reads)} {}
  std::vector<libfabric::memory_region> registered() {
    const auto range = target.range();
    return through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  }
  void connect(const tensorhub::transport_address& address, incarnation peer = source_id) {
    endpoint.reset();
    endpoint.emplace(through.connect(queue, address, peer, 10s));
  }
  void post(const tensorhub::remote_region& from, std::uint64_t bytes, tensorhub::request_id id = 0) {
    REQUIRE(queue.post_read(*endpoint, into.front(), 0, {&from, 0, bytes}, id) ==
            tensorhub::post_result::posted);
  }
  void post_all(const tensorhub::remote_region& from) {
    for (std::size_t i = 0; i < reads; ++i) post(from, region_bytes, i);
  }
  void drain() {
    drain([] {});
  }
  /// Every read ends, and ends once. `after_first()` when the first of them has.
  void drain(const auto& after_first) {
    bool first = true;
    std::vector<std::size_t> times(reads);
    const std::size_t posted = queue.outstanding();
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
      std::array<completion, reads> done;
      const std::size_t count = queue.poll(done);
      if (count > 0 && std::exchange(first, false)) after_first();
      for (std::size_t i = 0; i < count; ++i) {
        ++ended[done[i].status];
        ++times.at(done[i].id);
      }
      if (count == 0) queue.wait(1s);
    }
    CHECK(queue.outstanding() == 0);
    std::size_t once = 0;
    for (const std::size_t count : times) once += count == 1 ? 1 : 0;
    CHECK(once == posted);
    std::array<completion, 4> more;
    CHECK(queue.poll(more) == 0);
  }
  [[nodiscard]] completion_status read(const tensorhub::remote_region& from, std::uint64_t bytes) {
    ended.clear();
    post(from, bytes);
    drain();
    REQUIRE(ended.size() == 1);
    return ended.begin()->first;
  }
};

/// A source over `shm` that has nothing to do looks for work, under one of its spin locks, a hundred times a
/// second only; right after work it does so all the time.
void let_rest(const std::string& provider) {
  if (provider == "shm") std::this_thread::sleep_for(50ms);
}

/// How the reads end when this signal reaches their source before, or in the middle.
std::map<completion_status, std::size_t> end_while_reading(const std::string& provider, int signal,
                                                           bool before) {
  const source_process source{provider};
  reader own{provider};
  own.connect(source.address);
  CHECK(own.read(source.region, 4096) == completion_status::ok);
  CHECK(own.target.data()[4095] == std::byte{7});
  own.ended.clear();
  if (before) {
    let_rest(provider);
    source.signal(signal);
  }
  own.post_all(source.region);
  if (!before) {
    own.drain([&] { source.signal(signal); });
  } else {
    own.drain();
  }
  CHECK(!own.endpoint->usable());
  return own.ended;
}

std::uint16_t port_of(const tensorhub::transport_address& address) {
  const auto parsed = detail::peer_address::parsed(address.text);
  REQUIRE(parsed);
  const std::string text = parsed->raw.readable();
  return static_cast<std::uint16_t>(std::stoul(text.substr(text.rfind(':') + 1)));
}

std::string error_of(const auto& work) {
  try {
    work();
  } catch (const tensorhub::error& thrown) {
    return thrown.sentence();
  }
  return {};
}

bool contains(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
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
  const char* const order = std::getenv(order_variable);
  if (order == nullptr) return;
  serve(order);
}

// Not over `shm`: who is killed while it holds one of the spin locks of shared memory leaves its peers
// spinning in the provider (transports/libfabric/README.md).
TEST_CASE("libfabric: a source killed in the middle of reads: each ends once, as ok or peer_lost") {
  for (const std::string& provider : {providers[0], providers[1]}) {
    CAPTURE(provider);
    const auto ended = end_while_reading(provider, SIGKILL, false);
    CHECK(ended.contains(completion_status::peer_lost));
    CHECK(!ended.contains(completion_status::access_denied));
    CHECK(!ended.contains(completion_status::local_error));
  }
}

TEST_CASE("libfabric: a source that is dead already: all reads are lost") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    CHECK(end_while_reading(provider, SIGKILL, true)[completion_status::peer_lost] == 8);
  }
}

TEST_CASE("libfabric: a stopped source says nothing: the peer time-out ends the reads") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    CHECK(end_while_reading(provider, SIGSTOP, true)[completion_status::peer_lost] == 8);
  }
}

TEST_CASE("libfabric: a stopped source that goes on after the time-out brings no late bytes") {
  std::vector<std::string> of_late_bytes{providers[0], providers[1]};
  // Provider shm lets the source write into the reader's memory, unless it was told not to (see the README).
  const char* const no_cma = std::getenv("FI_SHM_DISABLE_CMA");
  if (no_cma != nullptr && std::string_view{no_cma} == "1") of_late_bytes.push_back("shm");
  for (const std::string& provider : of_late_bytes) {
    CAPTURE(provider);
    constexpr std::uint64_t elsewhere = region_bytes - 4096;
    const source_process source{provider};
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
      REQUIRE(own.queue.post_read(*own.endpoint, own.into.front(), elsewhere, {&source.region, 0, 4096}, 0) ==
              tensorhub::post_result::posted);
      own.ended.clear();
      own.drain();
      CHECK(own.ended.contains(completion_status::ok));
    }
    std::uint64_t late = 0;
    for (std::uint64_t i = 0; i < elsewhere; ++i) late += own.target.data()[i] != std::byte{1};
    CHECK(late == 0);
  }
}

TEST_CASE("libfabric: connecting to a process that is gone, and to one that is stopped") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    source_process source{provider};
    reader own{provider};
    let_rest(provider);
    source.signal(SIGSTOP);
    const auto connect = [&] {
      own.endpoint.emplace(own.through.connect(own.queue, source.address, source_id, 300ms));
    };
    // A stopped process's kernel accepts connections, but nobody says welcome.
    CHECK(!error_of(connect).empty());
    source.end();
    CHECK(!error_of(connect).empty());
  }
}

TEST_CASE("libfabric: another process at the same address: old reads end, the old incarnation is refused") {
  for (const std::string& provider : {providers[0], providers[1]}) {
    CAPTURE(provider);
    constexpr incarnation successor_id{23};
    auto source = std::make_unique<source_process>(provider);
    const auto old_region = source->region;
    reader own{provider};
    own.connect(source->address);
    own.post_all(source->region);
    const auto port = port_of(source->address);
    source->end();
    const source_process successor{provider, successor_id, port};
    REQUIRE(successor.address.text == source->address.text);
    own.drain();
    CHECK(own.ended.contains(completion_status::peer_lost));
    CHECK(!own.ended.contains(completion_status::local_error));
    CHECK(!own.endpoint->usable());
    const std::string refused = error_of([&] { own.connect(successor.address, source_id); });
    CHECK_MESSAGE(contains(refused, "another process"), refused);
    own.connect(successor.address, successor_id);
    CHECK(own.read(old_region, 4096) == completion_status::access_denied);
    CHECK(own.read(successor.region, 4096) == completion_status::ok);
  }
}

TEST_CASE("libfabric: strangers that come to a source do not disturb it") {
  for (const std::string& provider : {providers[0], providers[1]}) {
    CAPTURE(provider);
    const source_process source{provider};
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
    CHECK(own.target.data()[region_bytes - 1] == std::byte{7});
  }
}

TEST_CASE("libfabric: strangers at the address: an error that names it, in time") {
  for (const std::string greeting : {"", "HTTP/1.1 400 Bad Request\r\n\r\n", "THTHUBW1"}) {
    CAPTURE(greeting);
    const stranger somebody{greeting + std::string(greeting.empty() ? 0 : 512, 'x')};
    libfabric through{{}, reader_id};
    auto queue = through.make_queue(1);
    const std::string sentence =
        error_of([&] { const auto never = through.connect(queue, somebody.address, source_id, 700ms); });
    CHECK_MESSAGE(!sentence.empty(), sentence);
  }
  libfabric through{{}, reader_id};
  auto queue = through.make_queue(1);
  for (const std::string text : {"tcp://127.0.0.1:1", "libfabric://", "libfabric://tcp/msg/2/zz",
                                 "libfabric://tcp/msg/2/7f00", "libfabric://tcp/msg/99999999999999/00"}) {
    const std::string sentence =
        error_of([&] { const auto never = through.connect(queue, {text}, source_id, 700ms); });
    CHECK_MESSAGE(contains(sentence, text), sentence);
  }
  const libfabric other{options_of("shm"), source_id};
  const std::string sentence =
      error_of([&] { const auto never = through.connect(queue, other.address(), source_id, 700ms); });
  CHECK_MESSAGE(contains(sentence, "both sides must use the same"), sentence);
}

TEST_CASE("libfabric: options that cannot be met: the sentence says what there is") {
  const auto sentence_of = [](const libfabric::options& options) {
    return error_of([&] { const libfabric never{options, source_id}; });
  };
  const std::string nobody = sentence_of(options_of("nobody"));
  CHECK_MESSAGE(contains(nobody, "no provider 'nobody'"), nobody);
  CHECK_MESSAGE(contains(nobody, "tcp"), nobody);
  CHECK_MESSAGE(contains(nobody, "shm"), nobody);
  const std::string unnamed = sentence_of(options_of(""));
  CHECK_MESSAGE(contains(unnamed, "no provider is named"), unnamed);
  libfabric::options options = options_of("tcp");
  options.domain = "ib9";
  CHECK_MESSAGE(contains(sentence_of(options), "no domain (network device) 'ib9'"), sentence_of(options));
  options = options_of("tcp");
  options.fabric = "10.9.8.0/24";
  CHECK_MESSAGE(contains(sentence_of(options), "no fabric '10.9.8.0/24'"), sentence_of(options));
  options = options_of("tcp");
  options.listen_host = "192.0.2.77";
  CHECK_MESSAGE(contains(sentence_of(options), "192.0.2.77"), sentence_of(options));
  options = options_of("shm");
  options.endpoint_type = tensorhub::transports::fabric_endpoint::connected;
  CHECK_MESSAGE(contains(sentence_of(options), "connected (FI_EP_MSG)"), sentence_of(options));
  const libfabric first{options_of("tcp"), source_id};
  const std::string taken = sentence_of(options_of("tcp", port_of(first.address())));
  CHECK_MESSAGE(contains(taken, "cannot listen at 127.0.0.1"), taken);
}

// The reader's own check of a description is switched off by sealing the forgery again.
TEST_CASE("libfabric: a provider denies what the reader's check would let through") {
  for (const std::string& provider : providers) {
    CAPTURE(provider);
    const source_process source{provider};
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
      REQUIRE(own.queue.post_read(*own.endpoint, own.into.front(), 0, {&what, offset, 4096}, 0) ==
              tensorhub::post_result::posted);
      own.ended.clear();
      own.drain();
      CHECK(!own.ended.contains(completion_status::ok));
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
