// TCP per path: a peer in another datacenter is reached with other socket options than one in the same, at
// both ends; what an address says of the datacenter, and what it may not say.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/testing/throttled.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using namespace tensorhub;
using transports::tcp;
namespace parts = transports::tcp_detail;

constexpr incarnation source_id{1};
constexpr incarnation reader_id{2};

struct socket_facts {
  std::string congestion_control;
  int send_buffer_bytes = 0;
  int receive_buffer_bytes = 0;
  int unread_bytes = 0;
};

[[nodiscard]] int port_of(const sockaddr_storage& address) {
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// The port in an address that has one of tcp in it.
[[nodiscard]] int port_in(const std::string& address) {
  const auto at = address.find("tcp://");
  REQUIRE(at != std::string::npos);
  return std::stoi(address.substr(address.find(':', at + 6) + 1));
}

/// The ends of this process's connections to a port: the reader's (connected to it) or the source's (at it).
[[nodiscard]] std::vector<socket_facts> connections(int port, bool of_source) {
  std::vector<socket_facts> found;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    const int socket = std::stoi(entry.path().filename().string());
    sockaddr_storage local{}, peer{};
    socklen_t local_bytes = sizeof local, peer_bytes = sizeof peer;
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0 ||
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&local), &local_bytes) != 0 ||
        peer.ss_family != AF_INET || port_of(of_source ? local : peer) != port)
      continue;
    socket_facts facts;
    std::array<char, 32> text{};
    socklen_t bytes = sizeof text - 1;
    REQUIRE(::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, text.data(), &bytes) == 0);
    facts.congestion_control = text.data();
    bytes = sizeof(int);
    REQUIRE(::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &facts.send_buffer_bytes, &bytes) == 0);
    REQUIRE(::getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &facts.receive_buffer_bytes, &bytes) == 0);
    REQUIRE(::ioctl(socket, FIONREAD, &facts.unread_bytes) == 0);
    found.push_back(facts);
  }
  return found;
}

