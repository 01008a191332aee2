/// \file service_shells.cpp
/// The two shells over real sockets on the loopback interface: messages, deadlines, routes, ends.

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "support/calls.hpp"
#include "tensorhub/server.hpp"
#include "tensorhub/service/client.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/curve_guard.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/service/zmq_socket.hpp"

using namespace tensorhub;
using calls::code_of;
using calls::comes_true;
using namespace std::chrono_literals;

namespace {

constexpr auto patience = 30s;

[[nodiscard]] messages::envelope request(std::uint64_t sender, std::uint64_t sequence,
                                         messages::message body) {
  return {sender, {sequence}, {}, std::move(body)};
}

/// Remembers what its shell does with it.
struct fake_core {
  std::vector<messages::envelope> received;
  std::vector<messages::envelope> output;
  time_point deadline = time_point::never();
  time_point last_time{};
  int advances = 0;
  int steps = 0;
  bool early = false;      ///< advanced before the deadline
  bool backwards = false;  ///< time went backwards
  bool chatty = false;     ///< asks again after every answer, and always wants to be advanced

  void note(time_point now) {
    backwards = backwards || now < last_time;
    last_time = now;
  }
  void receive(time_point now, const messages::envelope& message) {
    note(now);
    received.push_back(message);
    if (chatty) output.push_back(request(7, received.size() + 1, messages::list_request{}));
  }
  void advance(time_point now) {
    note(now);
    early = early || now < deadline;
    ++advances;
    if (!chatty) deadline = time_point::never();
  }
  [[nodiscard]] time_point next_deadline() const noexcept { return deadline; }
  [[nodiscard]] std::vector<messages::envelope> take_output() { return std::exchange(output, {}); }
};

using fake_client = client_shell<fake_core>;

[[nodiscard]] std::shared_ptr<control_connection> connected(const std::string& servers) {
  return std::make_shared<control_connection>(servers, std::nullopt);
}

[[nodiscard]] std::size_t received(fake_client& client) {
  return client.with([](fake_core& core, time_point) { return core.received.size(); });
}
void count_step(fake_core& core) {
  ++core.steps;
}

/// A socket without any core behind it.
class raw_worker {
 public:
  explicit raw_worker(const std::string& address)
      : context_{detail::shared_context()},
        socket_{detail::bounded_socket(*context_, zmq::socket_type::dealer)} {
    socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(std::chrono::milliseconds{patience}.count()));
    socket_.connect(address);
  }
  void send(const messages::envelope& message) {
    const auto frame = encoder_.encode(message);
    send_bytes({reinterpret_cast<const char*>(frame.data()), frame.size()});
  }
  void send_bytes(const std::string& bytes, bool more = false) {
    REQUIRE(socket_.send(zmq::const_buffer{bytes.data(), bytes.size()},
                         more ? zmq::send_flags::sndmore : zmq::send_flags::none));
  }
  [[nodiscard]] messages::envelope receive() {
    zmq::message_t frame;
    REQUIRE(socket_.recv(frame).has_value());
    const decode_result decoded =
        decoder_.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
    REQUIRE(decoded.ok());
    return decoded.message;
  }

 private:
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
  encoder encoder_;
  decoder decoder_;
};

/// A whole worker as far as the control plane goes.
class worker_process {
 public:
  worker_process(const std::string& server, std::uint64_t self, const std::string& replica)
      : worker_process{connected(server), self, options(replica)} {}
  worker_process(std::shared_ptr<control_connection> connection, std::uint64_t self, session_options options)
      : shell_{std::move(connection), session{std::move(options), incarnation{self}, shape_},
               [this](session& core) { after_step(core); }} {}

  std::atomic<bool> throws = false;  ///< in every step

  template <typename Call>
  session_ticket call(Call&& start) {
    return shell_.with([&](session& core, time_point now) { return start(core, now, now + patience); });
  }
  [[nodiscard]] session_ticket join() {
    return call([](session& core, time_point now, time_point end) { return core.join(now, end); });
  }
  [[nodiscard]] session_ticket publish(version_number version) {
    return call([&](session& core, time_point now, time_point end) {
      remote_region control;
      control.bytes = 4096;
      return core.publish(now, version, {version.value, 1}, control, end);
    });
  }
  [[nodiscard]] session_ticket wait(version_number version) {
    return call(
        [&](session& core, time_point now, time_point end) { return core.wait(now, exactly(version), end); });
  }
  [[nodiscard]] bool ended(session_ticket ticket) {
    return shell_.with([&](session&, time_point) { return find(ticket) != nullptr; });
  }
  /// How a call ended, once it has.
  [[nodiscard]] session_result result(session_ticket ticket) {
    REQUIRE(comes_true([&] { return ended(ticket); }));
    return shell_.with([&](session&, time_point) { return *find(ticket); });
  }

