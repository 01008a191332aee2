// Letters of strangers to a source with addressed endpoints: with addresses that are none of the provider's,
// and more of them than a source answers. And a stranger that a reader connects to.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tensorhub/error.hpp>
#include <tensorhub/transports/libfabric.hpp>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
namespace wire = tensorhub::transports::libfabric_detail;
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

}  // namespace

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
