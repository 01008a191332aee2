/// \file security.cpp
/// CURVE on the control connection: who is let in, who is not and learns why, and that nobody else notices.

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <mutex>
#include <tensorhub/key_files.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/types/capability.hpp>
#include <tensorhub/types/incarnation_proof.hpp>
#include <thread>
#include <zmq.hpp>

#include "blake3_hub.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/service/codec.hpp"

using namespace system_tests;
using tensorhub::client_security;
using tensorhub::curve_key_pair;
using tensorhub::make_curve_keys;
using tensorhub::server_security;

namespace {

/// A secured server that lets one key in, and what it has logged.
class secured_server {
 public:
  explicit secured_server(std::chrono::milliseconds worker_timeout = 20s) : good{make_curve_keys()} {
    tensorhub::reference_server_options options;
    options.security = server_security{keys, {{good.public_key, "good"}}};
    options.catalog.worker_timeout = worker_timeout;
    options.log = [this](const tensorhub::log_line& line) {
      const std::lock_guard lock{mutex_};
      lines_.push_back(line.text);
    };
    server.emplace(options);
  }
  [[nodiscard]] bool has_said(const std::string& part, const std::string& other = {}) {
    const std::lock_guard lock{mutex_};
    return std::ranges::any_of(
        lines_, [&](const std::string& line) { return contains(line, part) && contains(line, other); });
  }
  [[nodiscard]] client_security as(const curve_key_pair& client) const {
    return {keys.public_key, client, true};
  }
  [[nodiscard]] tensorhub::worker_options options_of(const std::string& replica,
                                                     const curve_key_pair& client) const {
    auto options = who(server->address(), replica);
    options.security = as(client);
    return options;
  }
  /// For a server at another address, of the same keys, that lets this worker in.
  [[nodiscard]] tensorhub::reference_server_options twin_for(const tensorhub::worker_options& worker,
                                                             const std::string& address) const {
    tensorhub::reference_server_options options{.address = address};
    options.security = server_security{keys, {{worker.security->keys.public_key, {}}}};
    return options;
  }
  [[nodiscard]] tensorhub::reference_server_statistics seen() const { return server->statistics(); }

  curve_key_pair keys = make_curve_keys();
  curve_key_pair good;

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;

 public:
  std::optional<hub::reference_server> server;
};

/// Where a server was a moment ago.
[[nodiscard]] std::string free_address() {
  const hub::reference_server found_a_port;
  return found_a_port.address();
}

/// Publishes, reads it, and is told that it is version `version`.
void works(const secured_server& door, std::uint64_t version) {
  trainer source{door.options_of("trainer-" + std::to_string(version), door.good)};
  source.publish(version);
  rollout reader{door.options_of("rollout-" + std::to_string(version), door.good)};
  CHECK(reader.worker.update(exactly(version)).version == version);
  CHECK(reader.memory.holds(version));
  source.worker.unpublish();
}

[[nodiscard]] errc join_with(tensorhub::worker_options options, std::chrono::milliseconds within,
                             std::string& sentence) {
  options.join_timeout = within;
  rollout stranger{options, 100};
  return code_of([&] { stranger.worker.join(); }, &sentence);
}

/// A DEALER with keys of its own choice, which says what it likes.
class raw_client {
 public:
  raw_client(const secured_server& door, const curve_key_pair& keys)
      : socket_{context_, zmq::socket_type::dealer} {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, 20'000);
    socket_.set(zmq::sockopt::curve_serverkey, door.keys.public_key);
    socket_.set(zmq::sockopt::curve_publickey, keys.public_key);
    socket_.set(zmq::sockopt::curve_secretkey, keys.secret_key);
    socket_.connect(door.server->address());
  }
  void say(std::uint64_t sender, std::uint64_t sequence, tensorhub::messages::message body) {
    const auto frame = encoder_.encode({sender, {sequence}, {}, std::move(body)});
    socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none);
  }
  [[nodiscard]] tensorhub::messages::envelope hear() {
    zmq::message_t frame;
    REQUIRE(socket_.recv(frame).has_value());
    const auto decoded = decoder_.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
    REQUIRE(decoded.ok());
    return decoded.message;
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  tensorhub::encoder encoder_;
  tensorhub::decoder decoder_;
};

[[nodiscard]] std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

/// From another address of the loopback interface: another network, for a server.
[[nodiscard]] std::string from_elsewhere(const std::string& server) {
  return "tcp://127.0.0.2:0;" + server.substr(std::string_view{"tcp://"}.size());
}
/// A stranger from there, whose connection is tried at once.
class stranger_elsewhere {
 public:
  explicit stranger_elsewhere(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0x7f000002);
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    static_cast<void>(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  }
  [[nodiscard]] bool is_let_in() const {
    pollfd end{socket_.get(), POLLOUT, 0};
    return ::poll(&end, 1, 0) == 1 && (end.revents & POLLERR) == 0;
  }

