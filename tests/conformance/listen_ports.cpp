// Where a transport listens: the ports of further transports of one process, where a fixed one was asked for,
// and machines that have addresses of one family only.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <tensorhub/detail/unique_socket.hpp>
#include <tensorhub/testing/faulty.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <tensorhub/types/transport_options.hpp>
#include <tuple>

#include "support/child_process.hpp"

using namespace tensorhub;
using tensorhub::transports::same_host;
using tensorhub::transports::tcp;

namespace {

/// This process gets a network of its own: a loopback interface, and one address, of IPv6. False: it may not.
[[nodiscard]] bool enter_network_of_ipv6() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const detail::unique_socket socket{::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  ifreq loopback{};
  std::memcpy(loopback.ifr_name, "lo", 3);
  loopback.ifr_flags = IFF_UP;
  in6_ifreq added{};
  added.ifr6_ifindex = 1;
  added.ifr6_prefixlen = 128;
  return socket && ::ioctl(socket.get(), SIOCSIFFLAGS, &loopback) == 0 &&
         ::inet_pton(AF_INET6, "fd77::9", &added.ifr6_addr) == 1 &&
         ::ioctl(socket.get(), SIOCSIFADDR, &added) == 0;
}

}  // namespace

TEST_CASE("tcp: where this machine has addresses of IPv6 only, those of IPv4 and names work still") {
  const processes::child_process child{[](processes::channel& line) {
    if (!enter_network_of_ipv6()) return line.say("no network");
    const auto tried = [](tcp::options how) -> std::string {
      how.listen_host = how.advertised_host;
      try {
        tcp both{how, {1}};
        auto queue = both.make_queue(1);
        static_cast<void>(both.connect(queue, both.address(), {1}, std::chrono::seconds{10}));
        return "";
      } catch (const error& e) {
        return std::string{e.what()} + "; ";
      }
    };
    std::string trouble = "trouble: ";
    for (const char* const host : {"", "127.0.0.1", "::1", "fd77::9", "localhost"}) {
      for (const bool names : {false, true})
        trouble += tried({.advertised_host = host, .names_in_addresses = names});
    }
    line.say(trouble);
  }};
  const std::string said = child.line().hear(std::chrono::seconds{60});
  if (said == "no network")
    std::cout << "SKIPPED: conformance.listen_ports: no network of its own can be made here" << std::endl;
  else
    CHECK(said == "trouble: ");
}

TEST_CASE("listen ports: fixed ones become free, of what is composed, decorated, or built on another") {
  tcp::options plain;
  plain.listen_port = 4000;
  CHECK(on_any_port(plain).listen_port == 0);
  static_cast<void>(on_any_port(same_host::options{}));  // has none
  using composed = first_of<same_host, testing::faulty<tcp>>;
  composed::options how;
  std::get<1>(how.members).inner.listen_port = 5000;
  CHECK(std::get<1>(on_any_port(how).members).inner.listen_port == 0);
  struct {
    transports::tcp_options tcp{};
  } over_tcp;  // as transport tls
  over_tcp.tcp.listen_port = 6000;
  CHECK(on_any_port(over_tcp).tcp.listen_port == 0);
}

TEST_CASE("listen ports: a fixed port is free when its process has given it up, whatever it has forked") {
  tcp::options how;
  auto before = std::make_optional<tcp>(how, incarnation{1});
  const std::string where = before->address().text;
  how.listen_port = static_cast<std::uint16_t>(std::stoi(where.substr(where.rfind(':') + 1)));
  const processes::child_process lives_on{[](processes::channel& line) {
    line.say("ready");
    static_cast<void>(line.ready(processes::for_ever));
  }};
  CHECK(lives_on.line().hear(std::chrono::seconds{30}) == "ready");
  before.reset();
  const tcp after{how, incarnation{2}};
  CHECK(after.address().text == where);
}
