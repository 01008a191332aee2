// Further transports of one process: their ports, where a fixed one was asked for.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
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