  [[nodiscard]] static session_options options(const std::string& replica) {
    session_options out;
    out.model = "policy";
    out.replica = replica;
    out.consistency = "group_consistent";
    out.request_retry = 10min;
    return out;
  }
  void abandon() {
    shell_.with([](session& core, time_point now) { core.abandon(now); });
  }
  [[nodiscard]] server_epoch server() {
    return shell_.with(
        [](session& core, time_point) { return core.joined() ? core.server() : server_epoch{}; });
  }

 private:
  void after_step(session& core) {
    if (throws) throw std::runtime_error{"no memory"};
    for (auto& one : core.take_results()) results_.push_back(std::move(one));
    for (const session_action& each : core.take_actions()) {
      if (const auto* order = get_if<session_actions::use_server>(&each)) shell_.use_server(order->index);
    }
  }
  [[nodiscard]] const session_result* find(session_ticket ticket) const {
    for (const session_result& one : results_)
      if (one.ticket == ticket) return &one;
    return nullptr;
  }
  layout shape_{{{"wq", dtype::f32, {8, 8}}, {"norm", dtype::f32, {8}}}, 1024};
  std::vector<session_result> results_;  ///< guarded by the shell
  client_shell<session> shell_;
};

// ---- the client's shell

TEST_CASE("client shell: with runs in the core, returns what it returns, and is followed by after_step") {
  const reference_server<> server;
  fake_client client{connected(server.address()), {}, count_step};
  const int before = client.with([](fake_core& core, time_point) { return core.steps; });
  client.with([](fake_core& core, time_point now) { core.note(now); });
  CHECK(client.with([](fake_core& core, time_point) { return core.steps; }) >= before + 2);
  CHECK(client.with([](fake_core&, time_point now) { return std::to_string(now.nanoseconds > 0); }) == "1");
  CHECK_FALSE(client.with([](fake_core& core, time_point) { return core.backwards; }));
}

TEST_CASE("client shell: what the core says is sent, what is answered is received") {
  const reference_server<> server{{.catalog = {.recovery_grace = 0ms}}};
  fake_client client{connected(server.address()), {}, count_step};
  client.with([](fake_core& core, time_point) {
    core.output.push_back(request(7, 1, messages::list_request{}));
    core.output.push_back(request(7, 2, messages::list_request{"nobody's"}));
  });
  REQUIRE(comes_true([&] { return received(client) == 2; }));
  const auto answers = client.with([](fake_core& core, time_point) { return core.received; });
  CHECK(answers[0].sequence == request_sequence{1});
  CHECK(answers[0].sender == server.epoch().value);
  REQUIRE(holds_alternative<messages::list_reply>(answers[0].body));
  CHECK(get_if<messages::list_reply>(&answers[0].body)->result.ok());
  REQUIRE(holds_alternative<messages::list_reply>(answers[1].body));
  CHECK(get_if<messages::list_reply>(&answers[1].body)->result.code == errc::not_found);
}

TEST_CASE("client shell: deadlines are honoured, never early, also one that comes nearer") {
  const reference_server<> server;
  fake_client client{connected(server.address()), {}, count_step};
  const auto advances = [&] {
    return client.with([](fake_core& core, time_point) { return core.advances; });
  };
  client.with([](fake_core& core, time_point now) { core.deadline = now + 1h; });
  client.with([](fake_core& core, time_point now) { core.deadline = now + 30ms; });
  REQUIRE(comes_true([&] { return advances() == 1; }));
  client.with([](fake_core& core, time_point now) { core.deadline = now; });
  REQUIRE(comes_true([&] { return advances() == 2; }));
  CHECK_FALSE(client.with([](fake_core& core, time_point) { return core.early; }));
  CHECK_FALSE(client.with([](fake_core& core, time_point) { return core.backwards; }));
}