 private:
  tensorhub::detail::unique_fd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
};

/// Breaks every TCP connection of this process to this port, as a network would. Returns their number.
std::size_t break_connections_to(std::uint16_t port) {
  std::size_t broken = 0;
  for (int each = 3; each < 1024; ++each) {
    sockaddr_in peer{};
    socklen_t bytes = sizeof peer;
    if (::getpeername(each, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) continue;
    if (peer.sin_family != AF_INET || ntohs(peer.sin_port) != port) continue;
    broken += ::shutdown(each, SHUT_RDWR) == 0 ? 1 : 0;
  }
  return broken;
}

class temporary_folder {
 public:
  temporary_folder() {
    std::string name = std::filesystem::temp_directory_path() / ("tensorhub-keys-" + std::string(6, 'X'));
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~temporary_folder() { std::filesystem::remove_all(path); }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("security: an allowed client publishes and updates") {
  const secured_server door;
  works(door, 1);
  CHECK(door.seen().refused_connections == 0);
  CHECK(door.seen().failed_handshakes == 0);
}

TEST_CASE("security: two servers in one process have two lists") {
  const secured_server one;
  const secured_server two;
  works(one, 1);
  works(two, 2);
  std::string sentence;
  auto options = two.options_of("rollout", one.good);
  CHECK(join_with(options, 20s, sentence) == errc::refused);
}

TEST_CASE("security: an unknown key is refused at once, by name; a good client goes on") {
  secured_server door;
  trainer source{door.options_of("trainer-0", door.good)};
  source.publish(1);
  const curve_key_pair unknown = make_curve_keys();
  std::string sentence;
  CHECK(join_with(door.options_of("stranger", unknown), 25s, sentence) == errc::refused);
  CHECK(contains(sentence, unknown.public_key));
  CHECK(contains(sentence, "allow-list"));
  CHECK(comes_true([&] { return door.has_said(unknown.public_key, "127.0.0.1"); }));
  CHECK(door.seen().refused_connections >= 1);
  CHECK(!door.has_said(unknown.secret_key));
  rollout reader{door.options_of("rollout-0", door.good)};
  CHECK(reader.worker.update().version == 1);

  door.server->allow(unknown.public_key, "not unknown any more");
  rollout late{door.options_of("stranger", unknown)};
  CHECK(late.worker.update().version == 1);
}

TEST_CASE("security: of a list of servers, one that refuses a key is believed if no other answers in time") {
  secured_server door;
  const curve_key_pair unknown = make_curve_keys();
  auto options = door.options_of("stranger", unknown);
  options.server_timeout = 300ms;
  // Nobody listens at the others.
  for (const std::string& servers :
       {door.server->address() + ",tcp://127.0.0.1:1", "tcp://127.0.0.1:1," + door.server->address(),
        "tcp://127.0.0.1:1," + door.server->address() + ",tcp://127.0.0.1:2"}) {
    CAPTURE(servers);
    options.server = servers;
    std::string sentence;
    CHECK(join_with(options, 3s, sentence) == errc::refused);
    CHECK(contains(sentence, "allow-list"));
    const bool is_first = servers.starts_with(door.server->address());
    options.server_timeout = 20s;  // only the first one of the list is tried
    CHECK(join_with(options, 2s, sentence) == (is_first ? errc::refused : errc::disconnected));
    CHECK(contains(sentence, "allow-list") == is_first);
    options.server_timeout = 300ms;
  }
}

TEST_CASE("security: a server that is gone refuses nobody any more") {
  std::optional<secured_server> door{std::in_place};
  auto options = door->options_of("stranger", make_curve_keys());
  options.server_timeout = 300ms;
  options.server = door->server->address() + ",tcp://127.0.0.1:1";
  options.join_timeout = 3s;
  rollout reader{options, 100};
  CHECK(code_of([&] { reader.worker.join(); }) == errc::refused);
  door.reset();
  std::string sentence;
  CHECK(code_of([&] { reader.worker.join(); }, &sentence) == errc::disconnected);
  CHECK_FALSE(contains(sentence, "allow-list"));
}

TEST_CASE("security: a worker that one server of a list refuses is admitted by another one that comes late") {
  secured_server door;
  const std::string later = free_address();
  auto options = door.options_of("rollout-0", make_curve_keys());
  options.server_timeout = 200ms;
  options.server = door.server->address() + "," + later;
  options.join_timeout = 30s;
  rollout reader{options, 100};
  auto joined = std::async(std::launch::async, [&] { return code_of([&] { reader.worker.join(); }); });
  CHECK(comes_true([&] { return door.seen().refused_connections >= 1; }));
  std::this_thread::sleep_for(1s);  // the other one has been tried in vain, too
  const hub::reference_server other{door.twin_for(options, later)};
  CHECK(joined.get() == errc::ok);
}

TEST_CASE("security: after a refusal by a list of servers, later calls try all of them again") {
  secured_server door;
  const std::string third = free_address();
  auto options = door.options_of("rollout-0", make_curve_keys());
  options.server_timeout = 400ms;
  options.server = door.server->address() + ",tcp://127.0.0.1:1," + third;
  options.join_timeout = 3s;
  rollout first{options, 100};
  CHECK(code_of([&] { first.worker.join(); }) == errc::refused);
  const hub::reference_server other{door.twin_for(options, third)};
  options.join_timeout = 25s;
  options.replica = "rollout-1";
  rollout second{options, 100};  // over the same connection, while the first one lives
  CHECK(code_of([&] { second.worker.join(); }) == errc::ok);
}

TEST_CASE("security: of a list of servers, one that refuses does not keep a worker from the next") {
  secured_server door;
  secured_server closed;
  auto options = door.options_of("rollout-0", door.good);
  options.server = closed.server->address() + "," + door.server->address();
  options.security->server_key = door.keys.public_key;
  trainer source{options};
  source.publish(1);
  CHECK(door.seen().workers == 1);
  CHECK(closed.seen().failed_handshakes >= 1);
}

TEST_CASE("security: the servers of a list may have a key each") {
  secured_server second;
  auto options = who({}, "trainer-0");
  std::optional<trainer> source;
  {
    secured_server first;
    first.server->allow(second.good.public_key);
    options.server = first.server->address() + "," + second.server->address();
    options.security =
        client_security{first.keys.public_key + ", " + second.keys.public_key, second.good, true};
    options.server_timeout = 300ms;
    source.emplace(options);
    source->memory.fill(1);
    source->worker.publish(1);
    CHECK(first.seen().workers == 1);
  }
  // The first is gone: the worker goes on with the second, which it knows by another key.
  CHECK(comes_true([&] { return second.seen().workers == 1; }));
  rollout reader{second.options_of("rollout-0", second.good)};
  CHECK(reader.worker.update(exactly(1)).version == 1);

  // Keys in the wrong order, or not as many as servers.
  std::string sentence;
  options.server = second.server->address();
  CHECK(code_of([&] { const hub::publisher worker{options}; }, &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "2 keys for 1 servers"));
  secured_server third;
  options.server = third.server->address() + "," + second.server->address();
  options.security->server_key = second.keys.public_key + "," + third.keys.public_key;
  CHECK(join_with(options, 1500ms, sentence) == errc::disconnected);
}

TEST_CASE("security: a wrong server key, no keys, keys for a plain server") {
  secured_server door;
  trainer source{door.options_of("trainer-0", door.good)};
  source.publish(1);
  std::string sentence;
  SUBCASE("the server has another key") {
    auto options = door.options_of("rollout-0", door.good);
    options.security->server_key = make_curve_keys().public_key;
    CHECK(join_with(options, 1500ms, sentence) == errc::disconnected);
    CHECK(contains(sentence, "either server_key ("));
    CHECK(comes_true([&] { return door.has_said("another public key", "127.0.0.1:"); }));
    CHECK(door.seen().failed_handshakes >= 1);
  }
  SUBCASE("the worker has none") {
    const errc code = join_with(who(door.server->address(), "rollout-0"), 1500ms, sentence);
    CHECK((code == errc::disconnected || code == errc::protocol_mismatch));
    CHECK(contains(sentence, "secured by CURVE"));
    CHECK(contains(sentence, "set the option security to its public key"));
    CHECK(comes_true([&] { return door.has_said("handshake", "failed"); }));
    CHECK(door.seen().failed_handshakes >= 1);
  }
  SUBCASE("the server has none") {
    hub::reference_server plain;
    auto options = who(plain.address(), "rollout-0");
    options.security = door.as(door.good);
    const errc code = join_with(options, 1500ms, sentence);
    CHECK((code == errc::disconnected || code == errc::protocol_mismatch));
    CHECK(contains(sentence, "not secured"));
  }
  rollout reader{door.options_of("rollout-1", door.good)};
  CHECK(reader.worker.update().version == 1);
}

TEST_CASE("security: a revoked key is not heard any more, and comes in no more") {
  secured_server door{1500ms};
  const curve_key_pair second = make_curve_keys();
  door.server->allow(second.public_key);
  trainer source{door.options_of("trainer-0", door.good)};
  source.publish(1);
  rollout reader{door.options_of("rollout-0", second)};
  CHECK(reader.worker.update().version == 1);
  CHECK(door.server->revoke(second.public_key));
  CHECK(!door.server->revoke(second.public_key));
  std::string sentence;
  CHECK(comes_true([&] { return code_of([&] { reader.worker.update(); }, &sentence) == errc::refused; }));
  CHECK(contains(sentence, "revoked"));
  CHECK(comes_true([&] { return door.seen().revoked_messages >= 1; }));
  CHECK(comes_true([&] { return door.has_said(second.public_key, "revoked"); }));
  CHECK(comes_true([&] { return door.seen().workers == 1; }));  // declared dead
  CHECK(join_with(door.options_of("rollout-1", second), 25s, sentence) == errc::refused);
  source.worker.unpublish();
  source.publish(2);
  rollout good{door.options_of("rollout-2", door.good)};
  CHECK(good.worker.update().version == 2);
}

TEST_CASE("security: an incarnation is proved to be its key's, to the next server as well") {
  secured_server next;
  const curve_key_pair second = make_curve_keys();
  next.server->allow(second.public_key, "another one");
  auto options = next.options_of("trainer-0", next.good);
  std::optional<trainer> source;
  raw_client forger{next, second};
  {
    secured_server first;
    first.server->allow(next.good.public_key);
    options.server = first.server->address() + "," + next.server->address();
    options.security->server_key = first.keys.public_key + "," + next.keys.public_key;
    options.server_timeout = 300ms;
    source.emplace(options);
    source->memory.fill(1);
    source->worker.publish(1);
    // To the next server the forger is the first to speak as this worker.
    const std::uint64_t victim = source->worker.self().value;
    forger.say(victim, 1, tensorhub::messages::list_request{});
    CHECK(holds_alternative<tensorhub::messages::list_reply>(forger.hear().body));
    tensorhub::messages::join_request join;
    join.model = "policy";
    join.replica = "trainer-0";
    forger.say(victim, 2, join);
    const auto answer = forger.hear();
    const auto* refused = get_if<tensorhub::messages::join_reply>(&answer.body);
    REQUIRE(refused != nullptr);
    CHECK(refused->result.code == errc::refused);
    CHECK(next.seen().forged_messages == 1);
  }
  CHECK(comes_true([&] { return next.seen().workers == 1; }));
  rollout reader{next.options_of("rollout-0", next.good)};
  CHECK(reader.worker.update(exactly(1), 20s).version == 1);
}

TEST_CASE("security: an incarnation belongs to the key that it came with") {
  secured_server door;
  const curve_key_pair second = make_curve_keys();
  door.server->allow(second.public_key, "another one");
  trainer source{door.options_of("trainer-0", door.good)};
  source.publish(1);
  const std::uint64_t victim = source.worker.self().value;
  raw_client forger{door, second};
  forger.say(victim, 1000, tensorhub::messages::leave_request{});
  forger.say(victim, 1001, tensorhub::messages::unpublish_request{1, 0, {}});
  forger.say(77, 1, tensorhub::messages::list_request{});  // in its own name: its messages are in order
  CHECK(holds_alternative<tensorhub::messages::list_reply>(forger.hear().body));
  CHECK(door.seen().forged_messages == 2);
  CHECK(
      comes_true([&] { return door.has_said(second.public_key, tensorhub::to_hex(source.worker.self())); }));
  rollout reader{door.options_of("rollout-0", door.good)};
  CHECK(reader.worker.update().version == 1);
}

namespace {

/// The join of a worker waits for the layout, for which others were asked.
class waiting_join {
 public:
  waiting_join() {
    door.server->allow(second.public_key, "another one");
    victim.say(77, 1, tensorhub::messages::list_request{});
    REQUIRE(holds_alternative<tensorhub::messages::list_reply>(victim.hear().body));  // its handshake is over
    // Three that are asked for the layout, and do not answer: the victim waits. (For half a second: a slow
    // machine tries it again, with another model.)
    for (std::uint64_t round = 1; round < 100; ++round) {
      model = "policy-" + std::to_string(round);
      for (const std::uint64_t number : {1u, 2u, 3u}) {
        other.say(self_of(second, number), round, join_of(number, false));
        REQUIRE(is_asked_for_layout(other.hear()));
      }
      victim.say(self, round, join_of(4, false));
      // A sign of life in the place of an answer: it waits.
      if (holds_alternative<tensorhub::messages::version_push>(victim.hear().body)) break;
    }
  }
  /// The layout comes.
  void tell() {
    other.say(self_of(second, 1), 1000, join_of(1, true));
    const auto heard = other.hear();
    REQUIRE(holds_alternative<tensorhub::messages::join_reply>(heard.body));
    CHECK_FALSE(is_asked_for_layout(heard));
  }
  [[nodiscard]] static bool is_asked_for_layout(const tensorhub::messages::envelope& said) {
    const auto* reply = get_if<tensorhub::messages::join_reply>(&said.body);
    REQUIRE(reply != nullptr);
    CHECK(reply->result.ok());
    return reply->wants_layout;
  }

  secured_server door;
  curve_key_pair second = make_curve_keys();
  raw_client victim{door, door.good};
  raw_client other{door, second};
  std::uint64_t self = self_of(door.good, 4);

 private:
  [[nodiscard]] static std::uint64_t self_of(const curve_key_pair& keys, std::uint64_t number) {
    return tensorhub::incarnation_of(keys.public_key, {number, 0}).value;
  }
  [[nodiscard]] tensorhub::messages::join_request join_of(std::uint64_t number, bool tells) const {
    const tensorhub::layout shape{{{"wq", tensorhub::dtype::f32, {8}}}};
    tensorhub::messages::join_request join;
    join.model = model;
    join.replica = "rollout-" + std::to_string(number);
    join.form.transport = "tcp";
    join.form.consistency = "group_consistent";
    join.form.integrity = "xxh3_128";
    join.proof = {number, 0};
    join.form.layout_digest = shape.digest();
    join.form.chunk_bytes = shape.chunk_bytes();
    join.form.chunk_count = shape.chunk_count();
    if (tells) join.form.tensors.assign(shape.tensors().begin(), shape.tensors().end());
    return join;
  }

  std::string model;
};

}  // namespace

TEST_CASE("security: a worker whose join waits for the layout is nobody else's") {
  waiting_join scene;
  scene.other.say(scene.self, 1000, tensorhub::messages::list_request{});
  scene.tell();
  CHECK_FALSE(waiting_join::is_asked_for_layout(scene.victim.hear()));
  CHECK(scene.door.seen().forged_messages == 1);
}

TEST_CASE("security: a join that waits is carried out with the rights that its key has by then") {
  waiting_join scene;
  SUBCASE("none, as the key was revoked") {
    REQUIRE(scene.door.server->revoke(scene.door.good.public_key));
    scene.tell();
  }
  SUBCASE("others") {
    scene.door.server->allow(scene.door.good.public_key,
                             tensorhub::client_rules_of("good replicas=trainer-*"));
    scene.tell();
    const auto heard = scene.victim.hear();
    const auto* reply = get_if<tensorhub::messages::join_reply>(&heard.body);
    REQUIRE(reply != nullptr);
    CHECK(reply->result.code == errc::refused);
  }
  scene.other.say(78, 1, tensorhub::messages::list_request{});  // what was counted until then is shown
  REQUIRE(holds_alternative<tensorhub::messages::list_reply>(scene.other.hear().body));
  CHECK(scene.door.seen().workers == 1);
}

TEST_CASE("security: workers that share a key do not speak for each other") {
  secured_server door;
  trainer source{door.options_of("trainer-0", door.good)};
  source.publish(1);
  const std::uint64_t victim = source.worker.self().value;
  raw_client twin{door, door.good};
  twin.say(victim, 1000, tensorhub::messages::leave_request{});
  twin.say(victim, 1001, tensorhub::messages::unpublish_request{1, 0, {}});
  twin.say(77, 1, tensorhub::messages::list_request{});  // in its own name: its messages are in order
  CHECK(holds_alternative<tensorhub::messages::list_reply>(twin.hear().body));
  CHECK(door.seen().forged_messages == 2);
  CHECK(comes_true(
      [&] { return door.has_said("another connection", tensorhub::to_hex(source.worker.self())); }));
  rollout reader{door.options_of("rollout-0", door.good)};
  CHECK(reader.worker.update().version == 1);
}

TEST_CASE("security: workers whose connections break go on under their names") {
  secured_server door;
  trainer source{door.options_of("trainer-0", door.good)};
  rollout reader{door.options_of("rollout-0", door.good)};
  const std::uint16_t port = port_of(door.server->address());
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source.publish(version);
    CHECK(break_connections_to(port) > 0);
    CHECK(reader.worker.update(exactly(version)).version == version);
    CHECK(break_connections_to(port) > 0);
    source.worker.unpublish();
  }
  CHECK(door.seen().workers == 2);
  CHECK(door.seen().forged_messages == 0);
}

TEST_CASE("security: a flood of strangers costs few lines, and nobody else anything") {
  std::atomic<std::size_t> lines = 0;
  const curve_key_pair keys = make_curve_keys();
  const curve_key_pair good = make_curve_keys();
  hub::reference_server server{
      {.security = server_security{keys, {{good.public_key, {}}}},
       .log = [&](const tensorhub::log_line& line) { lines += contains(line.text, "refused") ? 1 : 0; }}};
  const curve_key_pair bad = make_curve_keys();
  zmq::context_t context;
  std::vector<zmq::socket_t> strangers;
  for (int i = 0; i < 200; ++i) {
    zmq::socket_t& each = strangers.emplace_back(context, zmq::socket_type::dealer);
    each.set(zmq::sockopt::linger, 0);
    each.set(zmq::sockopt::curve_serverkey, keys.public_key);
    each.set(zmq::sockopt::curve_publickey, bad.public_key);
    each.set(zmq::sockopt::curve_secretkey, bad.secret_key);
    each.connect(from_elsewhere(server.address()));
  }
  CHECK(comes_true([&] { return server.statistics().refused_connections >= 128; }));
  auto options = who(server.address(), "trainer-0");
  options.security = client_security{keys.public_key, good, true};
  trainer source{options};
  source.publish(1);
  CHECK(lines >= 1);
  CHECK(lines < 150);
}

TEST_CASE("security: strangers that come again and again are not served, those who are members are") {
  secured_server door;
  trainer source{door.options_of("trainer-0", door.good)};
  rollout reader{door.options_of("rollout-0", door.good)};
  const std::uint16_t port = port_of(door.server->address());
  constexpr std::uint64_t strangers = 3000;
  constexpr std::uint64_t patient = 20;  // so many wait at the same time
  std::deque<stranger_elsewhere> present;
  std::uint64_t let_in = 0;
  for (std::uint64_t i = 1; i <= strangers; ++i) {
    let_in += present.emplace_back(port).is_let_in() ? 1 : 0;
    if (present.size() > patient) present.pop_front();
    // What waits in the kernel already cannot be turned away.
    if (i % 20 == 0)
      REQUIRE(comes_true([&] { return door.seen().failed_handshakes + patient + 20 >= let_in; }));
    if (i % 1000 == 500) {
      source.publish(i);
      CHECK(reader.worker.update(exactly(i)).version == i);
      source.worker.unpublish();
      rollout newcomer{door.options_of("rollout-" + std::to_string(i), door.good)};  // from another network
      newcomer.worker.join();
    }
    std::this_thread::sleep_for(1ms);
  }
  CHECK(door.seen().blocked_networks >= 1);
  CHECK(let_in >= 100);
  CHECK(door.seen().failed_handshakes < strangers / 2);
  // The door opens again, for a member at the strangers' address too.
  zmq::context_t context;
  zmq::socket_t neighbour{context, zmq::socket_type::dealer};
  neighbour.set(zmq::sockopt::linger, 0);
  neighbour.set(zmq::sockopt::curve_serverkey, door.keys.public_key);
  neighbour.set(zmq::sockopt::curve_publickey, door.good.public_key);
  neighbour.set(zmq::sockopt::curve_secretkey, door.good.secret_key);
  neighbour.connect(from_elsewhere(door.server->address()));
  neighbour.send(zmq::str_buffer("hello"), zmq::send_flags::none);
  CHECK(comes_true([&] { return door.seen().bad_frames == 1; }));
}

TEST_CASE("security: a member that sends messages without end loses its connection") {
  secured_server door;
  trainer source{door.options_of("trainer-0", door.good)};
  rollout reader{door.options_of("rollout-0", door.good)};
  zmq::context_t context;
  zmq::socket_t member{context, zmq::socket_type::dealer};
  member.set(zmq::sockopt::linger, 0);
  member.set(zmq::sockopt::sndtimeo, 20'000);
  member.set(zmq::sockopt::curve_serverkey, door.keys.public_key);
  member.set(zmq::sockopt::curve_publickey, door.good.public_key);
  member.set(zmq::sockopt::curve_secretkey, door.good.secret_key);
  member.connect(from_elsewhere(door.server->address()));
  SUBCASE("of one sender") {}
  SUBCASE("after questions of many senders that it has invented") {
    tensorhub::encoder encoder;
    for (std::uint64_t sender = 1; sender <= tensorhub::limits::workers_of_connection; ++sender) {
      const auto frame = encoder.encode({sender, {1}, {}, tensorhub::messages::list_request{}});
      REQUIRE(member.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none));
    }
  }
  const auto began = std::chrono::steady_clock::now();
  constexpr int frames = 200'000;
  for (int i = 0; i < frames && door.seen().flooding_connections == 0; ++i)
    REQUIRE(member.send(zmq::str_buffer("no message"), zmq::send_flags::none));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (door.seen().flooding_connections == 0 && frames < 30'000 * took.count())
    std::cout << "SKIPPED: system.security: messages without end: this machine is too slow for a flood\n";
  else
    CHECK(door.seen().flooding_connections > 0);
  source.publish(1);
  CHECK(reader.worker.update(exactly(1)).version == 1);
  CHECK(door.seen().workers == 2);
}

TEST_CASE("security: with keys, digests that a source can forge have to be named") {
  const secured_server door;
  auto options = door.options_of("rollout-0", door.good);
  options.security->trust_sources = false;
  std::string sentence;
  CHECK(code_of([&] { const hub::subscriber worker{options}; }, &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "'xxh3_128' is no defence against a source that forges bytes"));
  CHECK(contains(sentence, "replica rollout-0"));
  member<blake3_hub::publisher> source{options, 1000};
  source.publish(1);
  options.replica = "rollout-1";
  member<blake3_hub::subscriber> reader{options, 1000};
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.memory.holds(1));
}

TEST_CASE("security: keys that are none are refused before anything starts") {
  const curve_key_pair good = make_curve_keys();
  const auto refused = [](const server_security& security) {
    std::string sentence;
    const errc code = code_of([&] { hub::reference_server server{{.security = security}}; }, &sentence);
    for (const std::string& part : {security.keys.secret_key})
      CHECK((part.empty() || !contains(sentence, part)));
    return code;
  };
  CHECK(refused({}) == errc::invalid_argument);
  CHECK(refused({{good.public_key, good.public_key}, {}}) == errc::invalid_argument);
  CHECK(refused({good, {{"short", "x"}}}) == errc::invalid_argument);
  auto options = who("tcp://127.0.0.1:1", "trainer-0");
  options.security = client_security{"no key", good};
  std::string sentence;
  CHECK(code_of([&] { const hub::publisher worker{options}; }, &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "server_key"));
  hub::reference_server plain;
  CHECK(code_of([&] { plain.allow(good.public_key); }) == errc::invalid_argument);
  secured_server door;
  CHECK(code_of([&] { door.server->allow("no key"); }) == errc::invalid_argument);
}

TEST_CASE("security: a server that others reach says so if it has no keys") {
  std::mutex mutex;
  std::string text;
  const auto log = [&](const tensorhub::log_line& line) {
    const std::lock_guard lock{mutex};
    text += line.text;
  };
  const auto said = [&] {
    const std::lock_guard lock{mutex};
    return contains(text, "without security");
  };
  {
    hub::reference_server open{{.address = "tcp://0.0.0.0:0", .log = log}};
    CHECK(comes_true(said));
  }
  text.clear();
  const curve_key_pair keys = make_curve_keys();
  {
    hub::reference_server secured{
        {.address = "tcp://0.0.0.0:0", .security = server_security{keys, {}}, .log = log}};
    hub::reference_server local{{.log = log}};
  }
  CHECK(!said());
}

TEST_CASE("security: who knows address and keys of the memory, but has no lease, cannot read it") {
  std::atomic<int> lines = 0;
  hub::reference_server server;
  auto options = who(server.address(), "trainer-0");
  options.log = [&](const tensorhub::log_line& line) { lines += contains(line.text, "capability") ? 1 : 0; };
  member<worker_of_both_doors> source{options};
  source.publish(1);
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update().version == 1);

  const auto refused = [&](tensorhub::incarnation self, std::string capability) {
    tensorhub::transports::tcp stranger{{}, self};
    auto queue = stranger.make_queue(1);
    std::string sentence;
    CHECK(code_of(
              [&] {
                const tensorhub::transport_address where{source.worker.data().address().text, capability};
                static_cast<void>(stranger.connect(queue, where, source.worker.self(), 5s));
              },
              &sentence) == errc::transport_failed);
    return contains(sentence, "capability");
  };
  CHECK(refused({99}, {}));
  CHECK(refused(reader.worker.self(), {}));  // a reader's name alone is none
  const std::string own_key = tensorhub::random_capability_key();
  CHECK(refused({99}, tensorhub::make_capability(own_key, {99}, source.worker.self(), 1)));
  CHECK(source.worker.data().refused_connections() == 3);
  CHECK(comes_true([&] { return lines >= 1; }));

  source.worker.unpublish();
  source.publish(2);
  CHECK(reader.worker.update().version == 2);
}

TEST_CASE("security: who had a lease cannot read, nor come again, after the unpublish, with tcp") {
  // In its first seconds a server has every worker revoke its keys, in case there was an earlier server.
  hub::reference_server server{{.catalog = {.recovery_grace = 0ms}}};
  member<worker_of_both_doors> source{who(server.address(), "trainer-0")};
  source.publish(1);
  tensorhub::data_plane& data = source.worker.data();
  tensorhub::transports::tcp reader{{}, {99}};
  auto queue = reader.make_queue(1);
  const std::string lease = tensorhub::make_capability(data.capability_key(), {99}, source.worker.self(), 1);
  const auto connected = [&] {
    return reader.connect(queue, {data.address().text, lease}, source.worker.self(), 5s);
  };
  auto connection = connected();
  std::array<std::byte, 64> target{};
  const tensorhub::memory_range range{target.data(), target.size()};
  const auto region = reader.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  const auto read = [&](const tensorhub::remote_region& from) {
    const auto posted = queue.post_read(connection, region.front(), 0, {&from, 0, target.size()}, 7);
    REQUIRE(posted == tensorhub::post_result::posted);
    tensorhub::completion done{};
    while (queue.poll(std::span{&done, 1}) == 0) queue.wait(10ms);
    return done.status;
  };
  const auto first = data.control();
  CHECK(read(first) == tensorhub::completion_status::ok);
  source.worker.unpublish();
  CHECK(read(first) == tensorhub::completion_status::access_denied);
  source.publish(2);
  CHECK(read(first) == tensorhub::completion_status::access_denied);
  CHECK(read(data.control()) == tensorhub::completion_status::ok);
  CHECK(code_of([&] { static_cast<void>(connected()); }) == errc::transport_failed);
  CHECK(data.refused_connections() == 1);
  rollout other{who(server.address(), "rollout-0")};
  CHECK(other.worker.update().version == 2);
}

TEST_CASE("security: keys in files") {
  using namespace tensorhub;
  const temporary_folder folder;
  const curve_key_pair keys = make_curve_keys();
  write_curve_keys(folder.path / "keys", "server", keys);
  const auto secret = folder.path / "keys" / "server.secret";
  struct stat about {};
  REQUIRE(::stat(secret.c_str(), &about) == 0);
  CHECK((about.st_mode & 0777u) == 0600u);
  CHECK(read_curve_keys(secret).secret_key == keys.secret_key);
  CHECK(read_public_key(folder.path / "keys" / "server.public") == keys.public_key);

  std::string sentence;
  CHECK(code_of([&] { write_curve_keys(folder.path / "keys", "server", make_curve_keys()); }, &sentence) ==
        errc::system_failed);
  CHECK(contains(sentence, "not overwritten"));
  CHECK(read_curve_keys(secret).secret_key == keys.secret_key);
  REQUIRE(::chmod(secret.c_str(), 0644) == 0);
  CHECK(code_of([&] { static_cast<void>(read_curve_keys(secret)); }, &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "chmod 600"));
  CHECK(!contains(sentence, keys.secret_key));
}

TEST_CASE("security: an allow-list in a file") {
  using namespace tensorhub;
  const temporary_folder folder;
  const curve_key_pair keys = make_curve_keys();
  std::string sentence;
  const auto list = folder.path / "clients.allow";
  client_allow_list allowed{{keys.public_key, "all the rollouts"}, {make_curve_keys().public_key, ""}};
  for (int i = 0; i < 200; ++i) allowed.emplace(make_curve_keys().public_key, "n" + std::to_string(i));
  write_allow_list(list, allowed);
  bool is_counted = false;
  CHECK(read_allow_list(list, &is_counted) == allowed);
  CHECK(is_counted);
  const auto write = [&](const std::string& name, const std::string& text, ::mode_t mode) {
    std::ofstream{folder.path / name} << text;
    REQUIRE(::chmod((folder.path / name).c_str(), mode) == 0);
    return folder.path / name;
  };
  CHECK(code_of([&] { static_cast<void>(read_allow_list(write("a", "# x\nnokey name\n", 0644))); },
                &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "line 2"));
  const std::string line = keys.public_key + " rollouts models=policy-* may=read,serve\n";
  const client_allow_list ruled = read_allow_list(write("f", line, 0644), &is_counted);
  CHECK_FALSE(is_counted);
  CHECK(to_string(ruled.at(keys.public_key)) == "rollouts models=policy-* may=read,serve");
  CHECK(code_of([&] { static_cast<void>(read_allow_list(write("g", line + "# 2 keys\n", 0644))); },
                &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "says that it has 2 keys, and has 1"));
  CHECK(code_of(
            [&] { static_cast<void>(read_allow_list(write("h", keys.public_key + " x may=write\n", 0644))); },
            &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "line 1: 'may=write'"));
  CHECK(code_of([&] { static_cast<void>(read_allow_list(write("i", line, 0664))); }, &sentence) ==
        errc::invalid_argument);
  CHECK(contains(sentence, "written by others"));
  CHECK(code_of([&] {
          static_cast<void>(
              read_allow_list(write("b", std::string(limits::allow_list_bytes + 1, '#'), 0644)));
        }) == errc::limit_exceeded);
  CHECK(code_of([&] { static_cast<void>(read_curve_keys(write("c", "secret x\n", 0600))); }) ==
        errc::invalid_argument);
  CHECK(code_of([&] { static_cast<void>(read_curve_keys(write("d", "hello\n", 0600))); }) ==
        errc::invalid_argument);
  CHECK(code_of([&] { static_cast<void>(read_public_key(write("e", "hello\n", 0600))); }) ==
        errc::invalid_argument);
  CHECK(code_of([&] { static_cast<void>(read_public_key(folder.path / "nowhere")); }) == errc::system_failed);
  CHECK(code_of([&] { static_cast<void>(read_public_key(folder.path)); }) == errc::system_failed);
}

TEST_CASE("security: keys are not written where others write, and not by halves") {
  using namespace tensorhub;
  const temporary_folder folder;
  const curve_key_pair keys = make_curve_keys();
  const auto shared = folder.path / "shared";
  REQUIRE(::mkdir(shared.c_str(), 0700) == 0);
  std::string sentence;
  for (const ::mode_t mode : {0770u, 0707u, 01777u}) {
    REQUIRE(::chmod(shared.c_str(), mode) == 0);
    CHECK(code_of([&] { write_curve_keys(shared, "server", keys); }, &sentence) == errc::invalid_argument);
    CHECK(contains(sentence, "chmod go-w"));
    CHECK(std::filesystem::is_empty(shared));
  }
  REQUIRE(::chmod(shared.c_str(), 0755) == 0);
  // The file system takes only a part, as a full one does.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handled = ::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t bytes : {60u, 95u}) {  // of the secret, or of nothing but the end of it
    const rlimit little{bytes, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &little) == 0);
    const errc code = code_of([&] { write_curve_keys(shared, "server", keys); }, &sentence);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(code == errc::system_failed);
    CHECK(contains(sentence, "cannot be written"));
    CHECK(std::filesystem::is_empty(shared));
  }
  ::signal(SIGXFSZ, handled);
  REQUIRE(::mkdir((shared / "server.public").c_str(), 0700) == 0);  // the second file cannot be made
  CHECK(code_of([&] { write_curve_keys(shared, "server", keys); }) == errc::system_failed);
  CHECK_FALSE(std::filesystem::exists(shared / "server.secret"));
  std::filesystem::remove(shared / "server.public");
  write_curve_keys(shared, "server", keys);
  CHECK(read_curve_keys(shared / "server.secret").secret_key == keys.secret_key);
}
