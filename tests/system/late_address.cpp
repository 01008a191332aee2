// A transport whose address is another one after memory was registered (first_of, when a member that does not
// take device memory is stopped): the server must be told the later one.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub.hpp"

using namespace system_tests;
using tensorhub::transports::tcp;

namespace {

/// Nobody is behind its address until it has memory.
class late : public tcp {
 public:
  using tcp::tcp;
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const tensorhub::memory_range> ranges,
                                                           tensorhub::region_access access) {
    has_memory_ = true;
    return tcp::register_memory(ranges, access);
  }
  [[nodiscard]] tensorhub::transport_address address() const {
    return has_memory_ ? tcp::address() : tensorhub::transport_address{"tcp://127.0.0.1:1"};
  }

 private:
  std::atomic<bool> has_memory_ = false;
};
using late_hub = tensorhub::hub<late>;

/// One of this machine's addresses that is not loopback; empty: it has none.
[[nodiscard]] std::string network_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned{all, &::freeifaddrs};
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text, sizeof text);
    if (!std::string_view{text}.starts_with("127.")) return text;
  }
  return {};
}

}  // namespace

TEST_CASE("a server may listen at an IPv6 address, and workers reach it there") {
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  const tensorhub::detail::unique_fd socket{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) != 0) {
    std::cout << "SKIPPED: system.late_address: this machine has no IPv6\n";
    return;
  }
  for (const std::string where : {"tcp://[::1]:0", "tcp://[::]:0"}) {
    CAPTURE(where);
    hub::reference_server server{{.address = where}};
    const std::string port = server.address().substr(server.address().rfind(':'));
    trainer source{who("tcp://[::1]" + port, "trainer-0")};
    source.publish(1);
    const bool is_dual = where == "tcp://[::]:0";
    rollout reader{who((is_dual ? "tcp://127.0.0.1" : "tcp://[::1]") + port, "rollout-0")};
    CHECK(reader.worker.update(exactly(1), 20s).version == 1);
  }
  std::string sentence;
  const std::string nobody = "tcp://" + std::string(64, 'n') + ":0";  // too long to be asked of a name server
  CHECK(code_of([&] { const hub::reference_server never{{.address = nobody}}; }, &sentence) ==
        errc::transport_failed);
  CHECK_MESSAGE(contains(sentence, "give a numeric address"), sentence);
}

TEST_CASE("a worker tells its peers an address that other machines can use, or is refused") {
  using worker = worker_of_both_doors;
  const auto told = [](const std::string& server, const tcp::options& through,
                       std::chrono::milliseconds patience = 10s) {
    auto options = who_here(server, "trainer-0");
    options.join_timeout = patience;
    member<worker> one{options, 1000, through};
    const std::string address = one.worker.data().address().text;
    return address.substr(0, address.rfind(':'));
  };
  SUBCASE("a server on this machine: nothing changes") {
    CHECK(told("tcp://127.0.0.1:5570", {}) == "tcp://127.0.0.1");
    CHECK(told("tcp://127.0.0.1:5570", {.listen_host = "0.0.0.0"}) == "tcp://0.0.0.0");
  }
  SUBCASE("the address towards a server on another machine") {
    const std::string own = network_address();
    if (own.empty()) {
      std::cout << "SKIPPED: system.late_address: this machine has no address but loopback\n";
      return;
    }
    const std::string server = "tcp://127.0.0.1:5570,tcp://" + own + ":5570";
    CHECK(told(server, {}) == "tcp://" + own);
    CHECK(told(server, {.listen_host = "0.0.0.0"}) == "tcp://" + own);
    CHECK(told(server, {.listen_host = own}) == "tcp://" + own);
    CHECK(told(server, {.listen_host = "127.0.0.1", .advertised_host = "10.9.8.7"}) == "tcp://10.9.8.7");
    const tcp::options by_name{.advertised_host = "node-7", .names_in_addresses = true};
    CHECK(told(server, by_name) == "tcp://node-7");
  }
  SUBCASE("refused") {
    const auto refusal = [&](const std::string& server, const tcp::options& through,
                             errc code = errc::invalid_argument) {
      try {
        return "told " + told(server, through, 300ms);
      } catch (const tensorhub::error& e) {
        CHECK(e.code() == code);
        return e.sentence();
      }
    };
    const std::string loopback = refusal("tcp://10.0.0.1:5570", {.listen_host = "127.0.0.1"});
    CHECK(contains(loopback, "would be at '127.0.0.1', which only this machine can use"));
    CHECK(contains(loopback, "set listen_host, or advertised_host"));
    CHECK(contains(refusal("tcp://[fe80::1]:5570", {}, errc::disconnected),
                   "no route to the reference server"));
    // A name of 127.0.0.1, as Debian's /etc/hosts has one for the machine itself.
    CHECK(contains(refusal("tcp://0x7f.1:5570", {}), "which only this machine can use"));
  }
}

TEST_CASE("a worker with an advertised host listens where its peers can reach it") {
  const std::string own = network_address();
  if (own.empty()) {
    std::cout << "SKIPPED: system.late_address: this machine has no address but loopback\n";
    return;
  }
  const auto listens = [](const std::string& server, std::string host, std::string advertised = "10.9.8.7") {
    auto options = who_here(server, "trainer-0");
    options.join_timeout = 300ms;
    const std::string told = advertised;
    tensorhub::make_reachable(options, host, advertised);
    CHECK(advertised == told);
    return host;
  };
  CHECK(listens("tcp://" + own + ":5570", "") == own);
  CHECK(listens("tcp://" + own + ":5570", "127.0.0.1") == "127.0.0.1");
  CHECK(listens("tcp://" + own + ":5570", "0.0.0.0") == "0.0.0.0");
  CHECK(listens("tcp://127.0.0.1:5570", "") == "");
  CHECK(listens("ipc://server.socket", "") == "");
  CHECK(listens("tcp://" + own + ":5570", "", "127.0.0.1") == "");
  // There is no route, and the name is one of 127.0.0.1.
  CHECK(code_of([&] { listens("tcp://[fe80::1]:5570", ""); }) == errc::disconnected);
  CHECK(code_of([&] { listens("tcp://0x7f.1:5570", ""); }) == errc::invalid_argument);
}

TEST_CASE("a worker knows which of the hosts that its peers are told the library has chosen") {
  const std::string own = network_address();
  if (own.empty()) {
    std::cout << "SKIPPED: system.late_address: this machine has no address but loopback\n";
    return;
  }
  const auto chosen = [&](tcp::options through, const std::string& server) {
    std::vector<std::string> out;
    static_cast<void>(tensorhub::reachable(std::move(through), who_here(server, "trainer-0"), out));
    return out;
  };
  const std::string server = "tcp://" + own + ":5570";
  CHECK(chosen({}, server) == std::vector{own});
  CHECK(chosen({.listen_host = "0.0.0.0"}, server) == std::vector{own});
  CHECK(chosen({.listen_host = own}, server).empty());
  CHECK(chosen({.advertised_host = "10.9.8.7"}, server).empty());
  CHECK(chosen({}, "tcp://127.0.0.1:5570").empty());
}

TEST_CASE("the address that readers are told is the one after registration") {
  late_hub::reference_server server;
  member<late_hub::publisher> source{who_here(server.address(), "trainer-0"), 1000};
  member<late_hub::subscriber> reader{who_here(server.address(), "rollout-0"), 1000};
  source.publish(1);
  CHECK(reader.worker.update(exactly(1), 10s).version == 1);
  CHECK(reader.memory.holds(1));
}
