// Letters of strangers to a source with addressed endpoints: with addresses that are none of the provider's,
// and more of them than a source answers. A stranger that a reader connects to. And crowds of readers.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/error.hpp>
#include <tensorhub/transports/libfabric.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "descriptor_shortage.hpp"
#include "shm_files.hpp"
#include "support/child_process.hpp"

namespace {

using namespace std::chrono_literals;
namespace wire = tensorhub::transports::libfabric_detail;
using processes::child_process;
using tensorhub::incarnation;
using tensorhub::transports::libfabric;

constexpr incarnation source_id{51};
constexpr incarnation another_process{52};
constexpr incarnation stranger_id{53};
using bytes = std::vector<std::byte>;

[[nodiscard]] libfabric::options options_of(const std::string& provider) {
  libfabric::options options;
  options.provider = provider;
  return options;
}

/// An endpoint that writes what it likes to a source, and reads the answers in their order.
class stranger {
 public:
  stranger(const std::string& provider, const tensorhub::transport_address& source)
      : provider_{options_of(provider)} {
    for (auto& each : inbox_) {
      each = std::make_unique<wire::message>(provider_, provider_.domain());
      REQUIRE(each->receive(self_.endpoint.get()) == 0);
    }
    source_ = self_.insert(wire::peer_address::parsed(source.text)->raw.bytes);
    REQUIRE(source_ != FI_ADDR_NOTAVAIL);
  }
  [[nodiscard]] bytes own_address() const { return self_.own_address.bytes; }

  [[nodiscard]] bool takes(std::span<const std::byte> address) {
    return self_.insert(address) != FI_ADDR_NOTAVAIL;
  }

  /// A greeting for this process of the source's, with this address to answer to.
  void write(incarnation wanted, std::uint64_t ticket, const bytes& address) {
    wire::datagram& out = letter_.content;
    out = {};
    out.from_reader.reader = stranger_id.value;
    out.from_reader.source = wanted.value;
    out.ticket = ticket;
    out.address.fill(std::byte{'x'});
    out.address_bytes = static_cast<std::uint32_t>(address.size());
    std::ranges::copy(address, out.address.begin());
    int result = -FI_EAGAIN;
    drive_until([&] {
      if (result == -FI_EAGAIN) result = letter_.send(self_.endpoint.get(), source_);
      return result != -FI_EAGAIN && !letter_.busy;
    });
    REQUIRE(result == 0);
    REQUIRE(letter_.result == 0);
  }
  [[nodiscard]] wire::datagram answer() {
    wire::message& next = *inbox_[answers_++ % inbox_.size()];
    drive_until([&] { return !next.busy; });
    REQUIRE(next.holds(wire::welcome_magic));
    const wire::datagram out = next.content;
    REQUIRE(next.receive(self_.endpoint.get()) == 0);
    return out;
  }

 private:
  template <typename Condition>
  void drive_until(Condition&& is_met) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!is_met()) {
      if (std::chrono::steady_clock::now() > until) FAIL("nothing has come for a minute");
      std::array<::fi_cq_msg_entry, 8> entries{};
      const auto count = ::fi_cq_read(cq_.get(), entries.data(), entries.size());
      for (ssize_t i = 0; i < count; ++i) {
        const auto& each = entries[static_cast<std::size_t>(i)];
        static_cast<wire::message*>(wire::operation::from(each.op_context))->complete(each.len, 0);
      }
      if (count == -FI_EAVAIL) FAIL("an operation has failed");
    }
  }

  wire::provider provider_;
  wire::waiter waiter_{provider_.fabric()};
  wire::message letter_{provider_, provider_.domain()};
  std::array<std::unique_ptr<wire::message>, 64> inbox_{};
  wire::unique_fid<::fid_cq> cq_ = wire::open_cq(provider_.domain(), 256, false, waiter_, "a stranger");
  wire::addressed_endpoint self_{provider_, provider_.domain(), provider_.own_info(), cq_.get()};
  ::fi_addr_t source_ = FI_ADDR_NOTAVAIL;
  std::size_t answers_ = 0;
};

/// Refuses a connection, and says in the refusal that it has accepted it.
class two_faced_listener {
 public:
  explicit two_faced_listener(const std::string& provider) : provider_{options_of(provider)} {
    ::fid_pep* opened = nullptr;
    REQUIRE(::fi_passive_ep(provider_.fabric(), provider_.listening_info(), &opened, nullptr) == 0);
    listener_.reset(opened);
    REQUIRE(::fi_pep_bind(opened, &events_->fid, 0) == 0);
    REQUIRE(::fi_listen(opened) == 0);
  }
  [[nodiscard]] std::string address() const {
    return wire::peer_address{provider_.name(), true, provider_.address_of(*listener_)}.text();
  }
  [[nodiscard]] bool refuse_one() {
    const auto until = std::chrono::steady_clock::now() + 60s;
    wire::connection_event event;
    while (event.read(events_.get()) < 0 || event.kind() != FI_CONNREQ) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(1ms);
    }
    const wire::unique_info request{event.info()};
    wire::welcome answer;
    answer.source = source_id.value;
    return ::fi_reject(listener_.get(), request->handle, &answer, sizeof answer) == 0;
  }

 private:
  wire::provider provider_;
  wire::waiter waiter_{provider_.fabric()};
  wire::unique_fid<::fid_eq> events_ = wire::open_eq(provider_.fabric(), waiter_, "a listener");
  wire::unique_fid<::fid_pep> listener_;
};