TEST_CASE("client shell: what was said before there was a server arrives when there is one") {
  std::string address;
  {
    const reference_server<> first;  // finds a free port
    address = first.address();
  }
  fake_client client{connected(address), {}, count_step};
  client.with(
      [](fake_core& core, time_point) { core.output.push_back(request(7, 1, messages::list_request{})); });
  std::optional<reference_server<>> server;
  reference_server_options options;
  options.address = address;
  // ZeroMQ closes the first one's socket in the background.
  REQUIRE(comes_true([&] { return code_of([&] { server.emplace(options); }) == errc::ok; }));
  CHECK(comes_true([&] { return received(client) == 1; }));
  CHECK(comes_true([&] { return server->statistics().messages == 1; }));
}

TEST_CASE("client shell: it ends while it is busy, and while nobody is there") {
  const reference_server<> server;
  for (int round = 0; round < 5; ++round) {
    fake_client client{connected(server.address()), {}, count_step};
    client.with([](fake_core& core, time_point now) {
      core.chatty = true;
      core.deadline = now;
      core.output.push_back(request(7, 1, messages::list_request{}));
    });
    REQUIRE(comes_true([&] { return received(client) > 20; }));
  }
  fake_client alone{connected("tcp://127.0.0.1:1"), {}, count_step};
  alone.with(
      [](fake_core& core, time_point) { core.output.push_back(request(7, 1, messages::list_request{})); });
}

TEST_CASE("client shell: no address is refused at once") {
  CHECK(code_of([] {
          fake_client client{connected("not an address"), {}, count_step};
        }) == errc::invalid_argument);
}

TEST_CASE("client shell: who is no server of ours is told to the core, other garbage is not") {
  const auto context = detail::shared_context();
  zmq::socket_t stranger = detail::bounded_socket(*context, zmq::socket_type::router);
  stranger.set(zmq::sockopt::rcvtimeo, static_cast<int>(std::chrono::milliseconds{patience}.count()));
  stranger.bind("tcp://127.0.0.1:*");
  fake_client client{connected(stranger.get(zmq::sockopt::last_endpoint)), {}, count_step};
  client.with(
      [](fake_core& core, time_point) { core.output.push_back(request(7, 1, messages::list_request{})); });
  zmq::message_t route;
  zmq::message_t frame;
  REQUIRE(stranger.recv(route).has_value());
  REQUIRE(stranger.recv(frame).has_value());
  const auto answer = [&](const std::string& bytes) {
    REQUIRE(stranger.send(zmq::const_buffer{route.data(), route.size()}, zmq::send_flags::sndmore));
    REQUIRE(stranger.send(zmq::const_buffer{bytes.data(), bytes.size()}, zmq::send_flags::none));
  };
  const std::string good = frame.to_string();
  std::string other_protocol = good;
  other_protocol[4] = static_cast<char>(control_protocol + 1);
  answer("short");
  answer(good.substr(0, good.size() - 1));
  answer("HTTP/1.1 400 Bad Request, and some more bytes");
  answer(other_protocol);
  answer(good);  // itself a message, though no server would send it
  REQUIRE(comes_true([&] { return received(client) == 3; }));
  const auto told = client.with([](fake_core& core, time_point) { return core.received; });
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE(holds_alternative<messages::goodbye_push>(told[i].body));
    CHECK(get_if<messages::goodbye_push>(&told[i].body)->reason.code == errc::protocol_mismatch);
  }
  const auto sentence = get_if<messages::goodbye_push>(&told[1].body)->reason.sentence;
  CHECK(sentence.find("protocol " + std::to_string(control_protocol + 1)) != std::string::npos);
  CHECK(holds_alternative<messages::list_request>(told[2].body));
}

TEST_CASE("client: a message over its limits is not waited for, the core is told why") {
  fake_client client{connected("tcp://127.0.0.1:1"), fake_core{}, count_step};
  client.with([](fake_core& core, time_point) {
    core.output.push_back(request(7, 1, messages::list_request{std::string(limits::name_bytes + 1, 'x')}));
  });
  REQUIRE(comes_true([&] { return received(client) == 1; }));
  const auto told = client.with([](fake_core& core, time_point) { return core.received.front(); });
  REQUIRE(holds_alternative<messages::goodbye_push>(told.body));
  CHECK(get_if<messages::goodbye_push>(&told.body)->reason.code == errc::limit_exceeded);
  CHECK(!get_if<messages::goodbye_push>(&told.body)->rejoin);
}

// ---- the server's shell

