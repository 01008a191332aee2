/// \file few_descriptors.cpp
/// Processes that can open few descriptors: what cannot be made says so, and ends no process.

#include "support/few_descriptors.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>

#include "support/calls.hpp"
#include "support/child_process.hpp"
#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/server.hpp"
#include "tensorhub/service/control_connection.hpp"
#include "tensorhub/service/handshake.hpp"
#include "tensorhub/service/zmq_socket.hpp"

using namespace tensorhub;
using calls::code_of;
using calls::comes_true;
using calls::contains;

namespace {

[[nodiscard]] std::ptrdiff_t open_descriptors() {
  using entries = std::filesystem::directory_iterator;
  return std::distance(entries{"/proc/self/fd"}, entries{});
}

/// Makes it with ever more descriptors.
template <typename Make>
void check_with_few(Make&& make, std::size_t needed) {
  const auto before = open_descriptors();
  for (std::size_t left = 0; left <= needed + 2; ++left) {
    CAPTURE(left);
    errc ended{};
    std::string sentence;
    {
      const few_descriptors scarce{left};
      ended = code_of(make, &sentence);
    }
    CHECK(ended == (left < needed ? errc::system_failed : errc::ok));
    if (left < needed) CHECK_MESSAGE(contains(sentence, "ulimit -n"), sentence);
    CHECK(open_descriptors() == before);
  }
}

[[nodiscard]] reference_server_options with_keys() {
  reference_server_options out;
  out.security = server_security{make_curve_keys(), {{make_curve_keys().public_key, client_rules{"x"}}}};
  return out;
}

constexpr const char* scarce_case = "the process that can open few descriptors";

}  // namespace

// ZeroMQ ends the process with abort() if one of its threads finds no descriptor.
TEST_CASE("few descriptors: servers and control connections are refused with a sentence") {
  if (!shortages::may_be_total("unit.few_descriptors")) return;
  processes::child_process scarce = processes::child_process::of_test_case(scarce_case);
  CHECK(scarce.how_it_ended() == "ended with status 0");
}

TEST_CASE("the process that can open few descriptors" * doctest::skip()) {
  static_cast<void>(processes::channel_of_parent());
  check_with_few([] { const reference_server<> server; }, detail::descriptors_of_server);
  check_with_few([options = with_keys()] { const reference_server<> server{options}; },
                 detail::descriptors_of_server);
  check_with_few(
      [] {
        const control_connection connection{"tcp://127.0.0.1:1", std::nullopt};
      },
      detail::descriptors_of_connection);
}

TEST_CASE("few descriptors: whether there is another one") {
  if (!shortages::may_be_total("unit.few_descriptors")) return;
  CHECK(detail::has_free_descriptor());
  few_descriptors scarce{0};
  CHECK_FALSE(detail::has_free_descriptor());
  scarce.give(1);
  CHECK(detail::has_free_descriptor());
  CHECK(detail::has_free_descriptor());  // it was given back
}

// Who is not let in can be told nothing: the server's log has to say it.
TEST_CASE("few descriptors: a server that has none left says so, and counts it") {
  if (!shortages::may_be_total("unit.few_descriptors")) return;
  std::atomic<int> said = 0;
  reference_server_options options;
  options.log = [&said](const log_line& line) {
    if (line.level == log_level::warning && contains(line.text, "ulimit -n")) ++said;
  };
  const reference_server<> server{options};
  CHECK(server.statistics().descriptor_shortages == 0);
  const few_descriptors scarce{0};
  CHECK(comes_true([&] { return server.statistics().descriptor_shortages >= 3; }));
  CHECK(said >= 1);
  CHECK(said < 3);  // not each time
}

// The kernel connects them all the same.
TEST_CASE("few descriptors: who is not let in learns that the server may have none left") {
  zmq::context_t context;
  const detail::unique_fd full{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in place{};
  socklen_t bytes = sizeof place;
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(full.get(), reinterpret_cast<const sockaddr*>(&place), bytes) == 0);
  REQUIRE(::listen(full.get(), 8) == 0);
  REQUIRE(::getsockname(full.get(), reinterpret_cast<sockaddr*>(&place), &bytes) == 0);
  const std::string address = "tcp://127.0.0.1:" + std::to_string(ntohs(place.sin_port));
  std::optional<client_security> keys;
  zmq::socket_t newcomer = detail::bounded_socket(context, zmq::socket_type::dealer);
  SUBCASE("without keys") {}
  SUBCASE("with keys") {
    keys = {make_curve_keys().public_key, make_curve_keys()};
    newcomer.set(zmq::sockopt::curve_publickey, keys->keys.public_key);
    newcomer.set(zmq::sockopt::curve_secretkey, keys->keys.secret_key);
    newcomer.set(zmq::sockopt::curve_serverkey, keys->server_key);
  }
  newcomer.set(zmq::sockopt::handshake_ivl, 50);
  detail::handshake_monitor monitor{context, newcomer, detail::handshake_failures};
  newcomer.connect(address);
  std::optional<detail::handshake_event> event;
  REQUIRE(comes_true([&] { return (event = monitor.next()).has_value(); }));
  const detail::handshake_trouble trouble = detail::explain_handshake(*event, address, keys);
  CHECK_FALSE(trouble.certain);
  CHECK(trouble.why.code == errc::disconnected);
  CHECK_MESSAGE(contains(trouble.why.sentence, "descriptor"), trouble.why.sentence);
}