// ---- crowds

constexpr const char* test_case_of_crowd = "libfabric: what a crowd of readers does (a process of its own)";

struct crowd_order {
  std::array<char, 32> provider{};
  std::array<char, 512> address{};
  std::uint32_t readers = 0;
  bool keeps_connections = true;
};

/// Connects so often to a source, in a process of its own. (A fork alone would inherit a libfabric that has
/// been used.)
class crowd {
 public:
  /// Returns the number of connections that were made.
  [[nodiscard]] std::uint32_t connect(const std::string& provider, const std::string& address,
                                      std::uint32_t readers, bool keeps_connections) const {
    crowd_order order{.readers = readers, .keeps_connections = keeps_connections};
    provider.copy(order.provider.data(), order.provider.size() - 1);
    address.copy(order.address.data(), order.address.size() - 1);
    process_.line().tell(order);
    return process_.line().take<std::uint32_t>(120s);
  }
  void kill() {
    process_.end();
    shm_files::remove(process_.id());
  }
  crowd() = default;
  ~crowd() { kill(); }
  crowd(const crowd&) = delete;
  crowd& operator=(const crowd&) = delete;

 private:
  child_process process_ = child_process::of_test_case(test_case_of_crowd);
};

[[nodiscard]] std::string refusal_of(const std::string& provider, const std::string& address) {
  libfabric reader{options_of(provider), another_process};
  auto queue = reader.make_queue(1);
  try {
    return reader.connect(queue, {address}, source_id, 20s).usable() ? "" : "not usable";
  } catch (const tensorhub::error& e) {
    return e.sentence();
  }
}

}  // namespace

TEST_CASE("libfabric: what a crowd of readers does (a process of its own)" * doctest::skip()) {
  const auto line = processes::channel_of_parent();
  const auto order = line.take<crowd_order>();
  libfabric reader{options_of(order.provider.data()), stranger_id};
  auto queue = reader.make_queue(1);
  std::vector<libfabric::endpoint> kept;
  std::uint32_t made = 0;
  for (std::uint32_t i = 0; i < order.readers; ++i) {
    try {
      auto endpoint = reader.connect(queue, {order.address.data()}, source_id, 5s);
      ++made;
      queue.wait(10ms);
      if (order.keeps_connections) kept.push_back(std::move(endpoint));
    } catch (const tensorhub::error&) {  // refused
    }
  }
  line.tell(made);
  char never = 0;
  static_cast<void>(line.try_take(never));
}

TEST_CASE("libfabric: connections take at most half of the descriptors that the process may have") {
  const crowd silent;
  const shortages::of_descriptors shortage{100};
  const wire::provider provider{options_of("tcp")};
  const wire::source source{provider, options_of("tcp"), source_id, 1, {.connected = 1h}};
  const std::uint32_t made = silent.connect("tcp", source.address().text(), 150, true);
  CHECK(made > 0);
  CHECK(made <= shortage.limit() / 2);
  std::vector<tensorhub::detail::unique_fd> left;
  for (int i = 0; i < 10; ++i) CHECK(left.emplace_back(::dup(STDERR_FILENO)));
}

TEST_CASE("libfabric: connections over shm that have ended count while they are open") {
  crowd restless;
  libfabric::options options = options_of("shm");
  options.max_connections = 8;
  const libfabric source{options, source_id};
  const std::size_t before = shm_files::of(::getpid()).size();
  CHECK(restless.connect("shm", source.address().text, 24, false) == 8);  // and 16 refused
  CHECK(shm_files::of(::getpid()).size() <= before + 8);
}

TEST_CASE("libfabric: addressed readers that were killed give way to others, late") {
  crowd killed;
  const wire::provider provider{options_of("tcp;ofi_rxm")};
  libfabric::options options = options_of("tcp;ofi_rxm");
  options.max_connections = 2;
  const wire::source source{provider, options, source_id, 1, {.addressed = 15s}};
  const std::string address = source.address().text();
  CHECK(killed.connect("tcp;ofi_rxm", address, 3, true) == 2);
  killed.kill();
  std::string refusal = refusal_of("tcp;ofi_rxm", address);
  CHECK_MESSAGE(refusal.find("max_connections") != std::string::npos, refusal);
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (!refusal.empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(200ms);
    refusal = refusal_of("tcp;ofi_rxm", address);
  }
  CHECK_MESSAGE(refusal.empty(), refusal);
}