TEST_CASE("server shell: it counts what it understands, what it drops, and who has joined") {
  const reference_server<> server;
  raw_worker peer{server.address()};
  peer.send_bytes("garbage");
  peer.send_bytes("");
  peer.send_bytes("two", true);
  peer.send_bytes("parts", true);
  peer.send_bytes("too many");
  peer.send(request(0, 1, messages::list_request{}));  // nobody's
  peer.send(request(7, 1, messages::list_request{}));
  CHECK(peer.receive().sequence == request_sequence{1});  // all before it has been looked at
  CHECK(server.statistics().bad_frames == 4);
  CHECK(server.statistics().messages == 1);
  CHECK(server.statistics().workers == 0);
  {
    worker_process worker{server.address(), 8, "trainer"};
    CHECK(worker.result(worker.join()).outcome.ok());
    CHECK(comes_true([&] { return server.statistics().workers == 1; }));
  }
}

TEST_CASE("server shell: a worker of another protocol is told so, by a message that it can read") {
  const reference_server<> server;
  raw_worker peer{server.address()};
  encoder bytes;
  const auto frame = bytes.encode(request(7, 1, messages::list_request{}));
  std::string other{reinterpret_cast<const char*>(frame.data()), frame.size()};
  other[4] = static_cast<char>(control_protocol + 1);
  peer.send_bytes(other);
  const auto answer = peer.receive();
  CHECK(answer.sender == server.epoch().value);
  REQUIRE(holds_alternative<messages::goodbye_push>(answer.body));
  CHECK(get_if<messages::goodbye_push>(&answer.body)->reason.code == errc::protocol_mismatch);
}

/// Time-outs of all connections of this process with one end at this port.
[[nodiscard]] std::vector<unsigned> time_outs_of_connections(const std::string& address) {
  const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  std::vector<unsigned> out;
  for (int file = 0; file < 1024; ++file) {
    sockaddr_in here{}, there{};
    socklen_t bytes = sizeof here;
    if (::getsockname(file, reinterpret_cast<sockaddr*>(&here), &bytes) != 0) continue;
    bytes = sizeof there;
    if (::getpeername(file, reinterpret_cast<sockaddr*>(&there), &bytes) != 0) continue;
    if (here.sin_family != AF_INET) continue;
    if (here.sin_port != htons(port) && there.sin_port != htons(port)) continue;
    int keeps_alive = 0;
    unsigned time_out = 0;
    socklen_t size = sizeof keeps_alive;
    REQUIRE(::getsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &keeps_alive, &size) == 0);
    CHECK(keeps_alive == 1);
    REQUIRE(::getsockopt(file, IPPROTO_TCP, TCP_USER_TIMEOUT, &time_out, &size) == 0);
    out.push_back(time_out);
  }
  return out;
}

TEST_CASE("shells: a connection to a machine that is gone ends in a minute, at either end") {
  reference_server server{{.address = "tcp://127.0.0.1:*"}};
  raw_worker worker{server.address()};
  worker.send(request(7, 1, messages::list_request{}));
  static_cast<void>(worker.receive());
  CHECK(time_outs_of_connections(server.address()) == std::vector<unsigned>{60'000, 60'000});
}

TEST_CASE("server shell: an address that is taken or none is refused") {
  const reference_server<> server;
  reference_server_options options;
  options.address = server.address();
  CHECK(code_of([&] { const reference_server<> second{options}; }) == errc::transport_failed);
  options.address = "nowhere";
  CHECK(code_of([&] { const reference_server<> none{options}; }) == errc::invalid_argument);
}

TEST_CASE("server shell: two workers, one waits for what the other publishes") {
  const reference_server<> server;
  worker_process trainer{server.address(), 8, "trainer"};
  worker_process rollout{server.address(), 9, "rollout"};
  const auto joining = trainer.join();
  REQUIRE(rollout.result(rollout.join()).outcome.ok());
  REQUIRE(trainer.result(joining).outcome.ok());
  CHECK(comes_true([&] { return server.statistics().workers == 2; }));
  const auto waiting = rollout.wait(3);
  REQUIRE(trainer.result(trainer.publish(3)).outcome.ok());
  const session_result seen = rollout.result(waiting);
  CHECK(seen.outcome.ok());
  CHECK(seen.version == version_number{3});
}

