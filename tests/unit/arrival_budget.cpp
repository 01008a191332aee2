/// \file arrival_budget.cpp
/// Which networks a server accepts connections from, and how the kernel is told.

#include "tensorhub/service/arrival_budget.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/service/listen_filter.hpp"
#include "tensorhub/service/zmq_socket.hpp"

using namespace tensorhub;
using namespace tensorhub::detail;
using namespace std::chrono_literals;

namespace {

constexpr time_point start{1'000'000'000};

[[nodiscard]] ip_network four(std::uint32_t address) {
  return {address, false};
}

void fail(arrival_budget& budget, const ip_network& from, int times, time_point now) {
  for (int i = 0; i < times; ++i) {
    budget.arrived(from, now);
    budget.failed(from, now);
  }
}

}  // namespace

TEST_CASE("arrivals: a fleet behind one address arrives at once, again and again") {
  arrival_budget budget;
  for (int time = 0; time < 100; ++time) {
    for (int i = 0; i < 1000; ++i) budget.arrived(four(7), start);
    for (int i = 0; i < 1000; ++i) budget.proved(four(7), start);
  }
  CHECK_FALSE(budget.refresh(start));
  CHECK(budget.blocked().empty());
  CHECK(budget.times_blocked() == 0);
}

TEST_CASE("arrivals: a network of strangers is blocked, alone, until it has earned new credits") {
  arrival_budget budget;
  budget.arrived(four(8), start);
  fail(budget, four(7), 127, start);
  CHECK_FALSE(budget.refresh(start));
  fail(budget, four(7), 1, start);
  CHECK(budget.refresh(start));
  CHECK(budget.blocked() == std::vector{four(7)});
  CHECK_FALSE(budget.refresh(start));  // nothing has changed since
  fail(budget, four(7), 1000, start);  // what was on its way already makes no debt
  CHECK_FALSE(budget.refresh(start + 3900ms));
  CHECK(budget.blocked().size() == 1);
  CHECK(budget.refresh(start + 4s));
  CHECK(budget.blocked().empty());
  CHECK(budget.times_blocked() == 1);
  fail(budget, four(7), 32, start + 4s);  // it has only what it has earned
  CHECK(budget.refresh(start + 4s));
  CHECK(budget.times_blocked() == 2);
}

TEST_CASE("arrivals: connections that say nothing count, and those that were closed for what they sent") {
  arrival_budget silent;
  for (int i = 0; i < 1023; ++i) silent.arrived(four(7), start);
  CHECK_FALSE(silent.refresh(start));
  silent.arrived(four(7), start);
  CHECK(silent.refresh(start));
  arrival_budget loud;
  for (int i = 0; i < 31; ++i) loud.offended(four(7), start);
  CHECK_FALSE(loud.refresh(start));
  loud.offended(four(7), start);
  CHECK(loud.refresh(start));
}

TEST_CASE("arrivals: what is remembered is bounded") {
  arrival_budget budget;
  for (std::uint32_t each = 1; each <= most_filtered_networks + 1; ++each)
    fail(budget, four(each), 128, start);
  CHECK(budget.refresh(start));
  CHECK(budget.blocked().size() == most_filtered_networks);
  CHECK(budget.blocked().front() == four(2));  // the first one is let in again
  CHECK(budget.blocked().back() == four(most_filtered_networks + 1));
  for (std::uint32_t each = 0; each < arrival_budget::most_networks; ++each)
    budget.arrived(four(1u << 20 | each), start);
  fail(budget, four(9u << 20), 1000, start);  // there is no room for its account
  CHECK_FALSE(budget.refresh(start));
  fail(budget, four(9u << 20), 1000, start + 17s);  // all of the others have all credits again
  CHECK(budget.refresh(start + 17s));
  CHECK(budget.blocked() == std::vector{four(9u << 20)});
}

TEST_CASE("heard budget: so much at once, then so much a second, each sender by itself") {
  heard_budget budget{1000, 100};
  for (int i = 0; i < 10; ++i) CHECK(budget.admits("one", 100, start));
  CHECK_FALSE(budget.admits("one", 1, start));
  CHECK(budget.admits("other", 1000, start));
  CHECK_FALSE(budget.admits("one", 1000, start));  // its debt is no more than what it has at once
  CHECK_FALSE(budget.admits("one", 1, start + 9s));
  CHECK(budget.admits("one", 1, start + 11s));
  CHECK(budget.admits("one", 1000, start + 60s));  // and it saves no more than that
  CHECK_FALSE(budget.admits("one", 1, start + 60s));
}

TEST_CASE("heard budget: senders that have all of it again are forgotten") {
  heard_budget budget{1000, 100};
  CHECK_FALSE(budget.admits("loud", 1001, start));
  for (int i = 0; i < 10'000; ++i) CHECK(budget.admits(std::to_string(i), 1000, start));
  CHECK_FALSE(budget.admits("loud", 100, start));
  for (int i = 0; i < 40'000; ++i) CHECK(budget.admits("new " + std::to_string(i), 1, start + 20s));
  CHECK(budget.admits("loud", 1000, start + 20s));
}

TEST_CASE("arrivals: networks as text and as addresses") {
  CHECK(network_of("10.0.0.7") == ip_network{0x0a000007, false});
  CHECK(network_of("::ffff:10.0.0.7") == network_of("10.0.0.7"));
  CHECK(network_of("2001:db8:0:1::5") == network_of("2001:db8:0:1:ffff::"));
  CHECK(network_of("2001:db8:0:1::5") != network_of("2001:db8:0:2::5"));
  CHECK(to_string(*network_of("10.0.0.7")) == "10.0.0.7");
  CHECK(to_string(*network_of("2001:db8:0:1::5")) == "2001:db8:0:1::/64");
  CHECK_FALSE(network_of("trainer-0"));
  CHECK_FALSE(network_of(""));
  CHECK_FALSE(network_of("10.0.0.7:80"));
}

namespace {

/// A listening socket on every address of a family.
struct door {
  int family;
  unique_fd socket{::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  in_port_t port = 0;

  explicit door(int of) : family{of} {
    sockaddr_in6 address{};
    address.sin6_family = static_cast<sa_family_t>(of);
    socklen_t bytes = of == AF_INET ? sizeof(sockaddr_in) : sizeof address;
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
        ::listen(socket.get(), 16) != 0)
      return;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    port = address.sin6_port;  // at the same place for IPv4
  }
  /// From an IPv4 address, or from ::1. False: not within half a second.
  [[nodiscard]] bool lets_in(std::uint32_t from, unique_fd* keep = nullptr) const {
    unique_fd client{::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = port;
    to.sin6_addr = in6addr_loopback;
    if (family == AF_INET) {
      sockaddr_in self{};
      self.sin_family = AF_INET;
      self.sin_addr.s_addr = htonl(from);
      REQUIRE(::bind(client.get(), reinterpret_cast<const sockaddr*>(&self), sizeof self) == 0);
      self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      self.sin_port = port;
      static_cast<void>(::connect(client.get(), reinterpret_cast<const sockaddr*>(&self), sizeof self));
    } else {
      static_cast<void>(::connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to));
    }
    pollfd end{client.get(), POLLOUT, 0};
    if (::poll(&end, 1, 500) != 1 || (end.revents & (POLLERR | POLLHUP)) != 0) return false;
    if (keep != nullptr) *keep = std::move(client);
    return true;
  }
};

}  // namespace

TEST_CASE("listen filter: whoever is blocked cannot connect, others and old connections can go on") {
  const door here{AF_INET};
  REQUIRE(here.port != 0);
  unique_fd old;
  REQUIRE(here.lets_in(0x7f000002, &old));
  const unique_fd accepted{::accept(here.socket.get(), nullptr, nullptr)};
  std::vector<ip_network> blocked;
  for (std::uint32_t each = 0; each < most_filtered_networks - 1; ++each) {  // as long as it may be
    blocked.push_back({std::uint64_t{0x20010db8} << 32 | each, true});
  }
  blocked.push_back(four(0x7f000002));
  REQUIRE(accept_none_of(blocked, here.socket.get()));
  CHECK_FALSE(here.lets_in(0x7f000002));
  CHECK(here.lets_in(0x7f000003));
  REQUIRE(::send(old.get(), "x", 1, MSG_NOSIGNAL) == 1);
  pollfd heard{accepted.get(), POLLIN, 0};
  CHECK(::poll(&heard, 1, 5000) == 1);
  blocked.back() = four(0x7f000003);
  REQUIRE(accept_none_of(blocked, here.socket.get()));
  CHECK(here.lets_in(0x7f000002));
  CHECK_FALSE(here.lets_in(0x7f000003));
  REQUIRE(accept_none_of({}, here.socket.get()));
  REQUIRE(accept_none_of({}, here.socket.get()));  // nothing to take away
  CHECK(here.lets_in(0x7f000003));
  CHECK_FALSE(accept_none_of(blocked, -1));
}

TEST_CASE("listen filter: IPv6") {
  const door here{AF_INET6};
  if (here.port == 0 || !here.lets_in(0)) {
    std::cout << "SKIPPED: unit.arrival_budget: listen filter: this machine has no IPv6\n";
    return;
  }
  REQUIRE(accept_none_of(std::vector{*network_of("::2:0:0:0:1")}, here.socket.get()));
  CHECK(here.lets_in(0));
  REQUIRE(accept_none_of(std::vector{*network_of("::1")}, here.socket.get()));
  CHECK_FALSE(here.lets_in(0));
  REQUIRE(accept_none_of({}, here.socket.get()));
  CHECK(here.lets_in(0));
}