[[nodiscard]] tcp::options in(const std::string& datacenter) {
  tcp::options options;
  options.here.datacenter = datacenter;
  // A size that every kernel grants, and a congestion control that every kernel has and nobody's default is.
  options.wide_area = {.streams = 3,
                       .congestion_control = "reno",
                       .send_buffer_bytes = 100'000,
                       .receive_buffer_bytes = 80'000};
  return options;
}

/// Both ends of what a reader opens to a source.
struct opened {
  std::vector<socket_facts> reader;
  std::vector<socket_facts> source;
};
template <typename Reader = tcp, typename Source = tcp>
[[nodiscard]] opened open(typename Source::options source_options, typename Reader::options reader_options) {
  Source source{std::move(source_options), source_id};
  Reader reader{std::move(reader_options), reader_id};
  auto queue = reader.make_queue(4);
  const auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
  const int port = port_in(source.address().text);
  return {connections(port, false), connections(port, true)};
}

void check_wide_area(const opened& sockets) {
  CHECK(sockets.reader.size() == 3);
  CHECK(sockets.source.size() == 3);
  for (const socket_facts& each : sockets.reader) {
    CHECK(each.congestion_control == "reno");
    CHECK(each.send_buffer_bytes == 200'000);  // the kernel doubles
    CHECK(each.receive_buffer_bytes == 160'000);
  }
  for (const socket_facts& each : sockets.source) {
    CHECK(each.congestion_control == "reno");
    CHECK(each.send_buffer_bytes == 200'000);
  }
}
void check_near(const opened& sockets) {
  CHECK(sockets.reader.size() == 1);
  CHECK(sockets.source.size() == 1);
  for (const auto& end : {sockets.reader, sockets.source}) {
    for (const socket_facts& each : end) {
      CHECK(each.congestion_control != "reno");
      CHECK(each.send_buffer_bytes != 200'000);
      CHECK(each.receive_buffer_bytes != 160'000);
    }
  }
}

}  // namespace

TEST_CASE("tcp paths: another datacenter has the wide-area settings at both ends, the same one has not") {
  std::string system_default;
  std::ifstream{"/proc/sys/net/ipv4/tcp_congestion_control"} >> system_default;
  if (system_default == "reno") {
    std::cout
        << "SKIPPED: conformance.tcp_paths: wide-area settings: this system's default is reno, as theirs\n";
    return;
  }
  check_wide_area(open(in("eu-1"), in("us-1")));
  check_near(open(in("eu-1"), in("eu-1")));
  check_near(open(in(""), in("us-1")));  // unknown counts as the same
  check_near(open(in("eu-1"), in("")));
  check_near(open(in(""), in("")));
  // Names that cannot stand in an address as they are.
  const std::string long_name(512, 'x');
  check_wide_area(open(in(long_name), in(std::string(511, 'x'))));
  check_near(open(in(long_name), in(long_name)));
  check_wide_area(open(in("a city & a river?:/#"), in("a city & a river?:/")));
  check_near(open(in("a city & a river?:/#"), in("a city & a river?:/#")));
}

TEST_CASE("tcp paths: within one machine the buffers are small, unless the options size them") {
  const int sent = 2 * static_cast<int>(parts::loopback_send_buffer_bytes);  // the kernel doubles
  const int received = 2 * static_cast<int>(parts::loopback_receive_buffer_bytes);
  const detail::unique_socket trial{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  transports::tcp_path small{};
  small.send_buffer_bytes = parts::loopback_send_buffer_bytes;
  small.receive_buffer_bytes = parts::loopback_receive_buffer_bytes;
  parts::size_buffers(trial.get(), small);
  const auto granted = [&](int option) {
    int size = 0;
    socklen_t bytes = sizeof size;
    REQUIRE(::getsockopt(trial.get(), SOL_SOCKET, option, &size, &bytes) == 0);
    return size;
  };
  if (granted(SO_SNDBUF) != sent || granted(SO_RCVBUF) != received) {
    std::cout << "SKIPPED: conformance.tcp_paths: small buffers: net.core.*mem_max do not permit them\n";
    return;
  }
  const opened tuned = open(in("eu-1"), in("eu-1"));
  REQUIRE(tuned.reader.size() == 1);
  REQUIRE(tuned.source.size() == 1);
  CHECK(tuned.reader.front().receive_buffer_bytes == received);
  CHECK(tuned.source.front().send_buffer_bytes == sent);
  tcp::options sized = in("eu-1");
  sized.send_buffer_bytes = 90'000;
  sized.receive_buffer_bytes = 70'000;
  const opened chosen = open(sized, sized);
  for (const auto& end : {chosen.reader, chosen.source}) {
    REQUIRE(end.size() == 1);
    CHECK(end.front().send_buffer_bytes == 180'000);
    CHECK(end.front().receive_buffer_bytes == 140'000);
  }
}

namespace {

/// A stream over loopback whose source is this test.
class hand_fed_stream {
 public:
  hand_fed_stream() {
    const parts::listening_socket listening = parts::listen_at({}, "tcp");
    const auto address = "tcp://" + listening.host + ":" + std::to_string(listening.port);
    const auto until = std::chrono::steady_clock::now() + 5s;
    auto socket = parts::connect_to(address, parts::settings_of({}, parts::path_kind::same_datacenter), until,
                                    "tcp", false);
    REQUIRE(parts::wait_ready(listening.socket.get(), POLLIN, until));
    source_ = detail::unique_socket{::accept4(listening.socket.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    REQUIRE(source_);
    parts::set_option(source_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    parts::plain_channel::shared shared{{}};
    reader_.emplace(parts::plain_channel::connect(shared, std::move(socket), address, until), 4, nullptr);
  }
  void post(request_id id, std::span<std::byte> into) {
    reader_->post({id, into.data(), into.size(), nullptr}, {});
    REQUIRE(reader_->flush());
  }
  void answer(completion_status status, std::uint64_t bytes) {
    const parts::read_answer header{static_cast<std::uint64_t>(status), bytes};
    REQUIRE(::send(source_.get(), &header, sizeof header, MSG_NOSIGNAL) == sizeof header);
  }
  void feed(std::size_t bytes) {
    for (const std::vector<std::byte> piece(16u << 10); bytes > 0;) {
      const std::size_t now = std::min(bytes, piece.size());
      REQUIRE(::send(source_.get(), piece.data(), now, MSG_NOSIGNAL) == static_cast<ssize_t>(now));
      bytes -= now;
    }
  }
  /// Whether poll(2) reports the socket.
  [[nodiscard]] bool wakes(int milliseconds) {
    reader_->set_low_water();
    pollfd entry{reader_->socket(), POLLIN, 0};
    return ::poll(&entry, 1, milliseconds) == 1;
  }
  [[nodiscard]] std::optional<completion_status> receive() {
    completion done{};
    if (reader_->receive(done) != parts::receive_outcome::finished_one) return std::nullopt;
    return done.status;
  }
  void hang_up() { source_.reset(); }
  [[nodiscard]] int socket() const { return reader_->socket(); }

 private:
  detail::unique_socket source_;
  std::optional<parts::stream<parts::plain_channel>> reader_;
};

}  // namespace

TEST_CASE("tcp paths: within one machine a reader waits for much of a long answer, and not for its end") {
  constexpr int soon = 5'000, never = 100;  // milliseconds
  hand_fed_stream stream;
  const std::size_t much = parts::wake_bytes_of(stream.socket());
  REQUIRE(much > 1000);
  std::vector<std::byte> memory(3 * much);
  const std::span into{memory};
  for (request_id id = 1; id <= 3; ++id) stream.post(id, into);

  stream.answer(completion_status::ok, 3 * much);
  CHECK(stream.wakes(soon));  // a header, whatever it says
  CHECK(stream.receive() == std::nullopt);
  for (int twice = 0; twice < 2; ++twice) {
    stream.feed(much - 100);
    CHECK_FALSE(stream.wakes(never));
    stream.feed(100);
    CHECK(stream.wakes(soon));
    CHECK(stream.receive() == std::nullopt);
  }
  stream.feed(1);
  CHECK(stream.wakes(soon));
  CHECK(stream.receive() == std::nullopt);
  stream.feed(much - 1);
  std::optional<completion_status> ended;
  while (!ended && stream.wakes(soon)) ended = stream.receive();
  CHECK(ended == completion_status::ok);

  stream.answer(completion_status::access_denied, 0);
  CHECK(stream.wakes(soon));
  CHECK(stream.receive() == completion_status::access_denied);
  stream.answer(completion_status::ok, 3 * much);
  CHECK(stream.wakes(soon));
  CHECK(stream.receive() == std::nullopt);
  stream.feed(10);
  CHECK_FALSE(stream.wakes(never));
  stream.hang_up();
  CHECK(stream.wakes(soon));
}

TEST_CASE("tcp paths: first_of and decorators tell tcp where they are") {
  using pair = first_of<transports::same_host, tcp>;
  const auto composed = [](const std::string& datacenter) {
    auto options = pair::with(in(""));
    options.here.datacenter = datacenter;
    return options;
  };
  check_wide_area(open<pair, pair>(composed("eu-1"), composed("us-1")));
  using slow = testing::throttled<tcp>;
  location place;
  place.datacenter = "us-1";
  slow::options options;
  options.inner = in("");
  tell_location(options, place);
  CHECK(options.inner.here == place);
  tell_location(options, location{.datacenter = "eu-1"});  // what the user has set stays
  CHECK(options.inner.here == place);
}

TEST_CASE("tcp addresses: what other machines cannot use is said at the reader") {
  tcp reader{};
  auto queue = reader.make_queue(1);
  try {
    static_cast<void>(reader.connect(queue, {"tcp://127.0.0.1:1"}, {1}, std::chrono::seconds{20}));
    FAIL("connected to nobody");
  } catch (const error& e) {
    CHECK(
        e.sentence().find("the peer has ended, or it is on another machine and has to set its listen_host") !=
        std::string::npos);
  }
}

TEST_CASE("tcp addresses: a source tells numbers, and names are refused, unless both sides want them") {
  const tcp numeric{{.listen_host = "localhost", .advertised_host = "localhost"}, source_id};
  const std::string told = numeric.address().text;
  CHECK((told.starts_with("tcp://127.0.0.1:") || told.starts_with("tcp://[::1]:")));
  CHECK_THROWS_AS((tcp{{.advertised_host = "no.such.name.invalid"}}), error);

  const tcp named{{.advertised_host = "localhost", .names_in_addresses = true}, source_id};
  CHECK(named.address().text.starts_with("tcp://localhost:"));
  tcp careful{{}, reader_id};
  auto queue = careful.make_queue(1);
  try {
    static_cast<void>(careful.connect(queue, named.address(), source_id, 20s));
    FAIL("a name that a source told was resolved");
  } catch (const error& e) {
    CHECK(e.code() == errc::transport_failed);
    CHECK(e.sentence().find("an address has to be numeric") != std::string::npos);
  }
  tcp willing{{.names_in_addresses = true}, reader_id};
  auto willing_queue = willing.make_queue(1);
  CHECK(willing.connect(willing_queue, named.address(), source_id, 20s).usable());
}

/// A source that has refused takes a connection again, once it has seen the end of another one.
[[nodiscard]] static bool connects_within(std::chrono::seconds patience, tcp& reader, tcp::queue& queue,
                                          const tcp& source) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < until) {
    try {
      return reader.connect(queue, source.address(), source_id, 20s).usable();
    } catch (const error&) {  // the source has not seen the end yet
    }
  }
  return false;
}

TEST_CASE("tcp: at max_connections, the connection that has been idle the longest makes room") {
  const tcp source{{.max_connections = 2}, source_id};
  tcp reader{{}, reader_id};
  auto queue = reader.make_queue(4);
  const auto first = reader.connect(queue, source.address(), source_id, 20s);
  const auto second = reader.connect(queue, source.address(), source_id, 20s);
  CHECK(connects_within(20s, reader, queue, source));
}

TEST_CASE("tcp: max_connections, beyond which a reader is refused, and one that goes makes room") {
  const tcp source{{.max_connections = 2}, source_id};
  tcp reader{{}, reader_id};
  auto queue = reader.make_queue(4);
  std::vector<tcp::endpoint> endpoints;
  for (int i = 0; i < 2; ++i) endpoints.push_back(reader.connect(queue, source.address(), source_id, 20s));
  CHECK_THROWS_AS(static_cast<void>(reader.connect(queue, source.address(), source_id, 20s)), error);
  CHECK(endpoints.front().usable());
  std::string sentence;
  try {
    static_cast<void>(reader.connect(queue, source.address(), source_id, 20s));
  } catch (const error& e) {
    sentence = e.sentence();
  }
  CHECK_MESSAGE(sentence.find("its max_connections") != std::string::npos, sentence);
  endpoints.pop_back();
  CHECK(connects_within(20s, reader, queue, source));
}

TEST_CASE(
    "tcp: max_connections_per_reader, beyond which that reader is refused and no other, and one that goes "
    "makes room") {
  const tcp source{{.max_connections_per_reader = 2}, source_id};
  tcp reader{{}, reader_id};
  auto queue = reader.make_queue(4);
  std::vector<tcp::endpoint> endpoints;
  for (int i = 0; i < 2; ++i) endpoints.push_back(reader.connect(queue, source.address(), source_id, 20s));
  CHECK_THROWS_AS(static_cast<void>(reader.connect(queue, source.address(), source_id, 20s)), error);
  CHECK(endpoints.front().usable());
  tcp other{{}, {reader_id.value + 1}};
  auto queue_of_other = other.make_queue(1);
  CHECK(other.connect(queue_of_other, source.address(), source_id, 20s).usable());
  endpoints.pop_back();
  CHECK(connects_within(20s, reader, queue, source));
}

TEST_CASE("tcp paths: the defaults are one stream, large buffers and bbr where the kernel has it") {
  tcp::options here, there;
  here.here.datacenter = "eu-1";
  there.here.datacenter = "us-1";
  const opened far = open(here, there);
  const opened near = open(here, here);
  CHECK(far.reader.size() == 1);
  CHECK(near.reader.size() == 1);
  // What this process may choose at all.
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has_bbr = ::setsockopt(probe, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) == 0;
  const int wanted = 64 << 20;
  const bool may_force = ::setsockopt(probe, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof wanted) == 0;
  ::close(probe);
  for (const auto& end : {far.reader, far.source}) {
    REQUIRE(end.size() == 1);
    for (const socket_facts& each : end) {
      if (has_bbr) CHECK(each.congestion_control == "bbr");
      if (may_force) CHECK(each.send_buffer_bytes == 2 * wanted);
    }
  }
  if (may_force) {
    CHECK(far.reader.front().receive_buffer_bytes == 2 * wanted);
    CHECK(near.source.front().send_buffer_bytes < 2 * wanted);
  }
  if (!has_bbr) std::cout << "SKIPPED: conformance.tcp_paths: bbr: this process may not choose it\n";
  if (!may_force)
    std::cout
        << "SKIPPED: conformance.tcp_paths: buffer sizes: this process may not force them (CAP_NET_ADMIN)\n";
}

TEST_CASE("tcp addresses: made, taken apart, and a datacenter only in the form that is made") {
  const auto round_trip = [](const parts::host_and_port& where) {
    const auto parsed = parts::parse_address(parts::make_address(where));
    REQUIRE(parsed);
    CHECK(parsed->host == where.host);
    CHECK(parsed->port == where.port);
    CHECK(parsed->datacenter == where.datacenter);
  };
  round_trip({"10.0.0.1", "80", ""});
  round_trip({"10.0.0.1", "80", "eu-1"});
  round_trip({"::1", "65535", "eu-1"});
  round_trip({"fe80::1", "1", ""});
  round_trip({"node.cluster", "1", parts::datacenter_label(std::string(512, 'y'))});
  CHECK(parts::make_address({"::1", "80", "eu-1"}) == "tcp://[::1]:80?datacenter=eu-1");

  for (const std::string bad :
       {"?", "?datacenter", "?datacenter=", "?datacenter=a b", "?datacenter=a%20b", "?datacenter=a?b",
        "?datacenter=a&b=c", "?rack=r1", "?datacenter=~", "?datacenter=~0123", "?datacenter=a~",
        "?datacenter=~0123456789abcdef0123456789abcdeG", "?datacenter=eu-1\n"}) {
    CAPTURE(bad);
    CHECK(!parts::parse_address("tcp://127.0.0.1:80" + bad));
  }
  CHECK(!parts::parse_address("tcp://127.0.0.1:80?datacenter=" + std::string(65, 'a')));
  CHECK(parts::parse_address("tcp://127.0.0.1:80?datacenter=" + std::string(64, 'a')));
  CHECK(!parts::parse_address("tcp://127.0.0.1:80?datacenter=" + std::string("a\0b", 3)));
  CHECK(!parts::parse_address("tcp://" + std::string(limits::address_bytes, 'a') + ":80"));
}

TEST_CASE("tcp addresses: labels of datacenters are short, plain, and equal exactly if the names are") {
  std::vector<std::string> names{"eu-1",
                                 "EU-1",
                                 "eu_1",
                                 "eu.1",
                                 "eu 1",
                                 "~",
                                 "",
                                 std::string(64, 'a'),
                                 std::string(65, 'a'),
                                 std::string(512, 'a'),
                                 std::string("a\0", 2),
                                 "a",
                                 "K\xc3\xb6ln",
                                 "K\xf6ln"};
  // The label of a long name, used as a name itself, is another one.
  names.push_back(parts::datacenter_label(names[8]));
  std::set<std::string> labels;
  for (const std::string& name : names) {
    const std::string label = parts::datacenter_label(name);
    CAPTURE(name);
    CHECK(label == parts::datacenter_label(name));
    CHECK(label.size() <= parts::label_bytes);
    CHECK(parts::is_label(label) == !name.empty());
    CHECK(labels.insert(label).second);
  }
  CHECK(parts::datacenter_label("eu-1") == "eu-1");
}

TEST_CASE("tcp: who answers a request before it was sent is no source") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
  const detail::unique_socket source{ends[1]};
  const std::array<char, 4096> junk{};
  while (::send(ends[0], junk.data(), junk.size(), MSG_NOSIGNAL) > 0) {
  }
  parts::stream<parts::plain_channel> reader{parts::plain_channel{detail::unique_socket{ends[0]}}, 2,
                                             std::make_shared<parts::staging_pool>()};
  reader.post({1, nullptr, 0, nullptr}, {});
  CHECK(reader.flush());
  REQUIRE(reader.has_unsent());
  const parts::read_answer answer;
  REQUIRE(::send(source.get(), &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer);
  completion done;
  // Else unsent requests would grow beyond their memory.
  CHECK(reader.receive(done) == parts::receive_outcome::broken);
}

TEST_CASE("tcp paths: the streams of an endpoint are opened at the same time") {
  auto door = parts::listen_at({}, "tcp");
  const std::jthread source{[&door] {
    std::vector<detail::unique_fd> readers;
    const auto until = std::chrono::steady_clock::now() + 10s;
    parts::hello greeting;
    for (int i = 0; i < 3; ++i) {
      if (!parts::wait_ready(door.socket.get(), POLLIN, until)) return;
      readers.emplace_back(::accept(door.socket.get(), nullptr, nullptr));
      static_cast<void>(::recv(readers.back().get(), &greeting, sizeof greeting, MSG_WAITALL));
    }
    parts::welcome answer;
    answer.source = source_id.value;
    for (const auto& each : readers)
      static_cast<void>(::send(each.get(), &answer, sizeof answer, MSG_NOSIGNAL));
  }};
  tcp reader{in("us-1"), reader_id};
  auto queue = reader.make_queue(1);
  const std::string address = parts::make_address({"127.0.0.1", std::to_string(door.port), "eu-1"});
  CHECK_NOTHROW(static_cast<void>(reader.connect(queue, {address}, source_id, 10s)));
}

namespace {

/// A reader with one connection whose source is this test.
class asking_reader {
 public:
  explicit asking_reader(const tcp::options& options) : reader_{options, reader_id} {
    std::promise<detail::unique_fd> accepted;
    const std::jthread source{[&] {
      if (!parts::wait_ready(door_.socket.get(), POLLIN, std::chrono::steady_clock::now() + 10s)) return;
      detail::unique_fd reader{::accept(door_.socket.get(), nullptr, nullptr)};
      parts::hello greeting;
      static_cast<void>(::recv(reader.get(), &greeting, sizeof greeting, MSG_WAITALL));
      parts::welcome answer;
      answer.source = source_id.value;
      static_cast<void>(::send(reader.get(), &answer, sizeof answer, MSG_NOSIGNAL));
      accepted.set_value(std::move(reader));
    }};
    const memory_range range{memory_.data(), memory_.size()};
    into_ = reader_.register_memory(std::span{&range, 1}, region_access::local_write);
    const auto regions = reader_.register_memory(std::span{&range, 1}, region_access::remote_read);
    from_ = reader_.describe(regions.front());
    const std::string address = "tcp://127.0.0.1:" + std::to_string(door_.port);
    endpoint_.emplace(reader_.connect(queue_, {address}, source_id, 10s));
    end_ = accepted.get_future().get();
  }
  void post(request_id id) {
    REQUIRE(queue_.post_read(*endpoint_, into_.front(), 0, {&from_, 0, bytes}, id) == post_result::posted);
  }
  [[nodiscard]] std::optional<completion_status> poll() {
    completion done;
    return queue_.poll(std::span{&done, 1}) == 0 ? std::nullopt : std::optional{done.status};
  }
  /// The source's end of the connection.
  [[nodiscard]] int end() const { return end_.get(); }

  static constexpr std::size_t bytes = 100;

 private:
  parts::listening_socket door_ = parts::listen_at({}, "tcp");
  std::vector<std::byte> memory_ = std::vector<std::byte>(bytes);
  tcp reader_;
  std::vector<tcp::memory_region> into_;
  remote_region from_{};
  tcp::queue queue_ = reader_.make_queue(3);
  std::optional<tcp::endpoint> endpoint_;
  detail::unique_fd end_;
};

}  // namespace

TEST_CASE("tcp paths: what is posted before a poll leaves with it, in one message") {
  asking_reader reader{{}};
  for (request_id id = 0; id < 3; ++id) reader.post(id);
  std::array<std::byte, 4 * sizeof(parts::read_request)> requests{};
  CHECK(::recv(reader.end(), requests.data(), requests.size(), MSG_DONTWAIT) == -1);
  CHECK_FALSE(reader.poll());
  REQUIRE(parts::wait_ready(reader.end(), POLLIN, std::chrono::steady_clock::now() + 10s));
  CHECK(::recv(reader.end(), requests.data(), requests.size(), 0) == 3 * sizeof(parts::read_request));
}

TEST_CASE("tcp paths: a reader that is stopped between a post and its poll does not blame the source") {
  asking_reader reader{{.peer_timeout = 1s}};
  reader.post(1);
  std::this_thread::sleep_for(1200ms);
  CHECK_FALSE(reader.poll());
  const parts::read_answer header{static_cast<std::uint64_t>(completion_status::ok), asking_reader::bytes};
  const std::array<std::byte, asking_reader::bytes> body{};
  REQUIRE(::send(reader.end(), &header, sizeof header, MSG_NOSIGNAL) == sizeof header);
  REQUIRE(::send(reader.end(), body.data(), body.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(body.size()));
  const auto until = std::chrono::steady_clock::now() + 10s;
  std::optional<completion_status> done;
  while (!done && std::chrono::steady_clock::now() < until) done = reader.poll();
  CHECK(done == completion_status::ok);
}

namespace {

/// Memory in a file, which can be sent by reference.
class file_memory {
 public:
  static constexpr std::size_t bytes = 1u << 20;
  ~file_memory() { ::munmap(range_.data, bytes); }
  file_memory() = default;
  file_memory(const file_memory&) = delete;
  file_memory& operator=(const file_memory&) = delete;
  [[nodiscard]] const memory_range& range() const { return range_; }

 private:
  [[nodiscard]] memory_range map() const {
    REQUIRE(::ftruncate(file_.get(), bytes) == 0);
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    return {static_cast<std::byte*>(data), bytes, memory_kind::host, file_.get()};
  }
  detail::unique_fd file_{::memfd_create("weights", MFD_CLOEXEC)};
  memory_range range_ = map();
};

template <typename Queue>
[[nodiscard]] completion take_one(Queue& queue) {
  completion done{};
  while (queue.poll(std::span{&done, 1}) == 0) queue.wait(10ms);
  return done;
}

/// How a read ends over a connection that has carried memory in a file, and after that was revoked.
[[nodiscard]] completion_status status_after_revocation(const tcp::options& source_options,
                                                        const tcp::options& reader_options,
                                                        std::uint64_t read_bytes = file_memory::bytes) {
  const file_memory memory;
  std::vector<std::byte> target(file_memory::bytes);
  const memory_range into_range{target.data(), target.size()};
  tcp source{source_options, source_id}, reader{reader_options, reader_id};
  auto regions = source.register_memory(std::span{&memory.range(), 1}, region_access::remote_read);
  const auto into = reader.register_memory(std::span{&into_range, 1}, region_access::local_write);
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
  const auto read = [&] {
    const remote_region from = source.describe(regions.front());
    REQUIRE(queue.post_read(endpoint, into.front(), 0, {&from, 0, read_bytes}, 1) == post_result::posted);
    return take_one(queue).status;
  };
  REQUIRE(read() == completion_status::ok);
  source.revoke(regions.front());
  return read();
}

/// An IPv4 address of this machine that is not the loopback interface's; empty: it has none.
[[nodiscard]] std::string own_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  std::string found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const auto& address = reinterpret_cast<const sockaddr_in&>(*each->ifa_addr);
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
    if (!std::string_view{text.data()}.starts_with("127.") && (each->ifa_flags & IFF_UP) != 0)
      found = text.data();
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace

TEST_CASE(
    "tcp paths: over a wide area nothing is sent by reference, so that a connection outlives a revocation") {
  tcp::options options = in("eu-1");
  options.send_from_file = transports::file_sending::always;
  CHECK(status_after_revocation(options, in("us-1")) == completion_status::ok);
  CHECK(status_after_revocation(options, in("eu-1")) == completion_status::peer_lost);
  // Cheaper copied than connected again.
  CHECK(status_after_revocation(options, in("eu-1"), 64u << 10) == completion_status::ok);
}

TEST_CASE("tcp paths: a reader on this machine gets nothing by reference, whatever its address") {
  const auto is_loopback = [](const char* text) {
    const auto found = parts::resolve(text, "1", AI_NUMERICHOST, "tcp");
    sockaddr_storage address{};
    std::memcpy(&address, found->ai_addr, found->ai_addrlen);
    return parts::is_loopback(address);
  };
  for (const char* each : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.1.2.3"}) CHECK(is_loopback(each));
  for (const char* each : {"10.0.0.1", "::ffff:10.0.0.1", "fd00::7f00:1"}) CHECK(!is_loopback(each));
  CHECK(status_after_revocation({}, {}) == completion_status::ok);
  const std::string own = own_address();
  if (own.empty()) {
    std::cout << "SKIPPED: conformance.tcp_paths: this machine has no address but loopback" << std::endl;
    return;
  }
  CHECK(status_after_revocation({.listen_host = own}, {}) == completion_status::ok);
}

TEST_CASE("tcp paths: a file that sendfile does not take is copied") {
  const detail::unique_fd file{::memfd_create("huge", MFD_HUGETLB | MFD_CLOEXEC)};
  const detail::unique_fd sink{::socket(AF_INET, SOCK_DGRAM, 0)};
  if (!file || ::sendfile(sink.get(), file.get(), nullptr, 1) != -1) {
    std::cout << "SKIPPED: conformance.tcp_paths: this kernel has no file that sendfile does not take"
              << std::endl;
    return;
  }
  constexpr std::uint64_t bytes = 1u << 20;
  std::vector<std::byte> from(bytes, std::byte{7}), target(bytes);
  const memory_range range{from.data(), bytes, memory_kind::host, file.get()};
  const memory_range into_range{target.data(), bytes};
  tcp source{{.send_from_file = transports::file_sending::always}, source_id}, reader{{}, reader_id};
  auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
  const auto into = reader.register_memory(std::span{&into_range, 1}, region_access::local_write);
  const remote_region remote = source.describe(regions.front());
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), source_id, 20s);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(queue.post_read(endpoint, into.front(), 0, {&remote, 0, bytes}, 1) == post_result::posted);
    CHECK(take_one(queue).status == completion_status::ok);
    CHECK(target == from);
    std::fill(target.begin(), target.end(), std::byte{0});
  }
}

TEST_CASE("tcp paths: memory sent by reference and revoked: no other stream confirms later bytes") {
  const file_memory memory;
  std::memset(memory.range().data, 1, file_memory::bytes);
  constexpr std::uint64_t bytes = 512u << 10;
  std::vector<std::byte> check(4096), target(bytes);
  const std::array<memory_range, 2> ranges{memory_range{check.data(), check.size()}, memory.range()};
  const memory_range into_range{target.data(), bytes};
  tcp source{{.send_buffer_bytes = 4u << 20, .send_from_file = transports::file_sending::always}, source_id};
  tcp reader{{.streams = 2, .receive_buffer_bytes = 4u << 20}, reader_id};
  auto regions = source.register_memory(ranges, region_access::remote_read);
  const std::array<remote_region, 2> remote{source.describe(regions[0]), source.describe(regions[1])};
  const auto into = reader.register_memory(std::span{&into_range, 1}, region_access::local_write);
  auto queue = reader.make_queue(2);
  auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
  const auto post = [&](std::size_t region, std::uint64_t size) {
    REQUIRE(queue.post_read(endpoint, into.front(), 0, {&remote[region], 0, size}, region) ==
            post_result::posted);
  };
  post(0, 64);  // so that the next one goes over the other stream
  post(1, bytes);
  CHECK(queue.poll({}) == 0);  // sends them, and receives nothing
  const auto until = std::chrono::steady_clock::now() + 5s;
  int unread = 0;
  while (unread < static_cast<int>(bytes) && std::chrono::steady_clock::now() < until) {
    unread = 0;
    for (const auto& each : connections(port_in(source.address().text), false)) unread += each.unread_bytes;
  }
  if (unread < static_cast<int>(bytes)) {
    std::cout << "SKIPPED: conformance.tcp_paths: the sockets' buffers do not hold a read" << std::endl;
    return;
  }
  source.revoke(regions[1]);
  std::memset(memory.range().data, 2, file_memory::bytes);
  std::array<completion_status, 2> ended{};
  for (std::size_t i = 0; i < 2; ++i) {
    const completion done = take_one(queue);
    ended[done.id] = done.status;
  }
  const bool is_later = ended[1] == completion_status::ok && target.back() == std::byte{2};
  post(0, 64);
  const bool is_confirmed = take_one(queue).status == completion_status::ok;
  CHECK(!(is_later && is_confirmed));
}

TEST_CASE_TEMPLATE("tcp paths: an endpoint tells the network's round trip, also through a list", T, tcp,
                   first_of<tcp>) {
  std::vector<std::byte> from(64), target(64);
  const memory_range range{from.data(), from.size()}, into_range{target.data(), target.size()};
  T source{{}, source_id}, reader{{}, reader_id};
  auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
  const auto into = reader.register_memory(std::span{&into_range, 1}, region_access::local_write);
  const remote_region remote = source.describe(regions.front());
  auto queue = reader.make_queue(1);
  auto endpoint = reader.connect(queue, source.address(), source_id, 20s);
  REQUIRE(queue.post_read(endpoint, into.front(), 0, {&remote, 0, 64}, 1) == post_result::posted);
  CHECK(take_one(queue).status == completion_status::ok);
  CHECK(endpoint.round_trip() > 0ns);
  CHECK(endpoint.round_trip() < 20s);
}