TEST_CASE("server shell: thousands of strangers are answered, and no worker loses its route to them") {
  // No heart beats and nothing is repeated meanwhile: only the server's memory leads back to the worker.
  reference_server_options options;
  options.catalog.heartbeat_interval = 10min;
  options.catalog.worker_timeout = 1h;
  const reference_server<> server{options};
  worker_process early{server.address(), 8, "rollout"};
  REQUIRE(early.result(early.join()).outcome.ok());
  const auto waiting = early.wait(3);  // is answered after the strangers

  std::vector<std::unique_ptr<raw_worker>> crowd;  // one connection speaks for 256 of them at most
  std::mt19937_64 random{20260104};
  std::uint64_t first_stranger = 0;
  for (int batch = 0; batch < 30; ++batch) {
    std::set<std::uint64_t> asked;
    raw_worker& strangers = *crowd.emplace_back(std::make_unique<raw_worker>(server.address()));
    for (std::uint64_t i = 0; i < 100; ++i) {
      const std::uint64_t sequence = static_cast<std::uint64_t>(batch) * 100 + i + 1;
      const std::uint64_t stranger = random() | 1;
      if (first_stranger == 0) first_stranger = stranger;
      strangers.send(request(stranger, sequence, messages::list_request{}));
      asked.insert(sequence);
    }
    for (int i = 0; i < 100; ++i) CHECK(asked.erase(strangers.receive().sequence.value) == 1);
  }
  CHECK(server.statistics().messages >= 3000);
  crowd.front()->send(request(first_stranger, 5000, messages::list_request{}));  // forgotten, and answered
  CHECK(crowd.front()->receive().sequence == request_sequence{5000});

  CHECK_FALSE(early.ended(waiting));
  worker_process late{server.address(), 9, "trainer"};
  REQUIRE(late.result(late.join()).outcome.ok());
  REQUIRE(late.result(late.publish(3)).outcome.ok());
  CHECK(early.result(waiting).version == version_number{3});
}

TEST_CASE("server shell: a worker that connects anew is answered on its new connection") {
  const reference_server<> server;
  auto first = std::make_unique<raw_worker>(server.address());
  first->send(request(7, 1, messages::list_request{}));
  CHECK(first->receive().sequence == request_sequence{1});
  raw_worker second{server.address()};
  second.send(request(7, 2, messages::list_request{}));
  CHECK(second.receive().sequence == request_sequence{2});
  first.reset();
  second.send(request(7, 3, messages::list_request{}));
  CHECK(second.receive().sequence == request_sequence{3});
}

TEST_CASE("server shell: a server says what happens, at the chosen level, and ends with workers connected") {
  std::mutex mutex;
  std::vector<log_line> lines;
  reference_server_options options;
  options.level = log_level::info;
  options.log = [&](const log_line& line) {
    const std::lock_guard lock{mutex};
    lines.push_back(line);
  };
  std::optional<reference_server<>> server{options};
  worker_process worker{server->address(), 8, "trainer"};
  REQUIRE(worker.result(worker.join()).outcome.ok());
  server.reset();
  const std::lock_guard lock{mutex};
  bool told = false;
  for (const log_line& line : lines) {
    CHECK(line.level <= log_level::info);
    told = told || line.text.find("trainer") != std::string::npos;
  }
  CHECK(told);
}