TEST_CASE("libfabric: a letter whose address is none of the provider's gets no answer") {
  for (const std::string provider : {"tcp;ofi_rxm", "shm"}) {
    for (const incarnation wanted : {another_process, source_id}) {
      // Within one process, provider shm does not survive endpoints that are closed (README.md).
      if (provider == "shm" && wanted == source_id) continue;
      CAPTURE(provider);
      CAPTURE(wanted.value);
      const auto source = std::make_unique<libfabric>(options_of(provider), source_id);
      stranger other{provider, source->address()};
      const bytes own = other.own_address();
      bytes longer = own;
      longer.push_back(std::byte{'x'});
      for (const bytes& address : {bytes{}, bytes(own.begin(), own.end() - 1), longer})
        other.write(wanted, 1, address);
      other.write(wanted, 2, own);
      CHECK(other.answer().ticket == 2);
    }
  }
}

TEST_CASE("libfabric: refused letters have few answers, and take no place of a reader") {
  const auto source = std::make_unique<libfabric>(options_of("tcp;ofi_rxm"), source_id);
  stranger other{"tcp;ofi_rxm", source->address()};
  const auto begun = std::chrono::steady_clock::now();
  for (std::uint64_t ticket = 0; ticket < 512; ++ticket)
    other.write(another_process, ticket, other.own_address());
  other.write(source_id, 512, other.own_address());
  wire::datagram answer = other.answer();
  std::uint64_t refused = 0;
  for (; answer.ticket != 512; answer = other.answer()) {
    CHECK(answer.from_source.status == wire::welcome_status::other_process);
    ++refused;
  }
  CHECK(answer.from_source.status == wire::welcome_status::accepted);
  // Sixteen at a time, for a second each.
  const auto seconds = 1s + std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - begun);
  CHECK(refused > 0);
  CHECK(refused <= 16u * static_cast<std::uint64_t>(seconds.count()));
}

TEST_CASE("libfabric: letters whose writer has gone before they were read do not disturb a source") {
  const wire::provider provider{options_of("tcp;ofi_rxm")};
  wire::source source{provider, options_of("tcp;ofi_rxm"), source_id, 1};
  const tensorhub::transport_address address{source.address().text()};
  auto gone = std::make_unique<stranger>("tcp;ofi_rxm", address);
  gone->write(another_process, 0, gone->own_address());
  CHECK(gone->answer().ticket == 0);
  source.exclusively([&] {  // more of them than it has posted receives
    for (std::uint64_t ticket = 1; ticket <= 64; ++ticket)
      gone->write(another_process, ticket, gone->own_address());
    gone.reset();
  });
  stranger other{"tcp;ofi_rxm", address};
  other.write(source_id, 65, other.own_address());
  const wire::datagram answer = other.answer();
  CHECK(answer.ticket == 65);
  CHECK(answer.from_source.status == wire::welcome_status::accepted);
}

TEST_CASE("libfabric: what is none of the provider's addresses is given to no provider") {
  for (const std::string provider : {"tcp;ofi_rxm", "shm"}) {
    CAPTURE(provider);
    const libfabric source{options_of(provider), source_id};
    stranger other{provider, source.address()};
    bytes address = other.own_address();
    CHECK(other.takes(address));
    // Longer than the span: who looks beyond the end finds the rest.
    CHECK_FALSE(other.takes(std::span{address}.first(address.size() - 1)));
    CHECK_FALSE(other.takes({}));
    if (provider == "shm") continue;
    address.front() ^= std::byte{1};  // the address family
    CHECK_FALSE(other.takes(address));
  }
}

TEST_CASE("libfabric: a reader gives its provider no address to connect to that is none of the provider's") {
  libfabric reader{options_of("tcp"), stranger_id};
  auto queue = reader.make_queue(1);
  const std::string own = reader.address().text;
  const std::string of_other_family = own.substr(0, own.rfind('/') + 1) + "0a00" + std::string(28, '0');
  for (const std::string& address : {of_other_family, std::string{"libfabric://tcp/msg/0/0a"}}) {
    std::string sentence = "nothing was thrown";
    try {
      static_cast<void>(reader.connect(queue, {address}, source_id, 20s));
    } catch (const tensorhub::error& e) {
      sentence = e.sentence();
    }
    CHECK_MESSAGE(sentence.find("is not an address of provider tcp") != std::string::npos, sentence);
  }
}

TEST_CASE("libfabric: a connection that was refused with the words of an acceptance is none") {
  two_faced_listener listener{"tcp"};
  bool refused = false;
  std::string sentence = "nothing was thrown";
  tensorhub::errc code = tensorhub::errc::ok;
  {
    const std::jthread other{[&] { refused = listener.refuse_one(); }};
    libfabric reader{options_of("tcp"), stranger_id};
    auto queue = reader.make_queue(1);
    try {
      const auto endpoint = reader.connect(queue, {listener.address()}, source_id, 20s);
      CHECK_FALSE(endpoint.usable());
    } catch (const tensorhub::error& e) {
      code = e.code();
      sentence = e.sentence();
    }
  }
  CHECK(refused);
  CHECK_MESSAGE(code == tensorhub::errc::transport_failed, sentence);
  CHECK_MESSAGE(sentence.find("refused the connection") != std::string::npos, sentence);
}
