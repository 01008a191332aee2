// A link to the reference server over which nothing comes any more, although no connection of it has ended: a
// cut cable, a firewall that has forgotten the connection.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hub.hpp"
#include "tensorhub/detail/unique_socket.hpp"

using namespace system_tests;

namespace {

using tensorhub::detail::unique_socket;

/// Forwards connections to a port of this machine. Those that were made before `fall_silent` stay, and are
/// forwarded no longer; of those that were made before `lose_requests`, only what the server says.
class link_to_server {
 public:
  explicit link_to_server(const std::string& server)
      : port_{static_cast<std::uint16_t>(std::stoi(server.substr(server.rfind(':') + 1)))},
        listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    sockaddr_in any = loopback(0);
    socklen_t bytes = sizeof any;
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0);
    REQUIRE(::listen(listener_.get(), 16) == 0);
    REQUIRE(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&any), &bytes) == 0);
    address_ = "tcp://127.0.0.1:" + std::to_string(ntohs(any.sin_port));
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  void fall_silent() {
    const std::lock_guard lock{mutex_};
    silent_ = std::exchange(forwarded_, {});
  }
  void lose_requests() {
    const std::lock_guard lock{mutex_};
    for (pair& each : forwarded_) each.loses_requests = true;
  }
  [[nodiscard]] std::size_t count_silent() {
    const std::lock_guard lock{mutex_};
    return silent_.size();
  }

 private:
  struct pair {
    unique_socket from;
    unique_socket to;
    bool loses_requests = false;
  };
  [[nodiscard]] static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(port);
    out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return out;
  }
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd waiting{listener_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 1) == 1) accept_one();
      const std::lock_guard lock{mutex_};
      for (const pair& each : forwarded_) {
        if (!each.loses_requests) forward(each.from, each.to);
        forward(each.to, each.from);
      }
    }
  }
  void accept_one() {
    pair made{unique_socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)},
              unique_socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}};
    const sockaddr_in server = loopback(port_);
    if (::connect(made.to.get(), reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0) return;
    const std::lock_guard lock{mutex_};
    forwarded_.push_back(std::move(made));
  }
  static void forward(const unique_socket& from, const unique_socket& to) {
    std::array<char, 65536> bytes{};
    const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0)
      static_cast<void>(::send(to.get(), bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL));
  }

  std::uint16_t port_;
  unique_socket listener_;
  std::string address_;
  std::mutex mutex_;
  std::vector<pair> forwarded_;
  std::vector<pair> silent_;
  std::jthread thread_;
};

}  // namespace

TEST_CASE("a worker whose only server has fallen silent connects anew before it is declared dead") {
  hub::reference_server server{{.catalog = {.worker_timeout = 20s}}};
  link_to_server link{server.address()};
  trainer source{who(server.address(), "trainer-0"), 1000};
  rollout reader{who(link.address(), "rollout-0"), 1000};
  source.publish(1);
  CHECK(reader.worker.update().version == 1);
  link.fall_silent();
  REQUIRE(link.count_silent() == 1);
  source.worker.unpublish();
  source.publish(2);
  CHECK(reader.worker.update(exactly(2), 30s).version == 2);
  CHECK(reader.memory.holds(2));
  CHECK(server.statistics().workers_dead == 0);
}

TEST_CASE(
    "a worker whose only server has fallen silent again and again connects anew as soon as the first time") {
  hub::reference_server server{{.catalog = {.worker_timeout = 12s}}};
  link_to_server link{server.address()};
  rollout reader{who(link.address(), "rollout-0"), 1000};
  trainer source{who(server.address(), "trainer-0"), 1000};
  for (std::uint64_t version = 1; version <= 4; ++version) {
    source.publish(version);
    CHECK(reader.worker.update(exactly(version), 30s).version == version);
    source.worker.unpublish();
    std::this_thread::sleep_for(5s);  // it is answered
    link.fall_silent();
  }
  source.publish(5);
  CHECK(reader.worker.update(exactly(5), 30s).version == 5);
  CHECK(server.statistics().workers_dead == 0);
}

TEST_CASE(
    "a worker that is told that it was declared dead joins again although nothing can be sent as before") {
  hub::reference_server server{{.catalog = {.worker_timeout = 4s}}};
  link_to_server link{server.address()};
  trainer source{who(server.address(), "trainer-0"), 1000};
  tensorhub::worker_options patient = who(link.address(), "rollout-0");
  patient.server_timeout = 1h;
  rollout reader{patient, 1000};
  source.publish(1);
  CHECK(reader.worker.update().version == 1);
  link.lose_requests();
  CHECK(comes_true([&] { return server.statistics().workers_dead == 1; }));
  REQUIRE(comes_true([&] { return server.statistics().workers_joined == 3; }));
  source.worker.unpublish();
  source.publish(2);
  CHECK(reader.worker.update(exactly(2), 30s).version == 2);
}