TEST_CASE(
    "server shell: a connection that asks for large answers without an end has its share, and no more") {
  constexpr std::size_t large = 2u << 20;
  detail::send_budget budget;
  const std::vector<std::byte> answer(large);
  time_point now = steady_clock{}.now();
  int given = 0;
  for (; budget.may_ask("greedy", now) && given < 1'000; ++given)
    static_cast<void>(budget.admit("greedy", answer, now));  // read at once: the message ends here
  CHECK(given == detail::send_budget::most_bytes / large);
  CHECK(budget.may_ask("another", now));
  now = now + 1s;
  CHECK(budget.may_ask("greedy", now));
  for (given = 0; budget.may_ask("greedy", now) && given < 1'000; ++given)
    static_cast<void>(budget.admit("greedy", answer, now));
  CHECK(given == detail::send_budget::most_bytes / large);  // what it did not use is not saved for ever
  CHECK(budget.admit("greedy", std::span{answer}.first(100), now).has_value());  // small answers go on
}

TEST_CASE("server shell: an epoch has the term that it was given, and random bits below") {
  const reference_server<> plain;
  CHECK(term_of(plain.epoch()) == 0);
  CHECK(plain.epoch().value != 0);
  const reference_server<> first{{.term = 7}};
  const reference_server<> second{{.term = server_term_max}};
  CHECK(term_of(first.epoch()) == 7);
  CHECK(term_of(second.epoch()) == server_term_max);
  const auto random_part = [](server_epoch epoch) { return epoch.value << (64 - server_term_shift); };
  CHECK(random_part(first.epoch()) != random_part(second.epoch()));
  CHECK(code_of([] { const reference_server<> none{{.term = server_term_max + 1}}; }) ==
        errc::limit_exceeded);
}

TEST_CASE("server shell: a server that may not serve hears nothing and says nothing") {
  std::atomic<bool> may = true;
  std::atomic<int> asked = 0;
  reference_server_options options;
  options.may_serve = [&] {
    const bool answer = may;
    ++asked;
    return answer;
  };
  const reference_server<> server{options};
  raw_worker worker{server.address()};
  worker.send(request(7, 1, messages::list_request{}));
  CHECK(worker.receive().sequence == request_sequence{1});
  may = false;
  const int before = asked;
  worker.send(request(7, 2, messages::list_request{}));
  REQUIRE(comes_true([&] { return asked > before; }));
  may = true;
  worker.send(request(7, 3, messages::list_request{}));
  CHECK(worker.receive().sequence == request_sequence{3});
  CHECK(server.statistics().messages == 2);
}

// ---- several sessions over one connection

TEST_CASE("control connection: each session of it gets its own answers") {
  const reference_server<> server;
  const auto shared = connected(server.address());
  worker_process trainer{shared, 7, worker_process::options("trainer")};
  worker_process reader{shared, 8, worker_process::options("reader")};
  const session_ticket trainers = trainer.join();
  const session_ticket readers = reader.join();
  CHECK(trainer.result(trainers).outcome.ok());
  CHECK(reader.result(readers).outcome.ok());
  const session_ticket waits = reader.wait(1);  // the same number of a request as the trainer's next one
  CHECK(trainer.result(trainer.publish(1)).outcome.ok());
  CHECK(reader.result(waits).version == version_number{1});
  CHECK(server.statistics().workers == 2);
}

TEST_CASE("control connection: what a session says last is sent, and its end is not the others'") {
  const reference_server<> server;
  const auto shared = connected(server.address());
  worker_process stays{shared, 7, worker_process::options("stays")};
  CHECK(stays.result(stays.join()).outcome.ok());
  {
    worker_process goes{shared, 8, worker_process::options("goes")};
    CHECK(goes.result(goes.join()).outcome.ok());
    goes.abandon();
  }
  CHECK(comes_true([&] { return server.statistics().workers_left == 1; }));
  CHECK(stays.result(stays.publish(1)).outcome.ok());
}

TEST_CASE("control connection: a session that fails ends alone") {
  const reference_server<> server;
  const auto shared = connected(server.address());
  worker_process fails{shared, 7, worker_process::options("fails")};
  worker_process stays{shared, 8, worker_process::options("stays")};
  CHECK(fails.result(fails.join()).outcome.ok());
  fails.throws = true;
  const session_ticket lost = fails.wait(5);
  fails.throws = false;
  CHECK(fails.result(lost).outcome.code == errc::system_failed);
  CHECK(stays.result(stays.join()).outcome.ok());
}

TEST_CASE("control connection: when one session gives a server up, the others go with it") {
  std::optional<reference_server<>> first{std::in_place};
  const reference_server<> second;
  const std::string both = first->address() + "," + second.address();
  const auto shared = connected(both);
  auto options = worker_process::options("hasty");
  options.servers = 2;
  options.server_timeout = 300ms;
  options.request_retry = 50ms;
  worker_process hasty{shared, 7, options};
  options.replica = "patient";
  options.server_timeout = 1h;
  worker_process patient{shared, 8, options};
  CHECK(hasty.result(hasty.join()).outcome.ok());
  CHECK(patient.result(patient.join()).outcome.ok());
  CHECK(patient.server() == first->epoch());
  first.reset();
  CHECK(comes_true([&] { return hasty.server() == second.epoch() && patient.server() == second.epoch(); }));
  options.replica = "late";
  worker_process late{shared, 9, options};  // is told which server it is
  CHECK(late.result(late.join()).outcome.ok());
  CHECK(late.server() == second.epoch());
}

}  // namespace

TEST_CASE("shells: the thread that admits clients goes on when there is no memory for what it says") {
  zmq::context_t context;
  zmq::socket_t router = detail::bounded_socket(context, zmq::socket_type::router);
  router.set(zmq::sockopt::rcvtimeo, 30'000);
  const curve_key_pair ours = make_curve_keys();
  const curve_key_pair good = make_curve_keys();
  std::atomic<int> said = 0;
  detail::curve_guard guard{context, router, {ours, {{good.public_key, client_rules{"good"}}}}, [&] {
                              if (++said <= 2) throw std::bad_alloc{};
                            }};
  router.bind("tcp://127.0.0.1:*");
  const auto connect = [&](const curve_key_pair& keys) {
    zmq::socket_t out = detail::bounded_socket(context, zmq::socket_type::dealer);
    out.set(zmq::sockopt::curve_serverkey, ours.public_key);
    out.set(zmq::sockopt::curve_publickey, keys.public_key);
    out.set(zmq::sockopt::curve_secretkey, keys.secret_key);
    out.connect(router.get(zmq::sockopt::last_endpoint));
    out.send(zmq::str_buffer("hello"), zmq::send_flags::none);
    return out;
  };
  std::vector<zmq::socket_t> strangers;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    strangers.push_back(connect(make_curve_keys()));
    CHECK(comes_true([&] { return guard.refused() >= i; }));
  }
  const zmq::socket_t friendly = connect(good);
  zmq::message_t from;
  zmq::message_t text;
  REQUIRE(router.recv(from));
  REQUIRE(router.recv(text));
  CHECK(text.to_string() == "hello");
  CHECK(said >= 3);
}

TEST_CASE("shells: what a signal's handler interrupts is called again, and other failures are not") {
  int calls = 0;
  CHECK(detail::uninterrupted([&] {
          if (++calls < 3) throw zmq::error_t{EINTR};
          return calls;
        }) == 3);
  CHECK_THROWS_AS(detail::uninterrupted([&]() -> int { throw zmq::error_t{EHOSTUNREACH}; }), zmq::error_t);
}

TEST_CASE("shells: many lines about one matter leave room for a line about another") {
  zmq::context_t context;
  zmq::socket_t router = detail::bounded_socket(context, zmq::socket_type::router);
  using guard_type = detail::curve_guard;
  guard_type guard{context, router, {make_curve_keys(), {}}, [] {}};
  for (int i = 0; i < 100; ++i) guard.note(guard_type::matter::handshake, "a handshake failed");
  guard.note(guard_type::matter::key, "refused a client");
  const std::vector<log_line> lines = guard.take_log();
  CHECK(lines.size() < 50);
  CHECK(lines.back().text == "refused a client");
}

TEST_CASE("server shell: what has come is answered together, and each worker's answers are in order") {
  std::atomic<const reference_server<>*> present = nullptr;
  std::atomic<std::uint64_t> most_at_once = 0;
  std::uint64_t seen = 0;
  std::uint64_t in_a_row = 0;
  reference_server_options options;
  options.catalog.recovery_grace = 0ms;  // an order about an unknown model is answered at once
  options.may_serve = [&] {              // before each message that is received, and before each that is sent
    const auto* const server = present.load();
    const std::uint64_t received = server == nullptr ? 0 : server->statistics().messages;
    in_a_row = received == std::exchange(seen, received) ? 0 : in_a_row + 1;
    if (in_a_row > most_at_once) most_at_once = in_a_row;
    std::this_thread::sleep_for(1ms);  // meanwhile more come
    return true;
  };
  const reference_server<> server{options};
  present = &server;
  raw_worker first{server.address()};
  raw_worker second{server.address()};
  std::uint64_t sequence = 0;
  const auto ask_all = [&] {
    const std::uint64_t begins = sequence;
    for (int i = 0; i < 4; ++i) {
      ++sequence;
      first.send(request(7, sequence, messages::manage_request{}));
      second.send(request(8, sequence, messages::manage_request{}));
    }
    for (std::uint64_t i = begins + 1; i <= sequence; ++i)
      for (raw_worker* each : {&first, &second}) CHECK(each->receive().sequence == request_sequence{i});
    return most_at_once > 2;
  };
  CHECK(comes_true(ask_all));
  present = nullptr;
}

TEST_CASE("server shell: as many connections may arrive at once as the kernel allows") {
  zmq::context_t context;
  const zmq::socket_t router = detail::bounded_socket(context, zmq::socket_type::router);
  CHECK(router.get(zmq::sockopt::backlog) == 4096);
}
